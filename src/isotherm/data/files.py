"""Check the files of a data set, fetch missing ones, and read them with errors that name the remedy.

No file enters the data folder before its checksum is verified: downloads grow as `NAME.part`, archives are unpacked
next to their destination, and a rename puts the finished file in place. Only one process may fetch at a time.
"""

from __future__ import annotations

import enum
import gzip
import hashlib
import http.client
import io
import os
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isotherm.data.catalogue import DataFile, Dataset, Download
from isotherm.data.tar_headers import CarefulHeader
from isotherm.errors import UserError

# (name, bytes so far, bytes in all), called after every block and once when a download is complete.
Progress = Callable[[str, int, int], None]

MOST_BYTES = 2**31  # of a file that is read as a whole, packed or not
_BLOCK = 1 << 18  # bytes per read
_TIMEOUT = 30.0  # seconds without a byte


class State(enum.StrEnum):
    """What is wrong with a file, if anything."""

    OK = "ok"
    MISSING = "missing"
    WRONG_SIZE = "wrong size"
    WRONG_SHA256 = "wrong sha256"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStatus:
    """The state of one file of a data set, with a sentence for display."""

    path: Path
    state: State
    sentence: str

    @property
    def ok(self) -> bool:
        """Whether the file can be used."""
        return self.state is State.OK


def remedy(name: str) -> str:
    """Return what to do if files of a data set are not where they should be."""
    return (
        f"run `isotherm data fetch {name}`, or name the folder that has {name}/ with --data or the environment "
        "variable ISOTHERM_DATA"
    )


def require_folder(folder: Path, name: str) -> Path:
    """Return the folder of a data set inside the data folder.

    Raises:
        UserError: one of the two does not exist.
    """
    for path, what in ((folder, "the data folder"), (folder / name, "the folder of the data set")):
        if not path.is_dir():
            problem = "is not a folder" if path.exists() else "does not exist"
            raise UserError(f"{what} {path} {problem}; {remedy(name)}")
    return folder / name


def read_bytes(path: Path, *, name: str, at_most: int = MOST_BYTES) -> bytes:
    """Return the content of a file of the data set `name`.

    Raises:
        UserError: it is missing, cannot be read, is no regular file, or is larger than what may be read at once.
    """
    try:
        require_regular(path, at_most=at_most)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {remedy(name)}") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; check the file and its permissions"
        ) from error


