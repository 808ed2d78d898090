"""The table of built-in models by name."""

from __future__ import annotations

from functools import partial
from typing import Any

from isotherm.models import (
    autoencoder,
    gpt,
    lstm,
    mlp,
    resnet50,
    wide_resnet,
)  # modules: none is hidden by its function

MODELS: dict[str, partial[Any]] = {
    "mlp_40_100_100_10": partial(mlp.mlp, (40, 100, 100, 10)),
    "wrn16x4_cifar10": partial(wide_resnet.wide_resnet, depth=16, width=4, num_classes=10),
    "wrn16x4_skipinit_cifar10": partial(
        wide_resnet.wide_resnet, depth=16, width=4, num_classes=10, normalisation="skip_init", drop_probability=0.6
    ),
    "wrn28x10_cifar100": partial(wide_resnet.wide_resnet, depth=28, width=10, num_classes=100),
    "wrn28x10_skipinit_cifar100": partial(
        wide_resnet.wide_resnet, depth=28, width=10, num_classes=100, normalisation="skip_init", drop_probability=0.6
    ),
    "resnet50_imagenet": partial(resnet50.resnet50, num_classes=1000),
    "lstm_ptb": partial(lstm.LSTMLanguageModel, vocabulary=10_000, width=650, num_layers=2),
    "gpt_text": partial(gpt.GPT, vocabulary=40),  # the characters of the text that comes with the package
    "autoencoder_mnist": partial(autoencoder.autoencoder, units="tanh"),
}
