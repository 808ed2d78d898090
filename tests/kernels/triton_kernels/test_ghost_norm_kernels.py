"""The Triton ghost batch norm kernels against float64: interpreted on a CPU, or on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from helpers_kernels import IS_INTERPRETED
from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.graph.trace import trace
from isotherm.engine.programs.cuda_graph import capture
from isotherm.kernels import availability
from isotherm.kernels.ops.ghost_norm import BACKWARD, FORWARD, FORWARD_OF_SUM
from isotherm.kernels.tiling.ghost_norm import LAUNCH, MOST_PARTS, Launch, Split, parts_at_once
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.losses import cross_entropy

interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
on_gpu = pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
# Small tiles, so that small images have several tiles, parts and programs.
SMALL = Launch(values_per_warp=64, num_warps=2, num_programs=16)
EPS = 1e-5
# Closer than this to zero before the ReLU, rounding decides which derivative it has; no gradient is sent there.
UNDECIDED = 1e-4


# -- how the work is cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launch", [LAUNCH, SMALL])
@pytest.mark.parametrize("num_channels", [16, 48, 64, 160, 256, 2048])
@pytest.mark.parametrize("num_rows", [2, 49, 4_096, 65_536, 802_816])
@pytest.mark.parametrize("num_ghosts", [1, 16, 128])
def test_every_row_has_one_place(num_ghosts, num_rows, num_channels, launch):
    split = Split.of(num_ghosts=num_ghosts, num_rows=num_rows, num_channels=num_channels, launch=launch)
    assert (split.num_parts - 1) * split.rows_of_part < num_rows <= split.num_parts * split.rows_of_part
    assert split.num_parts <= MOST_PARTS
    assert split.rows_of_part % split.rows_of_tile == 0
    assert num_channels % split.channels_of_block == 0
    for size in (split.rows_of_tile, split.channels_of_block, parts_at_once(split.num_parts), split.num_warps):
        assert size & (size - 1) == 0
    values = split.rows_of_tile * split.channels_of_block
    assert values == launch.values_per_warp * split.num_warps


@pytest.mark.parametrize(
    ("batch_size", "num_programs"), [(64, [128] * 4), (1024, [1024] * 4), (8192, [2048, 8192, 4096, 2048])]
)
def test_programs_of_the_wide_resnet(batch_size, num_programs):
    shapes = [(16, 32), (64, 32), (128, 16), (256, 8)]
    splits = [Split.of(num_ghosts=batch_size // 64, num_rows=64 * s * s, num_channels=c) for c, s in shapes]
    assert [split.num_programs for split in splits] == num_programs


# -- the kernels --------------------------------------------------------------------------------------------------


def images(shape: tuple[int, ...], *, seed: int, dtype: torch.dtype, device: str, mean: float = 0.0) -> Tensor:
    values = mean + torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device, dtype).movedim(-3, -1).contiguous().movedim(-1, -3)


def scale_and_shift(shape: tuple[int, ...], *, device: str) -> list[Tensor]:
    """Return weight and bias for images of a shape, of each run its own."""
    generator = torch.Generator().manual_seed(5)
    return list(0.5 + 0.3 * torch.randn(2, *shape[:-4], shape[-3], generator=generator).to(device))


def worst(ours: Tensor, expected: Tensor, *, rtol: float) -> float:
    """Return the largest error over what is allowed: relative to each value, and 1e-5 of the largest."""
    ours, expected = ours.double(), expected.double()
    assert ours.shape == expected.shape
    error = (ours - expected).abs() / (rtol * expected.abs() + 1e-5 * expected.abs().max() + 1e-30)
    assert error.isfinite().all()
    return float(error.max())


def compare(shape: tuple[int, ...], ghost_size: int, *, dtype: torch.dtype, relu: bool, adds: bool, **options: Any):
    """Run the kernels in both directions and compare everything they give with float64.

    Sums of float32 may be off by 1e-5 of the largest. To bfloat16 a GPU rounds to nearest, half of 2^-7 relative at
    most; the interpreter cuts off, up to 2^-7. The backward kernels are given what the forward kernels gave. A shape
    with one more dimension in front is of several runs.
    """
    from isotherm.kernels.triton import ghost_norm as kernels

    device, launch = options.pop("device", "cpu"), options.pop("launch", LAUNCH)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2**-7 if IS_INTERPRETED else 1.01 * 2**-8}[dtype]
    settings = {"dtype": dtype, "device": device}
    a, b = images(shape, seed=1, mean=options.pop("mean", 3.0), **settings), images(shape, seed=2, **settings)
    dy, other = images(shape, seed=3, **settings), images(shape, seed=4, **settings)
    weight, bias = scale_and_shift(shape, device=device)
    num_ghosts = shape[-4] // ghost_size

    total, y, mean, var = kernels.forward(
        a, weight, bias, num_ghosts=num_ghosts, eps=EPS, relu=relu, other=b if adds else None, launch=launch
    )
    assert all(t.stride() == a.stride() and t.dtype == dtype for t in (total, y))
    assert worst(total, a.double() + b.double() if adds else a, rtol=rounding) <= 1
    wide = (total.double(), weight.double(), bias.double(), ghost_size, EPS)
    x_GNCHW, pixels = wide[0].unflatten(-4, (num_ghosts, ghost_size)), (-4, -2, -1)
    assert worst(mean, x_GNCHW.mean(dim=pixels), rtol=1e-5) <= 1
    assert worst(var, x_GNCHW.var(dim=pixels, correction=0), rtol=1e-5) <= 1
    z = _torch_forward(*wide, relu=False)
    assert worst(y, z.relu() if relu else z, rtol=rounding) <= 1

    dy = torch.where(z.abs() < UNDECIDED, 0, dy) if relu else dy
    dx, dweight, dbias = kernels.backward(
        dy, total, mean, var, weight, bias, eps=EPS, relu=relu, other=other if adds else None, launch=launch
    )
    assert (dx.stride(), dx.dtype) == (a.stride(), dtype)
    wide_x, wide_weight, wide_bias = (t.double().requires_grad_() for t in (total, weight, bias))
    expected = _torch_forward(wide_x, wide_weight, wide_bias, ghost_size, EPS, relu=relu)
    gradients = torch.autograd.grad(expected, [wide_x, wide_weight, wide_bias], dy.double())
    assert worst(dx, gradients[0] + other.double() if adds else gradients[0], rtol=rounding) <= 1
    assert worst(dweight.sum(dim=-2), gradients[1], rtol=1e-5) <= 1
    assert worst(dbias.sum(dim=-2), gradients[2], rtol=1e-5) <= 1


def _torch_forward(x: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, *, relu: bool) -> Tensor:
    """Return the layer's result in the precision of x, on any device, of several runs one at a time."""
    if x.ndim == 5:
        runs = zip(x, weight, bias, strict=True)
        return torch.stack([_torch_forward(*of_run, ghost_size, eps, relu=relu) for of_run in runs])
    norm = GhostBatchNorm2d(x.shape[1], ghost_size=ghost_size, eps=eps, activation="relu" if relu else None)
    buffers = dict(norm.to(x.device, x.dtype).named_buffers())
    return functional_call(norm, ({"weight": weight, "bias": bias}, buffers), (x,))