def require_regular(path: Path, *, at_most: int = MOST_BYTES) -> None:
    """Refuse pipes and devices, which may never end, and files larger than `at_most` bytes.

    Raises:
        UserError: the file is one of these.
        OSError: it is missing, or may not be looked at.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # a folder has its own error when opened
        raise UserError(f"{path} is a pipe or a device, not a file; put a regular file there")
    if status.st_size > at_most:
        raise UserError(f"{path} has {status.st_size:,} bytes, more than the {at_most:,} that can be read at once")


def read_gzip(path: Path, *, name: str, at_most: int = MOST_BYTES) -> bytes:
    """Return the decompressed content of a gzip file of the data set `name`.

    Raises:
        UserError: it is missing, unreadable, truncated or damaged, or unpacks to more than `at_most` bytes.
    """
    packed = read_bytes(path, name=name, at_most=at_most)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(at_most + 1)
    except EOFError as error:
        raise UserError(f"{path} is truncated after {len(packed):,} bytes; {fetch_again(path, name)}") from error
    except (OSError, zlib.error) as error:
        raise UserError(f"{path} is not an intact gzip file ({error}); {fetch_again(path, name)}") from error
    if len(content) > at_most:
        raise UserError(f"{path} unpacks to more than {at_most:,} bytes; {fetch_again(path, name)}")
    return content


def fetch_again(path: Path, name: str) -> str:
    """Return what to do about a damaged file of the data set `name`."""
    return f"remove {path.name} and run `isotherm data fetch {name}`"


def verify(dataset: Dataset, folder: Path, *, sizes_only: bool = False) -> list[FileStatus]:
    """Return the status of every file of a data set in the data folder; for a folder of images, of its structure.

    Empty for a generated data set. A file's size is compared first, then, unless `sizes_only`, its sha256.
    """
    own = folder / dataset.name
    if dataset.splits:
        return [_image_split_status(own, split, dataset) for split in dataset.splits]
    return [_file_status(own, file, dataset, sizes_only=sizes_only) for file in dataset.files]


def fetch(dataset: Dataset, folder: Path, *, on_progress: Progress | None = None) -> list[FileStatus]:
    """Bring every file of a data set into the data folder, and return their status.

    Files that are present and correct are left alone; if all are, there is no network access. An interrupted download
    is resumed. An archive that the user has put into the data set's folder is used instead of a download.

    Args:
        dataset: an entry of `catalogue.DATASETS`.
        folder: the data folder; the files go into the data set's folder inside it.
        on_progress: called with (name, bytes so far, bytes in all) as a download grows.

    Raises:
        UserError: the data set must be obtained by hand, the network or the publisher does not answer, a checksum is
            wrong, or the folder cannot be written. The message says which file to put where.
    """
    if dataset.splits:
        statuses = verify(dataset, folder)
        if all(status.ok for status in statuses):
            return statuses
        raise UserError(
            f"{dataset.name} cannot be fetched; take it from {dataset.page} and put it into {folder / dataset.name}. "
            f"{dataset.note}"
        )
    for download in dataset.downloads:
        wanted = {s.path for s in verify(dataset, folder) if not s.ok}
        if any(folder / dataset.name / path in wanted for path in download.paths):
            try:
                _fetch_one(dataset, download, folder / dataset.name, on_progress or _silent)
            except OSError as error:
                raise UserError(
                    f"{folder / dataset.name} cannot be written: {error}; choose another data folder with --data or "
                    "the environment variable ISOTHERM_DATA"
                ) from error
    return verify(dataset, folder)


def _silent(name: str, done: int, total: int) -> None:
    pass


def _file_status(own: Path, file: DataFile, dataset: Dataset, *, sizes_only: bool = False) -> FileStatus:
    path = own / file.path
    if not path.is_file():
        also = next((other for other in dataset.alternatives if _stands_for(own / other, path)), None)
        instead = f" {also} is there and is read instead, unchecked;" if also else ""
        return FileStatus(
            path=path, state=State.MISSING, sentence=f"{path} is missing;{instead} {remedy(dataset.name)}"
        )
    size = path.stat().st_size
    if size != file.size:
        sentence = f"{path} has {size:,} bytes, expected {file.size:,}; {fetch_again(path, dataset.name)}"
        return FileStatus(path=path, state=State.WRONG_SIZE, sentence=sentence)
    if sizes_only:
        return FileStatus(path=path, state=State.OK, sentence=f"{path} has its size, {size:,} bytes")
    digest = _digest(path, "sha256")
    if digest != file.sha256:
        sentence = f"{path} has sha256 {digest}, expected {file.sha256}; {fetch_again(path, dataset.name)}"
        return FileStatus(path=path, state=State.WRONG_SHA256, sentence=sentence)
    return FileStatus(path=path, state=State.OK, sentence=f"{path} is right: {size:,} bytes, sha256 {digest}")


def _stands_for(other: Path, path: Path) -> bool:
    """Whether a path of another layout exists and replaces `path`: the same file unpacked, or a folder."""
    return other.is_dir() or (other.is_file() and path.name.startswith(other.name))


def _image_split_status(own: Path, split: str, dataset: Dataset) -> FileStatus:
    path = own / split
    shards = sorted(own.glob(f"{split}-*.tar"))
    num_classes = sum(child.is_dir() for child in path.iterdir()) if path.is_dir() else 0
    if num_classes and shards:
        problem = f"{path} and {shards[0]} are both there; keep one of the two"
    elif num_classes:
        return FileStatus(path=path, state=State.OK, sentence=f"{path} has {num_classes:,} class folders")
    elif shards:
        return FileStatus(path=path, state=State.OK, sentence=f"{own} has {len(shards):,} shards {split}-*.tar")
    else:
        problem = (
            f"{path} has no class folders, and {own} no shards {split}-*.tar; bring them from {dataset.page}, or name "
            f"the folder that has {dataset.name}/ with --data or the environment variable ISOTHERM_DATA"
        )
    return FileStatus(path=path, state=State.MISSING, sentence=problem)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _fault(path: Path, download: Download) -> str | None:
    """Return how a downloaded file differs from the published one; None if it does not."""
    size = path.stat().st_size
    if size != download.size:
        return f"it has {size:,} bytes, expected {download.size:,}"
    for algorithm, expected in (("sha256", download.sha256), ("md5", download.md5)):
        if expected is not None and (found := _digest(path, algorithm)) != expected:
            return f"its {algorithm} is {found}, expected {expected}"
    return None


def _fetch_one(dataset: Dataset, download: Download, own: Path, on_progress: Progress) -> None:
    own.mkdir(parents=True, exist_ok=True)
    path = own / download.name
    if not download.members:
        os.replace(_downloaded(dataset, download, own, on_progress), path)
        return
    if path.exists():  # the user's own file is kept
        if fault := _fault(path, download):
            raise UserError(f"{path} is not the published archive: {fault}; remove it and run this again")
        _unpack(path, dataset, download, own)
        return
    part = _downloaded(dataset, download, own, on_progress)
    _unpack(part, dataset, download, own)
    part.unlink()


def _downloaded(dataset: Dataset, download: Download, own: Path, on_progress: Progress) -> Path:
    """Return the path of a complete `.part` with correct checksums."""
    part = own / f"{download.name}.part"
    problems = []
    for url in download.urls:
        try:
            _receive(url, part, download, on_progress)
        except _Unreachable as error:
            problems.append(f"{url}: {error}")
            continue
        fault = _fault(part, download)
        if fault is None:
            return part
        part.unlink()
        problems.append(f"{url}: what came was damaged, {fault}; the partial download {part} was removed")
    raise UserError(_by_hand(dataset, download, own, problems))


def _by_hand(dataset: Dataset, download: Download, own: Path, problems: list[str]) -> str:
    text = f"{download.name} could not be fetched ({'; '.join(problems)}). "
    if part_size := _size(own / f"{download.name}.part"):
        text += f"{part_size:,} bytes of it are kept, and running this again goes on from there. "
    if download.members:
        sums = [f"{what} {value}" for what, value in (("sha256", download.sha256), ("md5", download.md5)) if value]
        text += (
            f"Without a network, put {download.name} ({download.size:,} bytes, {', '.join(sums)}) from {dataset.page} "
            f"into {own} and run `isotherm data fetch {dataset.name}` again, or put these files into {own}: "
        )
    else:
        text += f"Without a network, put these files from {dataset.page} into {own}: "
    wanted = [file for file in dataset.files if not _file_status(own, file, dataset).ok]
    return text + "; ".join(f"{file.path} ({file.size:,} bytes, sha256 {file.sha256})" for file in wanted)


class _Unreachable(Exception):
    """An address did not deliver the complete file."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _receive(url: str, part: Path, download: Download, on_progress: Progress) -> None:
    """Complete `part` from one address, resuming where it stands."""
    offset = _size(part)
    if offset > download.size:
        part.unlink()
        offset = 0
    if offset == download.size and part.is_file():
        return
    with _open(url, part, offset) as response:
        offset = _start(response, offset)
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            while offset < download.size and (block := _read(response, min(_BLOCK, download.size - offset))):
                file.write(block)
                offset += len(block)
                on_progress(download.name, offset, download.size)
    if offset < download.size:
        raise _Unreachable(f"the connection ended after {offset:,} of {download.size:,} bytes")


