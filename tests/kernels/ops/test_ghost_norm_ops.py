"""Ghost batch norm as single operations against the layer, and as the engine traces, rewrites and compiles it."""

from __future__ import annotations

import operator
from collections import Counter

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.graph.trace import trace, writes
from isotherm.errors import UserError
from isotherm.kernels import availability
from isotherm.kernels import layout as layout_of_runs
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.ops.ghost_norm import BACKWARD, FORWARD, FORWARD_OF_SUM, ghost_norm
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.identity import model_parts
from isotherm.tasks.losses import cross_entropy

# (batch, channels, height, width), ghost size
SHAPES = [((8, 16, 5, 5), 4), ((6, 16, 3, 7), 6), ((6, 48, 1, 9), 2), ((5, 3, 4, 5), 1), ((4, 32, 1, 1), 2)]
# The same of several runs, in front.
SHAPES_OF_RUNS = [((num_runs, *shape), size) for num_runs, (shape, size) in zip((3, 2, 1, 3, 2), SHAPES, strict=True)]
# Of float32: sums of a few hundred values. Of bfloat16: the same, and then a value may be rounded to its neighbour.
TOLERANCES = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2**-7, "atol": 1e-5},
}
# Weights and their gradients stay in float32.
WIDE = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}


def images(shape: tuple[int, ...], *, seed: int, dtype: torch.dtype = torch.float64, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = mean + torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(dtype).movedim(-3, -1).contiguous().movedim(-1, -3)


def scale_and_shift(shape: tuple[int, ...], *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return weight and bias for images of a shape, of each run its own."""
    generator = torch.Generator().manual_seed(7)
    by_channel = (2, *shape[:-4], shape[-3])
    return list(0.5 + 0.3 * torch.randn(by_channel, generator=generator, dtype=torch.float64).to(dtype))


def layer(num_channels: int, *, dtype: torch.dtype = torch.float64, **settings) -> GhostBatchNorm2d:
    """Return a layer whose parameters and running statistics are nothing special."""
    generator = torch.Generator().manual_seed(7)
    norm = GhostBatchNorm2d(num_channels, **settings).to(dtype)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor += 0.3 * torch.randn(num_channels, generator=generator, dtype=torch.float64).abs().to(dtype)
    return norm


@pytest.fixture
def by_operations(monkeypatch):
    """Let the layer use the operations on a CPU too."""
    monkeypatch.setattr(ghost_norm_ops, "fits", lambda _x: True)


# -- values and gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize(("shape", "ghost_size"), SHAPES)
def test_equals_the_layer(shape, ghost_size, activation, dtype, monkeypatch):
    wide = WIDE[dtype]
    norms = [layer(shape[1], ghost_size=ghost_size, activation=activation, dtype=wide) for _ in range(2)]
    dy = images(shape, seed=2, dtype=dtype)
    found = []
    for norm, uses_operations in zip(norms, (False, True), strict=True):
        monkeypatch.setattr(ghost_norm_ops, "fits", lambda _x, uses=uses_operations: uses)
        x = images(shape, seed=1, dtype=dtype, mean=3.0).requires_grad_()
        y = norm(x)
        gradients = torch.autograd.grad(y, [x, norm.weight, norm.bias], dy)
        found.append([y.detach(), *gradients, norm.running_mean, norm.running_var])
    assert [t.dtype for t in found[1]] == [dtype, dtype, wide, wide, wide, wide]
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)
    for place, (expected, ours) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(ours, expected, **TOLERANCES[dtype if place < 2 else wide])


def test_statistics_are_biased_and_by_ghost():
    x = images((6, 16, 4, 3), seed=1, mean=2.0)
    one, zero = torch.ones(16, dtype=x.dtype), torch.zeros(16, dtype=x.dtype)
    _, mean_GC, var_GC = ghost_norm(x, one, zero, ghost_size=3, eps=1e-5, relu=False)
    values = x.view(2, 3, 16, -1).transpose(1, 2).flatten(2)  # ghost, channel, values
    torch.testing.assert_close(mean_GC, values.mean(dim=2))
    torch.testing.assert_close(var_GC, values.var(dim=2, correction=0))


def test_gradients_equal_differences():
    norm = layer(3, ghost_size=2)

    def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ghost_norm(x, weight, bias, ghost_size=2, eps=1e-5, relu=True)[0]

    x = images((4, 3, 2, 1), seed=1).requires_grad_()
    assert torch.autograd.gradcheck(output, (x, norm.weight, norm.bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("shape", "ghost_size"), SHAPES)
def test_sums_before_and_after(shape, ghost_size, relu, dtype):
    """A residual sum that is normalised, and whose gradient arrives from elsewhere too."""
    wide = WIDE[dtype]
    norm = layer(shape[1], dtype=wide)
    weight, bias = norm.weight.detach(), norm.bias.detach()
    a, b, dy, other = (images(shape, seed=seed, dtype=dtype) for seed in range(4))
    total, y, mean_GC, var_GC = FORWARD_OF_SUM(a, b, weight, bias, ghost_size, 1e-5, relu)
    assert torch.equal(total, a + b)
    plain = FORWARD(total, weight, bias, ghost_size, 1e-5, relu)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip((y, mean_GC, var_GC), plain, strict=True))

    arguments = (dy, total, mean_GC, var_GC, weight, bias, 1e-5, relu)
    dx, *sums = BACKWARD(*arguments, other)
    without, *same = BACKWARD(*arguments, None)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(sums, same, strict=True))
    # In bfloat16 the sum is rounded once, or a term of it before: half of 2^-7 of at most 4.
    atol = 1e-12 if dtype == torch.float64 else 0.02
    torch.testing.assert_close(dx.to(wide), without.to(wide) + other.to(wide), rtol=0, atol=atol)


def test_what_is_not_finite_shows():
    x = images((4, 16, 3, 3), seed=1)
    x[1, 5, 0, 0] = torch.nan
    one, zero = torch.ones(16, dtype=x.dtype), torch.zeros(16, dtype=x.dtype)
    y, mean_GC, var_GC = FORWARD(x, one, zero, 2, 1e-5, True)
    assert y[:2, 5].isnan().all()
    assert y[2:].isfinite().all()
    dx, *_ = BACKWARD(x.nan_to_num(), x, mean_GC, var_GC, one, zero, 1e-5, True, None)
    assert dx[:2, 5].isnan().all()
    assert dx[2:].isfinite().all()


# -- what is known without values ---------------------------------------------------------------------------------


def calls(shape: tuple[int, ...], ghost_size: int, dtype: torch.dtype) -> list[tuple[torch._ops.OpOverload, tuple]]:
    """Return every operation with arguments."""
    weight, bias = scale_and_shift(shape, dtype=WIDE[dtype])
    x, dy = images(shape, seed=1, dtype=dtype), images(shape, seed=2, dtype=dtype)
    _, mean_GC, var_GC = FORWARD(x, weight, bias, ghost_size, 1e-5, True)
    back = (dy, x, mean_GC, var_GC, weight, bias, 1e-5, True)
    return [
        (FORWARD, (x, weight, bias, ghost_size, 1e-5, True)),
        (FORWARD_OF_SUM, (x, dy, weight, bias, ghost_size, 1e-5, True)),
        (BACKWARD, (*back, None)),
        (BACKWARD, (*back, dy)),
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "ghost_size"), [*SHAPES, *SHAPES_OF_RUNS])
def test_shapes_strides_and_types_are_foretold(shape, ghost_size, dtype):
    for operation, arguments in calls(shape, ghost_size, dtype):
        real = operation(*arguments)
        with FakeTensorMode() as mode:
            fake = operation(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
        for ours, foretold in zip(real, fake, strict=True):
            assert (ours.shape, ours.stride(), ours.dtype) == (foretold.shape, foretold.stride(), foretold.dtype)


@pytest.mark.parametrize("shape", [(4, 16, 3, 3), (3, 4, 16, 3, 3)])
def test_pytorch_checks_the_operations(shape):
    for operation, arguments in calls(shape, 2, torch.float32):
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(4, 16, 3, 3)}, "must be channels last in memory"),
        ({"x": torch.zeros(4, 16)}, r"not \(4, 16\)"),
        ({"x": images((4, 16, 3, 3), seed=0).long()}, "torch.int64"),
        ({"x": images((0, 16, 3, 3), seed=0)}, r"not \(0, 16, 3, 3\)"),
        ({"x": images((3, 4, 16, 3, 3), seed=0)}, r"\(3, 16\), not \(16,\) and \(16,\)"),
        ({"x": images((1, 3, 4, 16, 3, 3), seed=0)}, r"not \(1, 3, 4, 16, 3, 3\)"),
        ({"weight": torch.ones(15)}, r"of shape \(16,\), not \(15,\)"),
        ({"bias": torch.ones(16, 2)[:, 0]}, "must be contiguous"),
        ({"ghost_size": 3}, "a batch of 4 cannot be split into ghost batches of 3"),
        ({"ghost_size": 0}, "ghost batches of 0"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(changes, message):
    x = images((4, 16, 3, 3), seed=0, dtype=torch.float32)
    given = {"x": x, "weight": torch.ones(16), "bias": torch.ones(16), "ghost_size": 2} | changes
    with pytest.raises(ValueError, match=message):
        FORWARD(*given.values(), 1e-5, False)


def test_images_that_do_not_go_together_are_refused():
    x, one = images((4, 16, 3, 3), seed=0, dtype=torch.float32), torch.ones(16)
    for other in (x.bfloat16(), x[:2], x.clone(memory_format=torch.contiguous_format)):
        with pytest.raises(ValueError, match=r"must agree in shape, dtype and device|must be channels last"):
            FORWARD_OF_SUM(x, other, one, one, 2, 1e-5, False)
        with pytest.raises(ValueError, match=r"must agree in shape, dtype and device|must be channels last"):
            BACKWARD(other, x, torch.ones(2, 16), torch.ones(2, 16), one, one, 1e-5, False, None)


def test_runs_whose_images_would_be_read_wrongly_are_refused():
    shape = (3, 4, 16, 3, 3)
    x, (weight, bias) = images(shape, seed=0), scale_and_shift(shape)
    for other in (torch.zeros(shape).double(), images((4, 3, 16, 3, 3), seed=0).transpose(0, 1), x[:1].expand(shape)):
        with pytest.raises(ValueError, match="must be channels last in memory"):
            FORWARD(other, weight, bias, 2, 1e-5, False)
    with pytest.raises(ValueError, match="a batch of 4 cannot be split into ghost batches of 3"):
        FORWARD(x, weight, bias, 3, 1e-5, False)
    with pytest.raises(ValueError, match="must be contiguous"):
        FORWARD(x, weight.t().contiguous().t(), bias, 2, 1e-5, False)


@pytest.mark.parametrize("shape", [(6, 16), (2, 16), (3, 3, 16), (3, 0, 16), (3, 2, 8), (16,)], ids=str)
def test_statistics_of_something_else_are_refused(shape):
    x, (weight, bias) = images((3, 4, 16, 3, 3), seed=0), scale_and_shift((3, 4, 16, 3, 3))
    right, wrong = torch.ones(3, 2, 16).double(), torch.ones(shape).double()
    for mean, var in ((wrong, wrong), (wrong, right), (right, wrong), (right, right.mT.contiguous().mT)):
        with pytest.raises(ValueError, match="not the contiguous statistics of ghost batches"):
            BACKWARD(x, x, mean, var, weight, bias, 1e-5, False, None)


# -- several runs at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("shape", "ghost_size"), SHAPES_OF_RUNS)
def test_runs_equal_each_alone(shape, ghost_size, dtype):
    for operation, arguments in calls(shape, ghost_size, dtype):
        ours = operation(*arguments)
        for run in range(shape[0]):
            alone = operation(*(a[run] if isinstance(a, Tensor) else a for a in arguments))
            for mine, theirs in zip(ours, alone, strict=True):
                torch.testing.assert_close(mine[run], theirs, **TOLERANCES[theirs.dtype])


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    y, *statistics = ghost_norm(x, weight, bias, ghost_size=2, eps=1e-5, relu=True)
    return (y * y.detach().cos()).sum(), statistics


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (2, 1, 0), (None, 0, 0), (0, None, None), (4, None, 1)], ids=str)
def test_vmap_equals_a_loop(in_dims):
    """Wherever the runs are, and where they share something."""
    shape = (3, 4, 16, 2, 5)
    stacked = [images(shape, seed=1), *scale_and_shift(shape)]
    given = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(stacked, in_dims, strict=True)]
    gradient = grad_and_value(normalised, argnums=(0, 1, 2), has_aux=True)
    gradients, (value, statistics) = vmap(gradient, in_dims=in_dims)(*given)
    for run in range(3):
        alone = [t[0 if dim is None else run] for t, dim in zip(stacked, in_dims, strict=True)]
        expected, (loss, moments) = gradient(*alone)
        ours = [t[run] for t in (*gradients, value, *statistics)]
        assert_same(ours, (*expected, loss, *moments))


def test_the_gradient_of_a_sum_over_runs():
    """The other way around, `vmap` inside; what the runs share gets the sum of their gradients."""
    shape = (3, 4, 16, 2, 5)
    x, (weight, bias) = images(shape, seed=1), scale_and_shift(shape)
    gradient = grad(lambda *given: vmap(normalised, in_dims=(0, 0, None))(*given)[0].sum(), argnums=(0, 1, 2))
    dx, dweight, dbias = gradient(x, weight, bias[0])
    alone = [grad(lambda *g: normalised(*g)[0], argnums=(0, 1, 2))(x[run], weight[run], bias[0]) for run in range(3)]
    expected = [torch.stack(gradients) for gradients in zip(*alone, strict=True)]
    assert_same((dx, dweight, dbias), (*expected[:2], expected[2].sum(dim=0)))


def blocks_of_runs(num_runs: int):
    """Return a step of runs with residual blocks of nothing but normalisation, and arguments for it."""
    torch.manual_seed(0)
    norms = nn.ModuleList([GhostBatchNorm2d(16, ghost_size=2, activation="relu") for _ in range(3)]).double()
    states = {
        name: tensor.detach() + torch.rand(num_runs, *tensor.shape, dtype=torch.float64)
        for name, tensor in [*norms.named_parameters(), *norms.named_buffers()]
    }
    shape = (num_runs, 4, 16, 3, 5)

    def loss(parameters, buffers, x, target):
        after, value = {name: buffer.clone() for name, buffer in buffers.items()}, x
        for place, norm in enumerate(norms):
            inside = [
                {n.removeprefix(f"{place}."): t for n, t in named.items() if n.startswith(f"{place}.")}
                for named in (parameters, after)
            ]
            value = value + functional_call(norm, tuple(inside), (value,)) * target
        value = (value * target).sum()
        return value, (value, after)

    def step(*tensors: Tensor, mapped=vmap) -> tuple[Tensor, ...]:
        named = dict(zip(states, tensors, strict=False))
        parameters = {name: named[name] for name, _ in norms.named_parameters()}
        buffers = {name: named[name] for name, _ in norms.named_buffers()}
        gradient = grad_and_value(loss, argnums=(0, 2), has_aux=True)
        (gradients, dx), (_, (value, after)) = mapped(gradient)(parameters, buffers, *tensors[-2:])
        return value, dx, *gradients.values(), *after.values()

    return step, (*states.values(), images(shape, seed=1), images(shape, seed=2))


def in_turn(step, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what a step gives for each run alone, without `vmap`."""
    results = [step(*(t[run] for t in arguments), mapped=lambda f: f) for run in range(len(arguments[0]))]
    return tuple(torch.stack(values) for values in zip(*results, strict=True))


@pytest.mark.parametrize("num_runs", [1, 3])
def test_a_traced_step_of_runs_calls_the_operations_directly(num_runs, monkeypatch):
    step, arguments = blocks_of_runs(num_runs)
    expected = in_turn(step, arguments)
    monkeypatch.setattr(ghost_norm_ops, "fits", lambda _x: True)
    program = trace(step, *arguments)
    assert not writes(program)
    assert operations_of(program) == {FORWARD: 3, BACKWARD: 3}
    assert_same(program(*arguments), expected)
    for node in program.graph.nodes:
        if node.target in (FORWARD, BACKWARD):
            assert node.args[0].meta["val"].shape == (num_runs, 4, 16, 3, 5)
            made_by = {a.target for a in node.args if isinstance(a, fx.Node) and a.op == "call_function"}
            assert made_by <= {torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor, operator.getitem}

    num_sums = Counter(node.target for node in program.graph.nodes)[torch.ops.aten.add.Tensor]
    rewrite_for_gpu(program)
    program.graph.lint()
    # The first layer normalises no sum; the last sum is not normalised. Every gradient of an input is added to another.
    assert operations_of(program) == {FORWARD: 1, FORWARD_OF_SUM: 2, BACKWARD: 3}
    assert all(node.args[-1] is not None for node in program.graph.nodes if node.target is BACKWARD)
    assert Counter(node.target for node in program.graph.nodes)[torch.ops.aten.add.Tensor] == num_sums - 5
    assert_same(program(*arguments), expected)


@pytest.mark.usefixtures("by_operations")
def test_runs_of_a_network():
    """Whose convolutions do not lay out the images as the operations need them."""
    step, alone = step_of(small())
    arguments = [torch.stack([t, t * 0.9 if t.is_floating_point() else t.roll(1)]) for t in alone]
    program = trace(vmap(step), *arguments)
    assert operations_of(program) == {FORWARD: 7, BACKWARD: 7}
    expected = [torch.stack(values) for values in zip(*(step(*(t[r] for t in arguments)) for r in (0, 1)), strict=True)]
    assert_same(program(*arguments), expected)


# -- which way the layer goes -------------------------------------------------------------------------------------


def test_a_cpu_does_without(monkeypatch):
    monkeypatch.setattr(availability, "HAS_TRITON", True)
    norm, x = layer(16, ghost_size=2, dtype=torch.float32), images((4, 16, 3, 3), seed=0, dtype=torch.bfloat16)
    assert not ghost_norm_ops.fits(x)
    assert not operations_of(make_fx(norm)(x))


@pytest.mark.parametrize(
    ("changes", "has_triton", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"size": (8, 48, 6, 6)}, True, True),
        ({"size": (8, 24, 6, 6)}, True, False),
        ({"dtype": torch.float32}, True, False),
        ({"dtype": torch.float16}, True, False),
        ({"memory_format": torch.contiguous_format}, True, False),
        ({"device": "cpu"}, True, False),
    ],
)
def test_a_gpu_uses_the_kernels_where_they_fit(changes, has_triton, expected, monkeypatch):
    """On a GPU that is only imagined, whose tensors have no values."""
    monkeypatch.setattr(availability, "HAS_TRITON", has_triton)
    monkeypatch.setattr(availability, "ENABLED", True)
    given = {"size": (8, 16, 6, 6), "dtype": torch.bfloat16, "memory_format": torch.channels_last, "device": "cuda"}
    with FakeTensorMode():
        assert ghost_norm_ops.fits(torch.empty(**given | changes)) == expected
        monkeypatch.setattr(availability, "ENABLED", False)
        assert not ghost_norm_ops.fits(torch.empty(**given | changes))


