"""Sides of half-precision matmuls become multiples of 8; nothing is cut and padded again on the way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from helpers_graph import check_equal, is_aligned, operand_sizes, passed, rewritten, targets, whole
from isotherm.engine.graph.alignment import align_matmuls
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects matmuls without views, and leaves padded operands and a cut result."""
    arguments = whole(2, 3, 8), whole(2, 8, 16, seed=1)
    program = check_equal(matmul, *arguments, passes=[align_matmuls])
    assert targets(program) == {_aten.constant_pad_nd.default: 1, _aten.bmm.default: 1, _aten.slice.Tensor: 1}


def test_a_view_of_a_matmul_is_refused():
    with pytest.raises(AssertionError, match="reshape_instead_of_view comes first"):
        passed(viewed, (whole(2, 3, 5), whole(2, 5, 7, seed=1)), align_matmuls)


def matmul(x: Tensor, w: Tensor) -> tuple[Tensor]:
    return (torch.bmm(x, w),)


SIZES = st.integers(1, 20)


@given(rows=SIZES, inner=SIZES, columns=SIZES, transposed=st.tuples(st.booleans(), st.booleans()))
def test_sides_become_multiples_of_eight(rows, inner, columns, transposed):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x.transpose(1, 2) if transposed[0] else x, w.transpose(1, 2) if transposed[1] else w),)

    arguments = (
        whole(2, *((inner, rows) if transposed[0] else (rows, inner))),
        whole(2, *((columns, inner) if transposed[1] else (inner, columns)), seed=1),
    )
    program = check_equal(function, *arguments)
    up = [-(-size // 8) * 8 for size in (rows, inner, columns)]
    assert operand_sizes(program, *arguments) == [[(2, up[0], up[1]), (2, up[1], up[2])]]
    if up == [rows, inner, columns]:
        assert _aten.constant_pad_nd.default not in targets(program)
        assert _aten.slice.Tensor not in targets(program)
    for node in program.graph.nodes:
        if node.target is _aten.constant_pad_nd.default:
            assert node.args[0].op == "placeholder"  # not of what was transposed


@pytest.mark.parametrize("dims", [(1, 2), (2, 1), (-1, -2), (1, -1)], ids=str)
def test_a_transposed_operand_is_padded_before_it_is_transposed(dims):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x, w.transpose(*dims)),)

    program = check_equal(function, whole(2, 3, 5), whole(2, 7, 5, seed=1))
    pads = [node for node in program.graph.nodes if node.target is _aten.constant_pad_nd.default]
    assert len(pads) == 2
    assert all(node.args[0].op == "placeholder" for node in pads)
    [transposed] = [node for node in program.graph.nodes if node.target is _aten.transpose.int]
    assert transposed.args[0] in pads


def test_other_transpositions_are_padded_after():
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x.transpose(0, 1), w.transpose(0, 2)),)

    arguments = whole(3, 2, 5), whole(7, 5, 2, seed=1)
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wider_types_are_left_alone(dtype):
    arguments = whole(2, 3, 5, dtype=dtype), whole(2, 5, 7, seed=1, dtype=dtype)
    assert targets(check_equal(matmul, *arguments)) == {_aten.bmm.default: 1}


def test_float16_is_padded():
    arguments = whole(2, 3, 5, dtype=torch.float16), whole(2, 5, 7, seed=1, dtype=torch.float16)
    program = check_equal(matmul, *arguments)
    assert all(is_aligned(sizes) for sizes in operand_sizes(program, *arguments)[0])


def test_sizes_that_fit_are_left_alone():
    assert targets(check_equal(matmul, whole(3, 16, 8), whole(3, 8, 24, seed=1))) == {_aten.bmm.default: 1}


@pytest.mark.parametrize("side", range(3))
def test_only_sides_that_do_not_fit_are_padded_and_cut(side):
    rows, inner, columns = (9 if side == p else 8 for p in range(3))
    program = check_equal(matmul, whole(2, rows, inner), whole(2, inner, columns, seed=1))
    found = targets(program)
    assert found[_aten.constant_pad_nd.default] == (2 if side == 1 else 1)
    assert found[_aten.slice.Tensor] == (0 if side == 1 else 1)


def test_what_is_not_finite_does_not_spread():
    """A padded zero meets only zeros."""
    x, w = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    x[0, 1, 2], w[1, 3, 4] = float("inf"), float("nan")
    [expected] = trace(matmul, x, w)(x, w)
    [found] = rewritten(matmul, x, w)(x, w)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return made.view(-1), made.view(2, 21), _aten._unsafe_view.default(made, [6, 7])


def used_in_many_ways(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return (
        made,
        made.transpose(1, 2),
        made.flatten(1),
        made.transpose(1, 2).reshape(2, -1),
        functional.relu(made).view(-1),
        made.sum(dim=2),
        (made + 1).view(6, 7),
        made[:, 1:, ::2],
        made.float().view(-1),
        torch.cat([made, made], dim=2).view(-1),
        made.clone(memory_format=torch.contiguous_format).view(-1),
    )


def one_after_another(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return torch.bmm(made, w.transpose(1, 2)), torch.bmm(made.transpose(1, 2), x.sign())


@pytest.mark.parametrize("function", [viewed, used_in_many_ways, one_after_another])
def test_users_of_a_matmul_see_what_they_saw(function):
    arguments = whole(2, 3, 5).clamp(-1, 1), whole(2, 5, 7, seed=1)
    program = check_equal(function, *arguments)
    for operands in operand_sizes(program, *arguments):
        assert all(is_aligned(sizes) for sizes in operands)


def test_matmuls_whose_layout_is_counted_on_are_left_alone():
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x, w).as_strided((3, 2), (7, 1), 2),)

    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    assert operand_sizes(check_equal(function, *arguments), *arguments) == [[(2, 3, 5), (2, 5, 7)]]


@pytest.mark.parametrize("padding", [(1, 0, 0, 5), (0, 1, 5, 0), (1, 0, 5, 0)], ids=str)
def test_zeros_before_a_matmul_are_not_those_behind_it(padding):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (functional.pad(torch.bmm(x, w), padding),)

    check_equal(function, whole(2, 3, 5), whole(2, 5, 7, seed=1))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_matmul_that_is_padded_again(value):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (functional.pad(torch.bmm(x, w), (0, 1, 0, 5), value=value),)

    found = targets(check_equal(function, whole(2, 3, 5), whole(2, 5, 7, seed=1)))
    assert found[_aten.constant_pad_nd.default] == (2 if value == 0 else 3)  # those of the operands
