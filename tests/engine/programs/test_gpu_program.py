"""A fleet that updates as on a GPU, on a CPU: bfloat16 and padded matrices, gradients as factors, compiled.

And convolutions of many runs as single operations.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import cases
from cases_paper import autoencoder_task, ghost_task, skip_init_task, spec_of
from helpers_engines import by_reference, distance
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon, Optimizer
from isotherm.core.records import RunSpec
from isotherm.engine.parameters import ParameterGroups
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.programs.gpu import Program, gpu_program, update_of
from isotherm.engine.stack import updates
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.run_stack import Listeners, RunStack
from isotherm.engine.update_rules import Settings
from isotherm.kernels import availability
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


# The program of a GPU, on a CPU.
GPU = {"reads_bfloat16": True, "binds_batch": False, "returns_factors": True}
WITHOUT_FACTORS = {**GPU, "returns_factors": False}
COMPILED = {**GPU, "compiles_from": 0}
KINDS = [
    pytest.param(WITHOUT_FACTORS, id="without factors"),
    pytest.param(GPU, id="gpu"),
    pytest.param(COMPILED, id="compiled", marks=pytest.mark.slow),
]


class Seen:
    """The last program that was made, and the operations of its graph before and after it was rewritten."""

    program: Program
    counts: Counter[object]
    counts_after: Counter[object]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()

    def watch(traced: fx.GraphModule, weights: ParameterGroups, **options: bool) -> Program:
        found.counts = Counter(node.target for node in traced.graph.nodes)
        found.program = gpu_program(traced, weights, **options)
        found.counts_after = Counter(node.target for node in traced.graph.nodes)
        return found.program

    monkeypatch.setattr(updates, "gpu_program", watch)
    return found


def specs(**changes: object) -> list[RunSpec]:
    first = spec_of(autoencoder_task(), num_steps=NUM_STEPS, num_evaluations=0, batch_size=8, precision="mixed")
    first = dataclasses.replace(first, **changes)
    return [
        dataclasses.replace(first, seed=seed, effective_learning_rate=rate) for seed in (0, 1) for rate in (0.02, 0.05)
    ]


def parts_of(placed: PlacedTask, given: list[RunSpec], changes: dict[str, Any] | None = None) -> StackParts:
    """Return the parts of a stack by the program of a CPU, or by one with some changes."""
    convolves = placed.convolves_together(given[0].batch_size)
    plan = StackPlan.of(placed, given, convolves=convolves, updates_per_window=7)
    return StackParts.of(dataclasses.replace(plan, **(changes or {})))


def trained(changes: dict[str, Any] | None, given: list[RunSpec], task: Task | None = None) -> StackParts:
    placed = place_task(autoencoder_task() if task is None else task, precision="mixed")
    parts = parts_of(placed, given, changes)
    stack = RunStack(parts, Listeners())
    while not stack.is_done:
        stack.start_window()
        stack.finish_window()
        if not stack.is_done:
            stack.shrink()
    return parts


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by the compiler itself
@pytest.mark.parametrize("l2", [0.0, 1e-2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_program_of_a_gpu_trains_as_that_of_a_cpu(kind: dict[str, Any], l2: float, seen: Seen) -> None:
    """As bfloat16 does: biases' gradients are summed in another order, and rounded."""
    ours, theirs = trained(kind, specs(l2=l2)), trained(None, specs(l2=l2))
    start = parts_of(ours.plan.placed, specs()).state.weights.parameters()
    assert len(seen.program.bfloat16_groups) == 4
    assert seen.program.factored_groups == (seen.program.bfloat16_groups if kind["returns_factors"] else ())
    assert seen.counts_after[row_sums_ops.ROW_SUMS] == kind["returns_factors"]  # of all biases at once
    torch.testing.assert_close(ours.state.last_M, theirs.state.last_M, rtol=0.005, atol=0.0)
    weights = ours.state.weights
    found, expected = weights.parameters(), theirs.state.weights.parameters()
    for run in range(4):
        of_run = [{name: p[run] for name, p in parameters.items()} for parameters in (found, expected, start)]
        assert distance(*of_run[:2]) < 0.02 * distance(*of_run[1:])
    # The copies follow the weights, and what fills them up stays zero.
    assert_copies_follow(ours, seen.program)
    for value, (rows, columns) in zip(weights.values, weights.matrices[:4], strict=False):
        whole = value.view(4, -(-rows // 8) * 8, -(-columns // 8) * 8)
        assert not whole[:, rows:].any()
        assert not whole[:, :, columns:].any()


def assert_copies_follow(parts: StackParts, program: Program) -> None:
    for position, copy in zip(program.bfloat16_groups, parts.updates.bfloat16_copies, strict=True):
        assert torch.equal(copy, parts.state.weights.values[position].bfloat16())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        *((WITHOUT_FACTORS, one) for one in (SGD(momentum=0.5, nesterov=True), Adam(), AdamW(), Muon())),
        pytest.param(COMPILED, Muon(), marks=pytest.mark.slow),
    ],
)
def test_other_optimisers_take_gradients_that_are_not_factored(
    kind: dict[str, Any], optimizer: Optimizer, seen: Seen
) -> None:
    momentum = optimizer.momentum if isinstance(optimizer, SGD) else 0.0
    given = [
        dataclasses.replace(spec, momentum=momentum, optimizer=optimizer, effective_learning_rate=1e-3 * (1 + k))
        for k, spec in enumerate(specs())
    ]
    changes = {**kind, "returns_factors": False}
    ours, theirs = trained(changes, given), trained(None, given)
    assert seen.program.factored_groups == ()
    assert len(seen.program.bfloat16_groups) == 4
    torch.testing.assert_close(ours.state.last_M, theirs.state.last_M, rtol=0.02, atol=0.0)
    assert_copies_follow(ours, seen.program)