@pytest.mark.usefixtures("by_operations")
def test_evaluation_does_without():
    norm, x = layer(16, ghost_size=2), images((4, 16, 3, 3), seed=0)
    assert operations_of(make_fx(norm)(x)) == {FORWARD: 1}
    assert operations_of(make_fx(norm.eval())(x)) == {}


# How images lie in memory, which place of that each dimension has, and which dimension `vmap` is over.
LAYOUTS_OF_RUNS = {
    "run after run": ((2, 4, 3, 3, 16), (0, 1, 4, 2, 3), 0),
    "channels first": ((2, 4, 16, 3, 3), (0, 1, 2, 3, 4), 0),
    "batch outside": ((4, 2, 3, 3, 16), (1, 0, 4, 2, 3), 0),
    "runs beside channels": ((4, 3, 3, 2, 16), (3, 0, 4, 1, 2), 0),  # as a convolution by groups gives them
    "run after run, not in front": ((2, 4, 3, 3, 16), (1, 0, 4, 2, 3), 1),
    "batch outside and in front": ((4, 2, 3, 3, 16), (0, 1, 4, 2, 3), 1),
    "shared": ((4, 3, 3, 16), (0, 3, 1, 2), None),
}


def of_runs(function, in_dim: int | None):
    """Return a function of images and of something that each run has."""
    return vmap(function, in_dims=(in_dim, 0))