def _read(response: http.client.HTTPResponse, size: int) -> bytes:
    try:
        return response.read(size)
    except (http.client.HTTPException, OSError) as error:
        raise _Unreachable(f"the connection broke, {type(error).__name__}: {error}") from error


def _start(response: http.client.HTTPResponse, offset: int) -> int:
    """Return the file position of the first byte of a response: 0 if the server sends the whole file."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    given = response.headers.get("Content-Range", "")
    if not given.startswith(f"bytes {offset}-"):
        raise _Unreachable(f"asked for the bytes from {offset:,} on, the server sent {given!r}")
    return offset


def _open(url: str, part: Path, offset: int) -> http.client.HTTPResponse:
    """Request a file from a position on."""
    headers = {"User-Agent": "isotherm", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    assert urllib.parse.urlsplit(url).scheme in ("http", "https"), url
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme is checked above)
    try:
        response = _opener().open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise _Unreachable(f"the server has no more than {offset:,} bytes; {part} was removed") from error
        raise _Unreachable(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Unreachable(f"no connection, {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _Unreachable(f"the connection broke, {type(error).__name__}: {error}") from error
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https and nothing else, also after redirects."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _unpack(archive: Path, dataset: Dataset, download: Download, own: Path) -> None:
    """Extract the expected members of a tar archive, check each, and rename them into place."""
    staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=own))
    try:
        staged = _extract(archive, dataset, download, staging)
        for path, source in staged.items():
            (own / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, own / path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, dataset: Dataset, download: Download, staging: Path) -> dict[str, Path]:
    expected = {file.path: file for file in dataset.files}
    members = dict(download.members)
    staged: dict[str, Path] = {}
    try:
        with tarfile.open(archive, "r:*", tarinfo=CarefulHeader) as tar:
            for member in tar:
                path = members.get(member.name.removeprefix("./"))
                if path is None or path in staged:
                    continue
                _check_member(member, expected[path], download)
                # Under a name of our own, so that nothing written depends on names in the archive.
                tar.extract(member.replace(name=path, deep=False), staging, set_attrs=False, filter="data")
                staged[path] = staging / path
                if _digest(staged[path], "sha256") != expected[path].sha256:
                    raise UserError(
                        f"{download.name}: {member.name} does not have the published sha256; {_renew(archive)}"
                    )
                if len(staged) == len(members):
                    break
    except UserError:
        raise
    except Exception as error:  # damaged archives raise many kinds, those of gzip, bzip2 and xz among them
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise UserError(f"{archive} is not an intact tar archive ({error}); {_renew(archive)}") from error
    if absent := sorted(set(members.values()) - set(staged)):
        raise UserError(f"{archive} lacks {', '.join(absent)}; {_renew(archive)}")
    return staged


def _check_member(member: tarfile.TarInfo, file: DataFile, download: Download) -> None:
    if not member.isreg():
        raise UserError(f"{download.name}: {member.name} is a link or a device, not a file; do not use this archive")
    if member.size != file.size:
        raise UserError(
            f"{download.name}: {member.name} has {member.size:,} bytes, expected {file.size:,}; do not use this archive"
        )


def _renew(archive: Path) -> str:
    return f"remove {archive} and fetch it again"
