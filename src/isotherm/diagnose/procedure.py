"""The paper's advice as one call: short runs, curvature and noise, and one answer with its uncertainty."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from isotherm.core.statistics import Interval
from isotherm.core.temperature import effective_learning_rate
from isotherm.diagnose.answer import (
    SGD,
    boundaries,
    ceiling,
    choices,
    current_setting,
    expectations,
    recommended_size,
)
from isotherm.diagnose.diagnosis import Cost, Current, Diagnosis, Isotherm, Probe, Stability
from isotherm.diagnose.fits import ratio
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.diagnose.probes import Prober, has_layer
from isotherm.diagnose.searches import (
    COARSE_SEEDS,
    FEWEST_STEPS,
    FIRST_FACTORS,
    ROUNDS,
    SHORT_EPOCHS,
    STABILITY_STEPS,
    TIMED_STEPS,
    GridSearch,
    Pace,
    fit_isotherm,
    large_batch_size,
    measure_pace,
    search_optima,
    search_stability,
    three_batch_sizes,
)
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns, held_out_tasks
from isotherm.engine.placed_task import checked_device, place_task
from isotherm.errors import UserError
from isotherm.tasks.model_check import call_model, example_batch
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task
from isotherm.theory.closed_forms import critical_learning_rate

# Fraction of the time for curvature and noise at the start, and fractions by which the later stages end.
_PROBES = 0.12
_ENDS = {"stability": 0.42, "grids": 0.84, "speed": 0.9}
# Batch sizes of the answer: powers of two around the trained ones.
_MOST_CHOICES = 10
# Tried besides plain SGD if no momentum is in use.
_OTHER_MOMENTUM = 0.9
# Size of an update that shows whether outputs come to depend on the inputs.
_PROBING_STEP = 0.1
# Runs timed together for planning.
_RUNS_OF_A_FLEET = 8


def diagnose(
    task: Task,
    options: DiagnoseOptions | None = None,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    _now: Callable[[], float] = time.perf_counter,
) -> Diagnosis:
    """Return what limits SGD on a task, and which batch size and learning rate to use.

    Args:
        task: what is trained.
        options: what is used at present, and how much time there is; None takes every default.
        on_stage: told what is being done.

    Raises:
        UserError: the task cannot be trained, or the time is too short for it.
    """
    options = options or DiagnoseOptions()
    checked_device(options.device)
    clock = Clock(seconds=60 * options.minutes, now=_now)
    on_stage("checking the task")
    tasks, judged_by = held_out_tasks(task)
    short = tasks[0]
    sizes = three_batch_sizes(short, options.batch_sizes, centre=options.batch_size)
    _check_start(short)
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
        now=_now,
    ) as runs:
        return _Diagnostician(
            task=task, runs=runs, clock=clock, sizes=sizes, options=options, on_stage=on_stage, missing=missing
        ).diagnosis()


def _check_start(task: Task) -> None:
    """Raise a UserError if the loss or a gradient is not finite at the start, or if all gradients are zero."""
    module = initial_model(task.model, seed=0).eval()
    x, y = example_batch(task, 64)
    output = call_model(module, x, unroll=task.unroll)
    loss = task.loss_function(output, y)
    if not bool(torch.isfinite(loss)):
        raise UserError(
            f"task {task.name!r}: the loss is {float(loss)} before the first update; check the scale of the inputs, "
            "the initialisation and the loss"
        )
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = (
        torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True) if loss.requires_grad else ()
    )
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        raise UserError(
            f"task {task.name!r}: a gradient is not finite before the first update; look for a root, a norm or a "
            "logarithm at zero"
        )
    length = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    if length == 0.0:
        raise UserError(
            f"task {task.name!r}: no parameter has a gradient at the start; the outputs do not depend on any trainable "
            "parameter (all zero, saturated, detached?), so nothing can be said about learning rates"
        )
    if not _varies(output):  # also for a last layer that starts at zero, but not after an update
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient * (_PROBING_STEP / length))
            output = call_model(module, x, unroll=task.unroll)
        if not _varies(output):
            raise UserError(
                f"task {task.name!r}: the outputs are the same for all examples, before and after an update; check "
                "the inputs (all equal?) and look for units that are dead or all zero"
            )


def _varies(output: Tensor) -> bool:
    """Tell whether outputs differ between examples by more than rounding."""
    spread = (output - output[:1]).abs().max()
    return bool(spread > 1e-6 * output.abs().max())


class _Diagnostician:
    def __init__(
        self,
        *,
        task: Task,
        runs: ShortRuns,
        clock: Clock,
        sizes: tuple[int, ...],
        options: DiagnoseOptions,
        on_stage: Callable[[str], None],
        missing: list[str],
    ) -> None:
        self._task, self._runs, self._clock, self._sizes = task, runs, clock, sizes
        self._options, self._on_stage, self._missing = options, on_stage, missing
        self._momentum = options.momentum or _OTHER_MOMENTUM
        self._prober = Prober(
            task=runs.task, seed=options.seed, device=runs.device, on_missing=self._miss, now=clock.now
        )
        self._unroll = runs.task.unroll or 1
        self._large = large_batch_size(runs.task, sizes)

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
        self._on_stage("short runs at several batch sizes")
        # If the limit with momentum is unknown, plain SGD's is used: it is stable with momentum too.
        limit = limits[self._momentum] or limits[SGD]
        searches = self._optima(self._top(limit, stability), paces)
        isotherm = fit_isotherm(searches, limit=limit)
        self._explain(isotherm, stability, searches)
        self._on_stage("speed at every batch size")
        shown = self._shown_sizes(isotherm, limits)
        speeds = self._speeds(shown)
        self._on_stage("curvature and gradient noise after a short training")
        probes = (start, *self._later(searches, isotherm))
        found, agreement = boundaries(stability, isotherm, probes)
        answers = choices(shown, isotherm=isotherm, limits=limits, speeds=speeds, num_train=self._task.num_train)
        border = None
        if isotherm.temperature is not None and limit is not None:
            border = ratio(ceiling(limit), isotherm.temperature)
        return Diagnosis(
            task=self._task.name,
            momentum=self._momentum,
            num_train=self._task.num_train,
            stability=stability,
            grids=tuple(search.result() for search in searches),
            isotherm=isotherm,
            probes=probes,
            boundaries=found,
            agreement=agreement,
            current=self._current(isotherm, limits),
            choices=answers,
            recommended=recommended_size(answers, border=border),
            expectations=expectations(isotherm, limits),
            missing=tuple(self._missing),
            cost=Cost(seconds=self._clock.spent, num_runs=self._runs.num_runs, num_examples=self._runs.num_examples),
            settings=self._settings(),
        )

    def _current(self, isotherm: Isotherm, limits: Mapping[float, Interval | None]) -> Current | None:
        """Return the assessment of the setting in use, if one was given."""
        options = self._options
        if options.batch_size is None or options.learning_rate is None:
            return None
        return current_setting(
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            isotherm=isotherm,
            limit=limits[options.momentum],
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "minutes": self._options.minutes,
            "batch_sizes": list(self._sizes),
            "seed": self._options.seed,
            "device": self._options.device,
            "workers": self._options.workers,
            "judged_by": self._runs.judged_by,
        }

    # -- stages -----------------------------------------------------------------------------------------------------

    def _grid_spec(self, size: int, *, momentum: float, num_steps: int) -> ShortGridSpec:
        return ShortGridSpec(batch_size=size, momentum=momentum, num_steps=num_steps, rates=(), num_seeds=COARSE_SEEDS)

    def _paces(self) -> dict[int, Pace]:
        """Return the speed of fleets at every batch size of the short grids, or raise a UserError if it is too low."""
        found: dict[int, Pace] = {}
        for size in sorted({*self._sizes, self._large}):
            # Spending half of the time on timing is too much.
            if found and self._clock.spent + self._to_time(size, found) > self._clock.seconds / 2:
                self._refuse(found)
            grid_spec = self._grid_spec(size, momentum=self._momentum, num_steps=1)
            pace = measure_pace(self._runs, grid_spec, num_runs=_RUNS_OF_A_FLEET, seconds=0.1, clock=self._clock)
            if pace is None:
                self._refuse(found)
            else:
                found[size] = pace
        if self._needed(found) > self._clock.seconds:
            self._refuse(found)
        return found

    def _to_time(self, size: int, paces: Mapping[int, Pace]) -> float:
        """Return the seconds to time a fleet, if it is no slower per example than the largest batch so far."""
        return paces[max(paces)].seconds(TIMED_STEPS * _RUNS_OF_A_FLEET * size * self._unroll)

    def _needed(self, paces: Mapping[int, Pace]) -> float:
        """Return the seconds of the minimum: two rounds at the largest batch, three at every batch size.

        A batch size that was not timed is assumed as fast per example as the largest one that was.
        """
        known = {size: paces.get(size, paces[max(paces)]) for size in (*self._sizes, self._large)}
        timing = self._clock.spent + sum(self._to_time(size, paces) for size in known if size not in paces)
        fewest = FEWEST_STEPS * self._unroll
        seconds = 2 * known[self._large].seconds(2 * len(FIRST_FACTORS) * COARSE_SEEDS * fewest * self._large)
        seconds += 3 * sum(known[size].seconds(5 * COARSE_SEEDS * fewest * self._sizes[-1]) for size in self._sizes)
        return 1.5 * timing + seconds / self._runs.num_workers

    def _refuse(self, paces: Mapping[int, Pace]) -> NoReturn:
        """Say that the time is too short, and how much would be enough if that is known.

        Raises:
            UserError: always.
        """
        # A tenth more, to be safe. Without any timing, only the duration of one start is known: there are about a dozen
        # starts, and training takes as long again.
        needed = 1.1 * self._needed(paces) if paces else 24 * self._clock.spent
        raise UserError(
            f"task {self._task.name!r}: minutes={self._clock.seconds / 60:.3g} is too short on this machine; give "
            f"at least {math.ceil(needed / 6) / 10:g}, or smaller batch_sizes than {list(self._sizes)}"
        )

    def _stability(self, start: Probe, paces: Mapping[int, Pace]) -> tuple[Stability, ...]:
        size, clock = self._large, self._clock
        num_first = 2 * len(FIRST_FACTORS) * COARSE_SEEDS
        # After the first round there may be a second one like it, and a fine one of twice the runs.
        share = (self._until("stability") - clock.spent) / ROUNDS * self._runs.num_workers
        examples = (share - paces[size].overhead) * paces[size].speed / num_first
        num_steps = min(STABILITY_STEPS, max(FEWEST_STEPS, int(examples / (size * self._unroll))))
        initial = self._initial_loss()
        guesses = {SGD: self._guess(start, momentum=SGD), self._momentum: self._guess(start, momentum=self._momentum)}
        found = search_stability(
            self._runs,
            batch_size=size,
            guesses=guesses,
            num_steps=num_steps,
            initial_loss=initial,
            clock=clock,
            until=self._until("stability"),
        )
        for stable in found:
            if stable.limit is None:
                name = "plain SGD" if stable.momentum == SGD else f"momentum {stable.momentum:g}"
                what = "no run failed" if not any(stable.num_failed) else "no learning rate made progress in all runs"
                self._miss(
                    f"the largest stable learning rate of {name}: {what} between {stable.rates[0]:.3g} and "
                    f"{stable.rates[-1]:.3g}; give more minutes"
                )
        return found

    def _guess(self, start: Probe, *, momentum: float) -> float:
        if start.sharpness is None:
            return 1.0
        critical = critical_learning_rate(start.sharpness.estimate, momentum=momentum)
        return effective_learning_rate(critical, momentum=momentum)

    def _initial_loss(self) -> float:
        """Return the training loss before any update, in evaluation mode, averaged over a few seeds."""
        placed = place_task(self._runs.task, precision="float32", device=self._runs.device)
        x, y = example_batch(self._runs.task, 512)
        losses = []
        with torch.no_grad():
            for seed in range(3):
                module = initial_model(self._runs.task.model, seed=seed).to(placed.device).eval()
                output = call_model(module, x.to(placed.device), unroll=self._runs.task.unroll)
                losses.append(float(self._runs.task.loss_function(output, y.to(placed.device))))
        return sum(losses) / len(losses)

    def _top(self, limit: Interval | None, stability: Sequence[Stability]) -> float:
        """Return the largest learning rate of the short grids; without a limit, the largest at which no run failed."""
        if limit is not None:
            return ceiling(limit).estimate
        tried = [(rate, bad) for s in stability for rate, bad in zip(s.rates, s.num_failed, strict=True)]
        return max((rate for rate, bad in tried if not bad), default=min(rate for rate, _ in tried))

    def _optima(self, top: float, paces: Mapping[int, Pace]) -> list[GridSearch]:
        clock, until = self._clock, self._until("grids")
        num_first = 5 * COARSE_SEEDS
        # The first round, one further out, the fine one, and then more seeds as time permits.
        share = (until - clock.spent) / ROUNDS * self._runs.num_workers
        overhead = sum(paces[size].overhead for size in self._sizes)
        per_example = sum(num_first / paces[size].speed for size in self._sizes)
        affordable = (share - overhead) / per_example / self._unroll  # examples of a run, or windows
        wanted = SHORT_EPOCHS * self._runs.task.num_train / self._unroll
        examples = max(min(wanted, affordable), FEWEST_STEPS * self._sizes[-1])
        grid_specs = [
            self._grid_spec(size, momentum=self._momentum, num_steps=max(FEWEST_STEPS, round(examples / size)))
            for size in self._sizes
        ]
        found = search_optima(
            self._runs, grid_specs, most_longer=wanted / examples, ceiling=top, clock=clock, until=until
        )
        epochs = found[-1].grid_spec.num_steps * self._sizes[-1] * self._unroll / self._runs.task.num_train
        if epochs < 0.99:  # updates are whole
            self._miss(
                f"a whole epoch: the short runs see {100 * epochs:.2g} % of the training set, and the best "
                "learning rate may still move; give more minutes"
            )
        return found

    def _explain(self, isotherm: Isotherm, stability: Sequence[Stability], searches: Sequence[GridSearch]) -> None:
        """Report what the short grids leave open."""
        grids = [search.result() for search in searches]
        for grid in grids:
            if grid.optimum is None:
                self._miss(
                    f"the optimum at B = {grid.batch_size}: it lies at an end of {grid.rates[0]:.3g} .. "
                    f"{grid.rates[-1]:.3g}; give more minutes"
                )
        if all(grid.optimum is None for grid in grids):
            self._miss("the temperature: no batch size has an optimum within the learning rates that were tried")
        elif isotherm.temperature is None:
            self._miss(
                "the temperature: every optimum lies at the limit of stability, so even the smallest batch is "
                "curvature dominated; try smaller batch_sizes"
            )
        elif len(isotherm.batch_sizes) == 1:
            self._miss(
                f"whether the optima lie on one isotherm: only B = {isotherm.batch_sizes[0]} lies below the limit of "
                "stability; try smaller batch_sizes"
            )
        elif isotherm.slope is not None and not isotherm.slope.low <= 1.0 <= isotherm.slope.high:
            self._miss(
                f"one temperature for all batch sizes: the optima rise as B^{isotherm.slope.estimate:.2f} "
                f"[{isotherm.slope.low:.2f}, {isotherm.slope.high:.2f}], not as B; run a sweep to see how far"
            )

    def _shown_sizes(self, isotherm: Isotherm, limits: dict[float, Interval | None]) -> list[int]:
        """Return the batch sizes of the answer: from the smallest trained to beyond the boundary, by factors of two."""
        most = self._task.num_train // (2 * self._unroll)
        last = self._sizes[-1]
        if isotherm.temperature is not None:
            known = [ratio(ceiling(limit), isotherm.temperature).estimate for limit in limits.values() if limit]
            last = max(last, *(int(min(2 * size, 64 * last)) for size in known)) if known else last
        sizes: list[int] = []
        size = self._sizes[0]
        while size <= min(most, last) and len(sizes) < _MOST_CHOICES:
            sizes.append(size)
            size *= 2
        return sizes or [self._sizes[0]]

    def _speeds(self, sizes: Sequence[int]) -> dict[int, float]:
        """Return examples per second of one run at every batch size, as far as time permits."""
        found: dict[int, float] = {}
        longest = 0.0
        for size in sizes:
            before = self._clock.spent
            grid_spec, pace = self._grid_spec(size, momentum=self._momentum, num_steps=1), None
            if before + 2 * longest <= self._until("speed"):
                pace = measure_pace(self._runs, grid_spec, num_runs=1, seconds=0.1, clock=self._clock)
            if pace is None:
                self._miss(f"the speed at B = {size} and above; give more minutes")
                break
            found[size] = pace.speed
            longest = max(longest, self._clock.spent - before)
        return found

    def _later(self, searches: Sequence[GridSearch], isotherm: Isotherm) -> tuple[Probe, ...]:
        """Return curvature and noise after a short training at the middle batch size."""
        search = searches[len(searches) // 2]
        grid = search.result()
        best = min(range(len(grid.rates)), key=lambda k: grid.means[k])
        grid_spec = replace(search.grid_spec, rates=(grid.rates[best],), num_seeds=1)
        if self._clock.left <= 0:
            self._miss("curvature and gradient noise after a short training: no time was left; give more minutes")
            return ()
        if has_layer(initial_model(self._runs.task.model, seed=0), _BatchNorm):
            self._miss(
                "curvature and gradient noise after a short training: short runs do not keep the running statistics of "
                "batch norm, so the estimates are those of the start; ghost batch norm needs none"
            )
            return ()
        # A third of the time left: even the smallest measurement may take several times as long as estimated.
        parameters = self._runs.parameters_after(grid_spec, rate=grid.rates[best])
        if not parameters:
            return ()
        return (self._prober.at(grid_spec.num_steps, parameters, seconds=max(0.0, self._clock.left) / 3),)
