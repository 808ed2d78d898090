"""Traces of a task's training step that are kept, so that fleets of one shape need not trace it again and again.

A small fleet on a CPU spends about half of its time on tracing, and a diagnosis trains dozens of them.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Hashable

from torch import fx, nn

# Traces of one task; the one that was not taken for the longest time goes first.
MOST_KEPT = 16


class KeptTraces:
    """Traced steps by all that they depend on; whoever takes one gets a copy that passes may change."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, fx.Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def take(self, key: Hashable) -> fx.GraphModule | None:
        """Return a copy of a trace as it was kept; None if there is none."""
        if key not in self._graphs:
            return None
        self._graphs.move_to_end(key)
        return fx.GraphModule(nn.Module(), copy.deepcopy(self._graphs[key]))

    def keep(self, key: Hashable, graph: fx.Graph) -> None:
        """Keep the graph of a trace; it must be without tensors of its own (`copy_without_tensors`)."""
        self._graphs[key] = graph
        while len(self._graphs) > MOST_KEPT:
            self._graphs.popitem(last=False)


def copy_without_tensors(module: fx.GraphModule) -> fx.Graph | None:
    """Return a copy of a trace's graph; None where it holds tensors, which may be those of one fleet alone."""
    return None if module.graph.find_nodes(op="get_attr") else copy.deepcopy(module.graph)
