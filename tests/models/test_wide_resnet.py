"""Wide-ResNets against their definition, written again as plain functions of the parameters."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers_models import (
    assert_differentiates_rightly,
    assert_same_under_vmap,
    assert_trains_as_a_fleet,
    colour_images,
    num_parameters,
    shaken,
)
from isotherm.core.l2 import is_penalised
from isotherm.errors import UserError
from isotherm.models import MODELS
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.task import Task

NORMALISATIONS = ("ghost_batch_norm", "skip_init")
small = partial(wide_resnet, depth=10, width=1, num_classes=3, ghost_size=4, drop_probability=0.0)


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


def loss(output: Tensor) -> Tensor:
    return cross_entropy(output, torch.arange(len(output)) % 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wrn16x4_cifar10", 2_748_890),
        ("wrn16x4_skipinit_cifar10", 2_747_536),
        ("wrn28x10_cifar100", 36_536_884),
        ("wrn28x10_skipinit_cifar100", 36_529_040),
    ],
)
def test_numbers_of_parameters(name, expected):
    with torch.device("meta"):
        module = MODELS[name]()
    assert num_parameters(module) == expected
    norms = [part for part in module.modules() if isinstance(part, GhostBatchNorm2d)]
    drops = [part.p for part in module.modules() if isinstance(part, nn.Dropout)]
    if "skipinit" in name:
        assert (norms, drops) == ([], [0.6])
    else:
        assert {norm.ghost_size for norm in norms} == {64}
        assert drops == []


def test_parameters_by_kind():
    kinds = {nn.Conv2d: 0, GhostBatchNorm2d: 0, nn.Linear: 0}
    for part in wide_resnet(depth=16, width=4).modules():
        if type(part) in kinds:
            kinds[type(part)] += num_parameters(part)
    assert list(kinds.values()) == [2_742_704, 3_616, 2_570]
    assert num_parameters(wide_resnet(depth=40, width=4)) == 8_949_210  # as the original authors' log has it
    assert num_parameters(wide_resnet(depth=28, width=10)) == 36_479_194


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_sizes_and_strides(normalisation):
    module = wide_resnet(depth=16, width=2, num_classes=7, normalisation=normalisation).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sizes = []
    hidden = module.stem(x)
    assert hidden.shape == (2, 16, 32, 32)
    for block in module.blocks:
        hidden = block(hidden)
        sizes.append(tuple(hidden.shape[1:]))
    assert sizes == [(32, 32, 32)] * 2 + [(64, 16, 16)] * 2 + [(128, 8, 8)] * 2
    assert [block.conv1.stride[0] for block in module.blocks] == [1, 1, 2, 1, 2, 1]
    assert [block.conv2.stride[0] for block in module.blocks] == [1] * 6
    projections = [block.projection for block in module.blocks]
    assert [p is None for p in projections] == [False, True] * 3
    assert [(p.kernel_size, p.stride[0]) for p in projections if p is not None] == [((1, 1), s) for s in (1, 2, 2)]
    assert module(x).shape == (2, 7)


# -- the definition, a second time ------------------------------------------------------------------------------


def normalised(state: dict[str, Tensor], name: str, x: Tensor, *, ghost_size: int) -> Tensor:
    """Return x in batch normalisation by ghosts; x itself where the network has none."""
    if f"{name}.weight" not in state:
        return x
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    return torch.cat(
        [functional.batch_norm(chunk, None, None, weight, bias, training=True) for chunk in x.split(ghost_size)]
    )


def network(state: dict[str, Tensor], x: Tensor, *, num_blocks: int, ghost_size: int) -> Tensor:
    """Return the logits of a Wide-ResNet in training mode, without dropout."""
    norm = partial(normalised, state, ghost_size=ghost_size)
    x = functional.conv2d(x, state["stem.weight"], state.get("stem.bias"), padding=1)
    for index in range(3 * num_blocks):
        at = f"blocks.{index}."
        stride = 2 if index in (num_blocks, 2 * num_blocks) else 1
        o = functional.relu(norm(f"{at}norm1", x))
        h = functional.conv2d(o, state[f"{at}conv1.weight"], state.get(f"{at}conv1.bias"), stride=stride, padding=1)
        h = functional.relu(norm(f"{at}norm2", h))
        h = functional.conv2d(h, state[f"{at}conv2.weight"], state.get(f"{at}conv2.bias"), padding=1)
        if index % num_blocks == 0:
            x = functional.conv2d(o, state[f"{at}projection.weight"], state.get(f"{at}projection.bias"), stride=stride)
        x = x + state.get(f"{at}alpha", 1.0) * h
    pooled = functional.adaptive_avg_pool2d(functional.relu(norm("norm", x)), 1).flatten(1)
    return functional.linear(pooled, state["linear.weight"], state["linear.bias"])


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("depth", [10, 16])
def test_equals_the_definition(normalisation, depth):
    module = shaken(small(depth=depth, width=2, normalisation=normalisation))
    x = colour_images(8, size=8)[0]
    expected = network(dict(module.named_parameters()), x, num_blocks=(depth - 4) // 6, ghost_size=4)
    torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-10)


def test_skip_init_starts_as_stem_and_projections():
    module = small(depth=16, width=2, normalisation="skip_init").double()
    x = colour_images(4, size=8)[0]
    hidden = functional.conv2d(x, module.stem.weight, padding=1)
    for block, stride in ((0, 1), (2, 2), (4, 2)):
        hidden = functional.conv2d(functional.relu(hidden), module.blocks[block].projection.weight, stride=stride)
    pooled = functional.relu(hidden).mean(dim=(2, 3))
    torch.testing.assert_close(module(x), pooled @ module.linear.weight.T, rtol=1e-12, atol=1e-12)


# -- how training starts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_initial_values(normalisation):
    module = wide_resnet(depth=16, width=4, normalisation=normalisation)
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            values = part.weight.detach().double()
            variance = 2 / values[0].numel()  # He normal by fan-in
            error = 5 * (2 / values.numel()) ** 0.5
            assert float(values.square().mean()) == pytest.approx(variance, rel=error), name
            assert abs(float(values.mean())) < 5 * (variance / values.numel()) ** 0.5, name
            assert float(values.abs().max()) > 2 * variance**0.5, name  # normal, not uniform (which ends at 1.73)
            assert part.bias is None or part.bias.count_nonzero() == 0, name
        if isinstance(part, GhostBatchNorm2d):
            assert (part.weight == 1).all(), name
            assert (part.bias == 0).all(), name
    assert any(p.bias is not None for p in module.modules() if isinstance(p, nn.Conv2d)) == (
        normalisation == "skip_init"
    )


def test_skip_init_gradients_of_the_first_update():
    module = small(normalisation="skip_init").double()
    x = colour_images(8, size=8)[0]
    loss(module(x)).backward()
    for name, parameter in module.named_parameters():
        in_branch = ".conv1." in name or ".conv2." in name
        assert (parameter.grad.count_nonzero() == 0) == in_branch, name

    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 * parameter.grad
    module.zero_grad()
    loss(module(x)).backward()
    assert all(parameter.grad.count_nonzero() > 0 for parameter in module.parameters())


def test_l2_of_weights_leaves_out_scales_and_biases():
    for normalisation in NORMALISATIONS:
        module = small(normalisation=normalisation)
        penalised = {name for name, p in module.named_parameters() if is_penalised(p, scope="weights")}
        expected = {f"{n}.weight" for n, part in module.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)}
        assert penalised == expected
    assert [tuple(p.shape) for name, p in module.named_parameters() if name.endswith("alpha")] == [(1,)] * 3


def test_skip_init_drops_pooled_features_in_training_only():
    module = small(width=4, normalisation="skip_init", drop_probability=0.6)
    module.linear = nn.Identity()
    x = colour_images(16, size=8)[0].float()
    in_training, features = module(x), module.eval()(x)
    kept = in_training != 0
    torch.testing.assert_close(in_training[kept], features[kept] / 0.4)
    share = float(kept[features > 0].double().mean())
    assert share == pytest.approx(0.4, abs=0.05)  # of about 3,000 features


# -- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 18}, "depth=18 .* use 16 or 22"),
        ({"depth": 27}, "depth=27 .* use 22 or 28"),
        ({"depth": 4}, "depth=4 .* use 10 or 16"),
        ({"depth": -2}, "use 10 or 16"),
        ({"width": 0}, "width=0"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"normalisation": "skipinit"}, "did you mean 'skip_init'"),
        ({"drop_probability": 1.0}, "drop_probability=1.0"),
        ({"ghost_size": -1}, "ghost_size=-1"),
    ],
)
def test_what_cannot_be_built_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        wide_resnet(**settings)


# -- as the engines run it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_gradients_equal_differences(normalisation):
    module = shaken(small(normalisation=normalisation))
    assert_differentiates_rightly(module, colour_images(8, size=8)[0], loss)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_gradients_are_the_same_under_vmap(normalisation):
    modules = [shaken(small(normalisation=normalisation), seed=seed) for seed in range(2)]
    assert_same_under_vmap(modules, colour_images(8, size=8)[0], loss)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_trains_as_a_fleet(normalisation, caplog):
    model = partial(small, normalisation=normalisation, drop_probability=0.6)
    task = Task(name="small", model=model, train=colour_images(24, size=8), test=colour_images(6, size=8, seed=1))
    assert_trains_as_a_fleet(task)
    assert caplog.text == ""  # not one run at a time


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_mixed_precision_carries_half_precision_between_blocks(normalisation):
    module = small(normalisation=normalisation)
    x = colour_images(8, size=8)[0].float()
    seen = []
    for block in module.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(x)
    assert seen == [torch.bfloat16] * 3
    loss(output.float()).backward()
    assert {p.grad.dtype for p in module.parameters()} == {torch.float32}
    torch.testing.assert_close(output.float(), module(x), rtol=0.1, atol=0.1)