@pytest.mark.parametrize("layout", LAYOUTS_OF_RUNS)
def test_a_gpu_uses_the_kernels_for_runs_where_they_fit(layout, monkeypatch):
    monkeypatch.setattr(availability, "HAS_TRITON", True)
    monkeypatch.setattr(availability, "ENABLED", True)
    shape, order, in_dim = LAYOUTS_OF_RUNS[layout]
    found = []

    def output(x: Tensor, run: Tensor) -> Tensor:
        found.append(ghost_norm_ops.fits(x))
        return run

    with FakeTensorMode():
        runs = torch.empty(2)
        for channels, dtype in ((16, torch.bfloat16), (24, torch.bfloat16), (16, torch.float32)):
            sizes = [channels if size == 16 else size for size in shape]
            of_runs(output, in_dim)(torch.empty(sizes, dtype=dtype, device="cuda").permute(order), runs)
    assert found == [layout == "run after run", False, False]


@pytest.mark.parametrize("layout", LAYOUTS_OF_RUNS)
def test_the_layout_of_runs_is_seen_through_derivatives(layout):
    shape, order, in_dim = LAYOUTS_OF_RUNS[layout]
    x, runs = torch.zeros(shape).permute(order), torch.zeros(2)
    found = []

    def loss(x: Tensor, run: Tensor) -> Tensor:
        images = layout_of_runs.of_all_runs(x)
        found.append(images is not None and layout_of_runs.has_channels_last(images))
        return x.sum() + run

    inside, outside = of_runs(grad(loss), in_dim), grad(lambda *given: of_runs(loss, in_dim)(*given).sum())
    for function in (inside, make_fx(inside), outside, make_fx(outside)):
        function(x, runs)
    assert found == [layout == "run after run"] * 4
    found.clear()
    vmap(of_runs(loss, in_dim))(x[None], runs[None])
    vmap(of_runs(loss, in_dim), in_dims=(None, 0))(x, runs[None])
    assert found == [False] * 2


