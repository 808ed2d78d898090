"""Built-in tasks: the quickstart's, the paper's, and a transformer on text.

Their results are stored under the names and versions in `DEFINITIONS`. Raise a version whenever its task gives
different numbers; tests/tasks/test_builtin.py pins them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from isotherm.data import catalogue, cifar, mnist, mnist1d, ptb, synthetic, text
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.errors import UserError, closest, nearest
from isotherm.models import MODELS
from isotherm.tasks.definition import Definition, arguments_of
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

# Mean and standard deviation of the training pixels, 0 to 255.
_CIFAR10 = CropAndFlip(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))
_CIFAR100 = CropAndFlip(mean=(129.3, 124.1, 112.4), std=(68.2, 65.4, 70.4))
# Images are cropped and flipped when they are decoded.
_IMAGENET = CropAndFlip(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), pad=0, flip=False)


def _define(name: str, *, version: int, model: str | None = None, **fields: Any) -> Definition:
    return Definition(name=name, version=version, model=MODELS[model or name], **fields)


DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        _define("mlp_mnist1d", version=1, model="mlp_40_100_100_10"),
        _define("autoencoder_mnist", version=1, loss="half_squared_error", metric="squared_error", transform=Scaled()),
        _define("lstm_ptb", version=1, metric="perplexity", unroll=35),
        _define("gpt_text", version=1, metric="perplexity", window="context"),
        _define("wrn16x4_cifar10", version=1, transform=_CIFAR10),
        _define("wrn16x4_skipinit_cifar10", version=1, transform=_CIFAR10),
        _define("wrn28x10_cifar100", version=1, transform=_CIFAR100),
        _define("wrn28x10_skipinit_cifar100", version=1, transform=_CIFAR100),
        _define("resnet50_imagenet", version=1, transform=_IMAGENET),
    )
}
# Defaults of a sweep, where they are not those of every task; part of a run's settings, not of the definition.
_WIDE_RESNET = {"l2": 5e-4, "precision": "mixed"}
_TRAINING: dict[str, dict[str, Any]] = {
    "autoencoder_mnist": {"l2": 1e-5, "l2_scope": "all"},
    "lstm_ptb": {"clip_norm": 5.0, "precision": "mixed"},
    "wrn16x4_cifar10": _WIDE_RESNET,
    "wrn16x4_skipinit_cifar10": _WIDE_RESNET,
    "wrn28x10_cifar100": _WIDE_RESNET,
    "wrn28x10_skipinit_cifar100": _WIDE_RESNET,
    "resnet50_imagenet": {"l2": 1e-4, "precision": "mixed"},
}


def built_in(
    name: str, *, train: Split, test: Split, validation: Split | None = None, notes: tuple[str, ...] = (), **model: Any
) -> Task:
    """Return a built-in task on the given data; further arguments go to its model builder."""
    definition = DEFINITIONS[name]
    return Task(
        name=name,
        definition=definition,
        model=partial(definition.model, **model),
        train=train,
        test=test,
        validation=validation,
        loss=definition.loss,
        metric=definition.metric,
        transform=definition.transform,
        unroll=definition.unroll,
        notes=notes,
        **_TRAINING.get(name, {}),
    )


def _mlp_mnist1d(folder: Path | None) -> Task:
    train, test = mnist1d.load() if folder is not None else synthetic.vectors(num_features=40, num_classes=10)
    return built_in("mlp_mnist1d", train=train, test=test)


def _wide_resnet(name: str, num_classes: Literal[10, 100]) -> Callable[[Path | None], Task]:
    def load(folder: Path | None) -> Task:
        if folder is None:
            train, test = synthetic.images(num_train=50_000, shape=(3, 32, 32), num_classes=num_classes)
        else:
            train, test = cifar.load(folder, num_classes=num_classes)
        return built_in(name, train=train, test=test)

    return load


def _resnet50_imagenet(folder: Path | None) -> Task:
    train: Split
    test: Split
    if folder is None:
        train, test = synthetic.images(num_train=2_048, shape=(3, 224, 224), num_classes=1_000)
    else:
        from isotherm.data import imagenet  # needs Pillow

        train, test = imagenet.load(folder)
    return built_in("resnet50_imagenet", train=train, test=test)


def _lstm_ptb(folder: Path | None) -> Task:
    corpus = (
        synthetic.text(num_words=10_000, num_tokens=(929_589, 73_760, 82_430)) if folder is None else ptb.load(folder)
    )
    train, validation, test = ((tokens[:-1], tokens[1:]) for tokens in (corpus.train, corpus.valid, corpus.test))
    return built_in(
        "lstm_ptb",
        train=train,
        validation=validation,
        test=test,
        notes=_unknown_words(corpus.num_unknown),
        vocabulary=len(corpus.vocabulary),
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


def _gpt_text(path: Path | None) -> Task:
    """Return the task on a text file; a folder holds other tasks' data, and the text is that of the package."""
    is_given = path is not None and path != catalogue.data_folder()
    if path is not None and is_given and not path.exists():
        raise UserError(
            f"there is no text {path}{_meant(path)}; give --data a text file, or leave it out for the package's own "
            "text"
        )
    notes = (f"{path} is a folder, so gpt_text has the package's own text; give --data a text file for another",)
    is_text = path is not None and path.exists() and not path.is_dir()
    corpus = text.load(path if is_text else None)  # what is no file is refused there
    definition = DEFINITIONS["gpt_text"]
    context = arguments_of(definition.model)["context"]
    train, test = (
        text.windows(tokens, context, part=part) for part, tokens in (("training", corpus.train), ("test", corpus.test))
    )
    return built_in(
        "gpt_text",
        train=train,
        test=test,
        notes=notes if is_given and not is_text else (),
        vocabulary=len(corpus.vocabulary),
    )


def _meant(path: Path) -> str:
    """Return which file of the same folder was probably meant, as words to append."""
    try:
        meant = closest(path.name, [other.name for other in path.parent.iterdir()])
    except OSError:  # there is no such folder, or it may not be looked at
        return ""
    return f"; did you mean {str(path.parent / meant)!r}?" if meant else ""


def _autoencoder_mnist(folder: Path | None) -> Task:
    make_synthetic = partial(synthetic.images, num_train=60_000, shape=(784,), num_classes=10)
    images = make_synthetic() if folder is None else mnist.load(folder)
    train, test = ((pixels.flatten(1), pixels.flatten(1)) for pixels, _ in images)
    return built_in("autoencoder_mnist", train=train, test=test)


# Builders of the tasks from the data folder, or from synthetic data of the same shape if it is None.
TASKS: dict[str, Callable[[Path | None], Task]] = {
    "mlp_mnist1d": _mlp_mnist1d,
    "autoencoder_mnist": _autoencoder_mnist,
    "lstm_ptb": _lstm_ptb,
    "gpt_text": _gpt_text,
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
        data: the folder that holds the data sets; by default `ISOTHERM_DATA`, or the user's cache. For `gpt_text` it
            may be a text file.
    """
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(str(name), TASKS)}; or make your own isotherm.Task")
    return TASKS[name](catalogue.data_folder(None if data is None else Path(data)))


def made_task(name: str) -> Task:
    """Return a built-in task on synthetic data of the right shape, for timing only."""
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name](None)
