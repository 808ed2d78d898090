"""A user's convolutions and batch norms of many runs at once, as in a GPU program, computed on a CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.graph.trace import trace
from isotherm.kernels.dispatch import by_kernels
from isotherm.kernels.layout import has_channels_last, of_all_runs
from isotherm.kernels.ops import (
    convolution as convolution_ops,
)
from isotherm.kernels.ops import (
    convolution_norm as convolution_norm_ops,
)
from isotherm.kernels.ops import (
    ghost_norm as ghost_norm_ops,
)

NUM_RUNS, BATCH_SIZE = 3, 4


class Residual(nn.Module):
    """A block as in a common ResNet: norms before and after a sum, one of them not rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv1, self.norm1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16, momentum=0.3)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.linear = nn.Linear(16, 5)
        self.rectify = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        branch = self.norm2(self.conv2(self.rectify(self.norm1(self.conv1(x)))))
        return self.linear(torch.relu(x + branch).mean(dim=(2, 3)))


@pytest.fixture(autouse=True)
def _kernels_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(x: Tensor) -> bool:
        images = of_all_runs(x)
        return x.dtype == torch.bfloat16 and images is not None and images.ndim == 5 and has_channels_last(images)

    torch.manual_seed(0)
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    monkeypatch.setattr(ghost_norm_ops, "fits", fits)


def stacked(models: list[nn.Module], kind: str) -> dict[str, Tensor]:
    named = [dict(getattr(model, kind)()) for model in models]
    return {name: torch.stack([tensors[name].detach() for tensors in named]) for name in named[0]}


