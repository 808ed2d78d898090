"""Matrices that are only read in bfloat16 are given in bfloat16, and padded."""

import pytest
import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vmap

from helpers_graph import HALF, calls, is_aligned, normal, operand_sizes, run_passes, whole
from isotherm.engine.graph.bfloat16_weights import take_bfloat16_weights
from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.graph.trace import trace
from isotherm.engine.parameters import ParameterGroups

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects the groups first, and leaves which of them are now given in bfloat16, and no cast of these."""
    arguments = normal(2, 40), normal(2, 40), normal(2, 40)
    program = trace(lambda w, v, b: (w.view(2, 5, 8).to(HALF), v.view(2, 5, 8) + 1, b.to(HALF)), *arguments)
    step = run_passes(program, take_bfloat16_weights, matrices=[(5, 8), (5, 8), None])
    assert step.bfloat16_groups == [0]
    (cast,) = calls(program, _aten._to_copy.default)
    assert cast.args[0].name == program.graph.find_nodes(op="placeholder")[2].name
    assert [node.meta["val"].dtype for node in program.graph.find_nodes(op="placeholder")] == [
        HALF,
        *[torch.float32] * 2,
    ]


def test_more_groups_than_arguments_are_refused():
    program = trace(lambda w: (w.to(HALF),), normal(2, 40))
    with pytest.raises(AssertionError, match="2 groups, but 1 arguments"):
        run_passes(program, take_bfloat16_weights, matrices=[(5, 8), (5, 8)])


def views_of(node: fx.Node) -> set[fx.Node]:
    """Return the nodes that have a node's values, transposed, cut or rounded."""
    kept = (_aten.reshape.default, _aten.transpose.int, _aten.slice.Tensor, _aten._to_copy.default)
    return {node}.union(*(views_of(user) for user in node.users if user.target in kept))


def layer_step(rows: int, columns: int, *, num_runs: int = 2):
    """Return a step of one layer, its weights, their gradient as `ParameterGroups` keeps it, and the arguments."""
    weights = ParameterGroups(
        {"w": whole(num_runs, rows, columns, dtype=torch.float32)}, decayed=(), channels_last=False, pads_matrices=True
    )

    def step(group: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        w = weights.parameters([group])["w"]

        def of_run(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x @ w.to(HALF).t()
            return y.float().sum(), y

        gradients, (_, y) = vmap(grad_and_value(of_run, has_aux=True))(w, x)
        return y, *weights.gradients({"w": gradients})

    return step, weights, (*weights.values, whole(num_runs, 6, columns, seed=1))


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (5, 8), (8, 5), (5, 7), (1, 1)])
def test_weights_come_in_bfloat16_and_padded(rows, columns):
    step, weights, arguments = layer_step(rows, columns)
    assert weights.matrices == [(rows, columns)]
    program = trace(step, *arguments)
    expected = program(*arguments)
    found = rewrite_for_gpu(program, weights.matrices)
    program.graph.lint()
    assert found.bfloat16_groups == [0]
    given = arguments[0].to(HALF), arguments[1]
    found = program(*given)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    assert all(is_aligned(sizes) for operands in operand_sizes(program, *given) for sizes in operands)
    # Neither the weights nor their gradient are padded or cut: only what goes in and out.
    padded = [node for node in program.graph.nodes if node.target is _aten.constant_pad_nd.default]
    group = next(node for node in program.graph.nodes if node.op == "placeholder")
    assert not {node.args[0] for node in padded} & views_of(group)
    assert all(node.target is not _aten.slice.Tensor for node in views_of(group))
    gradient = next(node for node in program.graph.nodes if node.op == "output").args[0][1]
    chain = []
    while gradient.target is not _aten.bmm.default:
        chain.append(gradient.target)
        gradient = gradient.args[0]
    assert set(chain) <= {_aten.reshape.default, _aten.transpose.int, _aten._to_copy.default}


@pytest.mark.parametrize(
    "reads",
    [
        lambda w: w.to(HALF) + w.mean().to(HALF),
        lambda w: w.to(torch.float64),
        lambda w: w * 2,
        lambda w: w.to(HALF).float() + w.to(torch.float16).float(),
    ],
    ids=["also unrounded", "widened", "scaled", "two types"],
)
def test_weights_that_are_read_otherwise_stay(reads):
    weights = ParameterGroups({"w": normal(2, 5, 7)}, decayed=(), channels_last=False, pads_matrices=True)

    def step(group: Tensor) -> tuple[Tensor, ...]:
        return (reads(weights.parameters([group])["w"]),)

    program = trace(step, *weights.values)
    [expected] = program(*weights.values)
    assert rewrite_for_gpu(program, weights.matrices).bfloat16_groups == []
    torch.testing.assert_close(program(*weights.values)[0], expected, rtol=0, atol=0)


def test_a_users_own_cut_of_the_weights_stays():
    """Of 16 rows the first 13: behind them are no zeros."""
    weights = ParameterGroups(
        {"w": whole(2, 16, 8, dtype=torch.float32)}, decayed=(), channels_last=False, pads_matrices=True
    )

    def step(group: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.bmm(x, weights.parameters([group])["w"][:, :13].to(HALF)),)

    arguments = *weights.values, whole(2, 6, 13, seed=1)
    program = trace(step, *arguments)
    [expected] = program(*arguments)
    assert rewrite_for_gpu(program, weights.matrices).bfloat16_groups == [0]
    assert torch.equal(program(arguments[0].to(HALF), arguments[1])[0], expected)
