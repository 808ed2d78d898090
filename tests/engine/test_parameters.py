"""The update of all runs against `torch.optim.SGD` run by run, and where the parameters lie."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from isotherm.engine.parameters import ParameterGroups
from isotherm.engine.update_rules import Settings

M = 3  # runs
# Scalars, vectors, matrices and filters, with and without L2, in no order.
SHAPES = {
    "scale": (),
    "bias": (5,),
    "weight": (5, 4),
    "filters": (6, 2, 3, 3),
    "gain": (4,),
    "offset": (),
    "cube": (2, 3, 2),
    "head": (3, 5),
}
DECAYED = {"weight", "filters", "gain", "offset"}


def random(shape, *, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensors(*, seed: int, shapes=None, num_runs: int = M) -> dict[str, Tensor]:
    shapes = SHAPES if shapes is None else shapes
    return {name: random((num_runs, *s), seed=100 * seed + index) for index, (name, s) in enumerate(shapes.items())}


def weights_of(initial, *, channels_last: bool = False, decayed=DECAYED) -> ParameterGroups:
    """Return the weights on copies: a matrix that is handed in becomes its group."""
    initial = {name: tensor.clone() for name, tensor in initial.items()}
    return ParameterGroups(initial, decayed=decayed, channels_last=channels_last)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


RATES = column(0.1, 0.03, 0.5)
MOMENTA = column(0.9, 0.0, 0.5)
L2 = column(0.1, 0.3, 0.0)
PLAIN = Settings(momentum_M1=MOMENTA, l2_M1=None, clip_M1=None)


def make_updates(weights: ParameterGroups, settings: Settings, steps, rates=RATES) -> list[float]:
    """Make an update with each of some gradients by name; return how many were clipped of every run."""
    num_clipped_M1 = torch.zeros(len(rates), 1, dtype=torch.float64)
    for gradients in steps:
        gradients_of_groups = weights.gradients({name: g.clone() for name, g in gradients.items()})
        weights.apply(weights.values, weights.moments, gradients_of_groups, rates, num_clipped_M1, settings)
    return num_clipped_M1.flatten().tolist()


def by_sgd(initial, steps, run: int, *, l2: Tensor | None, clip: Tensor | None) -> dict[str, Tensor]:
    """Return what `torch.optim.SGD` makes of one run."""
    parameters = {name: nn.Parameter(tensor[run].clone()) for name, tensor in initial.items()}
    strength = 0.0 if l2 is None else float(l2[run])
    groups = [
        {"params": [p for name, p in parameters.items() if name in DECAYED], "weight_decay": strength},
        {"params": [p for name, p in parameters.items() if name not in DECAYED], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=float(RATES[run]), momentum=float(MOMENTA[run]))
    for gradients in steps:
        for name, parameter in parameters.items():
            parameter.grad = gradients[name][run].clone()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters.values(), float(clip[run]))
        optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}


def norms(gradients) -> Tensor:
    """Return the norm of all of a run's gradients, shape (M,)."""
    return torch.cat([g.reshape(M, -1) for g in gradients.values()], dim=1).norm(dim=1)


# -- where the parameters lie ----------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
def test_parameters_come_back_as_they_were_given(channels_last):
    initial = tensors(seed=0)
    found = weights_of(initial, channels_last=channels_last).parameters()
    assert list(found) == list(initial)
    for name, tensor in initial.items():
        assert torch.equal(found[name], tensor), name


@given(
    shapes=st.lists(st.lists(st.integers(1, 3), max_size=5).map(tuple), min_size=1, max_size=6),
    decayed=st.sets(st.integers(0, 5)),
    channels_last=st.booleans(),
    num_runs=st.integers(1, 3),
)
def test_any_shapes_come_back(shapes, decayed, channels_last, num_runs):
    named = {f"p{index}": shape for index, shape in enumerate(shapes)}
    initial = tensors(seed=1, shapes=named, num_runs=num_runs)
    weights = weights_of(initial, channels_last=channels_last, decayed={f"p{index}" for index in decayed})
    found = weights.parameters()
    assert list(found) == list(initial)
    assert all(torch.equal(found[name], tensor) for name, tensor in initial.items())
    again = weights.gradients(found)
    assert all(torch.equal(mine, value) for mine, value in zip(again, weights.values, strict=True))
    assert all(value.shape[0] == num_runs and value.ndim == 2 for value in weights.values)


