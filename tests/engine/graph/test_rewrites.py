"""A rewritten program against the traced one. On a CPU nothing becomes faster, but the numbers are the same.

Products are of small whole numbers: their sums fit into bfloat16, so that equal means equal in whatever order they are
added up.
"""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from isotherm.engine.graph.rewrites import rewrite_for_gpu
from isotherm.engine.graph.trace import trace
from isotherm.engine.parameters import Weights
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.tasks.losses import cross_entropy

_aten = torch.ops.aten
PRODUCTS = (_aten.bmm.default, _aten.baddbmm.default)
VIEWS = (_aten.view.default, _aten._unsafe_view.default)
HALF = torch.bfloat16


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(*shape: int, below: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def rewrite(program: fx.GraphModule) -> None:
    rewrite_for_gpu(program)
    program.graph.lint()


def rewritten(function, *arguments: Tensor) -> fx.GraphModule:
    program = trace(function, *arguments)
    rewrite(program)
    return program


def targets(program: fx.GraphModule) -> Counter:
    return Counter(node.target for node in program.graph.nodes if node.op == "call_function")


class Sizes(fx.Interpreter):
    """Run a program and note the sizes of all operands of its products."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__(program)
        self.operands: list[list[tuple[int, ...]]] = []

    def run_node(self, n: fx.Node):
        result = super().run_node(n)
        if n.target in PRODUCTS:
            self.operands.append([tuple(self.env[source].shape) for source in n.args])
        if isinstance(result, Tensor) and n.op == "call_function":
            assert (result.shape, result.dtype) == (n.meta["val"].shape, n.meta["val"].dtype), n
        return result


def operand_sizes(program: fx.GraphModule, *arguments: Tensor) -> list[list[tuple[int, ...]]]:
    sizes = Sizes(program)
    sizes.run(*arguments)
    return sizes.operands


def is_aligned(sizes: tuple[int, ...]) -> bool:
    return all(size % 8 == 0 for size in sizes[1:])


def check_equal(function, *arguments: Tensor) -> fx.GraphModule:
    """Return the rewritten program if its results equal those of the traced one, also on other values."""
    program = trace(function, *arguments)
    examples = [arguments, [argument.flip(0) for argument in arguments]]
    expected = [program(*values) for values in examples]
    rewrite(program)
    for values, results in zip(examples, expected, strict=True):
        for mine, theirs in zip(program(*values), results, strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.shape == theirs.shape
            assert torch.equal(mine, theirs)
    return program


# -- the gradient of a cross entropy ---------------------------------------------------------------------------


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


# -- products of odd sizes -------------------------------------------------------------------------------------


def product(x: Tensor, w: Tensor) -> tuple[Tensor]:
    return (torch.bmm(x, w),)


def biased(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
    return (torch.baddbmm(b, x, w),)


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
def test_a_transposed_operand_is_filled_before_it_is_transposed(dims):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x, w.transpose(*dims)),)

    program = check_equal(function, whole(2, 3, 5), whole(2, 7, 5, seed=1))
    pads = [node for node in program.graph.nodes if node.target is _aten.constant_pad_nd.default]
    assert len(pads) == 2
    assert all(node.args[0].op == "placeholder" for node in pads)
    [transposed] = [node for node in program.graph.nodes if node.target is _aten.transpose.int]
    assert transposed.args[0] in pads


def test_other_transpositions_are_filled_after():
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x.transpose(0, 1), w.transpose(0, 2)),)

    arguments = whole(3, 2, 5), whole(7, 5, 2, seed=1)
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)]]


@pytest.mark.parametrize("bias", [(2, 1, 7), (2, 3, 7), (1, 1, 7), (1, 3, 7)], ids=str)
@pytest.mark.parametrize("function", [biased, lambda x, w, b: (torch.bmm(x, w) + b,)], ids=["baddbmm", "add"])
def test_a_bias_is_added_after_the_product(function, bias):
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(*bias, seed=2)
    assert _aten.baddbmm.default in targets(trace(function, *arguments))
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)]]
    assert _aten.baddbmm.default not in targets(program)


@pytest.mark.parametrize(("rows", "height"), [(1, 1), (8, 8), (8, 1), (9, 9), (9, 1)])
def test_biases_of_any_height(rows, height):
    arguments = whole(2, rows, 5), whole(2, 5, 9, seed=1), whole(2, height, 9, seed=2)
    program = check_equal(biased, *arguments)
    assert all(is_aligned(sizes) for sizes in operand_sizes(program, *arguments)[0])


def test_a_bias_of_one_column_of_sizes_that_fit():
    check_equal(biased, whole(2, 8, 8), whole(2, 8, 16, seed=1), whole(2, 8, 1, seed=2))


@pytest.mark.parametrize("options", [{"alpha": 2}, {"beta": 2}, {"alpha": 2, "beta": 0}], ids=str)
def test_scaled_products_are_left_alone(options):
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        return (torch.baddbmm(b, x, w, **options),)

    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 1, 7), (2, 3, 5), (2, 5, 7)]]
    assert set(targets(program)) == {_aten.baddbmm.default}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wider_types_are_left_alone(dtype):
    arguments = whole(2, 3, 5, dtype=dtype), whole(2, 5, 7, seed=1, dtype=dtype)
    assert targets(check_equal(product, *arguments)) == {_aten.bmm.default: 1}


def test_float16_is_filled_up():
    arguments = whole(2, 3, 5, dtype=torch.float16), whole(2, 5, 7, seed=1, dtype=torch.float16)
    program = check_equal(product, *arguments)
    assert all(is_aligned(sizes) for sizes in operand_sizes(program, *arguments)[0])


def test_sizes_that_fit_are_left_alone():
    arguments = whole(3, 16, 8), whole(3, 8, 24, seed=1), whole(3, 1, 24, seed=2)
    assert targets(check_equal(biased, *arguments)) == {_aten.bmm.default: 1, _aten.add.Tensor: 1}


@pytest.mark.parametrize("place", range(3))
def test_only_sides_that_do_not_fit_are_filled_and_cut(place):
    rows, inner, columns = (9 if place == p else 8 for p in range(3))
    program = check_equal(product, whole(2, rows, inner), whole(2, inner, columns, seed=1))
    found = targets(program)
    assert found[_aten.constant_pad_nd.default] == (2 if place == 1 else 1)
    assert found[_aten.slice.Tensor] == (0 if place == 1 else 1)


def test_what_is_not_finite_does_not_spread():
    """A filled-up zero meets only zeros."""
    x, w = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    x[0, 1, 2], w[1, 3, 4] = float("inf"), float("nan")
    [expected] = trace(product, x, w)(x, w)
    [found] = rewritten(product, x, w)(x, w)
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
def test_users_of_a_product_see_what_they_saw(function):
    arguments = whole(2, 3, 5).clamp(-1, 1), whole(2, 5, 7, seed=1)
    program = check_equal(function, *arguments)
    for operands in operand_sizes(program, *arguments):
        assert all(is_aligned(sizes) for sizes in operands)


def test_views_of_a_product_become_reshapes():
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    assert sum(targets(trace(viewed, *arguments))[view] for view in VIEWS) == 3
    found = targets(rewritten(viewed, *arguments))
    assert found[_aten.reshape.default] == 3
    assert not any(found[view] for view in VIEWS)


@pytest.mark.parametrize("bias", [(2, 1, 1), (2, 3, 1), (1, 1, 1)], ids=str)
def test_a_bias_of_one_column(bias):
    check_equal(lambda x, w, b: (torch.bmm(x, w) + b,), whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(*bias, seed=2))


@pytest.mark.parametrize(
    "view",
    [
        lambda made: made.unsqueeze(0).view(-1),
        lambda made: made.detach().view(-1),
        lambda made: made[:, :2].view(2, -1),
        lambda made: made[0].view(-1),
    ],
    ids=["unsqueeze", "detach", "slice", "select"],
)
def test_a_view_of_a_view_of_a_product(view):
    check_equal(lambda x, w: (view(torch.bmm(x, w)),), whole(2, 3, 5), whole(2, 5, 7, seed=1))


def test_products_whose_layout_is_counted_on_are_left_alone():
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.bmm(x, w).as_strided((3, 2), (7, 1), 2),)

    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    assert operand_sizes(check_equal(function, *arguments), *arguments) == [[(2, 3, 5), (2, 5, 7)]]


@pytest.mark.parametrize("padding", [(1, 0, 0, 5), (0, 1, 5, 0), (1, 0, 5, 0)], ids=str)
def test_zeros_before_a_product_are_not_those_behind_it(padding):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (functional.pad(torch.bmm(x, w), padding),)

    check_equal(function, whole(2, 3, 5), whole(2, 5, 7, seed=1))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_product_that_is_filled_up_again(value):
    def function(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (functional.pad(torch.bmm(x, w), (0, 1, 0, 5), value=value),)

    found = targets(check_equal(function, whole(2, 3, 5), whole(2, 5, 7, seed=1)))
    assert found[_aten.constant_pad_nd.default] == (2 if value == 0 else 3)  # those of the operands


# -- sums by products ------------------------------------------------------------------------------------------


def is_of_ones(product: fx.Node) -> bool:
    left = product.args[0]
    return any(source.target is _aten.full.default for source in (left, *left.all_input_nodes))


def summed(keepdim: bool, dim: int = 1):
    def function(g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g, w), g.sum(dim=dim, keepdim=keepdim)

    return function


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dim", [1, -2])
def test_rows_that_a_product_reads_are_summed_by_a_product(dim, keepdim):
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    program = check_equal(summed(keepdim, dim), *arguments)
    assert _aten.sum.dim_IntList not in targets(program)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)], [(2, 8, 8), (2, 8, 8)]]


def test_rows_that_a_product_reads_transposed_are_summed_by_it():
    def function(g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g.transpose(1, 2), w), g.sum(1)

    assert _aten.sum.dim_IntList not in targets(check_equal(function, whole(2, 8, 5), whole(2, 8, 7, seed=1)))


def test_one_row_of_ones_serves_all_sums():
    def function(g: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g, w), torch.bmm(h, w), g.sum(1), h.sum(1)

    found = targets(check_equal(function, whole(2, 8, 8), whole(2, 8, 8, seed=1), whole(2, 8, 8, seed=2)))
    assert (found[_aten.full.default], found[_aten.bmm.default]) == (1, 4)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (summed(True), torch.float32),
        (summed(False, 2), HALF),
        (lambda g, w: (torch.bmm(g, w), g.sum(dim=(1, 2))), HALF),
        (lambda g, w: (torch.bmm(g, w), g.sum(dim=1, dtype=torch.float32)), HALF),
        (lambda g, w: (w.relu(), g.sum(dim=1)), HALF),
    ],
    ids=["single", "columns", "all", "wider", "alone"],
)
def test_other_sums_stay(function, dtype):
    program = check_equal(function, whole(2, 8, 8, dtype=dtype), whole(2, 8, 8, seed=1, dtype=dtype))
    assert targets(program)[_aten.sum.dim_IntList] == 1


# -- weights in half precision ---------------------------------------------------------------------------------


def looks_at(node: fx.Node) -> set[fx.Node]:
    """Return the nodes that have a node's values, turned or cut, or rounded."""
    kept = (_aten.reshape.default, _aten.transpose.int, _aten.slice.Tensor, _aten._to_copy.default)
    return {node}.union(*(looks_at(user) for user in node.users if user.target in kept))


def layer_step(rows: int, columns: int, *, num_runs: int = 2):
    """Return a step of one layer, its weights, their gradient as `Weights` keeps it, and the arguments."""
    weights = Weights(
        {"w": whole(num_runs, rows, columns, dtype=torch.float32)}, decayed=(), channels_last=False, aligns=True
    )

    def step(block: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        w = weights.parameters([block])["w"]

        def of_run(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x @ w.to(HALF).t()
            return y.float().sum(), y

        gradients, (_, y) = vmap(grad_and_value(of_run, has_aux=True))(w, x)
        return y, *weights.gradients({"w": gradients})

    return step, weights, (*weights.values, whole(num_runs, 6, columns, seed=1))


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (5, 8), (8, 5), (5, 7), (1, 1)])
def test_weights_come_rounded_and_filled_up(rows, columns):
    step, weights, arguments = layer_step(rows, columns)
    assert weights.matrices == [(rows, columns)]
    program = trace(step, *arguments)
    expected = program(*arguments)
    halved = rewrite_for_gpu(program, weights.matrices)
    program.graph.lint()
    assert halved == [0]
    given = arguments[0].to(HALF), arguments[1]
    found = program(*given)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    assert all(is_aligned(sizes) for operands in operand_sizes(program, *given) for sizes in operands)
    # Neither the weights nor their gradient are filled up or cut: only what goes in and out.
    filled = [node for node in program.graph.nodes if node.target is _aten.constant_pad_nd.default]
    block = next(node for node in program.graph.nodes if node.op == "placeholder")
    assert not {node.args[0] for node in filled} & looks_at(block)
    assert all(node.target is not _aten.slice.Tensor for node in looks_at(block))
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
    weights = Weights({"w": normal(2, 5, 7)}, decayed=(), channels_last=False, aligns=True)

    def step(block: Tensor) -> tuple[Tensor, ...]:
        return (reads(weights.parameters([block])["w"]),)

    program = trace(step, *weights.values)
    [expected] = program(*weights.values)
    assert rewrite_for_gpu(program, weights.matrices) == []
    torch.testing.assert_close(program(*weights.values)[0], expected, rtol=0, atol=0)


def test_a_users_own_cut_of_the_weights_stays():
    """Of 16 rows the first 13: behind them are no zeros."""
    weights = Weights({"w": whole(2, 16, 8, dtype=torch.float32)}, decayed=(), channels_last=False, aligns=True)

    def step(block: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.bmm(x, weights.parameters([block])["w"][:, :13].to(HALF)),)

    arguments = *weights.values, whole(2, 6, 13, seed=1)
    program = trace(step, *arguments)
    [expected] = program(*arguments)
    assert rewrite_for_gpu(program, weights.matrices) == [0]
    assert torch.equal(program(arguments[0].to(HALF), arguments[1])[0], expected)


# -- whole steps -----------------------------------------------------------------------------------------------


def step_of(module: nn.Module, loss):
    """Return losses and gradients of several runs in mixed precision as a function of tensors, and their parameters."""
    names = [name for name, _ in module.named_parameters()]
    parameters = [
        torch.stack([p.detach() + 0.1 * normal(*p.shape, seed=run) for run in range(3)]) for p in module.parameters()
    ]

    def of_run(parameters: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            output = functional_call(module, dict(zip(names, parameters, strict=True)), loss[0](x))
        return loss[1](output, y)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        *parameters, x, y = tensors
        gradients, losses = vmap(grad_and_value(of_run))(tuple(parameters), x, y)
        return losses, *gradients

    return step, parameters


def mlp_step():
    module = nn.Sequential(nn.Linear(13, 21), nn.ReLU(), nn.Linear(21, 11), nn.Tanh(), nn.Linear(11, 5))
    step, parameters = step_of(module, (lambda x: (x,), lambda output, y: cross_entropy(output.float(), y)))
    return step, (*parameters, normal(3, 6, 13), labels(3, 6, below=5))


def lstm_step():
    module = LSTMLanguageModel(vocabulary=19, width=11, num_layers=2, drop_probability=0.0)
    state = module.initial_state(3)
    step, parameters = step_of(
        module, (lambda x: (x, torch.zeros_like(state)), lambda output, y: cross_entropy(output[0].float(), y))
    )
    return step, (*parameters, labels(3, 3, 2, below=19), labels(3, 3, 2, below=19, seed=1))


@pytest.mark.parametrize("build", [mlp_step, lstm_step])
def test_a_step_in_mixed_precision(build):
    """Losses and gradients differ by no more than a rounding of bfloat16 here and there."""
    torch.manual_seed(0)
    step, arguments = build()
    program = trace(step, *arguments)
    expected, before = program(*arguments), operand_sizes(program, *arguments)
    assert _aten.scatter_add.default in targets(program)
    rewrite(program)
    found, after = program(*arguments), operand_sizes(program, *arguments)
    torch.testing.assert_close(found[0], expected[0], rtol=2**-8, atol=0)
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        for run in range(3):
            assert float((mine[run] - theirs[run]).norm()) <= 2**-7 * float(theirs[run].norm())
    assert not all(is_aligned(sizes) for operands in before for sizes in operands[-2:])
    sums = [node for node in program.graph.nodes if node.target is _aten.bmm.default and is_of_ones(node)]
    assert len(after) == len(before) + len(sums)
    assert len(sums) >= 3  # the gradients of biases
    assert all(is_aligned(sizes) for operands in after for sizes in operands)
    assert _aten.scatter_add.default not in targets(program)


def test_a_step_in_single_precision_only_loses_its_scatter():
    def step(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        def loss(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional.linear(x, w, b), y)

        gradients, losses = vmap(grad_and_value(loss, argnums=(0, 1)))(w, b, x, y)
        return losses, *gradients

    arguments = normal(3, 5, 7), normal(3, 5), normal(3, 6, 7), labels(3, 6, below=5)
    program = check_equal(step, *arguments)
    found = targets(program)
    assert _aten.constant_pad_nd.default not in found
    assert _aten.scatter_add.default not in found
