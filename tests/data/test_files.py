import gzip
import hashlib
import tarfile
from pathlib import Path

import pytest

from helpers_data import data_file, link, packed_dataset, plain_dataset, serving, tar_bytes, unused_url
from isotherm.data.catalogue import DATASETS, Dataset, Download
from isotherm.data.files import State, fetch, read_bytes, read_gzip, require_folder, verify
from isotherm.errors import UserError

CONTENT = bytes(range(256)) * 4000  # about 1 MB: several blocks
PACKED = {"a.txt": b"first file", "b.bin": CONTENT}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestVerify:
    def test_each_state(self, tmp_path: Path) -> None:
        files_ = tuple(data_file(name, b"content") for name in ("right", "absent", "short", "other"))
        dataset = Dataset(name="toy", title="", page="", files=files_)
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "right").write_bytes(b"content")
        (tmp_path / "toy" / "short").write_bytes(b"conten")
        (tmp_path / "toy" / "other").write_bytes(b"CONTENT")
        right, absent, short, other = verify(dataset, tmp_path)
        assert [s.state for s in (right, absent, short, other)] == list(State)
        assert [s.ok for s in (right, absent, short, other)] == [True, False, False, False]
        assert str(tmp_path / "toy" / "absent") in absent.sentence
        for remedy in ("`isotherm data fetch toy`", "--data", "ISOTHERM_DATA"):
            assert remedy in absent.sentence
        assert "has 6 bytes, expected 7; remove short and run `isotherm data fetch toy`" in short.sentence
        assert hashlib.sha256(b"CONTENT").hexdigest() in other.sentence
        assert hashlib.sha256(b"content").hexdigest() in other.sentence

    def test_no_folder_at_all(self, tmp_path: Path) -> None:
        assert {s.state for s in verify(DATASETS["cifar10"], tmp_path / "nowhere")} == {State.MISSING}

    def test_another_layout_is_mentioned(self, tmp_path: Path) -> None:
        (tmp_path / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
        (tmp_path / "mnist").mkdir()
        (tmp_path / "mnist" / "train-labels-idx1-ubyte").touch()
        assert all("cifar-10-batches-py is there" in s.sentence for s in verify(DATASETS["cifar10"], tmp_path))
        mentioned = ["is there and is read instead" in s.sentence for s in verify(DATASETS["mnist"], tmp_path)]
        assert mentioned == [False, True, False, False]

    def test_generated_data_have_no_files(self, tmp_path: Path) -> None:
        assert verify(DATASETS["mnist1d"], tmp_path) == []
        assert fetch(DATASETS["mnist1d"], tmp_path) == []

    def test_structure_of_a_folder_of_images(self, tmp_path: Path) -> None:
        own = tmp_path / "imagenet"
        (own / "train" / "n01").mkdir(parents=True)
        train, val = verify(DATASETS["imagenet"], tmp_path)
        assert train.ok
        assert "1 class folders" in train.sentence
        assert val.state is State.MISSING
        (own / "val-000.tar").touch()
        assert all(s.ok for s in verify(DATASETS["imagenet"], tmp_path))
        assert all(s.ok for s in fetch(DATASETS["imagenet"], tmp_path))
        (own / "train-000.tar").touch()
        assert "both there" in verify(DATASETS["imagenet"], tmp_path)[0].sentence


class TestReading:
    def test_content(self, tmp_path: Path) -> None:
        (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT))
        assert read_gzip(tmp_path / "x.gz", name="toy") == CONTENT
        assert gzip.decompress(read_bytes(tmp_path / "x.gz", name="toy")) == CONTENT

    @pytest.mark.parametrize("reader", [read_bytes, read_gzip])
    def test_missing(self, tmp_path: Path, reader: type) -> None:
        with pytest.raises(UserError, match=r"x\.gz is missing; run `isotherm data fetch toy`.*--data.*ISOTHERM_DATA"):
            reader(tmp_path / "x.gz", name="toy")

    def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            read_bytes(tmp_path, name="toy")

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        path, packed = tmp_path / "x.gz", gzip.compress(CONTENT)
        path.write_bytes(packed[:-100])
        with pytest.raises(UserError, match=r"x\.gz is truncated after .* bytes; remove x\.gz and run"):
            read_gzip(path, name="toy")
        path.write_bytes(b"no gzip at all")
        with pytest.raises(UserError, match="not an intact gzip file"):
            read_gzip(path, name="toy")
        path.write_bytes(packed[:-8] + bytes(8))  # another checksum in the trailer
        with pytest.raises(UserError, match="not an intact gzip file"):
            read_gzip(path, name="toy")
        path.write_bytes(packed[:20] + bytes([packed[20] ^ 255] * 40) + packed[60:])
        with pytest.raises(UserError, match=r"x\.gz"):
            read_gzip(path, name="toy")

    def test_require_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"the data folder .*none does not exist; run `isotherm data fetch toy`"):
            require_folder(tmp_path / "none", "toy")
        with pytest.raises(UserError, match=r"the folder of the data set .*toy does not exist.*ISOTHERM_DATA"):
            require_folder(tmp_path, "toy")
        (tmp_path / "toy").touch()
        with pytest.raises(UserError, match="is not a folder"):
            require_folder(tmp_path, "toy")
        (tmp_path / "other").mkdir()
        assert require_folder(tmp_path, "other") == tmp_path / "other"


