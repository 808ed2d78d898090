"""A fleet that updates as on a GPU, on a CPU: rounded and filled up matrices, gradients as factors, compiled."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from cases_paper import autoencoder_task, spec_of
from helpers_engines import distance
from isotherm.engine.lane import Lane, Listeners
from isotherm.engine.problem import Problem, prepare
from isotherm.engine.program import gpu_program, update_of
from isotherm.engine.trace import trace
from isotherm.engine.weights import Weights
from isotherm.records import RunSpec
from isotherm.tasks import Task

NUM_STEPS = 25


class GpuLane(Lane):
    """A lane with the program of a GPU."""

    takes_factors = True
    is_compiled = False

    def __init__(self, problem: Problem, specs: list[RunSpec], listeners: Listeners, *, block: int) -> None:
        super().__init__(problem, specs, listeners, block=block)
        self.weights = Weights(
            self.weights.parameters(), decayed=self.penalised, channels_last=self.channels_last, aligns=True
        )

    def _allocate(self) -> None:
        super()._allocate()
        self._own_batch = None

    def prepare_program(self, x_MB: Tensor, y_MB: Tensor) -> None:
        self.module.train()
        states = [*self.weights.values, *self.fixed_M.values(), *self.buffers_M.values()]
        traced = trace(self._step_function(), *states, x_MB, y_MB, self.key_M, torch.zeros_like(self.step))
        self._program = gpu_program(traced, self.weights, takes_halves=True, takes_factors=self.takes_factors)

    def _prepare_update(self, index_MB: Tensor) -> None:
        super()._prepare_update(index_MB)
        self._update = update_of(self._program, self.weights, is_compiled=self.is_compiled)


class WithoutFactors(GpuLane):
    takes_factors = False


class Compiled(GpuLane):
    is_compiled = True


def specs(**changes: object) -> list[RunSpec]:
    first = spec_of(autoencoder_task(), num_steps=NUM_STEPS, num_evaluations=0, batch_size=8, precision="mixed")
    first = dataclasses.replace(first, **changes)
    return [
        dataclasses.replace(first, seed=seed, effective_learning_rate=rate) for seed in (0, 1) for rate in (0.02, 0.05)
    ]


def trained(kind: type[Lane], given: list[RunSpec], task: Task | None = None) -> Lane:
    def ignore(*_: object) -> None:
        pass

    problem = prepare(autoencoder_task() if task is None else task, precision="mixed")
    lane = kind(problem, given, Listeners(ignore, ignore, ignore), block=7)
    while not lane.is_done:
        lane.start_block()
        lane.finish_block()
        if not lane.is_done:
            lane.shrink()
    return lane


KINDS = [WithoutFactors, GpuLane, pytest.param(Compiled, marks=pytest.mark.slow)]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by the compiler itself
@pytest.mark.parametrize("l2", [0.0, 1e-2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_program_of_a_gpu_trains_as_that_of_a_cpu(kind: type[GpuLane], l2: float) -> None:
    """As bfloat16 does: biases' gradients are summed in another order, and rounded."""
    ours, theirs = trained(kind, specs(l2=l2)), trained(Lane, specs(l2=l2))
    start = Lane(ours.problem, specs(), ours.listeners).weights.parameters()
    assert len(ours._program.halved) == 4
    assert ours._program.factored == (ours._program.halved if kind is not WithoutFactors else ())
    torch.testing.assert_close(ours.last_M, theirs.last_M, rtol=0.005, atol=0.0)
    found, expected = ours.weights.parameters(), theirs.weights.parameters()
    for run in range(4):
        of_run = [{name: p[run] for name, p in parameters.items()} for parameters in (found, expected, start)]
        assert distance(*of_run[:2]) < 0.02 * distance(*of_run[1:])
    # The copies follow the weights, and what fills them up stays zero.
    for place, copy in zip(ours._program.halved, ours._halves, strict=True):
        assert torch.equal(copy, ours.weights.values[place].bfloat16())
    for value, (rows, columns) in zip(ours.weights.values, ours.weights.matrices[:4], strict=False):
        whole = value.view(4, -(-rows // 8) * 8, -(-columns // 8) * 8)
        assert not whole[:, rows:].any()
        assert not whole[:, :, columns:].any()


def test_a_state_that_is_restored_is_rounded_anew() -> None:
    first = trained(GpuLane, specs())
    state = first.state()
    second = trained(GpuLane, specs(l2=0.5))
    before = [copy.clone() for copy in second._halves]
    second.restore(state)
    for copy, expected, old in zip(second._halves, first._halves, before, strict=True):
        assert torch.equal(copy, expected)
        assert not torch.equal(copy, old)


def test_gradients_for_a_trial_are_those_of_plain_blocks() -> None:
    lanes = [trained(kind, specs()) for kind in (GpuLane, WithoutFactors)]
    index_MB = torch.arange(8).expand(4, 8)
    batch = lanes[0].problem.training_batch(index_MB)
    for lane in lanes:
        lane.weights.values = [value.clone() for value in lanes[0].weights.values]
    (_, ours, _), (_, theirs, _) = (lane.forward_backward(*batch, lane.step) for lane in lanes)
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(mine, expected)


def test_a_fleet_that_shrinks_goes_on_with_new_copies() -> None:
    given = specs()
    wild = dataclasses.replace(given[1], effective_learning_rate=1e30)
    ours, theirs = trained(GpuLane, [given[0], wild, *given[2:]]), trained(GpuLane, [given[0], *given[2:]])
    assert list(ours.dead) == [1]
    assert [len(value) for value in ours.weights.values] == [3] * len(ours.weights.values)
    for mine, expected in zip(ours.weights.values, theirs.weights.values, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2**-8, atol=1e-4)
    for place, copy in zip(ours._program.halved, ours._halves, strict=True):
        assert torch.equal(copy, ours.weights.values[place].bfloat16())


class Twice(torch.nn.Module):
    """A matrix that is a product of two: the gradient of each has the other as a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(0.3 * torch.randn(12, 12)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.first @ self.second)


def test_matrices_that_are_factors_of_each_others_gradients() -> None:
    """The one that is updated first must not change the gradient of the other."""
    task = dataclasses.replace(autoencoder_task(), model=Twice)
    ours, theirs = trained(GpuLane, specs(), task=task), trained(Lane, specs(), task=task)
    assert ours._program.factored == ()
    torch.testing.assert_close(ours.last_M, theirs.last_M, rtol=0.005, atol=0.0)
