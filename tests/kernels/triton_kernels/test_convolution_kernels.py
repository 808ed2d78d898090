"""The Triton convolution kernels of many runs against float64: interpreted on a CPU, or on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers_kernels import DEVICE, IS_INTERPRETED
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.tiling.convolution import Launch, WeightLaunch, launch_for, weight_launch_for

# The interpreter multiplies the bits of bfloat16 as if they were whole numbers.
DTYPE = torch.float32 if IS_INTERPRETED else torch.bfloat16
HAS_GPU = torch.cuda.is_available() and convolution_ops.are_usable(torch.device("cuda"))
pytestmark = pytest.mark.skipif(
    not IS_INTERPRETED and not HAS_GPU,
    reason="needs a CUDA device that copies boxes by itself, or Triton and TRITON_INTERPRET=1",
)
on_gpu = pytest.mark.skipif(IS_INTERPRETED, reason="needs a CUDA device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of one run: images (B, C, H, W), channels out, taps (Y, X)."""

    images: tuple[int, int, int, int]
    num_out: int
    taps: tuple[int, int] = (3, 3)
    stride: int = 1
    padding: int = 1

    def __str__(self) -> str:
        sizes = ["x".join(map(str, sides)) for sides in (self.images, self.taps)]
        return f"{sizes[0]}-{self.num_out}-{sizes[1]}-stride{self.stride}-padding{self.padding}"

    @property
    def settings(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding}

    def tensors(self, num_runs: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, filters and a gradient of the result, of each run its own."""
        num_images, num_in, *sides = self.images
        results = [
            (side + 2 * self.padding - tap) // self.stride + 1 for side, tap in zip(sides, self.taps, strict=True)
        ]
        return (
            normal(num_runs, *self.images, seed=0),
            normal(num_runs, self.num_out, num_in, *self.taps, seed=1),
            normal(num_runs, num_images, self.num_out, *results, seed=2),
        )


def normal(*shape: int, seed: int) -> Tensor:
    """Return values with the channels last."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, DTYPE).movedim(-3, -1).contiguous().movedim(-1, -3)


def by_kernels(
    case: Case,
    x: Tensor,
    weight: Tensor,
    dy: Tensor,
    launch: Launch | None = None,
    weight_launch: WeightLaunch | None = None,
) -> list[Tensor]:
    """Return the result, the gradient of the images and that of the filters."""
    from isotherm.kernels.triton import convolution, filter_gradient

    return [
        convolution.forward(x, weight, **case.settings, launch=launch)[0],
        convolution.input_gradient(dy, weight, size=case.images[2:], **case.settings, launch=launch)[0],
        filter_gradient.weight_gradient(dy, x, taps=case.taps, **case.settings, launch=weight_launch),
    ]


def by_torch(case: Case, x: Tensor, weight: Tensor, dy: Tensor) -> list[Tensor]:
    """Return the same in float64, run by run."""
    settings = None, [case.stride] * 2, [case.padding] * 2, [1, 1], False, [0, 0], 1, [True, True, False]
    found = []
    for run in zip(dy.double(), x.double(), weight.double(), strict=True):
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(*run, *settings)
        found.append([functional.conv2d(*run[1:], **case.settings), of_x, of_weight])
    return [torch.stack(tensors) for tensors in zip(*found, strict=True)]


def compare(case: Case, *, num_runs: int = 2, **launches: Any) -> None:
    """Compare everything the kernels give with float64.

    Sums of float32 may be off by 1e-5 of the largest; a GPU cuts off digits where it adds products to a sum, here up to
    500 times in a row, by 2^-23 each. To bfloat16 it rounds by 2^-8 at most.
    """
    tensors = case.tensors(num_runs)
    of_sum, rounding = (1e-5, 1e-5) if IS_INTERPRETED else (1e-4, 1.01 * 2**-8)
    names, types = ("result", "images", "filters"), (DTYPE, DTYPE, torch.float32)
    found, expected = by_kernels(case, *tensors, **launches), by_torch(case, *tensors)
    for name, dtype, ours, theirs in zip(names, types, found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, dtype), name
        assert ours.movedim(-3, -1).is_contiguous(), name
        rtol = rounding if dtype == DTYPE else 1e-5
        error = (ours.double() - theirs).abs() / (rtol * theirs.abs() + of_sum * theirs.abs().max())
        assert float(error.nan_to_num(nan=torch.inf).max()) <= 1, name


@pytest.fixture
def launched(monkeypatch) -> dict[str, list[dict[str, Any]]]:
    """Return the constants that each kernel was launched with; of parts of gradients, how many there were."""
    from isotherm.kernels.triton import convolution, filter_gradient

    modules: dict[str, Any] = {"_convolve": convolution, "_sum_gradients": filter_gradient}
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in modules}

    class Watched:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(modules[name], name)

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arguments: Any, **constants: Any) -> Any:
                num_parts = [len(argument) for argument in arguments if isinstance(argument, Tensor)]
                seen[self.name].append(constants | {"num_parts": num_parts})
                return self.kernel[grid](*arguments, **constants)

            return launch

    for name, module in modules.items():
        monkeypatch.setattr(module, name, Watched(name))
    return seen


