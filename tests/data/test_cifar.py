import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch

from isotherm.data import cifar, restricted_pickle
from isotherm.errors import UserError

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]
BINARY = {10: "cifar10/cifar-10-batches-bin", 100: "cifar100/cifar-100-binary"}
PYTHON = {10: "cifar10/cifar-10-batches-py", 100: "cifar100/cifar-100-python"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "NUM_EXAMPLES", {"train": 20, "test": 3})


def made(num_classes: int) -> Arrays:
    generator = np.random.default_rng(num_classes)
    return {
        split: (
            generator.integers(256, size=(n, 3, 32, 32), dtype=np.uint8),
            generator.permutation(np.arange(num_classes, dtype=np.uint8).repeat(2))[:n],
        )
        for split, n in (("train", 20), ("test", 3))
    }


def pieces(arrays: Arrays, num_classes: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if num_classes == 100:
        return arrays
    images, labels = arrays["train"]
    batches = {f"data_batch_{i + 1}": (images[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4]) for i in range(5)}
    return batches | {"test_batch": arrays["test"]}


def write_binary(folder: Path, num_classes: int) -> Arrays:
    arrays = made(num_classes)
    own = folder / BINARY[num_classes]
    own.mkdir(parents=True)
    for name, (images, labels) in pieces(arrays, num_classes).items():
        columns = [labels[:, None], images.reshape(len(images), -1)]
        if num_classes == 100:
            columns.insert(0, 19 - labels[:, None] // 5)  # the coarse label, first
        (own / f"{name}.bin").write_bytes(np.concatenate(columns, axis=1).astype(np.uint8).tobytes())
    return arrays


def write_python(folder: Path, num_classes: int, *, keys: type = bytes, protocol: int = 2) -> Arrays:
    arrays = made(num_classes)
    own = folder / PYTHON[num_classes]
    own.mkdir(parents=True)
    for name, (images, labels) in pieces(arrays, num_classes).items():
        content = {
            "data": images.reshape(len(images), -1),
            "labels" if num_classes == 10 else "fine_labels": labels.tolist(),
            "coarse_labels": [0] * len(labels),
            "filenames": [b"x.png"] * len(labels),
        }
        named = {key.encode() if keys is bytes else key: value for key, value in content.items()}
        (own / name).write_bytes(pickle.dumps(named, protocol=protocol))
    return arrays


def check(folder: Path, num_classes: int, arrays: Arrays) -> None:
    for (images, labels), split in zip(cifar.load(folder, num_classes=num_classes), ("train", "test"), strict=True):  # type: ignore[arg-type]
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        np.testing.assert_array_equal(images.numpy(), arrays[split][0])
        np.testing.assert_array_equal(labels.numpy(), arrays[split][1])


@pytest.mark.parametrize("num_classes", [10, 100])
class TestLayouts:
    def test_binary(self, tmp_path: Path, num_classes: int) -> None:
        check(tmp_path, num_classes, write_binary(tmp_path, num_classes))

    @pytest.mark.parametrize("keys", [bytes, str])
    @pytest.mark.parametrize("protocol", [0, 2, 4])
    def test_python(self, tmp_path: Path, num_classes: int, keys: type, protocol: int) -> None:
        check(tmp_path, num_classes, write_python(tmp_path, num_classes, keys=keys, protocol=protocol))

    def test_binary_comes_first(self, tmp_path: Path, num_classes: int) -> None:
        write_python(tmp_path, num_classes)
        for path in (tmp_path / PYTHON[num_classes]).iterdir():
            path.write_bytes(b"unreadable")
        check(tmp_path, num_classes, write_binary(tmp_path, num_classes))

    def test_a_missing_file_is_named_not_replaced_by_the_other_layout(self, tmp_path: Path, num_classes: int) -> None:
        write_binary(tmp_path, num_classes)
        write_python(tmp_path, num_classes)
        name = "data_batch_3.bin" if num_classes == 10 else "train.bin"
        (tmp_path / BINARY[num_classes] / name).unlink()
        with pytest.raises(UserError, match=rf"{name} is missing; run `isotherm data fetch cifar{num_classes}`"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]

    def test_a_missing_pickle(self, tmp_path: Path, num_classes: int) -> None:
        write_python(tmp_path, num_classes)
        name = "test_batch" if num_classes == 10 else "test"
        (tmp_path / PYTHON[num_classes] / name).unlink()
        with pytest.raises(UserError, match=rf"{name} is missing; run `isotherm data fetch cifar{num_classes}`"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]

    def test_nothing_there(self, tmp_path: Path, num_classes: int) -> None:
        with pytest.raises(UserError, match=rf"cifar{num_classes} does not exist; .*--data .*ISOTHERM_DATA"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]
        (tmp_path / f"cifar{num_classes}").mkdir()
        with pytest.raises(UserError, match=rf"\.bin is missing; run `isotherm data fetch cifar{num_classes}`"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]

    def test_size_is_no_multiple_of_the_record(self, tmp_path: Path, num_classes: int) -> None:
        write_binary(tmp_path, num_classes)
        path = next(p for p in (tmp_path / BINARY[num_classes]).iterdir() if "test" in p.name)
        path.write_bytes(path.read_bytes()[:-1])
        record = 3072 + (1 if num_classes == 10 else 2)
        message = rf"{path.name} has {3 * record - 1:,} bytes, expected a multiple of {record:,}"
        with pytest.raises(UserError, match=message):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]
        path.write_bytes(b"")
        with pytest.raises(UserError, match=rf"{path.name} has 0 bytes"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]

    def test_another_number_of_images(self, tmp_path: Path, num_classes: int) -> None:
        write_binary(tmp_path, num_classes)
        path = next(p for p in (tmp_path / BINARY[num_classes]).iterdir() if "test" in p.name)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 3 * 2])
        with pytest.raises(UserError, match=rf"{path.name} holds 2 images, expected 3; remove {path.name} and run"):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]

    def test_label_out_of_range(self, tmp_path: Path, num_classes: int) -> None:
        write_binary(tmp_path, num_classes)
        path = next(p for p in (tmp_path / BINARY[num_classes]).iterdir() if "test" in p.name)
        content = bytearray(path.read_bytes())
        record = len(content) // 3
        content[record + (0 if num_classes == 10 else 1)] = num_classes
        path.write_bytes(content)
        message = rf"{path.name}: the label at index 1 is {num_classes}, expected 0 to {num_classes - 1}"
        with pytest.raises(UserError, match=message):
            cifar.load(tmp_path, num_classes=num_classes)  # type: ignore[arg-type]


