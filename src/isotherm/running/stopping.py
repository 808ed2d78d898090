"""Signals that ask a sweep to stop: the first time it stops cleanly, the second time at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from isotherm.engine.deadline import StopFlag

# Ctrl-C, what a scheduler sends before it kills, and the end of a terminal.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_FIRST = b"\nstopping: a checkpoint is written and finished runs are stored; once more (Ctrl-C) stops at once\n"


class Stopped(KeyboardInterrupt):
    """A signal ended training; what was finished is stored.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stopping:
    """A context in which the first signal sets a flag, and the next one raises `Stopped`.

    Signals that somebody else handles or ignores (`nohup`) are left alone, and so are all outside the main thread.
    """

    def __init__(self) -> None:
        self.flag = StopFlag()
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def was_asked(self) -> bool:
        """Whether a signal came."""
        return self._number is not None

    def raise_if_asked(self) -> None:
        """Raise `Stopped` if a signal came."""
        if self._number is not None:
            raise Stopped(self._number)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for name in _SIGNALS:
            number = getattr(signal, name, None)  # not every system has all
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if self.flag.is_set():
            raise Stopped(number)
        self.flag.set()
        with contextlib.suppress(OSError):  # a print could meet itself; the terminal may be gone
            os.write(2, _FIRST)
