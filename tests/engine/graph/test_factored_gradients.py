"""Gradients as factors: their matmul is the gradient as it was, and the update by factors is that by the gradient."""

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad_and_value, vmap

from helpers_graph import HALF, normal, run_passes, whole
from isotherm.engine.graph.factored_gradients import MOST_INNER, factor_gradients
from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.graph.trace import trace
from isotherm.engine.parameters import ParameterGroups, gradient_of_factors
from isotherm.engine.update_rules import Settings

_aten = torch.ops.aten
M = 3


# -- programs ---------------------------------------------------------------------------------------------------


def factored(function, *arguments: Tensor, groups=(0,)) -> tuple[fx.GraphModule, list[int]]:
    """Return a program that computes its factors, and which results it gives as such."""
    return factored_as_it_is(lambda *given: function(*(tensor + 0 for tensor in given)), *arguments, groups=groups)


def factored_as_it_is(function, *arguments: Tensor, groups=(0,)) -> tuple[fx.GraphModule, list[int]]:
    """Return a step whose losses are a scalar, and which of its other results it gives as factors."""
    program = trace(lambda *given: (torch.zeros(()), *function(*given)), *arguments)
    rewrite_for_gpu(program)
    step = run_passes(program, factor_gradients, bfloat16_groups=list(groups))
    return program, step.factored_groups


def flat(gradient: Tensor) -> Tensor:
    return gradient.float().flatten(1)


