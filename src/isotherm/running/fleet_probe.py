"""A fleet's first updates, with evaluations of a few examples: how long set-up, updates and evaluation take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isotherm.core.records import RunSpec
from isotherm.engine.evaluation import CHUNK, REESTIMATION_EXAMPLES, WINDOW
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask, ghost_layers
from isotherm.running.timing import Clock, Enough, FleetTimer, Lap, own_seconds
from isotherm.tasks.inputs import Inputs, LazyInputs, Split
from isotherm.tasks.seeding import initial_model

# Evaluations that are timed at most, and the seconds after which hardly more is trained.
MOST_EVALUATIONS = 10
MOST_SECONDS = 0.5
# Updates of a lap, two laps between evaluations; on a GPU the recording of an update needs room for a few.
UPDATES_PER_LAP = {"cpu": 2, "cuda": 4}
# Examples, or tokens, of the first evaluations: one to warm up, then two sizes to tell the cost of more of them, the
# large one twice, as a pause of the machine in it would count most.
EXAMPLES = (100, CHUNK, 3 * CHUNK, 3 * CHUNK)
TOKENS = (WINDOW, 2 * WINDOW, 12 * WINDOW, 12 * WINDOW)
# Training examples that are left where every evaluation re-estimates the statistics of ghost batch norm.
TRAINING_EXAMPLES = 512
# So small that no run diverges; the time of an update does not depend on it.
LEARNING_RATE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationCost:
    """What evaluation costs in seconds: to begin with a split, per example, per example of a re-estimation."""

    fixed: float
    per_example: float
    per_reestimated: float

    @classmethod
    def of(cls, timed: Sequence[tuple[int, float]], *, num_reestimated: int) -> EvaluationCost:
        """Tell the parts of evaluations, (examples, seconds) each, apart by their sizes; the first one warmed up.

        Where sizes do not differ enough to tell, a re-estimated example is taken to cost what an evaluated one does.
        """
        quickest: dict[int, float] = {}  # of every size: a pause of the machine in one of them should not count
        for num, seconds in timed[1:4]:
            quickest[num] = min(seconds, quickest.get(num, math.inf))
        if len(quickest) > 1 and quickest[max(quickest)] > quickest[min(quickest)]:
            few, many = min(quickest), max(quickest)
            short, long = quickest[few], quickest[many]
            per_example = (long - short) / (many - few)
            rest = max(0.0, short - per_example * few)
            if num_reestimated:
                return cls(fixed=0.0, per_example=per_example, per_reestimated=rest / num_reestimated)
            return cls(fixed=rest, per_example=per_example, per_reestimated=0.0)
        num = max(quickest, default=timed[0][0])
        seconds = quickest.get(num, timed[0][1])
        alike = seconds / (num + num_reestimated)
        return cls(fixed=0.0, per_example=alike, per_reestimated=alike if num_reestimated else 0.0)

    def of_run(self, sizes: Mapping[str, int], *, num_evaluations: int) -> float:
        """Return the seconds of the evaluations along the way and of the end, which goes through all splits.

        With re-estimated statistics the end also evaluates the test set with those it has, then re-estimates over the
        whole training set.
        """
        test = self.fixed + self.per_example * sizes["test"]
        along_the_way = test + self.per_reestimated * min(REESTIMATION_EXAMPLES, sizes["train"])
        end = sum(self.fixed + self.per_example * num for num in sizes.values())
        if self.per_reestimated:
            end += test + self.per_reestimated * sizes["train"]
        return num_evaluations * along_the_way + end


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What a probe found, in seconds and for all runs of the fleet.

    Args:
        setup: before the first update.
        per_update: of one update.
        evaluation: None where no run could be evaluated.
    """

    setup: float
    per_update: float
    evaluation: EvaluationCost | None


