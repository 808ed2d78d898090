"""A fleet that updates as on a GPU, on a CPU: rounded and filled up matrices, gradients as factors, compiled.

And convolutions of many runs as single operations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from cases_paper import autoencoder_task, ghost_task, skip_init_task, spec_of
from helpers_engines import by_reference, distance
from isotherm.core.records import RunSpec
from isotherm.engine.graph.trace import trace
from isotherm.engine.parameters import Settings, Weights
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.programs.gpu import Program, gpu_program, update_of
from isotherm.engine.stack import Listeners, RunStack
from isotherm.kernels.layout import has_channels_last, of_all_runs
from isotherm.kernels.ops import (
    activation as activation_ops,
)
from isotherm.kernels.ops import (
    convolution as convolution_ops,
)
from isotherm.kernels.ops import (
    ghost_norm as ghost_norm_ops,
)
from isotherm.kernels.ops import (
    row_sums as row_sums_ops,
)
from isotherm.tasks.task import Task

NUM_STEPS = 25


class GpuLane(RunStack):
    """A stack with the program of a GPU."""

    takes_factors = True
    is_compiled = False

    def __init__(self, placed: PlacedTask, specs: list[RunSpec], listeners: Listeners, *, block: int) -> None:
        super().__init__(placed, specs, listeners, block=block)
        channels_last = self.channels_last or self.convolves
        self.weights = Weights(
            self.weights.parameters(), decayed=self.penalised, channels_last=channels_last, aligns=True
        )

    def _allocate(self) -> None:
        super()._allocate()
        self._own_batch = None

    def prepare_program(self, x_MB: Tensor, y_MB: Tensor) -> None:
        self.module.train()
        states = [*self.weights.values, *self.fixed_M.values(), *self.buffers_M.values()]
        traced = trace(self._step_function(), *states, x_MB, y_MB, self.key_M, torch.zeros_like(self.step))
        self.counts = Counter(node.target for node in traced.graph.nodes)
        self._program = gpu_program(traced, self.weights, takes_halves=True, takes_factors=self.takes_factors)
        self.counts_after = Counter(node.target for node in traced.graph.nodes)

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


def nobody() -> Listeners:
    """Return listeners that do not listen."""

    def ignore(*_: object) -> None:
        pass

    return Listeners(ignore, ignore, ignore)


def trained(kind: type[RunStack], given: list[RunSpec], task: Task | None = None) -> RunStack:
    placed = place_task(autoencoder_task() if task is None else task, precision="mixed")
    stack = kind(placed, given, nobody(), block=7)
    while not stack.is_done:
        stack.start_block()
        stack.finish_block()
        if not stack.is_done:
            stack.shrink()
    return stack


KINDS = [WithoutFactors, GpuLane, pytest.param(Compiled, marks=pytest.mark.slow)]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by the compiler itself
@pytest.mark.parametrize("l2", [0.0, 1e-2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_program_of_a_gpu_trains_as_that_of_a_cpu(kind: type[GpuLane], l2: float) -> None:
    """As bfloat16 does: biases' gradients are summed in another order, and rounded."""
    ours, theirs = trained(kind, specs(l2=l2)), trained(RunStack, specs(l2=l2))
    start = RunStack(ours.placed, specs(), ours.listeners).weights.parameters()
    assert len(ours._program.halved) == 4
    assert ours._program.factored == (ours._program.halved if kind is not WithoutFactors else ())
    assert ours.counts_after[row_sums_ops.SUMS] == (kind is not WithoutFactors)  # of all biases at once
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


def test_any_number_of_programs_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep has one for every batch size, and more where runs diverge; of one code a compiler makes eight."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    limit = torch._dynamo.config.recompile_limit
    for num_runs in range(1, limit + 3):
        weights = Weights({"weight": torch.ones(num_runs, 3)}, decayed=set(), channels_last=False, aligns=False)
        traced = fx.symbolic_trace(lambda values, *_: (values.sum(dim=1), 2 * values))
        update = update_of(Program(call=traced.forward), weights, is_compiled=True)
        ones = torch.ones(num_runs, 1)
        settings = Settings(momentum_M1=0 * ones, l2_M1=None, clip_M1=None)
        batch = torch.zeros(1), torch.zeros(1)
        others = [], [], [], batch, None, torch.zeros(num_runs, 2), torch.zeros(())
        losses_M = update(
            weights.values,
            weights.velocities,
            *others,
            learning_rate_M1=0.25 * ones,
            num_clipped_M1=ones.double(),
            settings=settings,
        )
        assert losses_M.tolist() == [3.0] * num_runs
        assert weights.parameters()["weight"].tolist() == [[0.5] * 3] * num_runs


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_units_of_many_rows_are_operations_of_their_own(kind: type[GpuLane]) -> None:
    task = autoencoder_task(num_train=120)
    given = specs(batch_size=row_sums_ops.MOST_ROWS + 8)
    ours, theirs = trained(kind, given, task), trained(RunStack, given, task)
    expected = 0 if kind is WithoutFactors else 2  # the code is linear, and the output no factor of a product
    assert [ours.counts_after[op] for op in (activation_ops.UNITS, activation_ops.UNITS_GRADIENT)] == [expected] * 2
    torch.testing.assert_close(ours.last_M, theirs.last_M, rtol=0.005, atol=0.0)
    start = RunStack(ours.placed, given, ours.listeners).weights.parameters()
    for run in range(4):
        of_run = [
            {name: p[run] for name, p in parameters.items()}
            for parameters in (ours.weights.parameters(), theirs.weights.parameters(), start)
        ]
        assert distance(*of_run[:2]) < 0.02 * distance(*of_run[1:])


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
    stacks = [trained(kind, specs()) for kind in (GpuLane, WithoutFactors)]
    index_MB = torch.arange(8).expand(4, 8)
    batch = stacks[0].placed.training_batch(index_MB)
    for stack in stacks:
        stack.weights.values = [value.clone() for value in stacks[0].weights.values]
    (_, ours, _), (_, theirs, _) = (stack.forward_backward(*batch, stack.step) for stack in stacks)
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(mine, expected, rtol=2**-8, atol=1e-6)  # products with ones are rounded


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
    ours, theirs = trained(GpuLane, specs(), task=task), trained(RunStack, specs(), task=task)
    assert ours._program.factored == ()
    torch.testing.assert_close(ours.last_M, theirs.last_M, rtol=0.005, atol=0.0)