CHAINS = {
    "as it is": lambda x, y: torch.bmm(x, y).flatten(1),
    "widened": lambda x, y: flat(torch.bmm(x, y)),
    "transposed": lambda x, y: flat(torch.bmm(x, y).transpose(1, 2)),
    "transposed twice": lambda x, y: flat(torch.bmm(x, y).transpose(-1, -2).float().transpose(1, 2)),
    "of transposed factors": lambda x, y: flat(torch.bmm(y.transpose(1, 2), x.transpose(1, 2))),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_matmul_of_the_factors_is_the_result(chain):
    arguments = whole(M, 16, 8), whole(M, 8, 24, seed=1)
    program, found = factored(lambda x, y: (chain(x, y), x.sum()), *arguments)
    assert found == [0]
    _, left, total, right = program(*arguments)
    assert torch.equal(gradient_of_factors(left, right).float(), chain(*arguments).float())
    assert torch.equal(total, arguments[0].sum())
    assert all(node.target is not _aten.bmm.default for node in program.graph.nodes)


def read_twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    gradient = torch.bmm(x, y)
    return flat(gradient), gradient + 1


def given_twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    gradient = flat(torch.bmm(x, y))
    return gradient, gradient


OTHERS = {
    "scaled": lambda x, y: (flat(2 * torch.bmm(x, y)),),
    "cut": lambda x, y: (flat(torch.bmm(x, y)[:, :8]),),
    "of other runs": lambda x, y: (torch.bmm(x, y).transpose(0, 1).reshape(M, -1),),
    "in another order": lambda x, y: (torch.bmm(x, y).reshape(-1, M),),
    "padded": lambda x, y: (torch.nn.functional.pad(torch.bmm(x, y), (0, 8)).flatten(1),),
    "no matmul": lambda x, y: (flat(x),),
    "read twice": read_twice,
    "given twice": given_twice,
}


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_other_results_stay(function):
    arguments = whole(M, 16, 8), whole(M, 8, 24, seed=1)
    expected = function(*arguments)
    program, found = factored(function, *arguments)
    assert found == []
    for mine, theirs in zip(program(*arguments)[1:], expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("inner", "expected"), [(MOST_INNER, [0]), (MOST_INNER + 8, [])])
def test_a_long_inner_side_stays_a_matmul(inner, expected):
    arguments = whole(M, 8, inner), whole(M, inner, 8, seed=1)
    assert factored(lambda x, y: (flat(torch.bmm(x, y)),), *arguments)[1] == expected


def test_matmuls_in_full_precision_stay():
    arguments = whole(M, 8, 8, dtype=torch.float32), whole(M, 8, 8, seed=1, dtype=torch.float32)
    assert factored(lambda x, y: (flat(torch.bmm(x, y)),), *arguments)[1] == []


LOOKS = {
    "left": lambda x, y: (flat(torch.bmm(x, y + 0)),),
    "right": lambda x, y: (flat(torch.bmm(x + 0, y)),),
    "transposed": lambda x, y: (flat(torch.bmm(y.transpose(1, 2), x.transpose(1, 2) + 0)),),
    "cut": lambda x, y: (flat(torch.bmm(x + 0, y[:, :, :16])),),
    "picked": lambda x, y: (flat(torch.bmm(x + 0, y.unsqueeze(0)[0])),),
}


@pytest.mark.parametrize("function", LOOKS.values(), ids=LOOKS)
def test_an_argument_is_no_factor(function):
    """It may be another matrix of the network, which would be updated before this gradient is made."""
    arguments = whole(M, 16, 8), whole(M, 8, 24, seed=1)
    assert factored_as_it_is(function, *arguments)[1] == []


def test_right_factors_follow_in_the_order_of_the_groups():
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), flat(torch.bmm(x, y)), flat(x), flat(torch.bmm(y, z)), y.sum()

    arguments = whole(M, 16, 8), whole(M, 8, 24, seed=1), whole(M, 24, 8, seed=2)
    expected = function(*arguments)
    program, found = factored(function, *arguments, groups=(1, 2, 3))
    assert found == [1, 3]
    _, first, left, matrix, other_left, last, right, other_right = program(*arguments)
    for mine, theirs in zip((first, matrix, last), (expected[0], expected[2], expected[4]), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(gradient_of_factors(left, right).float(), expected[1])
    assert torch.equal(gradient_of_factors(other_left, other_right).float(), expected[3])


def test_gradients_are_factored_once():
    program = trace(lambda x: (x, x + 1), whole(M, 8, 8))
    with pytest.raises(AssertionError, match="factored already"):
        run_passes(program, factor_gradients, bfloat16_groups=[0], factored_groups=[0])


# -- a network ------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 21), nn.Tanh(), nn.Linear(21, 11), nn.Sigmoid(), nn.Linear(11, 5))


def test_every_matrix_of_a_network_comes_as_factors():
    module = network()
    initial = {name: p.detach() + 0.1 * normal(M, *p.shape, seed=1) for name, p in module.named_parameters()}
    weights = ParameterGroups(initial, decayed=set(initial), channels_last=False, pads_matrices=True)

    def of_run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", HALF, cache_enabled=False):
            return functional_call(module, parameters, (x,)).float().square().mean()

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        *values, x = tensors
        gradients, losses = vmap(grad_and_value(of_run))(weights.parameters(values), x)
        return losses, *weights.gradients(gradients)

    arguments = *weights.values, normal(M, 6, 13, seed=2)
    program = trace(step, *arguments)
    groups = rewrite_for_gpu(program, weights.matrices).bfloat16_groups
    given = [a.to(HALF) if index in groups else a for index, a in enumerate(arguments)]
    expected = program(*given)
    assert len(groups) == 3
    assert run_passes(program, factor_gradients, bfloat16_groups=groups).factored_groups == groups
    indices = [1 + group for group in groups]
    found = list(program(*given))
    rights = [found.pop() for _ in indices][::-1]
    for index, right in zip(indices, rights, strict=True):
        found[index] = gradient_of_factors(found[index], right).float()
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


# -- the update -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("l2", [None, torch.tensor([[0.0], [0.1], [0.2]])], ids=["no L2", "L2"])
def test_an_update_by_factors_is_that_by_the_gradient(l2, decays):
    settings = Settings(momentum_M1=torch.tensor([[0.0], [0.5], [0.9]]), l2_M1=l2, clip_M1=None)
    ours, theirs = (
        ParameterGroups(
            {"w": normal(M, 8, 24)}, decayed={"w"} if decays else (), channels_last=False, pads_matrices=True
        )
        for _ in range(2)
    )
    half = torch.zeros_like(ours.values[0], dtype=HALF)
    for number in range(3):
        left, right = normal(M, 8, 6, seed=number).to(HALF), normal(M, 6, 24, seed=10 + number).to(HALF)
        rate_M1 = torch.tensor([[0.1], [0.2], [0.3]]) / (1 + number)
        gradient = gradient_of_factors(left, right).float()
        theirs.apply(theirs.values, theirs.moments, [gradient], rate_M1, torch.zeros(M, 1), settings)
        ours.apply_factors(0, ours.values[0], ours.moments[0], half, (left, right), rate_M1, settings)
        assert torch.equal(ours.moments[0], theirs.moments[0])
        assert torch.equal(ours.values[0], theirs.values[0])
        assert torch.equal(half, theirs.values[0].to(HALF))


def test_groups_that_come_as_factors_are_left_to_them():
    initial = {"a": normal(M, 8, 8), "b": normal(M, 8, 8, seed=1)}
    weights = ParameterGroups({name: w.clone() for name, w in initial.items()}, decayed=(), channels_last=False)
    settings = Settings(momentum_M1=torch.zeros(M, 1), l2_M1=None, clip_M1=None)
    gradients = [torch.ones(M, 64), torch.ones(M, 64)]
    weights.apply(
        weights.values, weights.moments, gradients, torch.ones(M, 1), torch.zeros(M, 1), settings, factored=[0]
    )
    assert torch.equal(weights.parameters()["a"], initial["a"])
    assert torch.equal(weights.parameters()["b"], initial["b"] - 1)