def compare_with_each_alone(shape: tuple[int, ...], ghost_size: int, *, device: str) -> None:
    """Run the kernels for several runs and for each alone, cut into equal parts: equal bits."""
    from isotherm.kernels.triton import ghost_norm as kernels

    num_ghosts, settings = shape[1] // ghost_size, {"eps": EPS, "relu": True, "launch": SMALL}

    def both_ways(a, b, dy, other, weight, bias) -> tuple[Tensor, ...]:
        total, y, mean, var = kernels.forward(a, weight, bias, num_ghosts=num_ghosts, other=b, **settings)
        return total, y, mean, var, *kernels.backward(dy, total, mean, var, weight, bias, other=other, **settings)

    tensors = [images(shape, seed=seed, dtype=torch.bfloat16, device=device) for seed in range(4)]
    given = [*tensors, *scale_and_shift(shape, device=device)]
    cuts = [kernels._split(x, num_ghosts, SMALL).arguments() for x in (tensors[0], tensors[0][0])]
    assert cuts[0] == cuts[1]
    together = both_ways(*given)
    assert [t.shape for t in together[2:4]] == [(shape[0], num_ghosts, shape[2])] * 2
    for run in range(shape[0]):
        for ours, alone in zip(together, both_ways(*(t[run] for t in given)), strict=True):
            assert torch.equal(ours[run], alone)


SMALL_SHAPES = [
    ((4, 16, 4, 4), 4),  # one ghost, one program of one full tile
    ((6, 16, 5, 7), 2),  # rows are no multiple of anything
    ((2, 48, 9, 9), 1),  # channels are no power of two
    ((8, 80, 11, 10), 4),  # several parts, the last one short
]
SHAPES_OF_RUNS = [
    ((1, 4, 16, 4, 4), 4),
    ((3, 2, 16, 5, 7), 2),  # one ghost of each run, several parts
    ((2, 2, 48, 4, 5), 1),
    ((3, 4, 32, 3, 5), 2),
]


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("relu", "adds"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("shape", "ghost_size"), SMALL_SHAPES)
def test_interpreted(shape, ghost_size, relu, adds, dtype):
    compare(shape, ghost_size, dtype=dtype, relu=relu, adds=adds, launch=SMALL)


