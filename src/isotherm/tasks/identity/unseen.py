"""What decides a run's numbers and cannot be read off: files, the environment, the clock, compiled code.

Only what runs during training is warned about. Whatever a builder reads ends in the module it returns, and that is
hashed whole: parameters, buffers and attributes.
"""

from __future__ import annotations

import collections
import pathlib
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isotherm.errors import UnseenWarning
from isotherm.tasks.identity.external import ExternalNames, class_met, class_named
from isotherm.tasks.identity.reads import MISSING, Read

_Step = tuple[int | str, bool, str]


class Reach:
    """Records what leads to what, and what of it cannot be seen.

    A step may say how it leads on: from an object to its class ("instance"), from a class to its parent ("parent"), to
    its constructor ("constructs"), or to the constructor of a module, which runs before training ("builds").
    """

    def __init__(self) -> None:
        self._steps: dict[int | str, list[tuple[int, str]]] = {}
        self._unseen: dict[int | str, list[tuple[int | None, str, type | None]]] = {}
        self._classes: dict[int | str, set[type]] = {}  # those with methods that read files
        self._functions: dict[int | str, types.FunctionType] = {}
        self._lines: dict[tuple[int | str, int], int | None] = {}  # where a function reads a value
        self._external = ExternalNames()
        self._kept: list[Any] = []  # an id stays taken while its object lives

    def leads(self, source: int | str, target: Any, how: str) -> None:
        """Record a step, and whether it leads to something external, such as `open` in a table."""
        self._steps.setdefault(source, []).append((id(target), how))
        self._kept.append(target)
        self._note_class(source, class_met(target))
        if how in ("", "builds", "constructs") and (source, id(target)) not in self._lines:
            what = self._external.name_of(target)
            if what is not None and not self._external.covers(source):
                self._unseen.setdefault(source, []).append((None, what, None))

    def examine(self, function: types.FunctionType, reads: list[Read]) -> None:
        """Record what a function depends on beyond its code and what the code refers to."""
        self._functions[id(function)] = function
        self._kept.append(function)
        for read in reads:
            self._lines.setdefault((id(function), id(read.value)), read.line)
            met = class_named(read.library or "") if read.value is MISSING else class_met(read.value)
            self._note_class(id(function), met)
        lines: dict[tuple[str, type | None], int | None] = {}
        for line, what, kind in self._external.found_in(function, reads):
            lines.setdefault((what, kind), line)
        self._unseen.setdefault(id(function), []).extend((line, what, kind) for (what, kind), line in lines.items())

    def cannot_see(self, thing: Any, what: str) -> None:
        """Record that a thing depends on something that is not hashed."""
        if not self._external.covers(id(thing)):
            self._unseen.setdefault(id(thing), []).append((None, what, None))
            self._kept.append(thing)

    def unseen_from(self, roots: Mapping[str, str]) -> list[str]:
        """Return what cannot be seen of all that the roots lead to; each root has a name for people."""
        pending = collections.deque[_Step]((root, True, name) for root, name in roots.items())
        done, found, classes = set(), list[tuple[str, type | None]](), set[type | None]({None})
        while pending:
            node, is_constructed, owner = pending.popleft()
            function = self._functions.get(node)
            classes |= self._classes.get(node, set())
            for line, what, kind in self._unseen.get(node, ()):
                found.append((f"{owner if function is None else where(function, line)} depends on {what}", kind))
            for target, passes in self._passable(node, is_constructed):
                if (target, passes) not in done:
                    done.add((target, passes))
                    line = self._lines.get((node, target))
                    pending.append((target, passes, owner if function is None else where(function, line)))
        return list(dict.fromkeys(text for text, kind in found if kind in classes))

    def _note_class(self, node: int | str, kind: type | None) -> None:
        if kind is not None:
            self._classes.setdefault(node, set()).add(kind)

    def _passable(self, node: int | str, is_constructed: bool) -> Iterator[tuple[int, bool]]:
        """Yield where training gets to from a node, and whether it constructs objects of what is there."""
        for target, how in self._steps.get(node, ()):
            if how != "builds" and (how != "constructs" or is_constructed):
                yield target, is_constructed if how == "parent" else how != "instance"


def warn_of(unseen: Iterable[str]) -> None:
    """Warn of each thing that is not part of the task's key."""
    for what in unseen:
        remedy = "set version='...' on the task, and change it whenever that changes"
        warnings.warn(f"{what}, which is no part of the task's key; {remedy}", UnseenWarning, stacklevel=3)


def where(function: types.FunctionType, line: int | None) -> str:
    """Return a function's name and place for people."""
    file = function.__code__.co_filename
    place = f"{pathlib.Path(file).name}, " if not file.startswith("<") else ""
    return f"{function.__qualname__} ({place}line {line or function.__code__.co_firstlineno})"
