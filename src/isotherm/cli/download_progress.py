"""What the terminal shows while files are downloaded."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn


class DownloadProgress:
    """Downloads: a live bar for each on a terminal, a line for each that is complete in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show how many bytes of a download have arrived."""
        if not self._console.is_terminal:
            if done == total:
                self._console.print(f"{name}: {total:,} bytes downloaded", highlight=False, markup=False)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total)
        self._bar.update(self._tasks[name], completed=done, total=total)
