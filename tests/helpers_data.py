"""Small files in the real formats, and a web server that serves bytes the way a publisher's may."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from isotherm.data.catalogue import DataFile, Dataset, Download


def idx(array: np.ndarray) -> bytes:
    """Return the idx file of an array of bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, num_train: int = 7, num_test: int = 3) -> dict[str, np.ndarray]:
    """Write the four gzipped files of a small MNIST and return what is in them by name."""
    generator = np.random.default_rng(0)
    arrays = {}
    (folder / "mnist").mkdir(parents=True, exist_ok=True)
    for prefix, n in (("train", num_train), ("t10k", num_test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = generator.integers(256, size=(n, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte"] = generator.integers(10, size=n, dtype=np.uint8)
    for name, array in arrays.items():
        (folder / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return arrays


def png(pixels: np.ndarray) -> bytes:
    """Return the PNG file of an array of bytes (height, width, 3) or (height, width)."""
    return encoded(Image.fromarray(pixels), "PNG")


def encoded(image: Image.Image, kind: str) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, format=kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def tar_bytes(members: dict[str, bytes | tarfile.TarInfo], *, mode: str = "w:gz") -> bytes:
    """Return a tar archive of files by content, or of ready-made headers (links and the like)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                header = tarfile.TarInfo(name)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
    return file.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    """Return the header of a symbolic link."""
    header = tarfile.TarInfo(name)
    header.type = tarfile.SYMTYPE
    header.linkname = target
    return header


def data_file(path: str, content: bytes) -> DataFile:
    """Return the catalogue's line for a file of that content."""
    return DataFile(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def plain_dataset(content: bytes, *urls: str) -> Dataset:
    """Return a data set `toy` of one file that is downloaded as it is."""
    file = data_file("toy.bin", content)
    download = Download(name="toy.bin", urls=urls, size=file.size, sha256=file.sha256)
    return Dataset(name="toy", title="a toy", page="https://toy.example/page", files=(file,), downloads=(download,))


def packed_dataset(contents: dict[str, bytes], archive: bytes, *urls: str) -> Dataset:
    """Return a data set `toy` whose files come out of `toy.tar.gz`, there in the folder `inner`, here in `out`."""
    files = tuple(data_file(f"out/{name}", content) for name, content in contents.items())
    download = Download(
        name="toy.tar.gz",
        urls=urls,
        size=len(archive),
        md5=hashlib.md5(archive).hexdigest(),
        members=tuple((f"inner/{name}", f"out/{name}") for name in contents),
    )
    return Dataset(name="toy", title="a toy", page="https://toy.example/page", files=files, downloads=(download,))


class Server:
    """What a server is to answer, and what it was asked.

    `ranges`: honour the Range header. `cut`: send only so many bytes of a body, then hang up. `status`: answer with
    this and nothing else. `shift`: begin a range so many bytes too late. `redirect`: send the asker there.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.ranges = True
        self.cut: int | None = None
        self.status: int | None = None
        self.shift = 0
        self.redirect: str | None = None
        self.asked: list[str | None] = []
        self.url = ""


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    """Serve some bytes on a local port."""
    state = Server(content)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            if state.status is not None:
                self.send_error(state.status)
                return
            if state.redirect is not None:
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
                return
            start = 0
            if state.ranges and wanted:
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) + state.shift
                if start >= len(state.content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            else:
                self.send_response(200)
            body = state.content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if state.cut is None else body[: state.cut])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/file"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unused_url() -> str:
    """Return an address that refuses connections."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    port = server.server_address[1]
    server.server_close()
    return f"http://127.0.0.1:{port}/file"