@pytest.mark.parametrize("channels_last", [False, True])
def test_parameters_are_views_of_the_groups(channels_last):
    weights = weights_of(tensors(seed=0), channels_last=channels_last)
    found = weights.parameters()
    storages = {value.untyped_storage().data_ptr() for value in weights.values}
    assert {p.untyped_storage().data_ptr() for p in found.values()} == storages
    for value in weights.values:
        value.copy_(torch.arange(value.numel(), dtype=value.dtype).view_as(value))
    for name, parameter in found.items():
        assert torch.equal(parameter, weights.parameters()[name])
        parameter.fill_(7.0)
    assert all(bool((value == 7.0).all()) for value in weights.values)  # no value is outside every parameter


def test_matrices_have_groups_of_their_own_and_vectors_share_one():
    """One for the vectors that L2 moves, one for the others."""
    weights = weights_of(tensors(seed=0))
    assert sorted(value.shape[1] for value in weights.values) == sorted([20, 108, 12, 15, 4 + 1, 1 + 5])
    assert all(value.is_contiguous() for value in weights.values)
    assert len(weights_of(tensors(seed=0), decayed=SHAPES).values) == 5
    assert len(weights_of(tensors(seed=0), decayed=()).values) == 5


def test_parameters_of_other_values():
    initial = tensors(seed=0)
    weights = weights_of(initial)
    doubled = weights.parameters([2.0 * value for value in weights.values])
    for name, tensor in initial.items():
        assert torch.equal(doubled[name], 2.0 * tensor)
        assert torch.equal(weights.parameters()[name], tensor)


def test_filters_may_have_their_channels_last():
    initial = tensors(seed=0)
    last, first = (weights_of(initial, channels_last=c).parameters()["filters"][0] for c in (True, False))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    assert first.is_contiguous()


def test_the_gradient_of_a_matrix_is_not_copied():
    """So that a matmul may write it where the update reads it."""
    gradients = tensors(seed=1)
    gradients_of_groups = weights_of(tensors(seed=0)).gradients(gradients)
    addresses = {gradient.data_ptr() for gradient in gradients_of_groups}
    assert {gradients[name].data_ptr() for name in ("weight", "filters", "cube", "head")} <= addresses


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_may_be_laid_out_in_any_way(channels_last):
    gradients = tensors(seed=1)
    gradients["weight"] = gradients["weight"].transpose(1, 2).contiguous().transpose(1, 2)
    gradients["filters"] = gradients["filters"].permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    weights = weights_of(tensors(seed=0), channels_last=channels_last)
    found = weights.parameters(weights.gradients(gradients))
    assert all(torch.equal(found[name], gradients[name]) for name in SHAPES)


def test_velocities_begin_at_zero():
    weights = weights_of(tensors(seed=0))
    assert [v.shape for v in weights.moments] == [v.shape for v in weights.values]
    assert not any(bool(velocity.any()) for velocity in weights.moments)


# -- the update ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("l2", [None, L2], ids=["no_l2", "l2"])
@pytest.mark.parametrize("clips", [False, True])
def test_equals_torch_run_by_run(channels_last, l2, clips):
    """Clipped norms are around 1e7, where the 1e-6 that torch adds to a norm does not show."""
    scale = 1e7 if clips else 1.0
    initial = tensors(seed=0)
    steps = [{name: scale * g for name, g in tensors(seed=seed).items()} for seed in range(1, 6)]
    median = float(torch.cat([norms(gradients) for gradients in steps]).median())
    clip = column(median, 0.2 * median, math.inf) if clips else None
    weights = weights_of(initial, channels_last=channels_last)
    num_clipped = make_updates(weights, Settings(momentum_M1=MOMENTA, l2_M1=l2, clip_M1=clip), steps)
    found = weights.parameters()
    for run in range(M):
        expected = by_sgd(initial, steps, run, l2=l2, clip=clip)
        for name in SHAPES:
            torch.testing.assert_close(found[name][run], expected[name], rtol=1e-12, atol=1e-12 * scale)
    if clip is None:
        assert num_clipped == [0.0, 0.0, 0.0]
    else:
        larger = torch.stack([norms(gradients) > clip.flatten() for gradients in steps]).sum(dim=0)
        assert num_clipped == larger.tolist()
        assert 0 < num_clipped[0] < len(steps)
        assert num_clipped[1:] == [len(steps), 0]