@interpreted
@pytest.mark.parametrize(("shape", "ghost_size"), SHAPES_OF_RUNS)
def test_interpreted_runs(shape, ghost_size):
    compare(shape, ghost_size, dtype=torch.float32, relu=True, adds=True, launch=SMALL)
    compare_with_each_alone(shape, ghost_size, device="cpu")


@interpreted
def test_interpreted_with_more_parts_than_are_added_at_once():
    """And several tiles in each, of which the very last is short."""
    split = Split.of(num_ghosts=1, num_rows=2 * 5 * 619, num_channels=16, launch=SMALL)
    assert split.num_parts > 64
    last_rows = split.num_rows - (split.num_parts - 1) * split.rows_of_part
    assert split.rows_of_tile < last_rows < split.rows_of_part
    compare((2, 16, 5, 619), 2, dtype=torch.float32, relu=True, adds=True, launch=SMALL)


@interpreted
def test_interpreted_with_the_tiles_of_a_gpu():
    compare((8, 16, 31, 9), 4, dtype=torch.float32, relu=True, adds=False)


@interpreted
@pytest.mark.parametrize("mean", [1_000.0, -30_000.0])
def test_interpreted_far_from_zero(mean):
    """Squares of the values themselves would leave nothing of a variance of one.

    What is left is the rounding of the parts' means, here of a few rows each.
    """
    x = images((4, 16, 10, 10), seed=1, dtype=torch.float32, device="cpu", mean=mean)
    from isotherm.kernels.triton import ghost_norm as kernels

    one = torch.ones(16)
    *_, var = kernels.forward(x, one, one, num_ghosts=2, eps=EPS, relu=False, launch=SMALL)
    expected = x.double().view(2, 2, 16, -1).transpose(1, 2).flatten(2).var(dim=2, correction=0)
    torch.testing.assert_close(var.double(), expected, rtol=1e-8 * abs(mean), atol=0)


@interpreted
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of inf - inf
def test_interpreted_what_is_not_finite_shows():
    from isotherm.kernels.triton import ghost_norm as kernels

    x = images((4, 16, 6, 6), seed=1, dtype=torch.float32, device="cpu")
    for bad in (torch.nan, torch.inf):
        x[1, 5, 3, 3] = bad
        one, zero = torch.ones(16), torch.zeros(16)
        _, y, mean, var = kernels.forward(x, one, zero, num_ghosts=2, eps=EPS, relu=True, launch=SMALL)
        assert y[:2, 5].isnan().all()
        assert y[2:].isfinite().all()
        dx, *_ = kernels.backward(torch.ones_like(x), x, mean, var, one, zero, eps=EPS, relu=True, launch=SMALL)
        assert dx[:2, 5].isnan().all()
        assert dx[2:].isfinite().all()


# -- on a GPU -----------------------------------------------------------------------------------------------------

WIDE_RESNET_SHAPES = [(16, 32), (64, 32), (128, 16), (256, 8)]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("relu", "adds"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("batch_size", [64, 256])
@pytest.mark.parametrize(("num_channels", "size"), [*WIDE_RESNET_SHAPES, (160, 7), (48, 5)])
def test_on_a_gpu(num_channels, size, batch_size, relu, adds, dtype):
    compare((batch_size, num_channels, size, size), 64, dtype=dtype, relu=relu, adds=adds, device="cuda")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("shape", "ghost_size"), SMALL_SHAPES)
def test_small_on_a_gpu(shape, ghost_size):
    for launch in (LAUNCH, SMALL):
        compare(shape, ghost_size, dtype=torch.bfloat16, relu=True, adds=True, device="cuda", launch=launch)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("shape", "ghost_size"), SHAPES_OF_RUNS)
def test_small_runs_on_a_gpu(shape, ghost_size):
    compare_with_each_alone(shape, ghost_size, device="cuda")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("num_runs", "batch_size"), [(1, 64), (4, 64), (3, 128)])
@pytest.mark.parametrize(("num_channels", "size"), WIDE_RESNET_SHAPES)
def test_runs_on_a_gpu(num_channels, size, num_runs, batch_size, adds):
    shape = (num_runs, batch_size, num_channels, size, size)
    compare(shape, 64, dtype=torch.bfloat16, relu=True, adds=adds, device="cuda")


