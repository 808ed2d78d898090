"""The published data, if ISOTHERM_DATA names a folder that has them."""

import os
from pathlib import Path

import pytest
import torch

from isotherm.data import cifar, mnist, ptb
from isotherm.data.catalogue import DATASETS
from isotherm.data.files import fetch, verify

pytestmark = pytest.mark.real_data


def folder_with(name: str) -> Path:
    given = os.environ.get("ISOTHERM_DATA")
    if not given or not (Path(given) / name).is_dir():
        pytest.skip(f"ISOTHERM_DATA names no folder with {name}")
    return Path(given)


@pytest.mark.parametrize("name", [name for name, dataset in DATASETS.items() if dataset.files])
def test_checksums(name: str) -> None:
    folder = folder_with(name)
    assert [s.sentence for s in verify(DATASETS[name], folder) if not s.ok] == []
    assert all(s.ok for s in fetch(DATASETS[name], folder))  # nothing to do, so no network is needed


def test_mnist() -> None:
    (images, labels), (test_images, test_labels) = mnist.load(folder_with("mnist"))
    assert (images.shape, test_images.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert images.float().mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert images.float().std() / 255 == pytest.approx(0.3081, abs=5e-5)
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_cifar10() -> None:
    (images, labels), (test_images, test_labels) = cifar.load(folder_with("cifar10"), num_classes=10)
    assert (images.shape, test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    channels = torch.stack([images[:, channel].float().mean() for channel in range(3)])
    torch.testing.assert_close(channels, torch.tensor([125.3, 123.0, 113.9]), atol=0.06, rtol=0)
    assert labels.bincount().tolist() == [5000] * 10
    assert test_labels.bincount().tolist() == [1000] * 10
    assert labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile


def test_cifar100() -> None:
    (images, labels), (test_images, test_labels) = cifar.load(folder_with("cifar100"), num_classes=100)
    assert (images.shape, test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert labels.bincount().tolist() == [500] * 100
    assert test_labels.bincount().tolist() == [100] * 100


def test_ptb() -> None:
    corpus = ptb.load(folder_with("ptb"))
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (929_589, 73_760, 82_430)
    assert len(corpus.vocabulary) == 10_000
    assert corpus.num_unknown == {"train": 0, "valid": 0, "test": 0}
    assert corpus.vocabulary[:3] == ("the", "<unk>", "<eos>")
    assert int((corpus.train == 2).sum()) == 42_068  # sentences
    assert [corpus.vocabulary[i] for i in corpus.train[:3]] == ["aer", "banknote", "berlitz"]
    counts = corpus.train.bincount(minlength=10_000)
    assert bool((counts[1:] <= counts[:-1]).all())
    assert int(counts.min()) >= 1