def test_factors_are_for_heavy_ball_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.kernels.availability.are_available", lambda _: True)
    placed = place_task(autoencoder_task(), precision="mixed")
    (plain, *_), nesterov = specs(), SGD(momentum=0.9, nesterov=True)
    for spec, expected in (
        (plain, True),
        (dataclasses.replace(plain, clip_norm=1.0), False),
        (dataclasses.replace(plain, momentum=0.9, optimizer=nesterov), False),
        (dataclasses.replace(plain, momentum=0.0, optimizer=AdamW()), False),
    ):
        assert StackPlan.of(placed, [spec, spec], convolves=False).returns_factors == expected


def test_any_number_of_programs_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep has one for every batch size, and more where runs diverge; of one code a compiler makes eight."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    limit = torch._dynamo.config.recompile_limit
    for num_runs in range(1, limit + 3):
        weights = ParameterGroups(
            {"weight": torch.ones(num_runs, 3)}, decayed=set(), channels_last=False, pads_matrices=False
        )
        traced = fx.symbolic_trace(lambda values, *_: (values.sum(dim=1), 2 * values))
        update = update_of(Program(call=traced.forward), weights, is_compiled=True)
        ones = torch.ones(num_runs, 1)
        settings = Settings(momentum_M1=0 * ones, l2_M1=None, clip_M1=None)
        batch = torch.zeros(1), torch.zeros(1)
        others = [], [], [], batch, None, torch.zeros(num_runs, 2), torch.zeros(())
        losses_M = update(
            weights.values,
            weights.moments,
            *others,
            learning_rate_M1=0.25 * ones,
            num_clipped_M1=ones.double(),
            settings=settings,
        )
        assert losses_M.tolist() == [3.0] * num_runs
        assert weights.parameters()["weight"].tolist() == [[0.5] * 3] * num_runs


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_activations_of_many_rows_are_operations_of_their_own(kind: dict[str, Any], seen: Seen) -> None:
    task = autoencoder_task(num_train=120)
    given = specs(batch_size=row_sums_ops.MOST_ROWS + 8)
    ours, theirs = trained(kind, given, task), trained(None, given, task)
    expected = 2 if kind["returns_factors"] else 0  # the code is linear, and the output no factor of a matmul
    assert [seen.counts_after[op] for op in (activation_ops.FORWARD, activation_ops.BACKWARD)] == [expected] * 2
    torch.testing.assert_close(ours.state.last_M, theirs.state.last_M, rtol=0.005, atol=0.0)
    start = parts_of(ours.plan.placed, given)
    for run in range(4):
        of_run = [
            {name: p[run] for name, p in parts.state.weights.parameters().items()} for parts in (ours, theirs, start)
        ]
        assert distance(*of_run[:2]) < 0.02 * distance(*of_run[1:])


