"""The catalogue of data sets: their files, and where these are published.

The data folder holds one folder per data set, named after it, with the official file names inside:
`mnist/train-images-idx3-ubyte.gz`, `cifar10/cifar-10-batches-bin/data_batch_1.bin`, `ptb/ptb.train.txt` and so on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import UserError, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A file that a loader reads: its path inside the data set's folder, its size in bytes and its sha256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """A published file: its addresses, tried in order, and its size and checksums.

    Args:
        name: of the file in the data set's folder.
        urls: http or https addresses of equal content.
        size: in bytes.
        sha256: checked if known.
        md5: checked if known; some publishers give nothing else.
        members: for a tar archive, pairs (name in the archive, path of the `DataFile`); nothing else is extracted.
            Empty if the download itself is the file.
    """

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str | None = None
    md5: str | None = None
    members: tuple[tuple[str, str], ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the data files that it contains."""
        return tuple(path for _, path in self.members) or (self.name,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A data set: what it is, its files, and how to get them.

    Args:
        name: also the name of its folder inside the data folder.
        title: for display.
        page: where it is described and published.
        files: checked by `files.verify`.
        downloads: fetched by `files.fetch`; empty if there is nothing to fetch.
        splits: the splits that a user's own folder of images must have.
        alternatives: folders or files of another published layout that the loader reads if `files` are absent.
        note: what a user should know before fetching or using it.
    """

    name: str
    title: str
    page: str
    files: tuple[DataFile, ...] = ()
    downloads: tuple[Download, ...] = ()
    splits: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    note: str = ""


def data_folder(option: Path | None = None) -> Path:
    """Return the data folder: the option, else ISOTHERM_DATA, else `isotherm` in the user's cache.

    The user's cache is $XDG_CACHE_HOME, or `~/.cache` where that is not set.
    """
    if option is not None:
        return Path(option).expanduser()
    if given := os.environ.get("ISOTHERM_DATA"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isotherm"


def get_dataset(name: str) -> Dataset:
    """Return a data set of the catalogue by name."""
    if name not in DATASETS:
        raise UserError(f"unknown data set {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]


def _mnist() -> Dataset:
    files = (
        DataFile(
            path="train-images-idx3-ubyte.gz",
            size=9_912_422,
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        DataFile(
            path="train-labels-idx1-ubyte.gz",
            size=28_881,
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        DataFile(
            path="t10k-images-idx3-ubyte.gz",
            size=1_648_877,
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        DataFile(
            path="t10k-labels-idx1-ubyte.gz",
            size=4_542,
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
    return Dataset(
        name="mnist",
        title="MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 × 28 grey",
        page="http://yann.lecun.com/exdb/mnist/",
        files=files,
        downloads=tuple(
            Download(
                name=file.path,
                urls=tuple(f"{mirror}/{file.path}" for mirror in mirrors),
                size=file.size,
                sha256=file.sha256,
            )
            for file in files
        ),
        alternatives=tuple(file.path.removesuffix(".gz") for file in files),
        note="The publisher's own server often refuses downloads; two mirrors hold the same bytes.",
    )


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def _cifar10() -> Dataset:
    sums = {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }
    files = tuple(
        DataFile(path=f"cifar-10-batches-bin/{name}", size=30_730_000, sha256=sha256) for name, sha256 in sums.items()
    )
    return Dataset(
        name="cifar10",
        title="CIFAR-10: 50,000 training and 10,000 test images in 10 classes, 32 × 32 colour",
        page=_CIFAR_PAGE,
        files=files,
        downloads=(
            Download(
                name="cifar-10-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                size=170_052_171,
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                members=tuple((file.path, file.path) for file in files),
            ),
        ),
        alternatives=("cifar-10-batches-py",),
    )


def _cifar100() -> Dataset:
    # Published checksums; unlike those of the other data sets, they were not recomputed from the files.
    sums = {
        "train.bin": (153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        "test.bin": (30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    }
    files = tuple(
        DataFile(path=f"cifar-100-binary/{name}", size=size, sha256=sha256) for name, (size, sha256) in sums.items()
    )
    return Dataset(
        name="cifar100",
        title="CIFAR-100: 50,000 training and 10,000 test images in 100 classes, 32 × 32 colour",
        page=_CIFAR_PAGE,
        files=files,
        downloads=(
            Download(
                name="cifar-100-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                size=168_513_733,
                sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                md5="03b5dce01913d631647c71ecec9e9cb8",
                members=tuple((file.path, file.path) for file in files),
            ),
        ),
        alternatives=("cifar-100-python",),
    )


def _ptb() -> Dataset:
    files = (
        DataFile(
            path="ptb.train.txt",
            size=5_101_618,
            sha256="fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        ),
        DataFile(
            path="ptb.valid.txt",
            size=399_782,
            sha256="c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        ),
        DataFile(
            path="ptb.test.txt",
            size=449_945,
            sha256="dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        ),
    )
    return Dataset(
        name="ptb",
        title="Penn TreeBank by words, as prepared by Mikolov: 929,589 training tokens, vocabulary 10,000",
        page="http://www.fit.vutbr.cz/~imikolov/rnnlm/",
        files=files,
        downloads=(
            Download(
                name="simple-examples.tgz",
                urls=(
                    "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                    "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                ),
                size=34_869_662,
                md5="30177ea32e27c525793142b6bf2c8e2d",
                members=tuple((f"simple-examples/data/{file.path}", file.path) for file in files),
            ),
        ),
        note=(
            "The text comes from the Wall Street Journal corpus of the Linguistic Data Consortium and has no open "
            "licence: see that you may use it, and do not pass it on."
        ),
    )


def _imagenet() -> Dataset:
    return Dataset(
        name="imagenet",
        title="ImageNet (ILSVRC 2012): 1,281,167 training and 50,000 validation images in 1,000 classes",
        page="https://www.image-net.org/download.php",
        splits=("train", "val"),
        note=(
            "Its terms ask every user to register, so nothing is fetched: bring train/<class>/*.JPEG and "
            "val/<class>/*.JPEG, or the shards train-*.tar and val-*.tar."
        ),
    )


def _mnist1d() -> Dataset:
    return Dataset(
        name="mnist1d",
        title="MNIST-1D: 4,000 training and 1,000 test examples of 40 values in 10 classes",
        page="https://github.com/greydanus/mnist1d",
        note="Generated in about a second; there is nothing to fetch.",
    )


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset for dataset in (_mnist1d(), _mnist(), _cifar10(), _cifar100(), _ptb(), _imagenet())
}