def test_the_published_numbers() -> None:
    from importlib import reload

    assert reload(cifar).NUM_EXAMPLES == {"train": 50_000, "test": 10_000}


class Shell:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made-by-a-pickle",)


class TestPickles:
    path = Path("some/file")

    def read(self, value: object, protocol: int = 2) -> dict[str, object]:
        return restricted_pickle.read(pickle.dumps(value, protocol=protocol), self.path)

    @pytest.mark.parametrize("protocol", [0, 1, 2, 4])
    def test_names_are_refused_before_they_are_imported(
        self, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=r"some/file is a pickle that names posix\.mkdir, which is not allowed"):
            self.read({"data": Shell()}, protocol)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "name",
        ["builtins.eval", "builtins.getattr", "os.system", "numpy.load", "numpy.core.multiarray.scalar", "numpy.array"],
    )
    def test_other_names(self, name: str) -> None:
        module, attribute = name.rsplit(".", 1)
        with pytest.raises(UserError, match=rf"names {name}"):
            restricted_pickle.read(f"c{module}\n{attribute}\n.".encode(), self.path)

    def test_dotted_names_do_not_reach_further(self) -> None:
        content = b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93."
        assert [op.name for op, _, _ in pickletools.genops(content)][-2] == "STACK_GLOBAL"
        with pytest.raises(UserError, match=r"names numpy\.ndarray\.dumps"):
            restricted_pickle.read(content, self.path)

    def test_bytes_are_made_in_one_way_only(self) -> None:
        assert self.read({"a": [b"", b"\xff"], b"": 1}) == {"a": [b"", b"\xff"], "": 1}
        for content in (b"c_codecs\nencode\n(Va\nVrot13\ntR.", b"cbuiltins\nbytes\n(I1000000000\ntR."):
            with pytest.raises(UserError, match="bytes in an unknown form"):
                restricted_pickle.read(content, self.path)

    def test_persistent_ids_and_extensions(self) -> None:
        for content in (b"Pname\n.", b"\x80\x02\x82\x01."):
            with pytest.raises(UserError, match="some/file is not an intact pickle"):
                restricted_pickle.read(content, self.path)

    def test_plain_values_and_arrays(self) -> None:
        array = np.arange(12, dtype=np.uint8).reshape(3, 4)
        given = {b"data": array, "other": np.asfortranarray(array), "list": [1, "two", b"three", None, (4.0, True)]}
        found = self.read(given)
        np.testing.assert_array_equal(found["data"], array)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found["other"], array)  # type: ignore[arg-type]
        assert found["list"] == given["list"]

    def test_as_python_2_wrote_them(self) -> None:
        """The official files: protocol 2, byte strings for keys and values, NumPy's old module name."""
        content = (
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
            b"K\x00tb\x89U\x06abcdeftbs."
        )
        np.testing.assert_array_equal(
            pickle.loads(content, encoding="bytes")[b"data"], [list(b"abc"), list(b"def")]
        )  # the bytes above are right
        found = restricted_pickle.read(content, self.path)
        np.testing.assert_array_equal(found["data"], [list(b"abc"), list(b"def")])  # type: ignore[arg-type]

    @pytest.mark.parametrize("dtype", [np.float32, np.int64, object, np.dtype([("a", "u1")])])
    def test_arrays_of_other_types(self, dtype: object) -> None:
        with pytest.raises(UserError, match=r"array of type .*, expected \('u1',\)|in an unknown form"):
            self.read({"data": np.zeros((2, 2), dtype=dtype)})  # type: ignore[call-overload]

    def test_an_array_that_lies_about_its_shape(self) -> None:
        content = pickle.dumps({"data": np.zeros((2, 3), dtype=np.uint8)}, protocol=2)
        assert content.count(b"K\x02K\x03\x86") == 1
        with pytest.raises(UserError, match=r"array of shape \(200, 3\) with 6 bytes"):
            restricted_pickle.read(content.replace(b"K\x02K\x03\x86", b"K\xc8K\x03\x86"), self.path)

    @pytest.mark.parametrize(
        "content",
        [
            b"\x80\x02}U\x04datacnumpy\nndarray\ns.",  # the class itself
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)Rs.",  # never filled
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)RNbs.",
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x02NNNtbs.",
        ],
    )
    def test_arrays_in_other_forms(self, content: bytes) -> None:
        with pytest.raises(UserError, match="some/file has an array in an unknown form"):
            restricted_pickle.read(content, self.path)

    @pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02}", b"\x80\xff.", b"\x80\x02U\xffabc."])
    def test_damaged(self, content: bytes) -> None:
        with pytest.raises(UserError, match="some/file is not an intact pickle"):
            restricted_pickle.read(content, self.path)

    def test_not_a_dictionary_or_odd_keys(self) -> None:
        with pytest.raises(UserError, match="holds a list, expected a dictionary"):
            self.read([1])
        with pytest.raises(UserError, match="a dictionary key of type int"):
            self.read({1: 2})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({b"data": None}, r"data_batch_1 has no array 'data' of 3,072 bytes an image"),
            ({b"data": np.zeros((4, 3071), dtype=np.uint8)}, "no array 'data' of 3,072 bytes an image"),
            ({b"data": np.zeros(3072, dtype=np.uint8)}, "no array 'data' of 3,072 bytes an image"),
            ({b"labels": None}, r"data_batch_1 has no list 'labels' of one class number for each of its 4 images"),
            ({b"labels": [1, 2, 3]}, "no list 'labels'"),
            ({b"labels": [1, 2, 3, -1]}, "no list 'labels'"),
            ({b"labels": [1, 2, 3, 4.0]}, "no list 'labels'"),
            ({b"labels": [1, 2, 3, 1000]}, "no list 'labels'"),
            ({b"labels": [1, 2, 3, 10]}, r"data_batch_1: the label at index 3 is 10, expected 0 to 9"),
        ],
    )
    def test_content_of_the_wrong_kind(self, tmp_path: Path, change: dict[bytes, object], message: str) -> None:
        write_python(tmp_path, 10)
        path = tmp_path / PYTHON[10] / "data_batch_1"
        path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | change, protocol=2))
        with pytest.raises(UserError, match=message):
            cifar.load(tmp_path, num_classes=10)
