"""PyTorch's optimisers of one run: their parameter groups, and Muon beside that of the release."""

import math

import pytest
import torch
from torch import nn

import cases
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.engine.torch_optimizers import PreciseMuon, torch_optimizers

SHAPES = ((5, 3), (3, 5), (4, 4), (1, 6), (6, 1))


def matrices(*, seed: int, dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def trained(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return matrices after ten updates with given gradients."""
    for step in range(10):
        for parameter, other in zip(parameters, matrices(seed=step, dtype=parameters[0].dtype), strict=True):
            parameter.grad = other.detach()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_in_bfloat16_it_is_the_muon_of_the_release(adjustment, nesterov):
    options = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.2, "nesterov": nesterov, "adjust_lr_fn": adjustment}
    ours, theirs = (matrices(seed=99, dtype=torch.float32) for _ in range(2))
    found = trained(PreciseMuon(ours, dtype=torch.bfloat16, **options), ours)
    expected = trained(torch.optim.Muon(theirs, **options), theirs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_in_float64_it_is_the_same_without_the_rounding():
    options = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.2}
    ours, theirs = (matrices(seed=99, dtype=torch.float64) for _ in range(2))
    found, expected = trained(PreciseMuon(ours, **options), ours), trained(torch.optim.Muon(theirs, **options), theirs)
    for one, other in zip(found, expected, strict=True):
        assert 0 < float((one - other).norm()) < 0.02 * float(other.norm())


def groups_of(optimizer, *, l2_scope="weights", l2=0.0) -> list[tuple[str, list[torch.Size], float, float]]:
    """Return the class, the shapes, the decay and the ratio of every group that is not empty."""
    model = nn.Sequential(nn.Embedding(7, 2), nn.Linear(2, 3), nn.LayerNorm(3))
    task = cases.blobs_task()
    momentum = optimizer.momentum if isinstance(optimizer, SGD) else 0.0
    spec = cases.spec(task, optimizer=optimizer, momentum=momentum, l2_scope=l2_scope, l2=l2)
    return [
        (type(one).__name__, [tuple(p.shape) for p in group["params"]], group["weight_decay"], group["ratio"])
        for one in torch_optimizers(model, spec, is_mixed=False)
        for group in one.param_groups
        if group["params"]
    ]


def test_decay_of_weights_or_of_everything():
    weights, others = [(7, 2), (3, 2)], [(3,), (3,), (3,)]
    assert groups_of(AdamW(weight_decay=0.3)) == [("AdamW", weights, 0.3, 1.0), ("AdamW", others, 0.0, 1.0)]
    (everything,) = groups_of(AdamW(weight_decay=0.3), l2_scope="all")
    assert everything[2] == 0.3
    assert groups_of(Adam(), l2=0.2)[0] == ("Adam", weights, 0.2, 1.0)
    assert groups_of(SGD(), l2=0.2)[0] == ("SGD", weights, 0.2, 1.0)


def test_muon_has_the_matrices_and_adamw_the_rest():
    assert groups_of(Muon(weight_decay=0.3, adamw_ratio=0.5)) == [
        ("PreciseMuon", [(3, 2)], 0.3, 1.0),
        ("AdamW", [(7, 2)], 0.3, 0.5),
        ("AdamW", [(3,), (3,), (3,)], 0.0, 0.5),
    ]


def test_five_iterations_bring_singular_values_near_one():
    (parameter,) = [nn.Parameter(torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))]
    before = parameter.detach().clone()
    parameter.grad = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    PreciseMuon([parameter], lr=1.0, weight_decay=0.0).step()
    values = torch.linalg.svdvals((before - parameter.detach()) / math.sqrt(6 / 4))
    assert bool(((values > 0.6) & (values < 1.25)).all())
