"""The tasks that have a name: the quickstart's and the paper's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from isotherm.data import catalogue, cifar, mnist, mnist1d, ptb, synthetic
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.errors import UserError, nearest
from isotherm.models import MODELS
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.tasks.task import Split, Task

# Mean and standard deviation of the training pixels, 0 to 255.
_CIFAR_PIXELS = {
    10: ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    100: ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}
_IMAGENET_PIXELS = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def _mlp_mnist1d(folder: Path | None) -> Task:
    train, test = mnist1d.load() if folder is not None else synthetic.vectors(num_features=40, num_classes=10)
    return Task(name="mlp_mnist1d", model=MODELS["mlp_40_100_100_10"], train=train, test=test)


def _wide_resnet(name: str, num_classes: Literal[10, 100]) -> Callable[[Path | None], Task]:
    def load(folder: Path | None) -> Task:
        if folder is None:
            train, test = synthetic.images(num_train=50_000, shape=(3, 32, 32), num_classes=num_classes)
        else:
            train, test = cifar.load(folder, num_classes=num_classes)
        mean, std = _CIFAR_PIXELS[num_classes]
        transform = CropAndFlip(mean=mean, std=std)
        return Task(
            name=name, model=MODELS[name], train=train, test=test, transform=transform, l2=5e-4, precision="mixed"
        )

    return load


def _resnet50_imagenet(folder: Path | None) -> Task:
    train: Split
    test: Split
    if folder is None:
        train, test = synthetic.images(num_train=2_048, shape=(3, 224, 224), num_classes=1_000)
    else:
        from isotherm.data import imagenet  # needs Pillow

        train, test = imagenet.load(folder)
    mean, std = _IMAGENET_PIXELS
    return Task(
        name="resnet50_imagenet",
        model=MODELS["resnet50_imagenet"],
        train=train,
        test=test,
        transform=CropAndFlip(mean=mean, std=std, pad=0, flip=False),  # cropped and flipped when decoded
        l2=1e-4,
        precision="mixed",
    )


def _lstm_ptb(folder: Path | None) -> Task:
    corpus = (
        synthetic.text(num_words=10_000, num_tokens=(929_589, 73_760, 82_430)) if folder is None else ptb.load(folder)
    )
    train, validation, test = ((tokens[:-1], tokens[1:]) for tokens in (corpus.train, corpus.valid, corpus.test))
    return Task(
        name="lstm_ptb",
        model=partial(LSTMLanguageModel, vocabulary=len(corpus.vocabulary)),
        train=train,
        validation=validation,
        test=test,
        metric="perplexity",
        unroll=35,
        clip_norm=5.0,
        precision="mixed",
        notes=_unknown_words(corpus.num_unknown),
    )


def _unknown_words(num_unknown: dict[str, int]) -> tuple[str, ...]:
    """Return a sentence for every file with words that its vocabulary lacks.

    >>> _unknown_words({"train": 0, "valid": 1, "test": 1200})[1]
    '1,200 words of ptb.test.txt are not in the vocabulary and read as <unk>'
    """
    return tuple(
        f"{num:,} {'word' if num == 1 else 'words'} of ptb.{split}.txt {'is' if num == 1 else 'are'} not in the "
        "vocabulary and read as <unk>"
        for split, num in num_unknown.items()
        if num
    )


def _autoencoder_mnist(folder: Path | None) -> Task:
    made_up = partial(synthetic.images, num_train=60_000, shape=(784,), num_classes=10)
    images = made_up() if folder is None else mnist.load(folder)
    splits = [(pixels.flatten(1), pixels.flatten(1)) for pixels, _ in images]
    return Task(
        name="autoencoder_mnist",
        model=MODELS["autoencoder_mnist"],
        train=splits[0],
        test=splits[1],
        loss="half_squared_error",
        transform=Scaled(),
        l2=1e-5,
        l2_scope="all",
    )


# From the folder with the data, or, with None, on made-up data of the same shape.
TASKS: dict[str, Callable[[Path | None], Task]] = {
    "mlp_mnist1d": _mlp_mnist1d,
    "autoencoder_mnist": _autoencoder_mnist,
    "lstm_ptb": _lstm_ptb,
    "wrn16x4_cifar10": _wide_resnet("wrn16x4_cifar10", 10),
    "wrn16x4_skipinit_cifar10": _wide_resnet("wrn16x4_skipinit_cifar10", 10),
    "wrn28x10_cifar100": _wide_resnet("wrn28x10_cifar100", 100),
    "wrn28x10_skipinit_cifar100": _wide_resnet("wrn28x10_skipinit_cifar100", 100),
    "resnet50_imagenet": _resnet50_imagenet,
}


def get_task(name: str, *, data: Path | str | None = None) -> Task:
    """Return a built-in task by name.

    Args:
        name: one of `TASKS`.
        data: the folder that holds the datasets; by default `ISOTHERM_DATA`, or the user's cache.
    """
    if name not in TASKS:
        raise UserError(
            f"unknown task {name!r}; {nearest(name, TASKS)}; or 'module:function' returning an isotherm.Task"
        )
    return TASKS[name](catalogue.data_folder(None if data is None else Path(data)))


def made_task(name: str) -> Task:
    """Return a built-in task on made-up data of the right shape: good for timing, for nothing else."""
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name](None)