# -- against float64 ------------------------------------------------------------------------------------------------

SMALL_CASES = [
    Case(images=(2, 16, 8, 8), num_out=32),
    Case(images=(2, 16, 8, 8), num_out=16, stride=2),
    Case(images=(2, 32, 8, 8), num_out=16, taps=(1, 1), padding=0),
    Case(images=(4, 16, 8, 8), num_out=32, taps=(1, 1), stride=2, padding=0),
    Case(images=(2, 16, 8, 8), num_out=16, taps=(5, 5), stride=2, padding=2),
    Case(images=(2, 16, 9, 9), num_out=16, padding=0),  # sides that are no powers of two, with margins unread
    Case(images=(3, 16, 6, 10), num_out=16),
    Case(images=(3, 16, 6, 10), num_out=32, stride=2),
    Case(images=(3, 48, 9, 9), num_out=48),  # channels that are no power of two
    Case(images=(2, 16, 8, 8), num_out=16, taps=(2, 2), stride=2, padding=0),
    Case(images=(2, 16, 9, 9), num_out=16, taps=(2, 2), stride=3, padding=0),  # pixels that no tap meets
    Case(images=(2, 16, 8, 8), num_out=16, taps=(4, 4), stride=2),
    Case(images=(2, 16, 6, 6), num_out=16, padding=2),  # a result larger than the images
    Case(images=(2, 16, 8, 6), num_out=16, taps=(3, 5)),
    Case(images=(2, 16, 8, 6), num_out=16, taps=(5, 3), stride=2),
    Case(images=(16, 16, 2, 2), num_out=16),
]
# For every branch of the two functions that choose.
BRANCHES = {
    (16, 16): (launch_for(16, 16), weight_launch_for(16, 16)),
    (64, 64): (launch_for(64, 64), weight_launch_for(64, 64)),
    (64, 128): (launch_for(64, 128), weight_launch_for(64, 128)),
    (128, 128): (launch_for(128, 128), weight_launch_for(128, 128)),
    (256, 128): (launch_for(256, 128), weight_launch_for(256, 128)),
}
WIDE_RESNET_CASES = [
    Case(images=(64, 16, 32, 32), num_out=16),
    Case(images=(64, 16, 32, 32), num_out=64),
    Case(images=(64, 64, 32, 32), num_out=64),
    Case(images=(64, 64, 32, 32), num_out=128, stride=2),
    Case(images=(64, 64, 32, 32), num_out=128, taps=(1, 1), stride=2, padding=0),
    Case(images=(64, 128, 16, 16), num_out=128),
    Case(images=(64, 128, 16, 16), num_out=256, stride=2),
    Case(images=(64, 128, 16, 16), num_out=256, taps=(1, 1), stride=2, padding=0),
    Case(images=(64, 256, 8, 8), num_out=256),
    Case(images=(3, 256, 6, 10), num_out=48, taps=(5, 5), stride=2, padding=2),
    Case(images=(6, 64, 16, 16), num_out=192),
    Case(images=(16, 160, 32, 32), num_out=160),
    Case(images=(16, 112, 8, 8), num_out=224),
    Case(images=(8, 32, 16, 16), num_out=128),
    Case(images=(3, 128, 40, 32), num_out=64),
]
# Tiles so small that there are many of them, in every direction.
TINY = Launch(pixels=16, channels=16, inner=16, num_warps=4)
TINY_WEIGHT = WeightLaunch(pixels=16, outputs=16, inputs=16, takes_row=True, num_warps=4, num_programs=128)