def test_what_the_operations_cannot_do_is_said():
    x = images((4, 16, 3, 3), seed=0)
    one = torch.ones(16, dtype=x.dtype)

    def output(x: Tensor) -> Tensor:
        return ghost_norm(x, one, one, ghost_size=2, eps=1e-5, relu=False)[0].pow(2).sum()

    with pytest.raises(RuntimeError, match="do not support nested vmap"):
        vmap(vmap(output))(torch.stack([x, x])[None])
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda x: vmap(grad(output))(x).pow(2).sum())(torch.stack([x, x]))
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda x: grad(output)(x).pow(2).sum())(x)


def test_the_activation_of_the_layer():
    norm, bare = layer(3, ghost_size=2, activation="relu"), layer(3, ghost_size=2)
    x = images((4, 3, 2, 5), seed=1)
    for training in (True, False):
        assert torch.equal(norm.train(training)(x), torch.relu(bare.train(training)(x)))
    assert "activation=relu" in repr(norm)
    assert "activation" not in repr(bare)
    with pytest.raises(UserError, match="activation='gelu'"):
        GhostBatchNorm2d(3, activation="gelu")


def test_how_it_is_computed_identifies_no_run(monkeypatch):
    def build() -> nn.Module:
        return GhostBatchNorm2d(16, activation="relu")

    keys = []
    for has_triton in (False, True):
        monkeypatch.setattr(availability, "HAS_TRITON", has_triton)
        keys.append(model_parts(build, loss=cross_entropy, metric=cross_entropy))
    assert keys[0] == keys[1]
    assert keys[0] != model_parts(lambda: GhostBatchNorm2d(16), loss=cross_entropy, metric=cross_entropy)