def test_a_state_that_is_restored_is_rounded_again() -> None:
    first, second = trained(GPU, specs()), trained(GPU, specs(l2=0.5))
    before = [copy.clone() for copy in second.updates.bfloat16_copies]
    RunStack(second, Listeners()).restore(RunStack(first, Listeners()).saved())
    for copy, expected, old in zip(second.updates.bfloat16_copies, first.updates.bfloat16_copies, before, strict=True):
        assert torch.equal(copy, expected)
        assert not torch.equal(copy, old)


def test_gradients_for_a_check_are_those_of_plain_groups() -> None:
    both = [trained(kind, specs()) for kind in (GPU, WITHOUT_FACTORS)]
    batch = both[0].plan.placed.training_batch(torch.arange(8).expand(4, 8))
    for parts in both:
        parts.state.weights.values = [value.clone() for value in both[0].state.weights.values]
    (_, ours, _), (_, theirs, _) = (parts.updates.gradients(*batch, step=NUM_STEPS) for parts in both)
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(mine, expected, rtol=2**-8, atol=1e-6)  # matmuls with ones are rounded


def test_a_stack_that_shrinks_continues_with_new_copies(seen: Seen) -> None:
    given = specs()
    wild = dataclasses.replace(given[1], effective_learning_rate=1e30)
    theirs, ours = trained(GPU, [given[0], *given[2:]]), trained(GPU, [given[0], wild, *given[2:]])
    assert list(ours.divergence.steps) == [1]
    values = ours.state.weights.values
    assert [len(value) for value in values] == [3] * len(values)
    for mine, expected in zip(values, theirs.state.weights.values, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2**-8, atol=1e-4)
    assert_copies_follow(ours, seen.program)


class Twice(torch.nn.Module):
    """A matrix that is a matmul of two: the gradient of each has the other as a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(0.3 * torch.randn(12, 12)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.first @ self.second)


def test_matrices_that_are_factors_of_each_others_gradients(seen: Seen) -> None:
    """The one that is updated first must not change the gradient of the other."""
    task = dataclasses.replace(autoencoder_task(), model=Twice)
    ours, theirs = trained(GPU, specs(), task=task), trained(None, specs(), task=task)
    assert seen.program.factored_groups == ()
    torch.testing.assert_close(ours.state.last_M, theirs.state.last_M, rtol=0.005, atol=0.0)


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


def assert_trained_as_alone(ours: StackParts, single: PlacedTask, *, largest: float) -> None:
    """Compare with each run alone, by the reference, and with float32; distances are parts of the way it went.

    A run alone rounds the gradients of filters too. After four updates it is off float32 by 2 per cent of the way, or
    by 10 where normalisation leaves small gradients as differences of large ones; ours may not be further off.
    """
    placed, state = ours.plan.placed, ours.state
    found = state.weights.parameters()
    for run, spec in enumerate(ours.plan.specs):
        of_run = {name: p[run] for name, p in found.items()}
        model = placed.model(seed=spec.seed, batch_size=spec.batch_size)
        start = {name: p.detach() for name, p in model.named_parameters()}
        result, expected = by_reference(placed, spec)
        _, exact = by_reference(single, dataclasses.replace(spec, precision="float32"))
        assert float(state.last_M[run]) == pytest.approx(result.last_batch_loss, rel=0.005)
        running = float(state.running_M[run]) / ours.plan.running_window
        assert running == pytest.approx(result.train_loss_running, rel=0.005)
        assert distance(of_run, expected) < largest * distance(start, expected)
        assert distance(of_run, exact) < 1.2 * distance(expected, exact)


@pytest.mark.usefixtures("usable")
def test_convolutions_of_many_runs_train_as_those_of_one() -> None:
    task = skip_init_task()
    ours = trained(None, image_specs(task, 2), task)
    assert ours.plan.convolves
    assert_trained_as_alone(ours, place_task(task, precision="float32"), largest=0.02)


@pytest.mark.usefixtures("usable")
def test_convolutions_of_many_runs_in_the_program_of_a_gpu(seen: Seen) -> None:
    """All are our operations, and ghost batch norm finds every image as its own operation wants it."""
    task = ghost_task()
    ours = trained(GPU, image_specs(task, 3), task)
    filters = [p for p in ours.state.weights.parameters().values() if p.ndim == 5]
    assert len(filters) == 9
    assert all(has_channels_last(p) for p in filters)
    operations = convolution_ops.FORWARD, convolution_ops.INPUT_GRADIENT, convolution_ops.WEIGHT_GRADIENT
    assert [seen.counts[operation] for operation in operations] == [9, 8, 9]
    assert not [target for target in seen.counts if "convolution" in str(target) and target not in operations]
    assert [seen.counts[operation] for operation in (ghost_norm_ops.FORWARD, ghost_norm_ops.BACKWARD)] == [7, 7]
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
    parts = parts_of(place_task(task, precision=precision), given)
    assert not parts.plan.convolves
    assert parts.plan.is_single == (num_runs == 1)
    filters = [p for p in parts.state.weights.parameters().values() if p.ndim == 5]
    assert all(p.is_contiguous() for p in filters)


@pytest.mark.usefixtures("usable")
def test_one_run_alone_convolves_as_many_do() -> None:
    task = skip_init_task()
    parts = parts_of(place_task(task, precision="mixed"), image_specs(task, 1))
    assert parts.plan.convolves
    assert not parts.plan.is_single
    filters = [p for p in parts.state.weights.parameters().values() if p.ndim == 5]
    assert filters
    assert all(has_channels_last(p) for p in filters)


def pooling_task() -> Task:
    """Return a network with everything that batched matmuls have to agree with: padding, norms, pools."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 3))

    return dataclasses.replace(cases.conv_task(), name="pooling", model=build)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by the compiler itself