@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
def test_the_kernels_convolve(case):
    compare(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(images=(4, 16, 4, 4), num_out=48),
        Case(images=(2, 32, 6, 6), num_out=16, stride=2),
        Case(images=(2, 16, 2, 40), num_out=32, taps=(1, 3), padding=0),  # tiles end within rows
    ],
    ids=str,
)
def test_the_kernels_convolve_by_tiny_tiles(case):
    compare(case, launch=TINY, weight_launch=TINY_WEIGHT)
    compare(case, launch=TINY, weight_launch=dataclasses.replace(TINY_WEIGHT, takes_row=False, num_programs=1))


def test_the_branches_are_all_there_are():
    sizes = [16 * factor for factor in range(1, 65)]
    found, weight_found = zip(*BRANCHES.values(), strict=True)
    assert {launch_for(a, b) for a in sizes for b in sizes} == set(found)
    assert {weight_launch_for(a, b) for a in sizes for b in sizes} == set(weight_found)


@pytest.mark.parametrize("channels", BRANCHES, ids=str)
def test_every_branch_of_launches(channels, launched):
    compare(Case(images=(4, channels[0], 4, 4), num_out=channels[1]))
    launch, weight_launch = BRANCHES[channels]
    forward, (of_weight,) = launched["_convolve"][0], launched["_sum_gradients"]
    assert forward["BLOCK_O"] == min(channels[1], launch.channels)
    assert forward["BLOCK_C"] == min(channels[0], launch.inner)
    assert of_weight["BLOCK_O"] == min(channels[1], weight_launch.outputs)
    assert of_weight["BLOCK_C"] == min(channels[0], weight_launch.inputs)
    assert of_weight["TAPS"] == (3 if weight_launch.takes_row else 1)
    assert of_weight["num_warps"] == weight_launch.num_warps


@on_gpu
@pytest.mark.parametrize("num_runs", [1, 4])
@pytest.mark.parametrize("case", WIDE_RESNET_CASES, ids=str)
def test_the_kernels_convolve_as_wide_resnets_do(case, num_runs):
    compare(case, num_runs=num_runs)


# -- how gradients of filters are cut -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "is_flat", "is_cut"),
    [
        (Case(images=(2, 16, 8, 8), num_out=16), True, False),
        (Case(images=(32, 16, 8, 8), num_out=16), True, True),
        (Case(images=(1, 16, 16, 16), num_out=16), True, False),  # half an image each
        (Case(images=(3, 16, 6, 10), num_out=16), False, False),
        (Case(images=(24, 16, 9, 9), num_out=16), False, True),
        (Case(images=(2, 16, 6, 8), num_out=16), False, False),  # whole rows, but more of them than there are
    ],
    ids=str,
)
def test_gradients_of_filters_in_parts_and_of_pixels_apart(case, is_flat, is_cut, launched):
    compare(case)
    (constants,) = launched["_sum_gradients"]
    assert constants["IS_FLAT"] == is_flat
    (num_parts,) = constants["num_parts"]
    assert (num_parts > 1) == is_cut