# -- as the engine runs it ----------------------------------------------------------------------------------------


def operations_of(program: fx.GraphModule) -> dict[object, int]:
    """Return how often a program calls each of our operations."""
    counts = Counter(node.target for node in program.graph.nodes)
    return {operation: counts[operation] for operation in (FORWARD, FORWARD_OF_SUM, BACKWARD) if counts[operation]}


def step_of(module: nn.Module, *, dtype: torch.dtype = torch.float64):
    """Return a training step as a function of tensors alone, and arguments for it."""
    module = module.train().to(dtype).to(memory_format=torch.channels_last)
    names = [name for name, _ in module.named_parameters()]
    states = {n: t.detach().clone() for n, t in [*module.named_parameters(), *module.named_buffers()]}
    x, y = images((8, 3, 8, 8), seed=5, dtype=dtype), torch.arange(8) % 3

    def loss(parameters, buffers, x, y):
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        value = cross_entropy(functional_call(module, (parameters, after), (x,)), y)
        return value, (value, after)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(states, tensors, strict=False))
        parameters, buffers = ({n: t for n, t in named.items() if (n in names) == own} for own in (True, False))
        gradients, (_, (value, after)) = grad_and_value(loss, has_aux=True)(parameters, buffers, *tensors[-2:])
        return value, *gradients.values(), *after.values()

    return step, (*states.values(), x, y)


