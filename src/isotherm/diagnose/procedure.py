"""The paper's advice as one call: short runs, curvature and noise, and one answer for the intended training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from isotherm.core.statistics import Interval
from isotherm.core.temperature import effective_learning_rate
from isotherm.diagnose.answer import Training, choices, current_setting, expectations, recommended_sizes
from isotherm.diagnose.baseline import constant_loss, has_learned
from isotherm.diagnose.batch_sizes import large_batch_size, three_batch_sizes
from isotherm.diagnose.boundary import SGD, Line, boundaries, ceiling, crossing
from isotherm.diagnose.diagnosis import Cost, Current, Diagnosis, Isotherm, Probe, Stability
from isotherm.diagnose.explanations import (
    NOTHING_LEARNED,
    explain_grids,
    explain_law,
    explain_stability,
)
from isotherm.diagnose.grids import GridPlan, GridSearch, least_seconds, search_grids
from isotherm.diagnose.intended import Intended
from isotherm.diagnose.law import Law, fit_law
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.diagnose.pace import Pace, measure_pace, measure_paces
from isotherm.diagnose.probes import Prober, has_layer
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns, held_out_tasks
from isotherm.diagnose.stability import COARSE_SEEDS, FIRST_FACTORS, ROUNDS, STABILITY_STEPS, search_stability
from isotherm.diagnose.start import check_start, initial_loss
from isotherm.engine.placed_task import checked_device
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task
from isotherm.theory.closed_forms import critical_learning_rate

# Fraction of the time for curvature and noise at the start, and fractions by which the later stages end.
_PROBES = 0.12
_ENDS = {"stability": 0.35, "grids": 0.84, "speed": 0.9}
# The most that all short runs may cost together, and those of the stability search alone, in trainings of the intended
# length: a sweep of two optimisers, six batch sizes, twelve learning rates and five seeds has 720.
MOST_TRAININGS, STABILITY_TRAININGS = 58.0, 12.0
# The fewest updates of a run that shows whether a learning rate is stable, and the runs of that search.
FEWEST_STABILITY_STEPS, _STABILITY_RUNS = 32, 60
# Batch sizes of the answer: powers of two around the trained ones.
_MOST_CHOICES = 10
# Tried besides plain SGD if no momentum is in use.
_OTHER_MOMENTUM = 0.9


def diagnose(
    task: Task,
    options: DiagnoseOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    _now: Callable[[], float] = time.perf_counter,
) -> Diagnosis:
    """Return what limits SGD on a task, and which batch size and learning rate to use for the intended training.

    Args:
        task: what is trained.
        options: the length of the intended training, what is used at present, and how much time there is.
        on_stage: told what is being done.

    Raises:
        UserError: the task cannot be trained, or the time is too short for it.
    """
    checked_device(options.device)
    clock = Clock(seconds=60 * options.minutes, now=_now)
    on_stage("checking the task")
    _check_batch_size(task, options)
    tasks, judged_by = held_out_tasks(task)
    sizes = three_batch_sizes(tasks[0], options.batch_sizes, centre=options.batch_size, budget=options.budget)
    own = [] if options.batch_size is None else [options.batch_size]
    intended = Intended(task=task, budget=options.budget, schedule=options.intended_schedule)
    intended.check_room((*sizes, large_batch_size(tasks[0], sizes, options.budget), *own))
    check_start(tasks[0])
    missing: list[str] = []
    if judged_by == "test":
        missing.append(
            "held-out data: the task has no validation set and none can be split off, so the test set is used"
        )
    with ShortRuns(
        tasks,
        judged_by=judged_by,
        first_seed=1000 * options.seed,
        device=options.device,
        workers=options.workers,
        schedule_at=intended.schedule_at,
        now=_now,
    ) as runs:
        return _Diagnostician(
            intended=intended, runs=runs, clock=clock, sizes=sizes, options=options, on_stage=on_stage, missing=missing
        ).diagnosis()


def _check_batch_size(task: Task, options: DiagnoseOptions) -> None:
    size, most = options.batch_size, task.num_train // (task.unroll or 1)
    if size is not None and size > most:
        raise UserError(
            f"task {task.name!r}: batch_size={size} is more than the {most} examples of the training set; "
            "give the one you train with, or leave it out"
        )


class _Diagnostician:
    def __init__(
        self,
        *,
        intended: Intended,
        runs: ShortRuns,
        clock: Clock,
        sizes: tuple[int, ...],
        options: DiagnoseOptions,
        on_stage: Callable[[str], None],
        missing: list[str],
    ) -> None:
        self._task, self._intended = intended.task, intended
        self._runs, self._clock, self._sizes = runs, clock, sizes
        self._options, self._on_stage, self._missing = options, on_stage, missing
        self._momentum = options.momentum or _OTHER_MOMENTUM
        self._prober = Prober(
            task=runs.task, seed=options.seed, device=runs.device, on_missing=self._miss, now=clock.now
        )
        self._unroll = runs.task.unroll or 1
        self._large = large_batch_size(runs.task, sizes, options.budget)
        self._training_examples = self._intended.length(sizes[len(sizes) // 2])

    def _miss(self, sentence: str) -> None:
        if sentence not in self._missing:
            self._missing.append(sentence)

    def _until(self, stage: str) -> float:
        return _ENDS[stage] * self._clock.seconds

    def diagnosis(self) -> Diagnosis:
        self._on_stage("how fast this machine trains")
        paces = self._paces()
        self._on_stage("curvature and gradient noise at the start")
        start = self._prober.at(0, None, seconds=_PROBES * self._clock.left)
        self._on_stage("the largest stable learning rate")
        stability = self._stability(start, paces)
        limits = {s.momentum: s.limit for s in stability}
        self._on_stage("short runs at several batch sizes and lengths")
        searches = search_grids(
            self._runs, self._plan(limits, stability, paces), clock=self._clock, until=self._until("grids")
        )
        law = self._law(searches, limits)
        isotherm = self._intended.isotherm(law, searches)
        line = self._intended.line(law, isotherm)
        self._explain(isotherm, searches, law)
        self._on_stage("speed at every batch size")
        shown = self._shown_sizes(line, limits)
        speeds = self._speeds(shown)
        self._on_stage("curvature and gradient noise after a short training")
        probes = (start, *self._later(searches))
        found, agreement = boundaries(stability, line, probes)
        training = self._intended.training(searches, law)
        answers = choices(shown, line=line, limits=limits, speeds=speeds, training=training)
        recommended = recommended_sizes(answers, _borders(line, limits))
        return Diagnosis(
            task=self._task.name,
            momentum=self._momentum,
            num_train=self._task.num_train,
            budget=str(self._options.budget),
            schedule=self._intended.schedule,
            metric=self._task.metric_definition.name,
            stability=stability,
            grids=tuple(search.result() for search in searches),
            isotherm=isotherm,
            probes=probes,
            boundaries=found,
            agreement=agreement,
            current=self._current(line, limits, law, training, speeds),
            choices=answers,
            recommended=recommended,
            expectations=expectations(isotherm, line, limits, training=training, budget=str(self._options.budget)),
            missing=tuple(self._missing),
            cost=Cost(seconds=self._clock.spent, num_runs=self._runs.num_runs, num_examples=self._runs.num_examples),
            settings=self._settings(),
            code=self._intended.code(self._runs, answers, recommended),
        )

    def _settings(self) -> dict[str, Any]:
        options = self._options
        length = {"epochs": options.epochs} if options.steps is None else {"steps": options.steps}
        return {
            **length,
            "schedule": str(options.schedule),
            "minutes": options.minutes,
            "batch_sizes": list(self._sizes),
            "seed": options.seed,
            "device": options.device,
            "workers": options.workers,
            "judged_by": self._runs.judged_by,
        }

    # -- speed ------------------------------------------------------------------------------------------------------

    def _paces(self) -> dict[int, Pace]:
        """Return the speed of fleets at every batch size, or raise a UserError if the time is too short."""

        def needed(paces: Mapping[int, Pace]) -> float:
            first = 2 * len(FIRST_FACTORS) * COARSE_SEEDS * FEWEST_STABILITY_STEPS * self._large * self._unroll
            stability = 2 * paces[self._large].seconds(first) / self._runs.num_workers
            return stability + least_seconds(self._runs, self._plan({}, (), paces), clock=self._clock)

        sizes = (*self._sizes, self._large)
        return measure_paces(self._runs, sizes, momentum=self._momentum, needed=needed, clock=self._clock)

    def _speeds(self, sizes: Sequence[int]) -> dict[int, float]:
        """Return examples per second of one run at every batch size, as far as time permits."""
        found: dict[int, float] = {}
        longest = 0.0
        for size in sizes:
            before = self._clock.spent
            spec, pace = (
                ShortGridSpec(batch_size=size, momentum=self._momentum, num_steps=1, rates=(), num_seeds=1),
                None,
            )
            if before + 2 * longest <= self._until("speed"):
                pace = measure_pace(self._runs, spec, num_runs=1, seconds=0.1, clock=self._clock)
            if pace is None:
                self._miss(f"the speed at B = {size} and above; give more minutes")
                break
            found[size] = pace.speed
            longest = max(longest, self._clock.spent - before)
        return found

    # -- stability --------------------------------------------------------------------------------------------------

    def _stability(self, start: Probe, paces: Mapping[int, Pace]) -> tuple[Stability, ...]:
        size, clock = self._large, self._clock
        num_first = 2 * len(FIRST_FACTORS) * COARSE_SEEDS
        # After the first round there may be a second one like it, and a fine one of twice the runs.
        share = (self._until("stability") - clock.spent) / ROUNDS * self._runs.num_workers
        affordable = (share - paces[size].overhead) * paces[size].speed / num_first / (size * self._unroll)
        most = min(STABILITY_STEPS, self._intended.steps(size), self._most_stability_steps())
        found = search_stability(
            self._runs,
            batch_size=size,
            guesses={m: self._guess(start, momentum=m) for m in (SGD, self._momentum)},
            num_steps=min(most, max(FEWEST_STABILITY_STEPS, int(affordable))),
            most_steps=most,
            initial_loss=initial_loss(self._runs.task, device=self._runs.device),
            clock=clock,
            until=self._until("stability"),
        )
        for sentence in explain_stability(found):
            self._miss(sentence)
        return found

    def _most_stability_steps(self) -> int:
        """Return the length of stability runs whose cost is a small part of the intended training's."""
        examples = STABILITY_TRAININGS * self._training_examples / _STABILITY_RUNS
        return max(FEWEST_STABILITY_STEPS, int(examples / (self._large * self._unroll)))

    def _guess(self, start: Probe, *, momentum: float) -> float:
        if start.sharpness is None:
            return 1.0
        critical = critical_learning_rate(start.sharpness.estimate, momentum=momentum)
        return effective_learning_rate(critical, momentum=momentum)

    # -- short grids ------------------------------------------------------------------------------------------------

    def _plan(
        self, limits: Mapping[float, Interval | None], stability: Sequence[Stability], paces: Mapping[int, Pace]
    ) -> GridPlan:
        return GridPlan(
            batch_sizes=self._sizes,
            momentum=self._momentum,
            intended_steps=self._intended.steps,
            ceiling=_top(self._limit(limits), stability),
            paces=paces,
            most_examples=MOST_TRAININGS * self._training_examples,
        )

    def _limit(self, limits: Mapping[float, Interval | None]) -> Interval | None:
        """Return the limit with momentum; if it is unknown, plain SGD's, which is stable with momentum too."""
        return limits.get(self._momentum) or limits.get(SGD)

    def _law(self, searches: Sequence[GridSearch], limits: Mapping[float, Interval | None]) -> Law | None:
        """Return the law of the optima; None if nothing was learned."""
        constants = np.array([constant_loss(task, judged_by=self._runs.judged_by) for task in self._runs.tasks])
        if not has_learned([search.losses() for search in searches], constants):
            self._miss(NOTHING_LEARNED)
            return None
        limit = self._limit(limits)
        top = np.inf if limit is None else ceiling(limit).estimate
        return fit_law(
            [search.curve() for search in searches],
            ceiling=float(top),
            seed=self._options.seed,
        )

    def _explain(self, isotherm: Isotherm, searches: Sequence[GridSearch], law: Law | None) -> None:
        """Report what the short grids leave open."""
        grids = [search.result() for search in searches]
        intended = str(self._options.budget)
        longest = max(search.num_examples for search in searches) / self._task.num_train
        if NOTHING_LEARNED in self._missing:
            return
        rate = None if law is None else self._intended.rate(law, isotherm.at_batch_size)
        for sentence in (
            *explain_law(isotherm, rate, grids, intended=intended),
            *explain_grids(grids, epochs_of_longest=longest, longest_part=isotherm.longest_part, intended=intended),
        ):
            self._miss(sentence)

    # -- the answer -------------------------------------------------------------------------------------------------

    def _current(
        self,
        line: Line | None,
        limits: Mapping[float, Interval | None],
        law: Law | None,
        training: Training,
        speeds: Mapping[int, float],
    ) -> Current | None:
        """Return what the setting in use would cost, if one was given."""
        options = self._options
        if options.batch_size is None or options.learning_rate is None:
            return None
        return current_setting(
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            line=line,
            limit=limits[options.momentum],
            drop=None if law is None else law.drop,
            training=training,
            speed=speeds.get(options.batch_size),
        )

    def _shown_sizes(self, line: Line | None, limits: Mapping[float, Interval | None]) -> list[int]:
        """Return the batch sizes of the answer: from the smallest trained to beyond the boundary, by factors of two.

        The one in use is among them.
        """
        most = self._task.num_train // (2 * self._unroll)
        last = self._sizes[-1]
        known = [border.estimate for border in _borders(line, limits).values() if border is not None]
        if known:
            last = max(last, *(int(min(2 * size, 64 * last)) for size in known))
        sizes: list[int] = []
        size = self._sizes[0]
        while size <= min(most, last) and len(sizes) < _MOST_CHOICES:
            sizes.append(size)
            size *= 2
        fitting = [size for size in sizes if self._intended.has_room(size)]
        own = self._options.batch_size
        return sorted({*(fitting or [self._sizes[0]]), *([] if own is None else [own])})

    def _later(self, searches: Sequence[GridSearch]) -> tuple[Probe, ...]:
        """Return curvature and noise after a short training at the middle batch size."""
        if self._clock.left <= 0:
            self._miss("curvature and gradient noise after a short training: no time was left; give more minutes")
            return ()
        if has_layer(initial_model(self._runs.task.model, seed=0), _BatchNorm):
            self._miss(
                "curvature and gradient noise after a short training: short runs do not keep the running statistics of "
                "batch norm, so the estimates are those of the start; ghost batch norm needs none"
            )
            return ()
        first = [s for s in searches if s.spec.num_steps * s.spec.batch_size <= 1.1 * searches[0].num_examples]
        search = first[len(first) // 2]
        curve = search.curve()
        spec = replace(search.spec, rates=(search.spec.rates[int(np.argmax(curve.means))],), num_seeds=1)
        # A third of the time left: even the smallest measurement may take several times as long as estimated.
        parameters = self._runs.parameters_after(spec, rate=spec.rates[0])
        if not parameters:
            return ()
        return (self._prober.at(spec.num_steps, parameters, seconds=max(0.0, self._clock.left) / 3),)


def _top(limit: Interval | None, stability: Sequence[Stability]) -> float:
    """Return the largest learning rate of the short grids; without a limit, the largest at which no run failed."""
    if limit is not None:
        return ceiling(limit).estimate
    tried = [(rate, bad) for s in stability for rate, bad in zip(s.rates, s.num_failed, strict=True)]
    return max((rate for rate, bad in tried if not bad), default=min((rate for rate, _ in tried), default=1.0))


def _borders(line: Line | None, limits: Mapping[float, Interval | None]) -> dict[float, Interval | None]:
    """Return B* by momentum."""
    return {m: None if line is None or limit is None else crossing(line, ceiling(limit)) for m, limit in limits.items()}