def test_a_last_part_may_be_short(launched):
    """Seven images, one a tile, in parts of three."""
    case = Case(images=(7, 16, 8, 16), num_out=16)
    launch = dataclasses.replace(weight_launch_for(16, 16), num_programs=64)
    compare(case, weight_launch=launch)
    assert launched["_sum_gradients"][0]["num_parts"] == [3]


# -- what else the kernels do on the way ----------------------------------------------------------------------------

# Of each: images with ghosts of 4, of which tiles are parts.
GHOST_SIZE = 4
GHOST_CASES = [
    Case(images=(8, 16, 8, 8), num_out=16),
    Case(images=(8, 32, 8, 8), num_out=64, stride=2),  # pixels are the columns of products
    Case(images=(4, 16, 16, 16), num_out=16, taps=(1, 1), padding=0),
    # Rows are read once, on Hopper.
    pytest.param(Case(images=(8, 64, 8, 8), num_out=128), marks=on_gpu),  # tiles of several images
    pytest.param(Case(images=(4, 128, 16, 16), num_out=64), marks=on_gpu),  # of one
    pytest.param(Case(images=(4, 64, 32, 32), num_out=64), marks=on_gpu),  # of a part of one
    pytest.param(Case(images=(4, 112, 16, 16), num_out=160), marks=on_gpu),  # and blocks of channels that are not full
    pytest.param(Case(images=(8, 16, 16, 16), num_out=64), marks=on_gpu),  # and few channels, read or made
    pytest.param(Case(images=(8, 32, 8, 8), num_out=16), marks=on_gpu),
    pytest.param(Case(images=(8, 32, 16, 16), num_out=32), marks=on_gpu),
]