def small(**settings) -> nn.Module:
    torch.manual_seed(0)
    return wide_resnet(depth=10, width=2, num_classes=3, ghost_size=4, **settings)


def assert_same(ours: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_a_traced_step_calls_the_operations(monkeypatch):
    step, arguments = step_of(small())
    expected = step(*arguments)
    monkeypatch.setattr(ghost_norm_ops, "fits", lambda _x: True)
    program = trace(step, *arguments)  # functionalised, as the layers write their buffers, and dead code eliminated
    assert not writes(program)
    assert operations_of(program) == {FORWARD: 7, BACKWARD: 7}
    assert_same(program(*arguments), expected)


@pytest.mark.usefixtures("by_operations")
def test_residual_sums_go_into_the_operations():
    step, arguments = step_of(small())
    expected = step(*arguments)
    program = trace(step, *arguments)
    num_sums = Counter(node.target for node in program.graph.nodes)[torch.ops.aten.add.Tensor]
    rewrite_for_gpu(program)
    program.graph.lint()
    # The three blocks' sums. All three shortcuts are projections, so no gradient is added behind a normalisation.
    assert operations_of(program) == {FORWARD: 4, FORWARD_OF_SUM: 3, BACKWARD: 7}
    assert Counter(node.target for node in program.graph.nodes)[torch.ops.aten.add.Tensor] == num_sums - 3
    assert_same(program(*arguments), expected)


@pytest.mark.usefixtures("by_operations")
def test_gradients_of_shortcuts_go_into_the_operations():
    torch.manual_seed(0)
    step, arguments = step_of(wide_resnet(depth=16, width=1, num_classes=3, ghost_size=4))
    expected = step(*arguments)
    program = trace(step, *arguments)
    rewrite_for_gpu(program)
    program.graph.lint()
    added = [node.args[-1] is not None for node in program.graph.nodes if node.target is BACKWARD]
    assert added.count(True) == 4  # blocks whose shortcut is the input itself
    assert_same(program(*arguments), expected)
    for node in program.graph.nodes:  # what later rewrites read
        if node.op == "call_function":
            assert node.meta.get("val") is not None, node


@pytest.mark.parametrize("runs", [(), (3,)], ids=str)
def test_sums_that_are_more_than_sums_stay(runs):
    x, other = images((*runs, 4, 16, 3, 3), seed=1), images((*runs, 4, 16, 3, 3), seed=2)
    one = torch.ones((*runs, 16), dtype=torch.float64)
    mean = var = torch.ones((*runs, 2, 16), dtype=torch.float64)

    def doubled(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return FORWARD(torch.add(x, other, alpha=2), one, one, 2, 1e-5, True)

    def broadcast(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return FORWARD(x + other[:1], one, one, 2, 1e-5, True)

    def used_before(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        total = x + other
        return FORWARD(total, one * total.sum(), one, 2, 1e-5, True)

    def laid_out_otherwise(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return FORWARD(x + other.clone(memory_format=torch.contiguous_format), one, one, 2, 1e-5, True)

    def elsewhere(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return FORWARD((x + other).relu(), one, one, 2, 1e-5, True)

    def depends_on_it(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        dx, weight_GC, _ = BACKWARD(x, other, mean, var, one, one, 1e-5, True, None)
        return (dx + other * weight_GC.sum(),)

    def used_twice(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        dx, *_ = BACKWARD(x, other, mean, var, one, one, 1e-5, True, None)
        return dx + other, dx.exp()

    def with_itself(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        dx, *_ = BACKWARD(x, other, mean, var, one, one, 1e-5, True, None)
        return (dx + dx,)

    of_sums = (doubled, broadcast, used_before, laid_out_otherwise, elsewhere)
    for function in (*of_sums, depends_on_it, used_twice, with_itself):
        program = trace(function, x, other)
        rewrite_for_gpu(program)
        assert FORWARD_OF_SUM not in operations_of(program), function
        assert all(node.args[-1] is None for node in program.graph.nodes if node.target is BACKWARD), function
        assert_same(program(x, other), function(x, other))


def test_a_sum_normalised_twice_is_added_once():
    x, other, one = images((4, 16, 3, 3), seed=1), images((4, 16, 3, 3), seed=2), torch.ones(16, dtype=torch.float64)

    def twice(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        total = x + other
        return *FORWARD(total, one, one, 2, 1e-5, True), *FORWARD(total, one, one, 4, 1e-5, False), total

    program = trace(twice, x, other)
    rewrite_for_gpu(program)
    assert operations_of(program) == {FORWARD: 1, FORWARD_OF_SUM: 1}
    assert_same(program(x, other), twice(x, other))


def test_a_sum_of_a_sum():
    a, b, c = (images((4, 16, 3, 3), seed=seed) for seed in range(3))
    one = torch.ones(16, dtype=torch.float64)

    def nested(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        inner = a + b
        outer = inner + c
        return *FORWARD(outer, one, one, 2, 1e-5, True), *FORWARD(inner, one, one, 2, 1e-5, True)

    program = trace(nested, a, b, c)
    rewrite_for_gpu(program)
    program.graph.lint()
    assert operations_of(program) == {FORWARD: 1, FORWARD_OF_SUM: 1}  # the inner one is needed before
    assert_same(program(a, b, c), nested(a, b, c))


@pytest.mark.slow
@pytest.mark.usefixtures("by_operations")
# PyTorch's own: its compiler makes an instance of what it says has none
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("traced", [True, False])
def test_compiled(traced):
    """The engine compiles a rewritten trace; the plain loop of the benchmark compiles the module itself."""
    module = small()
    step, arguments = step_of(module)
    expected = step(*arguments)
    torch._dynamo.reset()
    if traced:
        program = trace(step, *arguments)
        rewrite_for_gpu(program)
        ours = torch.compile(program.forward, backend="aot_eager", fullgraph=True, dynamic=False)(*arguments)
    else:
        value = torch.compile(
            lambda x, y: cross_entropy(module(x), y), backend="aot_eager", fullgraph=True, dynamic=False
        )(*arguments[-2:])
        gradients = torch.autograd.grad(value, list(module.parameters()))
        ours = (value.detach(), *gradients, *(buffer for _, buffer in module.named_buffers()))
    assert_same(ours, expected)
