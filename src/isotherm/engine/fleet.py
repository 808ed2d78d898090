"""Many runs trained as one program, with the numbers of `reference`.

The runs of a fleet share the module's structure, the batch size, the number of updates and the kind of optimiser; each
has its own learning rate, momentum or betas, L2 or weight decay, clipping threshold, schedule, seed and data order. A
run's numbers depend only on its own spec.

On a GPU an update is recorded as a CUDA graph and replayed. Networks of matmuls are one batched program, and so are
convolutions where our kernels support them or, of small networks in more digits, as matmuls. PyTorch's batched
convolutions with separate weights are slow, and large batches need no batching over runs, so otherwise each run is a
compiled program on its own stream.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from isotherm.core.optimizers import kind_of
from isotherm.core.records import CurvePoint, RunResult, RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.checkpoint_file import State
from isotherm.engine.deadline import Deadline, Laps, OutOfTime, train_in_turn
from isotherm.engine.evaluation import Tensors
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.micro_batches import MicroBatches
from isotherm.engine.placed_task import PlacedTask, arithmetic
from isotherm.engine.reference import run_reference
from isotherm.engine.stack.model import NotVectorisable
from isotherm.engine.stack.plan import UPDATES_PER_WINDOW, StackPlan
from isotherm.engine.stack.run_stack import Listeners, RunStack
from isotherm.errors import UserError
from isotherm.kernels import building
from isotherm.tasks.seeding import seeded
from isotherm.tasks.torch_warnings import without_torch_warnings

logger = logging.getLogger("isotherm")

# Above this, two runs in float32 may not fit into a GPU's memory, and one is checked.
LARGEST_BATCH_OF_TWO = 1024
# Whatever the network: runs in turn share nothing.
TIME_IN_TURN = "n runs take n times as long as one"


@without_torch_warnings()
def run_fleet(
    placed: PlacedTask,
    specs: Sequence[RunSpec],
    *,
    on_steps: Callable[[int], None] = lambda _: None,
    on_evaluation: Callable[[int, CurvePoint], None] = lambda _index, _point: None,
    on_trained: Callable[[int, Tensors], None] = lambda _index, _parameters: None,
    checkpoint: Checkpoint | None = None,
    checks: FleetChecks | None = None,
    deadline: Deadline | None = None,
    updates_per_window: int = UPDATES_PER_WINDOW,
    micro_batch_size: int | None = None,
) -> list[RunResult]:
    """Train all runs and return their results, in the order given.

    A module that `torch.func.vmap` cannot take is trained one run at a time, with a warning in the log.

    Args:
        placed: the task on a device.
        specs: runs of one batch size and one number of updates.
        on_steps: called from time to time with the number of run-updates made.
        on_evaluation: told a run's index and its scores on the test set along the way.
        on_trained: handed every finished run's index and parameters.
        checkpoint: where the state is saved from time to time, and restored from if it is there; the caller removes it.
            Runs that are trained one at a time have none.
        checks: results of earlier checks of this task; added to.
        deadline: when to stop; none by default.
        updates_per_window: updates between two checks of the losses; results do not depend on it.
        micro_batch_size: examples that an update computes at once, one of `micro_batches.sizes_of`; all by default.

    Raises:
        NotSeparable: the examples of a batch cannot be computed in micro-batches.
        OutOfTime: the deadline came first; the checkpoint, if there is one, has been written.
    """
    _check_alike(specs)
    checks = FleetChecks() if checks is None else checks
    with arithmetic(placed):
        cut = checks.micro_batches(placed, specs[0].batch_size, size=micro_batch_size)
    fleet = _Fleet(
        placed=placed,
        specs=tuple(specs),
        micro_batches=cut,
        listeners=Listeners(on_steps=on_steps, on_evaluation=on_evaluation, on_trained=on_trained),
        checks=checks,
        deadline=deadline or Deadline(),
        updates_per_window=updates_per_window,
    )
    with arithmetic(placed):
        return fleet.run(checkpoint)


@dataclasses.dataclass(kw_only=True, eq=False, slots=True)
class _Fleet:
    """The runs of one call of `run_fleet`."""

    placed: PlacedTask
    specs: tuple[RunSpec, ...]
    micro_batches: MicroBatches
    listeners: Listeners
    checks: FleetChecks
    deadline: Deadline
    updates_per_window: int

    @property
    def batch_size(self) -> int:
        return self.specs[0].batch_size

    @property
    def convolves(self) -> bool:
        """Tell whether kernels compute the convolutions of all runs at once."""
        return self.checks.convolves_together(self.placed, self.batch_size)

    @property
    def unfolds(self) -> bool:
        """Tell whether batched matmuls do."""
        return self.checks.unfolds_together(self.placed, self.batch_size)

    def run(self, checkpoint: Checkpoint | None) -> list[RunResult]:
        try:
            with seeded(0, "probe"):  # what the check draws disturbs no other stream
                checked = self.check()
        except NotVectorisable as reason:
            if self.convolves or self.unfolds:
                if self.convolves:
                    self.checks.say_once(
                        self.kind_of_convolutions,
                        f"convolutions are not computed for all runs at once, but run by run: {reason}",
                    )
                else:  # every run on its own stream is about as fast
                    logger.info("convolutions are not computed for all runs at once, but run by run: %s", reason)
                self.checks.add_without_kernels(self.batch_size)
                return self.run(checkpoint)
            self.checks.say_once(
                f"one at a time, {self.specs[0].task}",
                f"training one run at a time, as this model cannot be trained as a fleet: {reason}; {TIME_IN_TURN}",
            )
            self.checks.add_one_by_one(self.batch_size)
            alone = [partial(self.run_alone, index) for index in range(len(self.specs))]
            return train_in_turn(alone, self.deadline)
        stacks = [checked] if checked is not None else self.stacks()
        is_slow, is_known = map(self.checks.has_said, (self.kind_of_convolutions, self.kind_of_speed))
        on_speed = self.say_speed if is_slow and not is_known else None
        train_stacks(stacks, checkpoint, self.deadline, on_speed=on_speed)
        return [result for stack in stacks for result in stack.results()]

    def run_alone(self, index: int) -> RunResult:
        """Train one run by the reference, telling the fleet's listeners."""

        def on_trained(model: nn.Module) -> None:
            trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
            self.listeners.on_trained(index, trained)

        def on_steps(num: int) -> None:
            self.deadline.check()
            self.listeners.on_steps(num)

        return run_reference(
            self.placed,
            self.specs[index],
            on_steps=on_steps,
            on_evaluation=lambda point: self.listeners.on_evaluation(index, point),
            on_trained=on_trained,
            micro_batches=self.micro_batches,
        )

    def check(self) -> RunStack | None:
        """Check the module as a fleet; return the stack of all runs if that is what was checked.

        Whether a module can be vectorised does not depend on rounding, but whether two results agree does; so mixed
        precision is checked in float32, and what will be compiled is checked before that, with the first and the last
        run; once is enough for all fleets of a task at a batch size, and for later processes. Kernels for the
        convolutions of all runs want images in another layout and in bfloat16, which not every module takes; so there
        the program itself is checked too.
        """
        if not self.placed.is_mixed and self.placed.device.type == "cpu":
            whole = self.stack(self.specs)
            whole.check_gradients()
            self.say_what_is_slow(whole)
            return whole
        has_own_streams = self.checks.wants_own_streams(self.placed, self.batch_size)
        is_alone = len(self.specs) == 1 or has_own_streams or self.micro_batches.size > LARGEST_BATCH_OF_TWO
        size = None if self.micro_batches.is_whole else self.micro_batches.size
        # A run by itself is checked without `vmap`.
        if self.checks.has_passed(self.batch_size, as_one=not is_alone, micro_batch_size=size):
            return None
        if not self.checks.has_right_gradients(self.batch_size, as_one=not is_alone, micro_batch_size=size):
            if self.convolves:  # a network that was never trained here: its kernels are missing
                building.start_early(self.placed.device)
            ends = self.specs[:1] if is_alone else (self.specs[0], self.specs[-1])
            exact = dataclasses.replace(self.placed, is_mixed=False)
            plan = StackPlan.of(exact, ends, convolves=False, unfolds=self.unfolds, micro_batches=self.micro_batches)
            with arithmetic(self.placed, is_exact=True):
                tried = RunStack.of(plan, self.listeners)
                tried.check_gradients()
                is_slow = self.say_what_is_slow(tried)
            self.checks.add_right_gradients(
                self.batch_size, as_one=not is_alone, micro_batch_size=size, for_later=not is_slow
            )
        found = None
        if self.convolves:
            found = self.stack(self.specs)
            found.check_program()
        self.checks.add_passed(self.batch_size, as_one=not is_alone, micro_batch_size=size)
        return found

    def say_what_is_slow(self, checked: RunStack) -> bool:
        """Log once what is slow about a stack that was checked; tell whether something is."""
        kind = f"run by run, {self.specs[0].task}"
        if not self.checks.has_said(kind) and (sentence := checked.slow_path()) is not None:
            self.checks.say_once(kind, sentence)
        return self.checks.has_said(kind)

    @property
    def kind_of_convolutions(self) -> str:
        """What is said once of convolutions that kernels do not take."""
        return f"convolutions, {self.specs[0].task}"

    @property
    def kind_of_speed(self) -> str:
        """The same of their speed, which is known a little later."""
        return f"speed of {self.kind_of_convolutions}"

    def say_speed(self, num_runs: int, times: float) -> None:
        """Log once how much runs gain that are programs of their own, each on its own stream."""
        self.checks.say_once(
            self.kind_of_speed,
            f"{num_runs} runs at the same time, each a program of its own, make {times:.2g} times as many updates a "
            f"second as one run (measured, B = {self.batch_size})",
        )

    def stacks(self) -> list[RunStack]:
        """Return all runs as one stack, or every run as a stack of its own."""
        if not self.checks.wants_own_streams(self.placed, self.batch_size):
            return [self.stack(self.specs)]
        return [self.stack([spec], first_index=index) for index, spec in enumerate(self.specs)]

    def stack(self, specs: Sequence[RunSpec], *, first_index: int = 0) -> RunStack:
        plan = StackPlan.of(
            self.placed,
            specs,
            convolves=self.convolves,
            unfolds=self.unfolds,
            micro_batches=self.micro_batches,
            updates_per_window=self.updates_per_window,
            first_index=first_index,
            compiles_from=self.checks.updates_worth_compiling(self.placed, self.batch_size, num_runs=len(self.specs)),
        )
        return RunStack.of(plan, self.listeners)