# -- convolutions of many runs --------------------------------------------------------------------------------------


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operations for many runs be used on a CPU too, those of ghost batch norm where images lie as they ask."""

    def fits(x: Tensor) -> bool:
        images = of_all_runs(x)
        return x.dtype == torch.bfloat16 and images is not None and has_channels_last(images)

    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    monkeypatch.setattr(ghost_norm_ops, "fits", fits)


def image_specs(task: Task, num_runs: int) -> list[RunSpec]:
    first = spec_of(task, num_steps=4, num_evaluations=0, batch_size=16, precision="mixed")
    settings = zip((0, 1, 1), (0.02, 0.02, 0.05), strict=True)
    return [dataclasses.replace(first, seed=seed, effective_learning_rate=rate) for seed, rate in settings][:num_runs]


def assert_trained_as_alone(ours: RunStack, single: PlacedTask, *, largest: float) -> None:
    """Compare with each run alone, by the reference, and with float32; distances are parts of the way it went.

    A run alone rounds the gradients of filters too. After four updates it is off float32 by 2 per cent of the way, or
    by 10 where normalisation leaves small gradients as differences of large ones; ours may not be further off.
    """
    found = ours.weights.parameters()
    for run, spec in enumerate(ours.specs):
        of_run = {name: p[run] for name, p in found.items()}
        model = ours.placed.model(seed=spec.seed, batch_size=spec.batch_size)
        start = {name: p.detach() for name, p in model.named_parameters()}
        result, expected = by_reference(ours.placed, spec)
        _, exact = by_reference(single, dataclasses.replace(spec, precision="float32"))
        assert float(ours.last_M[run]) == pytest.approx(result.last_batch_loss, rel=0.005)
        assert float(ours.running_M[run]) / ours.window == pytest.approx(result.train_loss_running, rel=0.005)
        assert distance(of_run, expected) < largest * distance(start, expected)
        assert distance(of_run, exact) < 1.2 * distance(expected, exact)


@pytest.mark.usefixtures("usable")
def test_convolutions_of_many_runs_train_as_those_of_one() -> None:
    task = skip_init_task()
    ours = trained(RunStack, image_specs(task, 2), task)
    assert ours.convolves
    assert_trained_as_alone(ours, place_task(task, precision="float32"), largest=0.02)


@pytest.mark.usefixtures("usable")
def test_convolutions_of_many_runs_in_the_program_of_a_gpu() -> None:
    """All are our operations, and ghost batch norm finds every image as its own operation wants it."""
    task = ghost_task()
    ours = trained(GpuLane, image_specs(task, 3), task)
    filters = [p for p in ours.weights.parameters().values() if p.ndim == 5]
    assert len(filters) == 9
    assert all(has_channels_last(p) for p in filters)
    operations = convolution_ops.FORWARD, convolution_ops.INPUT_GRADIENT, convolution_ops.WEIGHT_GRADIENT
    assert [ours.counts[operation] for operation in operations] == [9, 8, 9]
    assert not [target for target in ours.counts if "convolution" in str(target) and target not in operations]
    assert [ours.counts[operation] for operation in (ghost_norm_ops.FORWARD, ghost_norm_ops.BACKWARD)] == [7, 7]
    assert_trained_as_alone(ours, place_task(task, precision="float32"), largest=0.1)


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize(
    ("num_runs", "precision", "make"),
    [(1, "float32", skip_init_task), (2, "float32", skip_init_task), (2, "mixed", autoencoder_task)],
)
def test_stacks_without_convolutions_of_many_runs(num_runs: int, precision: str, make: Callable[[], Task]) -> None:
    """In float32, or a network of matrices: filters stay as PyTorch has them."""
    task = make()
    given = [dataclasses.replace(spec, precision=precision) for spec in image_specs(task, num_runs)]
    stack = RunStack(place_task(task, precision=precision), given, nobody())
    assert not stack.convolves
    assert stack.is_single == (num_runs == 1)
    filters = [p for p in stack.weights.parameters().values() if p.ndim == 5]
    assert all(p.is_contiguous() for p in filters)


@pytest.mark.usefixtures("usable")
def test_one_run_alone_convolves_as_many_do() -> None:
    task = skip_init_task()
    stack = RunStack(place_task(task, precision="mixed"), image_specs(task, 1), nobody())
    assert stack.convolves
    assert not stack.is_single
    filters = [p for p in stack.weights.parameters().values() if p.ndim == 5]
    assert filters
    assert all(has_channels_last(p) for p in filters)
