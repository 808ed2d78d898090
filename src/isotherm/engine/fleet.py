"""Many runs as one program, with the numbers of `reference`.

A fleet's runs share the module's structure, the batch size and the number of updates; learning rate, momentum, L2,
clipping, schedule, seed and data order are each run's own. A run's numbers depend on nothing but its own spec.

On a GPU an update is recorded once and played back. Networks of matrix products are one batched program, and so are
convolutions with kernels of ours. PyTorch's convolutions of many runs with weights of their own are slow that way, and
large batches need no help, so there each run is a compiled program on its own stream.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from torch import nn

from isotherm.core.records import CurvePoint, RunResult, RunSpec
from isotherm.engine.checkpoint import Checkpoint, State
from isotherm.engine.evaluation import Tensors
from isotherm.engine.placed_task import PlacedTask, exact_arithmetic
from isotherm.engine.reference import run_reference
from isotherm.engine.scoring import look, results
from isotherm.engine.stack import BLOCK, Listeners, NotVectorisable, RunStack
from isotherm.engine.vmap_check import probe, try_program
from isotherm.errors import UserError
from isotherm.tasks.seeding import seeded

logger = logging.getLogger("isotherm")

# Above it two runs in full precision may be more than a GPU has memory for, and one is tried.
LARGEST_BATCH_OF_TWO = 1024


def run_fleet(
    placed: PlacedTask,
    specs: Sequence[RunSpec],
    *,
    on_steps: Callable[[int], None] = lambda _: None,
    on_look: Callable[[int, CurvePoint], None] = lambda _index, _point: None,
    on_trained: Callable[[int, Tensors], None] = lambda _index, _parameters: None,
    checkpoint: Checkpoint | None = None,
    block: int = BLOCK,
) -> list[RunResult]:
    """Train all runs and return what each gave, in the order given.

    A module that `torch.func.vmap` cannot take is trained one run at a time, with a warning in the log.

    Args:
        placed: the task on a device.
        specs: runs of one batch size and one number of updates.
        on_steps: told how many run-updates were made, now and then.
        on_look: told a run's index and what a look at the test set along the way gave.
        on_trained: handed every finished run's index and parameters.
        checkpoint: where the state is kept now and then, and taken from if it is there; whoever gives it removes it.
            Runs that are trained one at a time have none.
        block: updates between two looks at the losses; results do not depend on it.
    """
    _check_alike(specs)
    with exact_arithmetic(placed.device):
        return _run(placed, specs, Listeners(on_steps, on_look, on_trained), checkpoint, block=block)


def _run(
    placed: PlacedTask,
    specs: Sequence[RunSpec],
    listeners: Listeners,
    checkpoint: Checkpoint | None,
    *,
    block: int,
) -> list[RunResult]:
    try:
        with seeded(0, "probe"):  # what it draws disturbs nobody's stream
            fleet = _probed(placed, specs, listeners, block=block)
    except NotVectorisable as reason:
        if placed.convolves_together(specs[0].batch_size):
            logger.warning("convolutions are not computed for all runs at once, but run by run: %s", reason)
            placed.kept_apart.add(specs[0].batch_size)
            return _run(placed, specs, listeners, checkpoint, block=block)
        logger.warning("training one run at a time, as this model cannot be trained as a fleet: %s", reason)
        return [_run_alone(placed, spec, index, listeners) for index, spec in enumerate(specs)]
    if wants_own_streams(placed, specs[0].batch_size):
        stacks = _stacks(placed, specs, listeners, block=block)
    else:
        stacks = [fleet or RunStack(placed, specs, listeners, block=block)]
    _train(stacks, checkpoint)
    return [result for stack in stacks for result in results(stack)]


def _run_alone(placed: PlacedTask, spec: RunSpec, index: int, listeners: Listeners) -> RunResult:
    """Train one run by the reference, telling the fleet's listeners."""

    def on_trained(model: nn.Module) -> None:
        trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        listeners.on_trained(index, trained)

    return run_reference(
        placed,
        spec,
        on_steps=listeners.on_steps,
        on_look=lambda point: listeners.on_look(index, point),
        on_trained=on_trained,
    )


