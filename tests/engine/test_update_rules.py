"""Rules of updates apart from any network; `tests/contracts/test_engines_optimizers.py` compares whole runs."""

import pytest
import torch
from torch import Tensor

from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.engine.parameters import ParameterGroups
from isotherm.engine.update_rules import (
    Adaptively,
    Group,
    HeavyBall,
    Matrices,
    Orthogonally,
    Settings,
    adaptive_settings,
    adjusted,
    orthogonalised,
    update_rule,
)

M = 3
SHAPES = {"wide": (5, 9), "bias": (5,), "tall": (9, 2), "filters": (2, 3, 3, 3)}
OPTIMIZERS = (Muon(), Muon(momentum=0.5, adamw_ratio=0.3), Muon(weight_decay=0.0, beta1=0.5))


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(seed: int) -> dict[str, Tensor]:
    return {name: random(M, *shape, seed=100 * seed + k) for k, (name, shape) in enumerate(SHAPES.items())}


def weights(**options) -> ParameterGroups:
    rule = update_rule(OPTIMIZERS[0], is_mixed=False)
    decayed = {"wide", "tall", "filters"}
    return ParameterGroups(
        named(0), decayed=decayed, channels_last=False, rule=rule, orthogonal=("wide", "tall"), **options
    )


def settings_of(*optimizers) -> Settings:
    momenta = torch.tensor([[getattr(one, "momentum", 0.0)] for one in optimizers], dtype=torch.float64)
    adaptive = adaptive_settings(optimizers, dtype=torch.float64, device="cpu")
    return Settings(momentum_M1=momenta, l2_M1=None, clip_M1=None, adaptive=adaptive)


def make_updates(groups: ParameterGroups, *, settings: Settings | None = None, steps: range = range(4)) -> None:
    rates, clipped = torch.full((len(groups.values[0]), 1), 0.01, dtype=torch.float64), torch.zeros(M, 1)
    for step in steps:
        gradients = groups.gradients({n: g[: len(rates)] for n, g in named(step + 1).items()})
        own = settings_of(*OPTIMIZERS) if settings is None else settings
        groups.apply(groups.values, groups.moments, gradients, rates, clipped, own, step=torch.tensor(step))


def test_rules_of_optimisers():
    assert update_rule(SGD(), is_mixed=False) == HeavyBall()
    assert update_rule(SGD(nesterov=True), is_mixed=True) == HeavyBall(nesterov=True)
    assert update_rule(Adam(), is_mixed=True) == update_rule(AdamW(), is_mixed=False) == Adaptively()
    exact, mixed = (update_rule(Muon(), is_mixed=mixed) for mixed in (False, True))
    assert exact == Orthogonally(nesterov=True, adjustment="match_rms_adamw")
    assert mixed == Orthogonally(nesterov=True, adjustment="match_rms_adamw", dtype=torch.bfloat16)


def test_moments_of_a_group():
    matrices = Matrices(2, 3, (2, 3))
    assert [HeavyBall().num_moments(Group(True)), Adaptively().num_moments(Group(False))] == [1, 2]
    rule = Orthogonally(nesterov=True, adjustment="original")
    assert [rule.num_moments(Group(True, matrices)), rule.num_moments(Group(True))] == [1, 2]
    groups = weights()  # wide, tall, filters, then the biases
    assert [len(groups.moments_of(index, groups.moments)) for index in range(4)] == [1, 1, 2, 2]
    assert len(groups.moments) == 6


def test_padding_changes_no_update():
    plain, padded = weights(), weights(pads_matrices=True)
    make_updates(plain)
    make_updates(padded)
    assert padded.values[0].shape != plain.values[0].shape
    for name, value in plain.parameters().items():
        torch.testing.assert_close(padded.parameters()[name], value, rtol=1e-12, atol=1e-12)


def test_runs_that_stay_keep_moments_and_settings():
    whole, fewer = weights(), weights()
    make_updates(whole)
    make_updates(fewer, steps=range(2))
    fewer.select(torch.tensor([0]))
    make_updates(fewer, settings=settings_of(*OPTIMIZERS).select(torch.tensor([0])), steps=range(2, 4))
    for name, value in whole.parameters().items():
        torch.testing.assert_close(fewer.parameters()[name][0], value[0], rtol=1e-12, atol=1e-12)


def test_a_bad_run_stays_alone():
    good, bad = weights(), weights()
    bad.values[0][1] = float("nan")
    make_updates(good)
    make_updates(bad)
    for one, other in zip(good.values, bad.values, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])
    assert bool(bad.values[0][1].isnan().all())


def test_gradients_are_only_read():
    groups = weights()
    gradients = groups.gradients(named(1))
    kept = [gradient.clone() for gradient in gradients]
    rates, clipped = torch.full((M, 1), 0.01, dtype=torch.float64), torch.zeros(M, 1)
    groups.apply(
        groups.values, groups.moments, gradients, rates, clipped, settings_of(*OPTIMIZERS), step=torch.tensor(0)
    )
    assert all(torch.equal(one, other) for one, other in zip(gradients, kept, strict=True))


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5), (1, 3), (3, 1)])
def test_matrices_are_orthogonalised_each_by_itself(shape):
    matrices = random(M, *shape, seed=1)
    found = orthogonalised(matrices)
    for one, matrix in zip(found, matrices, strict=True):
        torch.testing.assert_close(orthogonalised(matrix.unsqueeze(0))[0], one, rtol=1e-12, atol=1e-12)
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        middle = left.T @ one @ right.T  # diagonal, as the singular vectors are kept
        assert float((middle - middle.diagonal().diag()).norm()) < 1e-9
    assert torch.equal(orthogonalised(0 * matrices), 0 * matrices)


def test_learning_rates_of_matrices():
    assert adjusted(9, 4, "original") == 1.5
    assert adjusted(4, 9, "original") == 1.0
    assert adjusted(4, 9, "match_rms_adamw") == adjusted(9, 4, "match_rms_adamw") == pytest.approx(0.6)


def test_sgd_has_no_adaptive_settings():
    assert adaptive_settings([SGD(), SGD(momentum=0.0)], dtype=torch.float32, device="cpu") is None