@pytest.mark.gpu
@on_gpu
def test_more_values_than_32_bits_count():
    if torch.cuda.get_device_properties(0).total_memory < 60e9:
        pytest.skip("needs 60 GB of GPU memory")
    shape = (544 * 64, 64, 32, 32)
    x, dy = (torch.empty(shape, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last) for _ in "ab")
    assert x.numel() > 2**31
    x.normal_(mean=1.0)
    dy.normal_()
    weight, bias = torch.full((64,), 1.5, device="cuda"), torch.full((64,), 0.1, device="cuda")
    y, mean, var = FORWARD(x, weight, bias, 64, EPS, True)
    dx, *_ = BACKWARD(dy, x, mean, var, weight, bias, EPS, True, None)
    last, last_mean, last_var = FORWARD(x[-64:], weight, bias, 64, EPS, True)
    torch.testing.assert_close(mean[-1:], last_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y[-64:], last, rtol=2**-7, atol=1e-3)
    expected, *_ = BACKWARD(dy[-64:], x[-64:], last_mean, last_var, weight, bias, EPS, True, None)
    differs = (dx[-64:].float() - expected.float()).abs() > 2**-6 * expected.abs().float() + 1e-3
    assert float(differs.double().mean()) < 1e-4  # derivatives of the ReLU at zero


@pytest.mark.gpu
@on_gpu
def test_a_gpu_refuses_what_no_kernel_is_for():
    one = torch.ones(24, device="cuda")
    x = images((4, 24, 3, 3), seed=1, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(ValueError, match="no kernel normalises 24 channels"):
        FORWARD(x, one, one, 2, EPS, True)


@pytest.mark.gpu
@on_gpu
def test_equal_inputs_give_equal_bits():
    x, dy = (images((256, 64, 32, 32), seed=s, dtype=torch.bfloat16, device="cuda") for s in (1, 2))
    one = torch.ones(64, device="cuda")
    first, second = (FORWARD_OF_SUM(x, dy, one, one, 64, EPS, True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    total, _, mean, var = first
    first, second = (BACKWARD(dy, total, mean, var, one, one, EPS, True, x) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.slow
@on_gpu
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # by PyTorch's compiler itself
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # not used on purpose
@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_step_on_a_gpu(compiled, monkeypatch):
    """As the engine does it: trace, rewrite, compile, record; against the same without kernels and any of that.

    Both are in bfloat16, which alone puts gradients of such a network a per cent or two apart.
    """
    torch.manual_seed(0)
    module = wide_resnet(depth=16, width=1, num_classes=10).cuda().train().to(memory_format=torch.channels_last)
    names = [name for name, _ in module.named_parameters()]
    states = {n: t.detach().clone() for n, t in [*module.named_parameters(), *module.named_buffers()]}
    x = images((128, 3, 32, 32), seed=1, dtype=torch.float32, device="cuda")
    y = torch.arange(128, device="cuda") % 10

    def loss(parameters, buffers, x, y):
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            value = cross_entropy(functional_call(module, (parameters, after), (x,)).float(), y)
        return value, (value, after)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(states, tensors, strict=False))
        parameters, buffers = ({n: t for n, t in named.items() if (n in names) == own} for own in (True, False))
        gradients, (_, (value, after)) = grad_and_value(loss, has_aux=True)(parameters, buffers, *tensors[-2:])
        return value, *gradients.values(), *after.values()

    arguments = (*states.values(), x, y)
    monkeypatch.setattr(availability, "HAS_TRITON", False)
    expected = step(*arguments)
    monkeypatch.setattr(availability, "HAS_TRITON", True)
    monkeypatch.setattr(availability, "ENABLED", True)
    program = trace(step, *arguments)
    rewrite_for_gpu(program)
    targets = [node.target for node in program.graph.nodes]
    assert [targets.count(operation) for operation in (FORWARD, FORWARD_OF_SUM, BACKWARD)] == [7, 6, 13]
    run = torch.compile(program.forward, dynamic=False, fullgraph=True) if compiled else program.forward
    found = [torch.full_like(t, torch.nan) for t in expected]

    def recorded() -> None:
        for to, value in zip(found, run(*arguments), strict=True):
            to.copy_(value)

    recording = capture(recorded, keep=[])
    recording.play()
    torch.cuda.synchronize()
    num_buffers = len(states) - len(names)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-2, atol=0)
    for ours, theirs in zip(found[-num_buffers:], expected[-num_buffers:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    ours, theirs = (torch.cat([t.flatten() for t in tensors[1:-num_buffers]]) for tensors in (found, expected))
    assert float((ours - theirs).norm() / theirs.norm()) < 0.1