def _probed(placed: PlacedTask, specs: Sequence[RunSpec], listeners: Listeners, *, block: int) -> RunStack | None:
    """Try the module as a fleet; return the fleet if what was tried can be trained on.

    Whether a module can be vectorised does not depend on rounding, but whether two results agree does; so mixed
    precision is tried in float32, and what will be compiled is tried before that, with the first and the last run; once
    is enough there for all fleets of a problem at a batch size. Kernels for the convolutions of all runs want images in
    another layout and in half precision, which not every module takes; so there the program itself is tried too.
    """
    if not placed.is_mixed and placed.device.type == "cpu":
        whole = RunStack(placed, specs, listeners, block=block)
        probe(whole)
        return whole
    batch_size = specs[0].batch_size
    is_alone = len(specs) == 1 or wants_own_streams(placed, batch_size) or batch_size > LARGEST_BATCH_OF_TWO
    ends = [specs[0]] if is_alone else [specs[0], specs[-1]]
    tried = batch_size, len(ends) > 1  # one run alone is tried without `vmap`
    if tried in placed.tried:
        return None
    probe(RunStack(dataclasses.replace(placed, is_mixed=False), ends, listeners))
    fleet = None
    if placed.convolves_together(batch_size):
        fleet = RunStack(placed, specs, listeners, block=block)
        try_program(fleet)
    placed.tried.add(tried)
    return fleet


def wants_own_streams(placed: PlacedTask, batch_size: int) -> bool:
    """Tell whether each run should be a program of its own: on a GPU, where convolutions are faster so."""
    has_convolutions = placed.device.type == "cuda" and placed.has_convolutions
    return has_convolutions and not placed.convolves_together(batch_size)


def _stacks(placed: PlacedTask, specs: Sequence[RunSpec], listeners: Listeners, *, block: int) -> list[RunStack]:
    """Return every run as a fleet of one on its own stream."""
    return [RunStack(placed, [spec], listeners, block=block, first_index=index) for index, spec in enumerate(specs)]


def _train(stacks: Sequence[RunStack], checkpoint: Checkpoint | None) -> None:
    """Make all updates, block by block, from where a checkpoint left off; several stacks share one program."""
    for stack, state in zip(stacks, _saved_states(stacks, checkpoint), strict=False):
        stack.restore(state)
    first, *others = [stack for stack in stacks if not stack.is_done] or stacks  # one that is done makes no program
    for stack in others:
        stack.share_program(first)
    while active := [stack for stack in stacks if not stack.is_done]:
        for stack in active:
            stack.start_block()
        for stack in active:
            if stack.is_asynchronous:
                stack.draw_ahead()
        for stack in active:
            stack.finish_block()
            if stack.wants_a_look:
                stack.note_looks(look(stack))
            if not stack.is_done:
                stack.shrink()
        if checkpoint is not None and checkpoint.is_due():
            checkpoint.save({"stacks": [stack.state() for stack in stacks]})


def _saved_states(stacks: Sequence[RunStack], checkpoint: Checkpoint | None) -> list[State]:
    """Return the states of all stacks from a checkpoint, or none."""
    saved = None if checkpoint is None else checkpoint.load(stacks[0].placed.device)
    if checkpoint is None or saved is None:
        return []
    states: list[State] = saved["stacks"]
    if len(states) == len(stacks) and all(map(RunStack.can_go_on_from, stacks, states)):
        logger.info("going on from the checkpoint %s", checkpoint.path)
        return states
    # Kernels were turned on or off, or it is of another GPU.
    checkpoint.refuse("its runs were not trained as they would be now, all at once or each by itself")
    return []


def _check_alike(specs: Sequence[RunSpec]) -> None:
    shared = {
        (s.batch_size, s.num_steps, s.l2_scope, s.num_evaluations, s.precision, s.clip_norm is None) for s in specs
    }
    if len(shared) != 1:
        raise UserError(
            "a fleet's runs share batch size, updates, precision, evaluations and whether they clip; "
            f"got {sorted(shared)}"
        )
