"""Progress that is shown without being asked for: in a terminal and in a notebook, nowhere else."""

from __future__ import annotations

import contextlib
import html
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from rich.console import Console

from isotherm.cli.common import errors, escaped
from isotherm.cli.progress import RunProgress

# Between two updates of what a notebook shows.
_SECONDS = 0.3


def in_terminal() -> bool:
    """Tell whether somebody reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Tell whether this is a notebook: an IPython whose cells come from a kernel."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def default_progress() -> AbstractContextManager[RunProgress | None]:
    """Return what shows the progress of runs here; nothing where nobody looks."""
    if in_notebook():
        return NotebookProgress()
    return RunProgress(errors()) if in_terminal() else nullcontext()


@contextlib.contextmanager
def default_stages() -> Iterator[Callable[[str], None]]:
    """Within this context, show what a diagnosis is doing, one line at a time."""
    if in_notebook():
        live = LiveOutput()
        yield lambda line: live.show(line)
        live.show("")
    elif in_terminal():
        with errors().status("") as status:
            yield lambda line: status.update(escaped(line))
    else:
        yield lambda _: None


class LiveOutput:
    """One output of a cell, whose content is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, *, part: float | None = None) -> None:
        """Show a line, with a bar of which a part is done."""
        from IPython.display import display

        content = _Line(text, part)
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)


class _Line:
    """A line of progress as a notebook shows it, and as text where a front end has no HTML."""

    def __init__(self, text: str, part: float | None) -> None:
        self._text, self._part = text, part

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = "" if self._part is None else f'<progress value="{self._part:.3f}" max="1"></progress> '
        return f"<div>{bar}<code>{html.escape(self._text)}</code></div>"


class NotebookProgress(RunProgress):
    """Runs done, runs diverged, time left, in one output of the cell."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self._live = LiveOutput()
        self._last_shown = -1.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._num_runs:
            self._done = self._total
            self._show(force=True)
        super().__exit__(kind, error, trace)

    def noted(self, sentence: str) -> None:
        """Show a note about the store in an output of its own."""
        LiveOutput().show(f"{sentence}.")

    def _show(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._num_runs and (force or now - self._last_shown >= _SECONDS):
            self._last_shown = now
            part = min(1.0, self._done / self._total) if self._total else 1.0
            self._live.show(f"{self._label}: {self._status()}", part=part)