def probed(
    placed: PlacedTask,
    fleet: Sequence[RunSpec],
    *,
    checks: FleetChecks,
    micro_batch_size: int | None = None,
    clock: Clock = own_seconds,
) -> Probed:
    """Train the first updates of a fleet, with evaluations of a test set that is cut to a few examples.

    Args:
        placed: the task on a device.
        fleet: the runs.
        checks: results of earlier checks of the task.
        micro_batch_size: examples of an update that are computed at once; all by default.
        clock: returns the time in seconds; by default without the time that other programs had the processor.
    """
    splits, num_reestimated = _CutSplits(placed), 0
    if placed.reestimates and ghost_layers(initial_model(placed.build, seed=fleet[0].seed)):
        num_reestimated = splits.cut_training_set(TRAINING_EXAMPLES)
    probe = _Probe(splits, len(fleet), is_on_gpu=placed.device.type == "cuda")
    updates = UPDATES_PER_LAP[placed.device.type]
    changes: dict[str, Any] = {"num_steps": MOST_EVALUATIONS * 2 * updates, "num_evaluations": MOST_EVALUATIONS}
    specs = [dataclasses.replace(s, **changes, effective_learning_rate=LEARNING_RATE) for s in fleet]
    cut = dataclasses.replace(placed, splits=splits)
    timer = FleetTimer(
        cut, specs, checks=checks, updates_per_window=updates, micro_batch_size=micro_batch_size, clock=clock
    )
    timer.run(probe.on_lap, on_evaluation=probe.on_evaluation)
    return probe.found(num_reestimated=num_reestimated)


class _Probe:
    """Listens to a fleet, chooses the size of the next evaluation, and stops when enough was seen."""

    def __init__(self, splits: _CutSplits, num_runs: int, *, is_on_gpu: bool) -> None:
        self._splits, self._num_runs, self._is_on_gpu = splits, num_runs, is_on_gpu
        self._laps: list[Lap] = []
        self._evaluations: list[tuple[int, float]] = []
        splits.resize_test_set(splits.sizes[0])

    def on_lap(self, lap: Lap) -> None:
        self._laps.append(lap)

    def on_evaluation(self, seconds: float) -> None:
        self._evaluations.append((len(self._splits["test"][1]), seconds))
        num, sizes = len(self._evaluations), self._splits.sizes
        spent = sum(lap.seconds for lap in self._laps[1:]) + sum(seconds for _, seconds in self._evaluations)
        # On a GPU an evaluation begins with costs that are not those of examples, so one size tells too little.
        if num >= MOST_EVALUATIONS or (spent > MOST_SECONDS and (num >= len(sizes) or not self._is_on_gpu)):
            raise Enough
        self._splits.resize_test_set(sizes[num] if num < len(sizes) else sizes[0])

    def found(self, *, num_reestimated: int) -> Probed:
        """Return what was seen, extended from the runs that are trained at the same time to all."""
        if not self._laps:
            return Probed(setup=0.0, per_update=0.0, evaluation=None)
        first, share = self._laps[0], self._num_runs / self._laps[0].num_runs
        pace = [lap.seconds / lap.num_updates for lap in self._laps[1:]]
        of_update = min(pace, default=0.0)  # what other programs do can only make a lap longer
        evaluation = None
        if self._evaluations:
            timed = [(num, seconds * share) for num, seconds in self._evaluations]
            evaluation = EvaluationCost.of(timed, num_reestimated=num_reestimated)
        return Probed(
            setup=max(0.0, first.seconds - first.num_updates * of_update),
            per_update=of_update * share,
            evaluation=evaluation,
        )


class _CutSplits(Mapping[str, Split]):
    """The training and the test set of a task, cut; the size of the test set may change between evaluations."""

    def __init__(self, placed: PlacedTask) -> None:
        self.sizes = EXAMPLES if placed.unroll is None else TOKENS
        self._whole_test = placed.splits["test"]
        self._splits = {"train": placed.splits["train"], "test": self._whole_test}

    def cut_training_set(self, num: int) -> int:
        """Keep at most `num` training examples; return how many there are."""
        self._splits["train"] = _cut(self._splits["train"], num)
        return len(self._splits["train"][1])

    def resize_test_set(self, num: int) -> None:
        """Keep at most `num` of all test examples or tokens."""
        self._splits["test"] = _cut(self._whole_test, num)

    def __getitem__(self, name: str) -> Split:
        return self._splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)


@dataclass(frozen=True, slots=True)
class _FirstOf:
    """The first of inputs that are read from disk."""

    inputs: LazyInputs
    num: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num, *self.inputs.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.dtype

    def __len__(self) -> int:
        return self.num

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        return self.inputs.fetch(indices, seed=seed, step=step)

    def identity(self) -> str:
        return f"first {self.num} of {self.inputs.identity()}"


def _cut(split: Split, num: int) -> Split:
    """Return the first examples, or tokens, of a split."""
    inputs, targets = split
    num = min(num, len(targets))
    first: Inputs = inputs[:num] if isinstance(inputs, Tensor) else _FirstOf(inputs, num)
    return first, targets[:num]
