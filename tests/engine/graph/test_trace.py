import pytest
import torch
from torch import Tensor, fx
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from isotherm.engine.graph.pipeline import rewrite_for_cpu
from isotherm.engine.graph.trace import trace


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def num_calls(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def for_cpu(function) -> fx.GraphModule:
    """Return a program after all passes for a CPU."""
    program = trace(function, *ARGUMENTS)
    rewrite_for_cpu(program)
    return program


def targets(program) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (vmap(functional.linear)(x, weight, bias),)


def loss_gradient(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    def loss(w: Tensor, b: Tensor, inputs: Tensor) -> Tensor:
        return torch.tanh(functional.linear(inputs, w, b)).square().mean()

    return vmap(grad(loss, argnums=(0, 1)))(weight, bias, x)


def same_shape_view(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (torch.exp(x.view(x.shape).expand(x.shape)),)


def double_transpose(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (x.transpose(1, 2).transpose(1, 2) + 1.0,)


def other_transposes(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (x.transpose(0, 1).transpose(1, 2) + 1.0,)


def times_one(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (torch.exp(x * 1 * 1.0),)


def biased_matmul(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    weight = weight.transpose(1, 2)
    return bias.unsqueeze(1) + torch.bmm(x, weight), torch.bmm(x, weight) + bias.unsqueeze(1)


def shared_matmul(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    matmul = torch.bmm(x, weight.transpose(1, 2))
    return matmul + bias.unsqueeze(1), matmul.relu()


def scaled_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (torch.add(torch.bmm(x, weight.transpose(1, 2)), bias.unsqueeze(1), alpha=2.0),)


def two_matmuls(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    weight = weight.transpose(1, 2)
    return (torch.bmm(x, weight) + torch.bmm(x, weight + 1.0),)


def matmul_twice(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    matmul = torch.bmm(x, weight.transpose(1, 2))
    return (matmul + matmul,)


def larger_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    """The matmul is broadcast to the bias, not the other way round."""
    return (torch.bmm(x[:, :1], weight.transpose(1, 2)) + torch.ones(4, 3, 2, dtype=x.dtype),)


def whole_number_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (torch.bmm(x, weight.transpose(1, 2)) + torch.arange(2).view(1, 1, 2),)


def whole_numbers_times_one(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return ((x > 0).long() * 1.0,)


def times_one_then_in_place(x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    copy = x * 1.0
    copy.add_(3.0)
    return copy, x + 0.0


def times_one_then_a_piece_in_place(x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    copy = x * 1.0
    copy[0].add_(3.0)
    return copy, x + 0.0


def times_one_of_what_changes_later(x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    changing = torch.exp(x)
    copy = changing * 1.0
    changing.add_(3.0)
    return copy + 0.0, changing


def times_one_of_an_expanded_tensor(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return ((x[:, :, :1].expand(4, 3, 5) * 1.0).view(-1),)


def unused_work(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    torch.exp(x).sum()
    return (x + 1.0,)


def in_place_without_a_use(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    copy = x.clone()
    copy.add_(1.0)
    return (copy,)


def the_input_itself(x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return x.view(x.shape), x + 1.0


SHORTER = [layer, loss_gradient, same_shape_view, double_transpose, times_one, biased_matmul, unused_work]
OTHERS = [
    other_transposes,
    shared_matmul,
    scaled_bias,
    two_matmuls,
    matmul_twice,
    larger_bias,
    whole_number_bias,
    whole_numbers_times_one,
    times_one_then_in_place,
    times_one_then_a_piece_in_place,
    times_one_of_what_changes_later,
    times_one_of_an_expanded_tensor,
    in_place_without_a_use,
    the_input_itself,
]
ARGUMENTS = (random(4, 3, 5), random(4, 2, 5), random(4, 2))  # runs × batch × in, runs × out × in, runs × out


@pytest.mark.parametrize("is_rewritten", [False, True])
@pytest.mark.parametrize("function", SHORTER + OTHERS)
def test_traced_equals_untraced(function, is_rewritten):
    program = trace(function, *(argument.clone() for argument in ARGUMENTS))
    if is_rewritten:
        rewrite_for_cpu(program)
    for scale in (1.0, -0.5):  # values other than those that were traced
        arguments = [scale * argument for argument in ARGUMENTS]
        expected = function(*(argument.clone() for argument in arguments))
        ours = program(*arguments)
        assert isinstance(ours, tuple)
        assert [tensor.dtype for tensor in ours] == [tensor.dtype for tensor in expected]
        for mine, theirs in zip(ours, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)
        for argument, original in zip(arguments, ARGUMENTS, strict=True):
            assert torch.equal(argument, scale * original)


@pytest.mark.parametrize("function", SHORTER)
def test_the_program_is_shorter(function):
    plain = num_calls(make_fx(function)(*ARGUMENTS).graph)
    assert num_calls(for_cpu(function).graph) < plain


@pytest.mark.parametrize("function", [same_shape_view, times_one])
def test_one_operation_is_left(function):
    assert targets(for_cpu(function)) == ["aten.exp.default"]


def test_two_transposes_of_the_same_dimensions_cancel():
    assert targets(for_cpu(double_transpose)) == ["aten.add.Tensor"]


def test_a_bias_is_fused_into_the_matmul():
    names = targets(for_cpu(biased_matmul))
    assert names.count("aten.baddbmm.default") == 2
    assert "aten.bmm.default" not in names
    assert "aten.add.Tensor" not in names


def test_a_matmul_with_another_use_is_not_fused():
    assert "aten.baddbmm.default" not in targets(for_cpu(shared_matmul))


def test_the_program_takes_no_python_values_but_tensors():
    program = trace(lambda x: (x + 1.0,), torch.zeros(2))
    assert torch.equal(program(torch.ones(2))[0], torch.full((2,), 2.0))
    with pytest.raises(TypeError):
        program(torch.ones(2), torch.ones(2))


def test_shapes_are_noted_by_one_mode():  # one for each value took half of the time
    program = trace(loss_gradient, random(3, 4, 5), random(3, 2, 5), random(3, 2))
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert len(values) > 5
    assert len({id(value.fake_mode) for value in values}) == 1


def halved(x: Tensor, weight: Tensor, counter: Tensor) -> tuple[Tensor, ...]:
    x.div_(2)
    counter.add_(1)
    return (x @ weight,)


def test_writes_into_scratch_are_dropped_and_others_stay() -> None:
    x, weight, counter = random(4, 3), random(3, 2), torch.zeros(())
    program = trace(halved, x.clone(), weight, counter.clone(), scratch=[0])
    given = x.clone()
    for _ in range(2):
        assert torch.allclose(program(given, weight, counter)[0], x / 2 @ weight)
    assert torch.equal(given, x)
    assert counter == 2


def test_without_scratch_an_argument_is_written_as_by_the_function() -> None:
    x, weight, counter = random(4, 3), random(3, 2), torch.zeros(())
    given = x.clone()
    trace(halved, x.clone(), weight, counter.clone())(given, weight, counter)
    assert torch.equal(given, x / 2)
