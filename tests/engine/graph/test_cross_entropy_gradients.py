"""One value per row put into zeros becomes a comparison with the index; other scatters stay."""

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from helpers_graph import check_equal, labels, normal, passed, rewritten, targets
from isotherm.engine.graph.cross_entropy_gradients import compare_instead_of_scatter
from isotherm.engine.graph.trace import trace
from isotherm.tasks.losses import cross_entropy

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects a traced step, and leaves a comparison, a choice, and no scatter."""
    function, *arguments = scattered(1, (3, 4), ZEROS["zeros"])
    program = passed(function, arguments, compare_instead_of_scatter)
    assert [str(target) for target in targets(program)] == [
        "aten.arange.default",
        "aten.view.default",
        "aten.eq.Tensor",
        "aten.where.ScalarOther",
    ]


def scattered(dim: int, shape: tuple[int, ...], zeros):
    """Return a function that puts one value per row into zeros, and its arguments."""
    rows = list(shape)
    rows[dim] = 1

    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        return (zeros(shape, source).scatter_add(dim, index, source),)

    return function, labels(*rows, below=shape[dim]), normal(*rows)


ZEROS = {
    "zeros": lambda shape, _: torch.zeros(shape),
    "new_zeros": lambda shape, source: source.new_zeros(shape),
    "zeros_like": lambda shape, source: torch.zeros_like(source.expand(shape)),
}


@pytest.mark.parametrize("zeros", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_one_per_row_into_zeros_becomes_a_comparison(dim, zeros):
    program = check_equal(*scattered(dim, (4, 5, 6), zeros))
    assert _aten.scatter_add.default not in targets(program)
    assert not {_aten.zeros.default, _aten.new_zeros.default, _aten.zeros_like.default} & targets(program).keys()
    assert targets(program)[_aten.eq.Tensor] == 1


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), (2, 3, 4, 5)], ids=str)
def test_rows_of_any_shape_become_comparisons(shape):
    program = check_equal(*scattered(len(shape) - 1, shape, ZEROS["zeros"]))
    assert _aten.scatter_add.default not in targets(program)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_type_of_the_values_stays(dtype):
    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        return (source.new_zeros(4, 6).scatter_add(1, index, source),)

    program = check_equal(function, labels(4, 1, below=6), normal(4, 1, dtype=dtype))
    assert _aten.scatter_add.default not in targets(program)


def test_values_that_are_not_finite_stay_in_their_place():
    source = torch.tensor([[float("nan")], [float("inf")], [1.0]])
    function, index, _ = scattered(1, (3, 4), ZEROS["zeros"])
    [found] = rewritten(function, index, source)(index, source)
    others = torch.ones(3, 4, dtype=torch.bool).scatter(1, index, False)
    assert not found[others].any()
    torch.testing.assert_close(found.gather(1, index), source, rtol=0, atol=0, equal_nan=True)


def test_the_gradient_of_a_cross_entropy_scatters_nothing():
    def function(logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        gradient, loss = vmap(grad_and_value(cross_entropy))(logits, target)
        return loss, gradient

    arguments = normal(3, 4, 7), labels(3, 4, below=7)
    assert _aten.scatter_add.default in targets(trace(function, *arguments))
    assert _aten.scatter_add.default not in targets(check_equal(function, *arguments))


def several_per_row(index: Tensor, source: Tensor) -> tuple[Tensor]:
    return (torch.zeros(4, 6).scatter_add(1, index.expand(4, 2), source.expand(4, 2)),)


def fewer_rows(index: Tensor, source: Tensor) -> tuple[Tensor]:
    return (torch.zeros(5, 6).scatter_add(1, index, source),)


def larger_source(index: Tensor, source: Tensor) -> tuple[Tensor]:
    return (torch.zeros(4, 6).scatter_add(1, index, source.expand(4, 3)),)


def into_ones(index: Tensor, source: Tensor) -> tuple[Tensor]:
    return (torch.ones(4, 6).scatter_add(1, index, source),)


def into_an_argument(index: Tensor, source: Tensor) -> tuple[Tensor]:
    return (source.expand(4, 6).scatter_add(1, index, source),)


def zeros_with_another_use(index: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    zeros = torch.zeros(4, 6)
    return zeros.scatter_add(1, index, source), zeros + source


@pytest.mark.parametrize(
    "function",
    [several_per_row, fewer_rows, larger_source, into_ones, into_an_argument, zeros_with_another_use],
)
def test_other_scatters_stay(function):
    program = check_equal(function, labels(4, 1, below=6), normal(4, 1))
    assert targets(program)[_aten.scatter_add.default] == 1
    assert _aten.eq.Tensor not in targets(program)


def test_a_view_of_values_scattered_by_a_transposed_index():
    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        return (torch.zeros(3, 4, 5).scatter_add(2, index.transpose(0, 1), source.transpose(0, 1)).view(-1),)

    check_equal(function, labels(4, 3, 1, below=5), normal(4, 3, 1))


def test_whole_numbers_put_into_zeros():
    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        return (source.new_zeros(4, 6).scatter_add(1, index, source),)

    check_equal(function, labels(4, 1, below=6), labels(4, 1, below=9, seed=1))


def test_one_value_put_into_one_zero():
    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        return (torch.zeros(()).scatter_add(0, index[0], source[0]),)

    check_equal(function, torch.zeros(1, dtype=torch.int64), torch.ones(1))


def test_scattered_values_whose_layout_is_counted_on():
    def function(index: Tensor, source: Tensor) -> tuple[Tensor]:
        made = torch.zeros(3, 4, 5).scatter_add(2, index.transpose(0, 1), source.transpose(0, 1))
        return (made.as_strided((60,), (1,)),)

    check_equal(function, labels(4, 3, 1, below=5), normal(4, 3, 1))