def test_one_update_by_hand():
    """u = m u + g + λ w and w = w - ε u, the gradient (3, 4) of norm 5 cut to a norm of 1 before λ w is added."""
    weights = weights_of({"weight": torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)})
    weights.moments[0].copy_(column(10.0).expand(1, 2))
    settings = Settings(momentum_M1=column(0.5), l2_M1=column(0.1), clip_M1=column(1.0))
    gradient = {"weight": torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)}
    assert make_updates(weights, settings, [gradient], rates=column(2.0)) == [1.0]
    velocity = torch.tensor([[5.0 + 0.6 + 0.1, 5.0 + 0.8 + 0.2]], dtype=torch.float64)
    torch.testing.assert_close(weights.moments[0], velocity, rtol=1e-14, atol=0)
    expected = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64) - 2.0 * velocity
    torch.testing.assert_close(weights.parameters()["weight"], expected, rtol=1e-14, atol=0)


def test_values_and_velocities_stay_where_they_are():
    weights = weights_of(tensors(seed=0))
    kept = [*weights.values, *weights.moments]
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in kept]
    make_updates(weights, PLAIN, [tensors(seed=1)])
    assert all(ours is old for ours, old in zip([*weights.values, *weights.moments], kept, strict=True))
    for tensor, (address, old) in zip(kept, before, strict=True):
        assert tensor.data_ptr() == address
        assert not torch.equal(tensor, old)