def step_of(module: nn.Module) -> Any:
    """Return loss, gradients and buffers of one run after a batch in mixed precision."""

    def loss(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Any:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            output = functional_call(module.train(), (parameters, after), (x,))
        return nn.functional.cross_entropy(output.float(), y), after

    return grad_and_value(loss, has_aux=True)


def case() -> tuple[Any, ...]:
    models = [Residual() for _ in range(NUM_RUNS)]
    x, y = torch.randn(NUM_RUNS, BATCH_SIZE, 3, 8, 8), torch.randint(5, (NUM_RUNS, BATCH_SIZE))
    return models[0], stacked(models, "named_parameters"), stacked(models, "named_buffers"), x, y


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def test_a_users_network_is_that_of_each_run_alone() -> None:
    module, parameters, buffers, x, y = case()
    step = step_of(module)
    gradients, (losses, after) = by_kernels(vmap(step))(parameters, buffers, x, y)
    for run in range(NUM_RUNS):
        alone = ({name: t[run] for name, t in tensors.items()} for tensors in (parameters, buffers))
        expected, (loss, kept) = step(*alone, x[run], y[run])
        assert losses[run] == pytest.approx(float(loss), rel=1e-2)
        for name, buffer in kept.items():
            torch.testing.assert_close(after[name][run], buffer, rtol=2e-2, atol=2e-3)
        # In bfloat16 gradients of such networks differ by some percent, whoever computes them.
        assert max(distance(gradients[name][run], expected[name]) for name in expected) < 0.15


@pytest.mark.parametrize("has_biases", [True, False])
def test_a_convolution_of_few_pixels_after_one_by_a_kernel_is_left_to_pytorch(
    has_biases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two small images are evaluated to check a module: the second convolution has too few for a tile."""
    sizes: list[tuple[bool, int]] = []
    fits = convolution_ops.fits

    def watched(x: Tensor, weight: Tensor, **settings: int) -> bool:
        sizes.append((fits(x, weight, **settings), x.shape[-1]))
        return sizes[-1][0]

    monkeypatch.setattr(convolution_ops, "fits", watched)
    models = [
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=has_biases),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=has_biases),
        )
        for _ in range(NUM_RUNS)
    ]
    parameters, x = stacked(models, "named_parameters"), torch.randn(2, 3, 4, 4)

    def scores(parameters: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return functional_call(models[0], parameters, (x,))

    ours = by_kernels(vmap(scores))(parameters)
    assert sizes == [(True, 4), (False, 4)]
    assert ours.dtype == torch.bfloat16
    for run, model in enumerate(models):
        assert distance(ours[run], model(x).detach()) < 1e-2


def traced(function: Any, *arguments: Any) -> Any:
    parameters, buffers, x, y = arguments
    names = list(parameters), list(buffers)

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        given = [{name: next(rest) for name in group} for group in names]
        gradients, (losses, after) = function(*given, *rest)
        return losses, *gradients.values(), *after.values()

    tensors = [*parameters.values(), *buffers.values(), x, y]
    return trace(flat, *tensors), tensors


def test_the_program_has_norms_that_rectify_and_begin_with_sums_of_convolutions() -> None:
    module, *given = case()
    program, tensors = traced(by_kernels(vmap(step_of(module))), *given)
    expected = program(*tensors)
    before = Counter(node.target for node in program.graph.nodes)
    assert before[ghost_norm_ops.FORWARD] == before[ghost_norm_ops.BACKWARD] == 3
    assert before[torch.ops.aten.relu.default] == 3
    rewrite_for_gpu(program)
    after = Counter(node.target for node in program.graph.nodes)
    assert after[torch.ops.aten.relu.default] == after[torch.ops.aten.threshold_backward.default] == 1  # of the sum
    assert after[convolution_norm_ops.NORM_BY_MOMENTS] == 3
    norms = [node for node in program.graph.nodes if node.target is convolution_norm_ops.NORM_BY_MOMENTS]
    assert sorted(node.args[-1] for node in norms) == [False, True, True]
    for ours, theirs in zip(program(*tensors), expected, strict=True):
        if ours.is_floating_point():
            assert distance(ours, theirs) < 2e-2


def test_a_rectified_norm_that_others_read_too_stays_as_it_is() -> None:
    x = torch.randn(2, 4, 16, 4, 4, dtype=torch.float64).movedim(2, -1).contiguous().movedim(-1, 2)
    scale, shift = torch.rand(2, 16, dtype=torch.float64), torch.rand(2, 16, dtype=torch.float64)

    def function(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y, _, _ = ghost_norm_ops.FORWARD(x, scale, shift, 4, 1e-5, False)
        return torch.relu(y), y

    program = trace(function, x, scale, shift)
    expected = program(x, scale, shift)
    rewrite_for_gpu(program)
    (node,) = [node for node in program.graph.nodes if node.target is ghost_norm_ops.FORWARD]
    assert node.args[-1] is False
    for ours, theirs in zip(program(x, scale, shift), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def vectorised_norm(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Return a function of two runs' images, and their buffers."""
    buffers = {
        name: torch.stack([buffer, 2 * buffer]) if buffer.is_floating_point() else torch.stack([buffer] * 2)
        for name, buffer in norm.named_buffers()
    }

    def function(buffers: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        return functional_call(norm, after, (x,)), after

    return vmap(function), buffers


def images(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype).movedim(2, -1).contiguous().movedim(-1, 2)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_batch_norm_of_many_runs_is_that_of_each(affine: bool, is_training: bool) -> None:
    norm = nn.BatchNorm2d(16, affine=affine, momentum=0.25).train(is_training)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    x = images(2, 4, 16, 4, 4, dtype=torch.bfloat16)
    function, buffers = vectorised_norm(norm, x)
    ours, after = by_kernels(function)(buffers, x)
    assert ours.dtype == torch.bfloat16
    assert has_channels_last(ours)
    for run in range(2):
        kept = {name: buffer[run].clone() for name, buffer in buffers.items()}
        expected = functional_call(norm, kept, (x[run].float(),))
        torch.testing.assert_close(ours[run].float(), expected, rtol=2**-7, atol=2**-8)
        for name, buffer in kept.items():
            torch.testing.assert_close(after[name][run], buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["float32", "one value"])
def test_batch_norms_that_kernels_are_not_made_for_are_left_to_pytorch(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ghost_norm_ops, "ghost_norm", None)  # would fail
    norm = nn.BatchNorm2d(16)
    if change == "one value":
        function, buffers = vectorised_norm(norm, x := images(2, 1, 16, 1, 1, dtype=torch.bfloat16))
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            by_kernels(function)(buffers, x)
    else:
        function, buffers = vectorised_norm(norm, x := images(2, 4, 16, 4, 4, dtype=torch.float32))
        torch.testing.assert_close(by_kernels(function)(buffers, x)[0], function(buffers, x)[0])