def assert_near(ours: Tensor, expected: Tensor, *, rounding: float = 0.0) -> None:
    """Compare with float64: 1e-4 of the largest, and one rounding."""
    allowed = rounding * expected.abs() + 1e-4 * expected.abs().max()
    assert bool(((ours.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("case", [*GHOST_CASES, Case(images=(3, 16, 6, 10), num_out=16, stride=2)], ids=str)
def test_results_are_added_to_others(case):
    from isotherm.kernels.triton import convolution

    x, weight, dy = case.tensors(2)
    of_result, of_images = normal(*dy.shape, seed=3), normal(*x.shape, seed=4)
    y, moments = convolution.forward(x, weight, **case.settings, other=of_result)
    dx, sums = convolution.input_gradient(dy, weight, size=case.images[2:], **case.settings, other=of_images)
    assert moments is None
    assert sums is None
    expected_y, expected_dx, _ = by_torch(case, x, weight, dy)
    assert_near(y, expected_y + of_result.double(), rounding=2**-7)
    assert_near(dx, expected_dx + of_images.double(), rounding=2**-7)


@pytest.mark.parametrize("most_parts", [128, 1], ids=["a tile a part", "a part"])
@pytest.mark.parametrize("case", GHOST_CASES, ids=str)
def test_moments_of_results(case, most_parts, monkeypatch):
    from isotherm.kernels.tiling import convolution as tiling
    from isotherm.kernels.triton import convolution

    monkeypatch.setattr(tiling, "MOST_PARTS", most_parts)
    x, weight, dy = case.tensors(2)
    other = 3 + normal(*dy.shape, seed=3)  # far from a mean of zero
    y, (means, squares) = convolution.forward(x, weight, **case.settings, other=other, ghost_size=GHOST_SIZE)
    assert_near(y, by_torch(case, x, weight, dy)[0] + other.double(), rounding=2**-7)
    ghosts = y.double().unflatten(1, (-1, GHOST_SIZE))  # the kernel's own results, as they were stored
    mean = means.double().mean(dim=2)
    num_values = ghosts[0, 0, :, 0].numel()
    own = launch_for(case.images[1], case.num_out).pixels
    assert means.shape[2] == min(most_parts, max(1, num_values // own))
    between = (means.double() - mean.unsqueeze(2)).square().sum(dim=2) * (num_values / means.shape[2])
    assert_near(mean, ghosts.mean(dim=(2, 4, 5)))
    assert_near((squares.double().sum(dim=2) + between) / num_values, ghosts.var(dim=(2, 4, 5), correction=0))


@on_gpu
@pytest.mark.parametrize("case", GHOST_CASES, ids=str)
def test_sums_leave_results_as_they_are(case):
    """Bit for bit: where sums are taken, a program has more to keep in memory."""
    from isotherm.kernels.triton import convolution

    x, weight, dy = case.tensors(2)
    vectors = [torch.rand(2, *shape, device=DEVICE) for shape in ((case.images[0] // GHOST_SIZE, case.images[1]),) * 2]
    vectors += [torch.rand(2, case.images[1], device=DEVICE) for _ in range(2)]
    normalised = convolution.Normalised(x, *vectors, 1e-5, True)
    size = case.images[2:]
    y, _ = convolution.forward(x, weight, **case.settings)
    dx, _ = convolution.input_gradient(dy, weight, size=size, **case.settings)
    for _ in range(20):
        again, _ = convolution.forward(x, weight, **case.settings, ghost_size=GHOST_SIZE)
        assert torch.equal(again, y)
        again, _ = convolution.input_gradient(dy, weight, size=size, **case.settings, normalised=normalised)
        assert torch.equal(again, dx)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", GHOST_CASES, ids=str)
def test_sums_for_the_gradient_of_a_normalisation(case, relu):
    """Values lie on half numbers, so that none is normalised to nearly zero, where rounding would decide."""
    from isotherm.kernels.triton import convolution

    x, weight, dy = case.tensors(2)
    x = torch.floor(2 * x.float()).add(0.5).to(DTYPE)
    generator = torch.Generator().manual_seed(5)
    by_ghost = (2, case.images[0] // GHOST_SIZE, case.images[1])
    mean, var = (0.2 * torch.rand(by_ghost, generator=generator) + offset for offset in (-0.1, 1.0))
    scale = 0.5 + torch.rand(2, case.images[1], generator=generator)
    shift = 0.2 * torch.rand(2, case.images[1], generator=generator) - 0.1
    mean, var, scale, shift = (t.to(DEVICE) for t in (mean, var, scale, shift))
    normalised = convolution.Normalised(x, mean, var, scale, shift, 1e-5, relu)
    dx, (gradients, products) = convolution.input_gradient(
        dy, weight, size=case.images[2:], **case.settings, normalised=normalised
    )
    assert_near(dx, by_torch(case, x, weight, dy)[1], rounding=2**-7)
    ghosts, dz = (t.double().unflatten(1, (-1, GHOST_SIZE)) for t in (x, dx))
    along = (slice(None), slice(None), None, slice(None), None, None)
    hat = (ghosts - mean.double()[along]) / (var.double()[along] + 1e-5).sqrt()
    if relu:
        z = hat * scale.double()[:, None, None, :, None, None] + shift.double()[:, None, None, :, None, None]
        assert float(z.abs().min()) > 1e-2
        dz = torch.where(z > 0, dz, 0.0)
    assert_near(gradients.double().sum(dim=2), dz.sum(dim=(2, 4, 5)))
    assert_near(products.double().sum(dim=2), (dz * hat).sum(dim=(2, 4, 5)))


# -- a run's own results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case(images=(32, 16, 8, 8), num_out=32),
        Case(images=(3, 32, 6, 10), num_out=16, stride=2),
        Case(images=(16, 64, 4, 4), num_out=64, taps=(1, 1), padding=0),
        pytest.param(Case(images=(64, 64, 32, 32), num_out=128, stride=2), marks=on_gpu),
        pytest.param(Case(images=(64, 64, 32, 32), num_out=64), marks=on_gpu),
        pytest.param(Case(images=(32, 128, 16, 16), num_out=128), marks=on_gpu),
        pytest.param(Case(images=(64, 256, 8, 8), num_out=256), marks=on_gpu),
    ],
    ids=str,
)
def test_a_run_does_not_depend_on_the_number_of_runs(case):
    tensors = case.tensors(3)
    together, again = (by_kernels(case, *tensors) for _ in range(2))
    for ours, repeated in zip(together, again, strict=True):
        assert torch.equal(ours, repeated)
    for run in range(3):
        for ours, alone in zip(together, by_kernels(case, *(t[run : run + 1] for t in tensors)), strict=True):
            assert torch.equal(ours[run], alone[0])
    assert not any(torch.equal(ours[0], ours[1]) for ours in together)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of inf - inf
@pytest.mark.parametrize(
    "case",
    [Case(images=(3, 16, 6, 10), num_out=16), pytest.param(Case(images=(4, 160, 8, 8), num_out=112), marks=on_gpu)],
    ids=str,
)
def test_a_run_that_overflows_leaves_the_others_alone(case):
    tensors = case.tensors(3)
    for tensor in tensors:
        tensor[1] = torch.inf
    for ours in by_kernels(case, *tensors):
        assert [bool(run.isfinite().all()) for run in ours] == [True, False, True]


# -- as operations --------------------------------------------------------------------------------------------------


def close(ours: Any, operation: Any, *arguments: Any) -> None:
    """Compare results with those of the same operation on a CPU in float64; sums by part with their totals."""
    wide = [a.double().cpu() if isinstance(a, Tensor) else a for a in arguments]
    expected = operation(*wide)
    tensors = zip(*([ours], [expected]) if isinstance(ours, Tensor) else (ours, expected), strict=True)
    for value, wanted in tensors:
        assert value.shape == wanted.shape
        totals = [t.double().cpu().sum(dim=2) if t.ndim == 4 else t.double().cpu() for t in (value, wanted)]
        error = float((totals[0] - totals[1]).abs().max() / totals[1].abs().max())
        assert error < (1e-5 if torch.float32 == DTYPE else 2**-6)


def computed(operation: Any, *arguments: Any) -> Any:
    """Return what an operation gives as a GPU computes it, interpreted or there."""
    return operation._backend_fns["cuda"](*arguments) if IS_INTERPRETED else operation(*arguments)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_operations_of_a_gpu_are_those_of_a_cpu(stride: int) -> None:
    case = Case(images=(4, 16, 8, 8), num_out=32, stride=stride)
    x, weight, dy = case.tensors(2)
    ops, joined, settings = convolution_ops, convolution_norm_ops, (stride, 1)
    close(computed(ops._forward, x, weight, *settings), ops.FORWARD, x, weight, *settings)
    added, other = normal(*x.shape, seed=3), normal(*dy.shape, seed=4)
    given = dy, weight, added, 8, 8, *settings
    close(computed(ops._input_gradient, *given), ops.INPUT_GRADIENT, *given)
    close(computed(ops._weight_gradient, dy, x, 3, 3, *settings), ops.WEIGHT_GRADIENT, dy, x, 3, 3, *settings)
    vectors = [1 + 0.2 * torch.randn(2, size, device=DEVICE) for size in (32, 32, 16, 16)]
    # Norms of what the operations themselves give: of what was rounded otherwise they would differ.
    y, *moments = computed(joined._with_moments, x, weight, other, *settings, 2)
    close(y, lambda *a: ops.FORWARD(*a) + other.double().cpu(), x, weight, *settings)
    found = computed(joined._norm_by_moments, y, *moments, *vectors[:2], 1e-5, True)
    close(found, ghost_norm_ops.FORWARD, y, *vectors[:2], 2, 1e-5, True)
    _, *statistics = computed(ghost_norm_ops._forward, x, *vectors[2:], 2, 1e-5, True)
    norm = *statistics, *vectors[2:]
    gradient, *sums = computed(joined._with_sums, dy, weight, added, x, *norm, 1e-5, True, *settings)
    close(gradient, ops.INPUT_GRADIENT, *given)
    found = computed(joined._norm_backward_by_sums, gradient, x, *norm, *sums, 1e-5, True, added)
    close(found, ghost_norm_ops.BACKWARD, gradient, x, *norm, 1e-5, True, added)
