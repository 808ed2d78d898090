"""The walk through everything that a value is made of, down to plain values.

Each object met becomes a hash of its content, never of its place in memory. What refers back to something around it,
as a recursive function does, says how many levels up that is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from isotherm.core.records import content_hash
from isotherm.tasks.identity.reads import MISSING
from isotherm.tasks.identity.source import Sources
from isotherm.tasks.identity.unseen import Reach

_PLAIN = {bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range}
_PLAIN |= {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo}
Handler = Callable[["Walk", Any], object]


class Walk:
    """Turns anything into JSON values.

    Args:
        root: the name under which `reach` records what this walk starts from.
        handler_of: finds out how a value is described.
        reach: records what leads to what.
        sources: reads the files.
        names: of objects that are named instead of described, by `id`.
    """

    def __init__(
        self,
        root: str,
        *,
        handler_of: Callable[[Any], Handler],
        reach: Reach,
        sources: Sources,
        names: Mapping[int, str] | None = None,
    ) -> None:
        self.reach = reach
        self.sources = sources
        self._handler_of = handler_of
        self._root = root
        self._names = names or {}
        self._unfinished: dict[int, int] = {}  # id -> depth, of what is being described
        self._lowest: list[int] = []  # for each of them, the least depth it refers back to
        self._done: dict[int, str] = {}
        self._num_in_cycles = 0

    def describe(self, value: Any, how: str = "") -> object:
        """Return a plain value itself, a hash of anything else; `how` says what leads here, as `Reach` records it."""
        if type(value) in _PLAIN:
            return _literal(value)
        if value is MISSING:
            return ["missing"]
        if id(value) in self._names:
            return ["named", self._names[id(value)]]
        self.reach.leads(next(reversed(self._unfinished), self._root), value, how)
        if id(value) in self._unfinished:
            self._lowest[-1] = min(self._lowest[-1], self._unfinished[id(value)])
            return ["containing", len(self._unfinished) - self._unfinished[id(value)]]
        return self._done[id(value)] if id(value) in self._done else self._first(value)

    def unordered(self, values: Any) -> list[object]:
        """Describe values whose order means nothing, each as if it came first."""
        described: list[object] = []
        for value in values:
            if type(value) in _PLAIN:
                described.append(_literal(value))
                continue
            branch = self._branch()
            described.append(branch.describe(value))
            if self._lowest:
                self._lowest[-1] = min(self._lowest[-1], branch._lowest[-1])
        return sorted(described, key=repr)

    def _first(self, value: Any) -> str:
        depth = len(self._unfinished)
        self._unfinished[id(value)] = depth
        self._lowest.append(depth)
        content = content_hash(self._handler_of(value)(self, value))
        del self._unfinished[id(value)]
        lowest = self._lowest.pop()
        self._done[id(value)] = content
        if lowest < depth:  # it refers to something that contains it: from here on it is known by its number
            self._lowest[-1] = min(self._lowest[-1], lowest)
            self._done[id(value)] = f"in cycle {self._num_in_cycles}"
            self._num_in_cycles += 1
        return content

    def _branch(self) -> Walk:
        branch = Walk(
            self._root, handler_of=self._handler_of, reach=self.reach, sources=self.sources, names=self._names
        )
        branch._unfinished, branch._lowest, branch._done = dict(self._unfinished), list(self._lowest), dict(self._done)
        branch._num_in_cycles = self._num_in_cycles
        return branch


def _literal(value: Any) -> str:
    return hex(value) if type(value) is int else repr(value)  # decimal digits of a long number are refused


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow for long chains: a function that calls a function that calls a function."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