class TestDownload:
    def test_a_plain_file(self, tmp_path: Path) -> None:
        progress: list[tuple[str, int, int]] = []
        with serving(CONTENT) as server:
            dataset = plain_dataset(CONTENT, server.url)
            statuses = fetch(dataset, tmp_path / "new" / "data", on_progress=lambda *args: progress.append(args))
            assert [s.state for s in statuses] == [State.OK]
            assert server.asked == [None]
            assert (tmp_path / "new" / "data" / "toy" / "toy.bin").read_bytes() == CONTENT
            assert names(tmp_path) == ["new/data/toy/toy.bin"]  # no .part is left
            done = [bytes_ for _, bytes_, _ in progress]
            assert done == sorted(done)
            assert progress[-1] == ("toy.bin", len(CONTENT), len(CONTENT))
            fetch(dataset, tmp_path / "new" / "data")
            assert server.asked == [None]  # right already: not asked again

    def test_a_wrong_file_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin").write_bytes(CONTENT[::-1])
        with serving(CONTENT) as server:
            fetch(plain_dataset(CONTENT, server.url), tmp_path)
        assert (tmp_path / "toy" / "toy.bin").read_bytes() == CONTENT

    def test_a_wrong_file_stays_while_nothing_better_comes(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin").write_bytes(b"mine")
        with pytest.raises(UserError, match=r"toy\.bin \(1,024,000 bytes"):
            fetch(plain_dataset(CONTENT, unused_url()), tmp_path)
        assert (tmp_path / "toy" / "toy.bin").read_bytes() == b"mine"

    def test_resumes_where_it_broke_off(self, tmp_path: Path) -> None:
        with serving(CONTENT) as server:
            dataset = plain_dataset(CONTENT, server.url)
            server.cut = 300_000
            with pytest.raises(
                UserError, match=r"ended after 300,000 of 1,024,000 bytes.*300,000 bytes of it are kept"
            ):
                fetch(dataset, tmp_path)
            assert names(tmp_path) == ["toy/toy.bin.part"]
            server.cut = None
            assert fetch(dataset, tmp_path)[0].ok
            assert server.asked == [None, "bytes=300000-"]
        assert (tmp_path / "toy" / "toy.bin").read_bytes() == CONTENT
        assert names(tmp_path) == ["toy/toy.bin"]

    def test_starts_over_where_the_server_knows_no_ranges(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(b"?" * 1000)  # would spoil the file if it were kept
        with serving(CONTENT) as server:
            server.ranges = False
            assert fetch(plain_dataset(CONTENT, server.url), tmp_path)[0].ok
            assert server.asked == ["bytes=1000-"]

    def test_a_range_that_begins_elsewhere_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(CONTENT[:1000])
        with serving(CONTENT) as server:
            server.shift = 5
            with pytest.raises(UserError, match="asked for the bytes from 1,000 on, the server sent 'bytes 1005-"):
                fetch(plain_dataset(CONTENT, server.url), tmp_path)

    def test_a_complete_part_is_not_asked_for_again(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(CONTENT)
        assert fetch(plain_dataset(CONTENT, unused_url()), tmp_path)[0].ok

    def test_a_part_that_is_too_long_is_thrown_away(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(CONTENT + b"more")
        with serving(CONTENT) as server:
            assert fetch(plain_dataset(CONTENT, server.url), tmp_path)[0].ok
            assert server.asked == [None]

    def test_damaged_download_is_removed_and_named(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(b"?" * 1000)
        with serving(CONTENT) as server:
            dataset = plain_dataset(CONTENT, server.url)
            with pytest.raises(UserError, match=r"damaged, its sha256 is .*toy\.bin\.part was removed"):
                fetch(dataset, tmp_path)
            assert names(tmp_path) == []
            assert fetch(dataset, tmp_path)[0].ok  # the next one starts afresh
            assert server.asked == ["bytes=1000-", None]

    def test_a_server_with_other_content(self, tmp_path: Path) -> None:
        with serving(CONTENT[::-1]) as server, pytest.raises(UserError, match="what came was damaged"):
            fetch(plain_dataset(CONTENT, server.url), tmp_path)
        assert names(tmp_path) == []

    def test_never_more_bytes_than_announced(self, tmp_path: Path) -> None:
        with serving(CONTENT + b"appended") as server:
            assert fetch(plain_dataset(CONTENT, server.url), tmp_path)[0].ok
        assert (tmp_path / "toy" / "toy.bin").stat().st_size == len(CONTENT)

    def test_a_server_with_less_than_the_part(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.bin.part").write_bytes(b"?" * 1000)
        with serving(b"short") as server, pytest.raises(UserError, match=r"no more than 1,000 bytes.*was removed"):
            fetch(plain_dataset(CONTENT, server.url), tmp_path)
        assert names(tmp_path) == []

    def test_mirrors_are_tried_in_order(self, tmp_path: Path) -> None:
        with serving(CONTENT) as refusing, serving(CONTENT[::-1]) as wrong, serving(CONTENT) as right:
            refusing.status = 403
            dataset = plain_dataset(CONTENT, refusing.url, unused_url(), wrong.url, right.url)
            assert fetch(dataset, tmp_path)[0].ok
            assert [len(s.asked) for s in (refusing, wrong, right)] == [1, 1, 1]
            assert right.asked == [None]  # nothing of the wrong one is built upon

    def test_no_way_out_of_http(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(CONTENT)
        with serving(CONTENT) as server:
            for target in (secret.as_uri(), "ftp://127.0.0.1/file"):
                server.redirect = target
                with pytest.raises(UserError, match=r"could not be fetched"):
                    fetch(plain_dataset(CONTENT, server.url), tmp_path)
        with pytest.raises(AssertionError):
            fetch(plain_dataset(CONTENT, secret.as_uri()), tmp_path)

    def test_redirection_is_followed(self, tmp_path: Path) -> None:
        with serving(CONTENT) as first, serving(CONTENT) as second:
            first.redirect = second.url
            assert fetch(plain_dataset(CONTENT, first.url), tmp_path)[0].ok

    def test_the_servers_answer_is_in_the_message(self, tmp_path: Path) -> None:
        with serving(CONTENT) as server:
            server.status = 404
            with pytest.raises(UserError, match="the server answered 404 Not Found"):
                fetch(plain_dataset(CONTENT, server.url), tmp_path)

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "toy").touch()
        with pytest.raises(UserError, match=r"toy cannot be written: .*; choose another data folder with --data"):
            fetch(plain_dataset(CONTENT, unused_url()), tmp_path)


class TestOffline:
    def test_plain_files(self, tmp_path: Path) -> None:
        dataset = plain_dataset(CONTENT, unused_url())
        with pytest.raises(UserError) as caught:
            fetch(dataset, tmp_path)
        message = str(caught.value)
        digest = hashlib.sha256(CONTENT).hexdigest()
        assert "no connection" in message
        assert f"from https://toy.example/page into {tmp_path / 'toy'}: toy.bin" in message
        assert f"toy.bin (1,024,000 bytes, sha256 {digest})" in message

    def test_archives(self, tmp_path: Path) -> None:
        archive = tar_bytes({f"inner/{name}": content for name, content in PACKED.items()})
        dataset = packed_dataset(PACKED, archive, unused_url())
        (tmp_path / "toy" / "out").mkdir(parents=True)
        (tmp_path / "toy" / "out" / "a.txt").write_bytes(PACKED["a.txt"])
        with pytest.raises(UserError) as caught:
            fetch(dataset, tmp_path)
        message = str(caught.value)
        md5 = hashlib.md5(archive).hexdigest()
        assert f"put toy.tar.gz ({len(archive):,} bytes, md5 {md5}) from https://toy.example/page" in message
        assert "`isotherm data fetch toy`" in message
        assert f"out/b.bin (1,024,000 bytes, sha256 {hashlib.sha256(CONTENT).hexdigest()})" in message
        assert "a.txt" not in message  # it is there

    def test_imagenet_is_brought_by_hand(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot be fetched; take it from https://www\.image-net\.org.*register"):
            fetch(DATASETS["imagenet"], tmp_path)


class TestUnpacking:
    def packed(self, **changes: bytes | tarfile.TarInfo) -> bytes:
        members: dict[str, bytes | tarfile.TarInfo] = {f"inner/{name}": content for name, content in PACKED.items()}
        return tar_bytes(members | changes)

    def fetch(self, archive: bytes, folder: Path) -> None:
        with serving(archive) as server:
            fetch(packed_dataset(PACKED, archive, server.url), folder)

    @pytest.mark.parametrize("prefix", ["", "./"])
    def test_expected_members_and_nothing_else(self, tmp_path: Path, prefix: str) -> None:
        members = {f"{prefix}inner/{name}": content for name, content in PACKED.items()}
        self.fetch(tar_bytes({"readme": b"not wanted", **members, "inner/c": b"nor this"}), tmp_path)
        assert names(tmp_path) == ["toy/out/a.txt", "toy/out/b.bin"]
        assert all((tmp_path / "toy" / "out" / name).read_bytes() == content for name, content in PACKED.items())
        assert [path.name for path in (tmp_path / "toy").iterdir()] == ["out"]

    def test_what_is_right_is_not_fetched_again(self, tmp_path: Path) -> None:
        archive = self.packed()
        self.fetch(archive, tmp_path)
        fetch(packed_dataset(PACKED, archive, unused_url()), tmp_path)
        (tmp_path / "toy" / "out" / "a.txt").unlink()
        self.fetch(archive, tmp_path)
        assert names(tmp_path) == ["toy/out/a.txt", "toy/out/b.bin"]

    def test_an_archive_put_there_by_hand_is_used_and_kept(self, tmp_path: Path) -> None:
        archive = self.packed()
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.tar.gz").write_bytes(archive)
        assert all(s.ok for s in fetch(packed_dataset(PACKED, archive, unused_url()), tmp_path))
        assert names(tmp_path) == ["toy/out/a.txt", "toy/out/b.bin", "toy/toy.tar.gz"]

    def test_another_archive_put_there_by_hand_is_refused_and_kept(self, tmp_path: Path) -> None:
        archive = self.packed()
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "toy.tar.gz").write_bytes(archive[:-1] + b"?")
        with pytest.raises(UserError, match=r"toy\.tar\.gz is not the published archive: its md5 is .*; remove it"):
            fetch(packed_dataset(PACKED, archive, unused_url()), tmp_path)
        assert names(tmp_path) == ["toy/toy.tar.gz"]

    @pytest.mark.parametrize("outside", ["../escaped", "/{root}/escaped", "inner/../../../escaped"])
    def test_members_outside_are_not_written(self, tmp_path: Path, outside: str) -> None:
        outside = outside.format(root=str(tmp_path).lstrip("/"))
        self.fetch(self.packed(**{outside: b"evil"}), tmp_path / "data")
        assert names(tmp_path) == ["data/toy/out/a.txt", "data/toy/out/b.bin"]

    @pytest.mark.parametrize("outside", ["../escaped", "/{root}/escaped"])
    def test_names_in_the_archive_do_not_say_where_to_write(self, tmp_path: Path, outside: str) -> None:
        outside = outside.format(root=str(tmp_path).lstrip("/"))
        archive = tar_bytes({outside: b"content"})
        dataset = Dataset(
            name="toy",
            title="",
            page="",
            files=(data_file("a", b"content"),),
            downloads=(Download(name="x.tar", urls=(), size=len(archive), members=((outside, "a"),)),),
        )
        (tmp_path / "data" / "toy").mkdir(parents=True)
        (tmp_path / "data" / "toy" / "x.tar").write_bytes(archive)
        assert fetch(dataset, tmp_path / "data")[0].ok
        assert names(tmp_path) == ["data/toy/a", "data/toy/x.tar"]

    def test_a_link_in_place_of_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(PACKED["a.txt"])
        archive = self.packed(**{"inner/a.txt": link("inner/a.txt", str(tmp_path / "secret"))})
        with pytest.raises(UserError, match=r"inner/a\.txt is a link or a device, not a file"):
            self.fetch(archive, tmp_path / "data")
        assert not (tmp_path / "data" / "toy" / "out").exists()

    def test_a_link_as_a_folder_leads_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "target").mkdir()
        members = {"inner": link("inner", str(tmp_path / "target"))}
        members |= {f"inner/{name}": content for name, content in PACKED.items()}
        self.fetch(tar_bytes(members), tmp_path / "data")  # the link is not among the expected members
        assert list((tmp_path / "target").iterdir()) == []
        assert names(tmp_path / "data") == ["toy/out/a.txt", "toy/out/b.bin"]

    def test_members_of_other_content(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"inner/a\.txt does not have the published sha256"):
            self.fetch(self.packed(**{"inner/a.txt": b"FIRST FILE"}), tmp_path)
        with pytest.raises(UserError, match=r"inner/a\.txt has 5 bytes, expected 10"):
            self.fetch(self.packed(**{"inner/a.txt": b"small"}), tmp_path)
        assert not (tmp_path / "toy" / "out").exists()
        assert not list((tmp_path / "toy").glob(".unpacking-*"))

    def test_members_that_are_absent(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"lacks out/b\.bin"):
            self.fetch(tar_bytes({"inner/a.txt": PACKED["a.txt"]}), tmp_path)

    def test_no_archive_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="not an intact tar archive"):
            self.fetch(b"<html>not found</html>", tmp_path)
        with pytest.raises(UserError, match="not an intact tar archive"):
            self.fetch(self.packed()[:-200], tmp_path / "other")