@pytest.mark.parametrize("changes", [{"binds_batch": False}, {"binds_batch": False, "compiles_from": 0}], ids=str)
def test_convolutions_as_matmuls_train_as_those_of_one_run(changes: dict[str, Any], monkeypatch, seen: Seen) -> None:
    monkeypatch.setattr(availability, "are_available", lambda *_, **__: True)  # for the pools
    task = pooling_task()
    placed = place_task(task, precision="float64")
    given = [cases.spec(task, seed=seed, num_steps=NUM_STEPS, num_evaluations=0) for seed in (0, 1, 2)]
    plan = dataclasses.replace(StackPlan.of(placed, given, convolves=False, unfolds=True), returns_factors=False)
    stack = RunStack(StackParts.of(dataclasses.replace(plan, **changes)), Listeners())
    stack.check_gradients()
    while not stack.is_done:
        stack.start_window()
        stack.finish_window()
    assert not [target for target in seen.counts if "convolution" in str(target) or "pool" in str(target)]
    found = stack._parts.state.weights.parameters()
    for run, spec in enumerate(given):
        _, expected = by_reference(placed, spec)
        for name, parameter in expected.items():
            if not name.endswith(("0.bias", "4.bias")):  # zero but for rounding, before a norm
                torch.testing.assert_close(found[name][run], parameter, rtol=1e-9, atol=1e-9)


def test_what_the_compiler_warns_of_reaches_nobody_and_later_warnings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 warns of every softmax over few classes that it compiles for a GPU."""
    calls: list[int] = []

    def compile_with_a_warning(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(len(calls))
            warnings.warn("Online softmax is disabled on the fly", stacklevel=1)
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", compile_with_a_warning)
    weights = ParameterGroups({"weight": torch.ones(1, 3)}, decayed=set(), channels_last=False, pads_matrices=False)
    traced = fx.symbolic_trace(lambda values, *_: (values.sum(dim=1), 2 * values))
    update = update_of(Program(call=traced.forward), weights, is_compiled=True)
    settings = Settings(momentum_M1=torch.zeros(1, 1), l2_M1=None, clip_M1=None)
    others = [], [], [], (torch.zeros(1), torch.zeros(1)), None, torch.zeros(1, 2), torch.zeros(())
    keywords = {"learning_rate_M1": torch.ones(1, 1), "num_clipped_M1": torch.ones(1, 1).double(), "settings": settings}
    update(weights.values, weights.moments, *others, **keywords)  # warnings are errors in tests
    with pytest.warns(UserWarning, match="Online softmax"):
        update(weights.values, weights.moments, *others, **keywords)
    assert calls == [0, 1]
