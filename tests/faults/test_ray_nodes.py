"""A Ray cluster that loses a node while a sweep is trained: every run arrives exactly once."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest

from helpers_protocol import Recorder, tiny_sweep
from helpers_ray import RAY_WARNINGS, add_node, cluster_of
from isotherm.core.budget import Budget
from isotherm.core.records import RunSpec
from isotherm.running.executors.choice import ExecutorChoice
from isotherm.running.runner import run
from isotherm.running.store import StoredRun

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: isotherm[ray]"),
    *(pytest.mark.filterwarnings(line) for line in RAY_WARNINGS),
]


class NodeRemover(Recorder):
    """Takes a node away as soon as both nodes have a fleet."""

    def __init__(self, cluster: Any, node: Any) -> None:
        super().__init__()
        self.cluster, self.node = cluster, node
        self.executor: Any = None
        self.stored: list[str] = []
        self.handed: list[str] = []

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        self.handed += [spec.key for spec in specs]
        if self.node is not None and any(actor.job is not None for actor in self.executor._actors.actors):
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        self.stored += [stored.spec.key for stored in runs]


def test_a_node_is_removed_in_the_middle_of_a_sweep() -> None:
    from isotherm.running.executors.ray import RayExecutor

    sweep = tiny_sweep(batch_sizes=[4, 8], budget=Budget.steps(1_000), num_evaluations=1)
    with cluster_of(1) as cluster:
        told = NodeRemover(cluster, add_node(cluster, cores=1))

        class Choice(ExecutorChoice):
            def executor(self, tasks: Any, options: Any, *, folder: Any = None) -> Any:
                told.executor = RayExecutor(tasks, options, num_workers=2)
                return told.executor

        results = run(sweep, executor=Choice(), fleet_size=2, progress=told)
    assert told.node is None
    assert results.counts() == {"finished": 12, "diverged": 0, "failed": 0, "missing": 0}
    assert len(told.stored) == len(set(told.stored)) == 12, "every run arrives once"
    assert len(told.handed) == 12 + 2, "the fleet of the lost node was handed out again"
    assert results.by_key == run(sweep, fleet_size=2).by_key
