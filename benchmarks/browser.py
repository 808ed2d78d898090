"""The live page in a browser of this machine: a server of its own, and Chromium as Playwright drives it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A page that is served: its address, its server's process, and the seconds until the address was told."""

    address: str
    pid: int
    seconds: float

    def memory_mib(self) -> int:
        """Return the most memory that the server has held."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)


@contextlib.contextmanager
def served(store: Path, *options: str) -> Iterator[Served]:
    """Run `isotherm watch` on a free port until the block ends."""
    command = [sys.executable, "-m", "isotherm", "watch", str(store), "--port", "0", *options]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603  # our own command
    try:
        assert process.stderr is not None
        told = process.stderr.readline().strip()
        if not told.startswith("Watching ") or " at " not in told:
            raise RuntimeError(f"{' '.join(command)} said: {told} {process.stderr.read()}")
        address = told.rpartition(" at ")[2]
        yield Served(address=address, pid=process.pid, seconds=time.perf_counter() - start)
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextlib.contextmanager
def chromium(flags: Sequence[str] = FLAGS) -> Iterator[Any]:
    """Start the Chromium or Chrome of the system."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise SystemExit(f"none of {', '.join(names)} is installed; install one, e.g. with apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(flags))
        try:
            yield found
        finally:
            found.close()


def until(page: Any, script: str, argument: Any = None, *, seconds: float = 120.0) -> None:
    """Wait for a condition; Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(script, argument):
        if time.monotonic() > deadline:
            raise TimeoutError(script)
        page.wait_for_timeout(20)
