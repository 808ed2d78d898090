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

from isotherm.engine.checkpoint import Checkpoint, State
from isotherm.engine.evaluate import Tensors
from isotherm.engine.lane import BLOCK, Lane, Listeners, NotVectorisable
from isotherm.engine.lane_scores import look, results
from isotherm.engine.problem import Problem, exact_arithmetic
from isotherm.engine.reference import run_reference
from isotherm.engine.trial import probe, try_program
from isotherm.errors import UserError
from isotherm.records import CurvePoint, RunResult, RunSpec
from isotherm.seeding import seeded

logger = logging.getLogger("isotherm")

# Above it two runs in full precision may be more than a GPU has memory for, and one is tried.
LARGEST_BATCH_OF_TWO = 1024


def run_fleet(
    problem: Problem,
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
        problem: the task on a device.
        specs: runs of one batch size and one number of updates.
        on_steps: told how many run-updates were made, now and then.
        on_look: told a run's index and what a look at the test set along the way gave.
        on_trained: handed every finished run's index and parameters.
        checkpoint: where the state is kept now and then, and taken from if it is there; whoever gives it removes it.
            Runs that are trained one at a time have none.
        block: updates between two looks at the losses; results do not depend on it.
    """
    _check_alike(specs)
    with exact_arithmetic(problem.device):
        return _run(problem, specs, Listeners(on_steps, on_look, on_trained), checkpoint, block=block)


def _run(
    problem: Problem,
    specs: Sequence[RunSpec],
    listeners: Listeners,
    checkpoint: Checkpoint | None,
    *,
    block: int,
) -> list[RunResult]:
    try:
        with seeded(0, "probe"):  # what it draws disturbs nobody's stream
            fleet = _probed(problem, specs, listeners, block=block)
    except NotVectorisable as reason:
        if problem.convolves_together(specs[0].batch_size):
            logger.warning("convolutions are not computed for all runs at once, but run by run: %s", reason)
            problem.kept_apart.add(specs[0].batch_size)
            return _run(problem, specs, listeners, checkpoint, block=block)
        logger.warning("training one run at a time, as this model cannot be trained as a fleet: %s", reason)
        return [_run_alone(problem, spec, index, listeners) for index, spec in enumerate(specs)]
    if wants_own_streams(problem, specs[0].batch_size):
        lanes = _lanes(problem, specs, listeners, block=block)
    else:
        lanes = [fleet or Lane(problem, specs, listeners, block=block)]
    _train(lanes, checkpoint)
    return [result for lane in lanes for result in results(lane)]


def _run_alone(problem: Problem, spec: RunSpec, index: int, listeners: Listeners) -> RunResult:
    """Train one run by the reference, telling the fleet's listeners."""

    def on_trained(model: nn.Module) -> None:
        trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        listeners.on_trained(index, trained)

    return run_reference(
        problem,
        spec,
        on_steps=listeners.on_steps,
        on_look=lambda point: listeners.on_look(index, point),
        on_trained=on_trained,
    )


def _probed(problem: Problem, specs: Sequence[RunSpec], listeners: Listeners, *, block: int) -> Lane | None:
    """Try the module as a fleet; return the fleet if what was tried can be trained on.

    Whether a module can be vectorised does not depend on rounding, but whether two results agree does; so mixed
    precision is tried in float32, and what will be compiled is tried before that, with the first and the last run; once
    is enough there for all fleets of a problem at a batch size. Kernels for the convolutions of all runs want images in
    another layout and in half precision, which not every module takes; so there the program itself is tried too.
    """
    if not problem.is_mixed and problem.device.type == "cpu":
        whole = Lane(problem, specs, listeners, block=block)
        probe(whole)
        return whole
    batch_size = specs[0].batch_size
    is_alone = len(specs) == 1 or wants_own_streams(problem, batch_size) or batch_size > LARGEST_BATCH_OF_TWO
    ends = [specs[0]] if is_alone else [specs[0], specs[-1]]
    tried = batch_size, len(ends) > 1  # one run alone is tried without `vmap`
    if tried in problem.tried:
        return None
    probe(Lane(dataclasses.replace(problem, is_mixed=False), ends, listeners))
    fleet = None
    if problem.convolves_together(batch_size):
        fleet = Lane(problem, specs, listeners, block=block)
        try_program(fleet)
    problem.tried.add(tried)
    return fleet


def wants_own_streams(problem: Problem, batch_size: int) -> bool:
    """Tell whether each run should be a program of its own: on a GPU, where convolutions are faster so."""
    has_convolutions = problem.device.type == "cuda" and problem.has_convolutions
    return has_convolutions and not problem.convolves_together(batch_size)


def _lanes(problem: Problem, specs: Sequence[RunSpec], listeners: Listeners, *, block: int) -> list[Lane]:
    """Return every run as a fleet of one on its own stream."""
    return [Lane(problem, [spec], listeners, block=block, first_index=index) for index, spec in enumerate(specs)]


def _train(lanes: Sequence[Lane], checkpoint: Checkpoint | None) -> None:
    """Make all updates, block by block, from where a checkpoint left off; several lanes share one program."""
    for lane, state in zip(lanes, _saved_states(lanes, checkpoint), strict=False):
        lane.restore(state)
    first, *others = [lane for lane in lanes if not lane.is_done] or lanes  # one that is done makes no program
    for lane in others:
        lane.share_program(first)
    while active := [lane for lane in lanes if not lane.is_done]:
        for lane in active:
            lane.start_block()
        for lane in active:
            if lane.is_asynchronous:
                lane.draw_ahead()
        for lane in active:
            lane.finish_block()
            if lane.wants_a_look:
                lane.note_looks(look(lane))
            if not lane.is_done:
                lane.shrink()
        if checkpoint is not None and checkpoint.is_due():
            checkpoint.save({"lanes": [lane.state() for lane in lanes]})


def _saved_states(lanes: Sequence[Lane], checkpoint: Checkpoint | None) -> list[State]:
    """Return the states of all lanes from a checkpoint, or none."""
    saved = None if checkpoint is None else checkpoint.load(lanes[0].problem.device)
    if checkpoint is None or saved is None:
        return []
    states: list[State] = saved["lanes"]
    if len(states) == len(lanes) and all(map(Lane.can_go_on_from, lanes, states)):
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
