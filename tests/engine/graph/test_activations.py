"""Activations between matmuls, and their gradients: one call each where the batch is large, else left as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from helpers_graph import calls, passed, rewritten, targets
from isotherm.engine.graph.activations import use_activation_kernels
from isotherm.engine.graph.fused_biases import fuse_biases
from isotherm.engine.graph.separate_biases import separate_biases
from isotherm.kernels.ops import activation as activation_ops

_aten = torch.ops.aten
MANY = 72
GRADIENTS = {
    "tanh": _aten.tanh_backward.default,
    "sigmoid": _aten.sigmoid_backward.default,
    "relu": lambda dy, y: _aten.threshold_backward.default(dy, y, 0),
}


class Layer:
    """A layer between two matmuls, forward and backward."""

    def __init__(self, kind: str = "tanh", *, has_biases: bool = True, sums_elsewhere: bool = False) -> None:
        self.kind, self.has_biases, self.sums_elsewhere = kind, has_biases, sums_elsewhere

    def __call__(self, x: Tensor, weight: Tensor, biases: Tensor, after: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        z = torch.bmm(x, weight)
        if self.has_biases:
            z = z + biases[:, 3 : 3 + weight.shape[2]].bfloat16().unsqueeze(1)
        y = getattr(torch, self.kind)(z)
        dz = GRADIENTS[self.kind](torch.bmm(dy, after.transpose(1, 2)), y)
        total = dz.sum(dim=1).float()
        return torch.bmm(y, after), torch.bmm(x.transpose(1, 2), dz), total * 2 if self.sums_elsewhere else total


def inputs(width: int, num_rows: int = MANY) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(3, *shape, generator=generator)

    matrices = (num_rows, 16), (16, width), (width, 24), (num_rows, 24)
    x, weight, after, dy = (0.5 * normal(*shape) for shape in matrices)
    return [x.bfloat16(), weight.bfloat16(), normal(width + 9), after.bfloat16(), dy.bfloat16()]


def joined(layer: Layer, given: list[Tensor]) -> tuple[fx.GraphModule, list[int]]:
    """Return the rewritten program, and how often it has each operation."""
    program = rewritten(layer, *given, has_kernels=True)
    return program, [targets(program)[op] for op in (activation_ops.FORWARD, activation_ops.BACKWARD)]


def test_the_pass_alone():
    """It expects matmuls without their biases, and leaves two calls in which nothing is padded yet."""
    given = inputs(30)
    program = passed(Layer(), given, separate_biases, use_activation_kernels)
    (made,), (gradient,) = (calls(program, op) for op in (activation_ops.FORWARD, activation_ops.BACKWARD))
    assert made.args[0].target is _aten.bmm.default
    assert gradient.args[1:] == (made, 30, "tanh")
    assert not targets(program).keys() & {_aten.tanh.default, _aten.sum.dim_IntList, _aten.constant_pad_nd.default}


def test_biases_that_matmuls_add_are_refused():
    with pytest.raises(AssertionError, match="separate_biases comes first"):
        passed(Layer(), inputs(30), fuse_biases, use_activation_kernels)


def assert_as_before(program: fx.GraphModule, layer: Layer, given: list[Tensor]) -> None:
    for ours, theirs in zip(program(*given), layer(*given), strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("width", [32, 30, 12])
def test_activations_and_gradients_become_calls(kind, width):
    given, layer = inputs(width), Layer(kind)
    program, counts = joined(layer, given)
    assert counts == [1, 1]
    gone = _aten.full.default, _aten.sum.dim_IntList, _aten.add.Tensor
    assert not [node for node in program.graph.nodes if node.target in gone]
    assert_as_before(program, layer, given)


def test_a_sum_that_is_used_otherwise_is_one_of_them_too():
    given, layer = inputs(30), Layer(sums_elsewhere=True)
    program, counts = joined(layer, given)
    assert counts == [1, 1]
    assert_as_before(program, layer, given)


@pytest.mark.parametrize(
    ("layer", "num_rows"), [(Layer(), 64), (Layer(has_biases=False), MANY)], ids=["few rows", "no biases"]
)
def test_others_stay(layer, num_rows):
    given = inputs(30, num_rows)
    program, counts = joined(layer, given)
    assert counts == [0, 0]
    assert_as_before(program, layer, given)


def test_activations_that_are_not_multiplied_stay():
    def last(x: Tensor, weight: Tensor, biases: Tensor) -> tuple[Tensor, ...]:
        return (torch.sigmoid(torch.bmm(x, weight) + biases.bfloat16().unsqueeze(1)).float().square(),)

    x, weight, *_ = inputs(32)
    biases = torch.ones(3, 32)
    program, counts = joined(last, [x, weight, biases])
    assert counts == [0, 0]
    assert torch.equal(program(x, weight, biases)[0], last(x, weight, biases)[0])


def test_what_is_cut_off_does_not_spread_where_a_run_overflows():
    given, layer = inputs(30), Layer()
    given[0][1, 5, 2] = torch.inf  # so what pads this row of the matmul is not a number
    program, counts = joined(layer, given)
    assert counts == [1, 1]
    for ours, theirs in zip(program(*given), layer(*given), strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())


def one_column(*given: Tensor) -> tuple[Tensor, ...]:
    x, weight, biases, after, _ = given
    return (torch.bmm(torch.relu(torch.bmm(x, weight[..., :1]) + biases[:, :30].bfloat16().unsqueeze(1)), after),)


def every_second_bias(*given: Tensor) -> tuple[Tensor, ...]:
    x, weight, biases, after, _ = given
    half = biases[:, :30:2].bfloat16().unsqueeze(1)
    return (torch.bmm(torch.tanh(torch.bmm(x, weight[..., :15]) + half), after[:, :15]),)


def before_activations(*given: Tensor) -> tuple[Tensor, ...]:
    x, weight, biases, after, _ = given
    z = torch.bmm(x, weight) + biases[:, :30].bfloat16().unsqueeze(1)
    return torch.bmm(torch.tanh(z), after), z


@pytest.mark.parametrize(
    ("function", "num_rows"),
    [(one_column, MANY), (every_second_bias, MANY), (before_activations, MANY), (Layer(), 70)],
    ids=["one column", "every second bias", "what is before them is read", "padded rows"],
)
def test_what_is_no_layer_stays(function, num_rows):
    given = inputs(30, num_rows)
    program, counts = joined(function, given)
    assert counts == [0, 0]
    assert_as_before(program, function, given)


def read_elsewhere(*given: Tensor) -> tuple[Tensor, ...]:
    x, weight, biases, after, dy = given
    y = torch.tanh(torch.bmm(x, weight) + biases[:, :30].bfloat16().unsqueeze(1))
    dz = _aten.tanh_backward.default(torch.bmm(dy, after.transpose(1, 2)), y)
    return torch.bmm(y, after), y + 1, dz - 1, torch.bmm(x.transpose(1, 2), dz), dz.sum(dim=1).float()


def twice(*given: Tensor) -> tuple[Tensor, ...]:
    """One layer for two batches, whose biases have one gradient of two sums."""
    x, weight, biases, after, dy = given
    results, total = [], torch.zeros(())
    for batch in (x, x.flip(1)):
        y = torch.tanh(torch.bmm(batch, weight) + biases[:, :30].bfloat16().unsqueeze(1))
        dz = _aten.tanh_backward.default(torch.bmm(dy, after.transpose(1, 2)), y)
        results += [torch.bmm(y, after), torch.bmm(batch.transpose(1, 2), dz)]
        total = total + dz.sum(dim=1).float()
    return *results, total


@pytest.mark.parametrize(("function", "expected"), [(read_elsewhere, [1, 1]), (twice, [2, 2])])
def test_others_may_read_activations_and_gradients_too(function, expected):
    given = inputs(30)
    program, counts = joined(function, given)
    assert counts == expected
    assert_as_before(program, function, given)