def test_l2_moves_only_what_it_should():
    zero = {name: torch.zeros(M, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    initial = tensors(seed=0)
    weights = weights_of(initial)
    make_updates(weights, Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=None), [zero])
    for name, found in weights.parameters().items():
        factor = (1.0 - RATES * L2 if name in DECAYED else torch.ones_like(L2)).view(M, *[1] * len(SHAPES[name]))
        torch.testing.assert_close(found, factor * initial[name], rtol=1e-14, atol=1e-14)


def test_the_norm_is_that_of_all_parameters():
    """Blocks of norms 3 and 4: each alone is within 4.5, together they are not."""
    gradients = {name: torch.zeros(1, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    gradients["weight"][0, 1, 1], gradients["scale"][0] = 3.0, -4.0
    for clip, factor, num in ((4.5, 0.9, 1.0), (5.0, 1.0, 0.0), (5.5, 1.0, 0.0)):
        weights = weights_of({name: torch.zeros_like(g) for name, g in gradients.items()})
        settings = Settings(momentum_M1=column(0.0), l2_M1=None, clip_M1=column(clip))
        assert make_updates(weights, settings, [gradients], rates=column(1.0)) == [num]
        found = weights.parameters()
        assert float(found["weight"][0, 1, 1]) == pytest.approx(-3.0 * factor, rel=1e-14)
        assert float(found["scale"][0]) == pytest.approx(4.0 * factor, rel=1e-14)


def test_clipped_updates_are_counted_on_top():
    gradients = tensors(seed=1)
    settings = Settings(momentum_M1=MOMENTA, l2_M1=None, clip_M1=column(1e-3, 1e9, 1e-3))
    weights = weights_of(tensors(seed=0))
    num_clipped_M1 = column(5.0, 5.0, 0.0)
    for _ in range(2):
        gradients_of_groups = [g.clone() for g in weights.gradients(gradients)]
        weights.apply(weights.values, weights.moments, gradients_of_groups, RATES, num_clipped_M1, settings)
    assert num_clipped_M1.flatten().tolist() == [7.0, 5.0, 2.0]


@pytest.mark.parametrize("clip", [1e-300, 1.0, math.inf])
def test_a_zero_gradient_is_not_clipped(clip):
    zero = {name: torch.zeros(M, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    initial = tensors(seed=0)
    weights = weights_of(initial)
    settings = Settings(momentum_M1=MOMENTA, l2_M1=None, clip_M1=column(clip, clip, clip))
    assert make_updates(weights, settings, [zero, zero]) == [0.0, 0.0, 0.0]
    assert all(torch.equal(weights.parameters()[name], initial[name]) for name in SHAPES)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("name", ["weight", "bias", "scale"])
def test_a_run_does_not_depend_on_its_neighbours(bad, name):
    initial, steps = tensors(seed=0), [tensors(seed=seed) for seed in (1, 2, 3)]
    settings = Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=column(1.0, 2.0, 3.0))
    plain = weights_of(initial)
    make_updates(plain, settings, steps)
    steps[1][name][1] = bad
    ours = weights_of(initial)
    make_updates(ours, settings, steps)
    for found, expected in zip([*ours.values, *ours.moments], [*plain.values, *plain.moments], strict=True):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
    if not math.isfinite(bad):
        assert not bool(torch.isfinite(ours.parameters()[name][1]).all())


def test_a_run_alone_gets_the_same_update():
    initial, steps = tensors(seed=0), [tensors(seed=seed) for seed in (1, 2, 3)]
    settings = Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=column(1.0, 2.0, 3.0))
    together = weights_of(initial)
    make_updates(together, settings, steps)
    for run in range(M):
        keep = torch.tensor([run])
        alone = weights_of({name: tensor[keep] for name, tensor in initial.items()})
        theirs = [{name: g[keep] for name, g in gradients.items()} for gradients in steps]
        make_updates(alone, settings.select(keep), theirs, rates=RATES[keep])
        for name, found in alone.parameters().items():
            torch.testing.assert_close(found[0], together.parameters()[name][run], rtol=1e-14, atol=1e-14)


def test_gradients_are_only_read():
    settings = Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=column(1.0, 2.0, 3.0))
    weights = weights_of(tensors(seed=0))
    gradients_of_groups = weights.gradients(tensors(seed=1))
    kept = [gradient.clone() for gradient in gradients_of_groups]
    weights.apply(weights.values, weights.moments, gradients_of_groups, RATES, column(0.0, 0.0, 0.0), settings)
    assert all(torch.equal(gradient, before) for gradient, before in zip(gradients_of_groups, kept, strict=True))


@pytest.mark.parametrize(
    "settings",
    [Settings(MOMENTA, L2, None), Settings(MOMENTA, None, column(1.0, 2.0, 3.0))],
    ids=["l2", "clip"],
)
def test_two_parameters_may_have_one_gradient(settings):
    """Where a module adds two matrices, autograd gives both the same tensor."""
    shapes = {"one": (2, 2), "other": (2, 2)}
    initial, gradient = tensors(seed=0, shapes=shapes), random((M, 2, 2), seed=9)
    ours, expected = (weights_of(initial, decayed=shapes) for _ in range(2))
    num_clipped_M1 = torch.zeros(M, 1, dtype=torch.float64)
    for weights, copies in ((ours, [gradient, gradient]), (expected, [gradient.clone(), gradient.clone()])):
        gradients_of_groups = weights.gradients(dict(zip(shapes, copies, strict=True)))
        weights.apply(weights.values, weights.moments, gradients_of_groups, RATES, num_clipped_M1, settings)
    for found, other in zip(ours.values, expected.values, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-14, atol=1e-14)


# -- some of the runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [[0, 2], [2, 0], [1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_runs_that_stay_go_on_as_before(keep, channels_last):
    initial, steps = tensors(seed=0), [tensors(seed=seed) for seed in (1, 2, 3, 4)]
    settings = Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=column(1.0, 2.0, 3.0))
    whole, fewer = (weights_of(initial, channels_last=channels_last) for _ in range(2))
    make_updates(whole, settings, steps)
    make_updates(fewer, settings, steps[:2])
    index = torch.tensor(keep)
    fewer.select(index)
    later = [{name: g[index] for name, g in gradients.items()} for gradients in steps[2:]]
    make_updates(fewer, settings.select(index), later, rates=RATES[index])
    for found, expected in zip([*fewer.values, *fewer.moments], [*whole.values, *whole.moments], strict=True):
        torch.testing.assert_close(found, expected[index], rtol=1e-14, atol=1e-14)
    for name, found in fewer.parameters().items():
        torch.testing.assert_close(found, whole.parameters()[name][index], rtol=1e-14, atol=1e-14)


def test_settings_of_some_runs():
    keep = torch.tensor([2, 0])
    chosen = Settings(momentum_M1=MOMENTA, l2_M1=L2, clip_M1=column(1.0, 2.0, 3.0)).select(keep)
    assert isinstance(chosen, Settings)
    assert torch.equal(chosen.momentum_M1, column(0.5, 0.9))
    assert torch.equal(chosen.l2_M1, column(0.0, 0.1))
    assert torch.equal(chosen.clip_M1, column(3.0, 1.0))
    none = PLAIN.select(keep)
    assert none.l2_M1 is None
    assert none.clip_M1 is None