def train_stacks(
    stacks: Sequence[RunStack],
    checkpoint: Checkpoint | None,
    deadline: Deadline,
    *,
    on_speed: Callable[[int, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Make all updates, window by window, from where a checkpoint left off; several stacks share one program.

    Args:
        stacks: not trained yet.
        checkpoint: saved from time to time; None for none.
        deadline: when to stop.
        on_speed: told once how many stacks trained at the same time make how many times as many updates a second as one
            alone. For that, one window of the first stack is made by itself.
        clock: returns the time in seconds.
    """
    laps = Laps(deadline)
    for stack, saved in zip(stacks, _saved(stacks, checkpoint), strict=False):
        stack.restore(saved)
    first, *others = [stack for stack in stacks if not stack.is_done] or stacks  # one that is done makes no program
    for stack in others:
        stack.share_program(first)
    is_prepared = False  # the first window may compile
    while active := [stack for stack in stacks if not stack.is_done]:
        if on_speed is not None and is_prepared and len(active) > 2:
            first, *others = active
            alone, together = _seconds_of_window([first], clock), _seconds_of_window(others, clock)
            on_speed(len(others), len(others) * alone / together)
            on_speed = None
        else:
            _start_window(active)
            for stack in active:
                stack.finish_window()
                _after_window(stack)
        is_prepared = True
        is_last = not laps.another_fits(reserved=0.0 if checkpoint is None else checkpoint.longest_save)
        if checkpoint is not None and (checkpoint.is_due() or is_last):
            checkpoint.save({"stacks": [stack.saved() for stack in stacks]})
        if is_last and not all(stack.is_done for stack in stacks):
            raise OutOfTime(is_saved=checkpoint is not None and checkpoint.path.is_file())


def _start_window(stacks: Sequence[RunStack]) -> None:
    for stack in stacks:
        stack.start_window()
    for stack in stacks:
        if stack.is_asynchronous:
            stack.draw_ahead()


def _after_window(stack: RunStack) -> None:
    if stack.wants_evaluation:
        stack.evaluate()
    if not stack.is_done:
        stack.shrink()


def _seconds_of_window(stacks: Sequence[RunStack], clock: Callable[[], float]) -> float:
    """Make a window of updates of stacks at the same time, up to its end, and return the time."""
    start = clock()
    _start_window(stacks)
    for stack in stacks:
        stack.finish_window()
    seconds = clock() - start
    for stack in stacks:
        _after_window(stack)
    return seconds


def _saved(stacks: Sequence[RunStack], checkpoint: Checkpoint | None) -> list[State]:
    """Return the states of all stacks from a checkpoint, or none."""
    saved = None if checkpoint is None else checkpoint.load(stacks[0].device)
    if checkpoint is None or saved is None:
        return []
    states: list[State] = saved["stacks"]
    if len(states) == len(stacks) and all(map(RunStack.can_restore, stacks, states)):
        logger.info("continuing from the checkpoint %s", checkpoint.path)
        return states
    # Kernels were turned on or off, or it is of another GPU.
    checkpoint.refuse("its runs were not trained as they would be now, all at once or each by itself")
    return []


def _check_alike(specs: Sequence[RunSpec]) -> None:
    shared = {
        (
            s.batch_size,
            s.num_steps,
            s.l2_scope,
            s.num_evaluations,
            s.precision,
            s.clip_norm is None,
            kind_of(s.method),
        )
        for s in specs
    }
    if len(shared) != 1:
        raise UserError(
            "the runs of a fleet must share batch size, updates, precision, evaluations, the kind of optimiser and "
            f"whether they clip; got {sorted(shared)}"
        )
