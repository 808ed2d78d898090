"""Measurements against exact answers: enumerated draws, known gradients, slow twins."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cases
import cases_paper
from isotherm.data.augment import CropAndFlip
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.losses import cross_entropy, mean_squared_error
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task
from isotherm.theory import batch_gradients
from isotherm.theory.noise_measurement import (
    Measurement,
    gradient_noise_scale,
    noise_scale_along_training,
    noise_scale_of_task,
)
from isotherm.theory.noise_scale import estimate_noise_scale

INF, NAN = math.inf, math.nan
SMALL = Measurement(small_batch_size=4, large_batch_size=16, num_draws=8)


def changed(**changes: Any) -> Measurement:
    return dataclasses.replace(SMALL, **changes)


def module_in(dtype: torch.dtype = torch.float64, build: Callable[[], nn.Module] = cases.build_mlp) -> nn.Module:
    return initial_model(build, seed=0).to(dtype)


def gradient(module: nn.Module, loss: Any, x: Tensor, y: Tensor, *, l2: float = 0.0, scope: str = "weights") -> Tensor:
    """Return the gradient of a batch as one vector, by plain autograd."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    x = x.to(parameters[0].dtype) if x.is_floating_point() else x
    found = torch.autograd.grad(loss(module(x), y), parameters)
    decayed = [g + (l2 * p if scope == "all" or p.ndim > 1 else 0.0) for g, p in zip(found, parameters, strict=True)]
    return torch.cat([g.detach().flatten() for g in decayed])


def exact(gradients: Tensor) -> tuple[float, float]:
    """Return tr Σ and ‖G‖² of gradients of equally likely examples, shape (examples, parameters)."""
    mean = gradients.mean(dim=0)
    return float((gradients - mean).square().sum(dim=1).mean()), float(mean.square().sum())


def force_draws(monkeypatch: pytest.MonkeyPatch, draws: np.ndarray) -> None:
    """Let every measurement use these draws, shape (draws, small batches, small batch size)."""

    def indices(_self: Measurement, _num_examples: int) -> Iterator[np.ndarray]:
        return iter(draws)

    monkeypatch.setattr(Measurement, "indices", indices)


# -- no bias: all draws there are -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "num"), [("with_replacement", 3), ("without_replacement", 5)])
def test_the_mean_over_all_possible_draws_is_exact(sampling: Any, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 3^4 draws of 4 with replacement, all 5! / 1! without: nested batches give tr Σ and ‖G‖² without bias."""
    x, y = cases.blobs(num, seed=3)
    module = module_in()
    trace, norm = exact(torch.stack([gradient(module, cross_entropy, x[[i]], y[[i]], l2=0.3) for i in range(num)]))
    places = (
        itertools.product(range(num), repeat=4)
        if sampling == "with_replacement"
        else itertools.permutations(range(num), 4)
    )
    draws = np.array(list(places)).reshape(-1, 2, 2)
    force_draws(monkeypatch, draws)
    how = Measurement(small_batch_size=2, large_batch_size=4, sampling=sampling)
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=how, l2=0.3)
    assert found.num_draws == {"with_replacement": 81, "without_replacement": 120}[sampling]
    assert found.noise_trace.estimate == pytest.approx(trace, rel=1e-10)
    assert found.gradient_norm_squared.estimate == pytest.approx(norm, rel=1e-10)
    assert found.gradient_noise_scale.estimate == pytest.approx(trace / norm, rel=1e-10)


def test_a_ghost_batch_is_the_unit_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws of two ghosts of two out of three images: G is the mean over ghosts, tr Σ twice their variance."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), GhostBatchNorm2d(2, ghost_size=2), nn.Flatten(), nn.Linear(72, 3))
    x, y = cases.images(3, seed=0)
    module = module_in(build=lambda: module)
    ghosts = [list(pair) for pair in itertools.product(range(3), repeat=2)]
    trace, norm = exact(torch.stack([gradient(module, cross_entropy, x[g], y[g]) for g in ghosts]))
    force_draws(monkeypatch, np.array(list(itertools.product(range(3), repeat=4))).reshape(-1, 2, 2))
    how = Measurement(small_batch_size=2, large_batch_size=4)
    for num_at_once in (None, 1):
        found = gradient_noise_scale(
            module, cross_entropy, x, y, measurement=dataclasses.replace(how, num_at_once=num_at_once)
        )
        assert found.noise_trace.estimate == pytest.approx(2 * trace, rel=1e-9)
        assert found.gradient_norm_squared.estimate == pytest.approx(norm, rel=1e-9)


# -- a module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("l2", "scope"), [(0.0, "weights"), (0.5, "weights"), (0.5, "all")])
def test_norms_are_those_of_plain_autograd(dtype: torch.dtype, l2: float, scope: Any) -> None:
    x, y = cases.blobs(64, seed=0)
    module = module_in(dtype)
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL, l2=l2, l2_scope=scope)
    small, large = [], []
    for index in SMALL.indices(64):
        each = torch.stack([gradient(module, cross_entropy, x[i], y[i], l2=l2, scope=scope) for i in index])
        small.append(float(each.square().sum(dim=1).mean()))
        large.append(
            float(
                gradient(module, cross_entropy, x[index.ravel()], y[index.ravel()], l2=l2, scope=scope)
                @ each.mean(dim=0)
            )
        )
    slow = estimate_noise_scale(small, large, small_batch_size=4, large_batch_size=16)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for name in ("noise_trace", "gradient_norm_squared", "gradient_noise_scale"):
        one, other = (dataclasses.astuple(getattr(scale, name)) for scale in (found, slow))
        assert one == pytest.approx(other, rel=tolerance), name


@pytest.mark.parametrize("build", [cases.build_frozen, cases.TiedNet, cases.build_mlp])
def test_how_many_are_computed_at_once_does_not_matter(build: Any) -> None:
    x, y = cases.blobs(64, seed=0)
    module = module_in(build=build)
    found = [
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=changed(num_at_once=num))
        for num in (None, 1, 3)
    ]
    for other in found[1:]:
        assert other.noise_trace.estimate == pytest.approx(found[0].noise_trace.estimate, rel=1e-12)
        assert other.gradient_noise_scale.high == pytest.approx(found[0].gradient_noise_scale.high, rel=1e-9)


def test_memory_limits_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cases.blobs(64, seed=0)
    sizes: list[int] = []
    monkeypatch.setattr(
        batch_gradients,
        "vmap",
        lambda f, **_: lambda *a: sizes.append(len(a[2])) or torch.func.vmap(f, in_dims=(None, 0, 0, 0))(*a),
    )
    gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=SMALL)
    assert sizes[2:] == [4] * 8  # after the trial: every draw at once
    sizes.clear()
    of_gradient = 8 * sum(p.numel() for p in cases.build_mlp().parameters())  # bytes; activations take 1.8 times it
    monkeypatch.setattr(batch_gradients, "_MEMORY", round(3 * (3 + 3 * 1.9) * of_gradient))
    gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=SMALL)
    assert sizes[2:] == [3, 1] * 8
    sizes.clear()
    monkeypatch.setattr(batch_gradients, "_MEMORY", 1)
    gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=SMALL)
    assert sizes == []  # one after another, without vmap


def test_the_whole_training_set_without_replacement_makes_the_gradient_exact() -> None:
    x, y = cases.blobs(16, seed=0)
    module = module_in()
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=changed(sampling="without_replacement"))
    norm = float(gradient(module, cross_entropy, x, y).square().sum())
    interval = found.gradient_norm_squared
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((norm, norm, norm), rel=1e-9)
    trace, _ = exact(torch.stack([gradient(module, cross_entropy, x[[i]], y[[i]]) for i in range(16)]))
    assert found.noise_trace.contains(trace)
    assert found.noise_trace.estimate == pytest.approx(trace, rel=0.5)


def test_draws_follow_the_sampling_and_the_seed() -> None:
    for sampling in ("with_replacement", "without_replacement"):
        how = changed(sampling=sampling)
        draws = list(how.indices(20))
        assert {draw.shape for draw in draws} == {(4, 4)}
        repeats = [len(set(draw.ravel().tolist())) < 16 for draw in draws]
        assert all(repeats) if sampling == "with_replacement" else not any(repeats)
        assert all((a == b).all() for a, b in zip(draws, how.indices(20), strict=True))
        assert any((a != b).any() for a, b in zip(draws, changed(sampling=sampling, seed=1).indices(20), strict=True))


def test_the_module_and_the_random_numbers_are_left_alone() -> None:
    x, y = cases.images(32, seed=0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), GhostBatchNorm2d(2, ghost_size=4), nn.Flatten(), nn.Linear(72, 3)).eval()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    first = gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL) == first


def test_batch_norm_is_measured_with_running_statistics_only() -> None:
    x, y = cases.blobs(64, seed=0)
    module = module_in(build=cases.build_batch_norm)
    with pytest.raises(UserError, match=r"layer '1' \(BatchNorm1d\).*mode='evaluate'"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)
    module(x.double())  # moves the running statistics
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=changed(mode="evaluate"))
    module.eval()
    trace, norm = exact(torch.stack([gradient(module, cross_entropy, x[[i]], y[[i]]) for i in range(64)]))
    assert found.noise_trace.contains(trace)
    assert found.gradient_norm_squared.contains(norm)


class Coupled(nn.Module):
    """Takes the mean of the batch out, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(torch.tanh(hidden - hidden.mean(dim=0)))


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (Coupled, "cross_entropy"),
        (cases.build_mlp, lambda output, target: functional.cross_entropy(output, target, reduction="sum")),
        (lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)), None),
    ],
    ids=["coupled examples", "sum of losses", "batch norm without running statistics"],
)
def test_a_gradient_that_is_no_mean_over_examples_is_refused(build: Any, loss: Any) -> None:
    x, y = cases.blobs(64, seed=0)
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(UserError, match="not the mean of theirs"):
            gradient_noise_scale(
                module_in(dtype, build), loss or "cross_entropy", x, y, measurement=changed(mode="evaluate")
            )


@pytest.mark.parametrize("num_at_once", [None, 1])
@pytest.mark.parametrize("build", [cases.DropoutNet, cases.NoisyNet])
def test_random_numbers_are_refused_in_training_mode(build: Any, num_at_once: int | None) -> None:
    x, y = cases.blobs(64, seed=0)
    module, how = module_in(build=build), changed(num_at_once=num_at_once)
    state = torch.get_rng_state()
    with pytest.raises(UserError, match=r"draws random numbers.*mode='evaluate'"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=how)
    assert torch.equal(torch.get_rng_state(), state)
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=dataclasses.replace(how, mode="evaluate"))
    trace, _ = exact(torch.stack([gradient(module.eval(), cross_entropy, x[[i]], y[[i]]) for i in range(64)]))
    assert found.noise_trace.contains(trace)


def test_ghost_batches_ask_for_small_batches_of_their_size() -> None:
    x, y = cases.images(32, seed=0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), GhostBatchNorm2d(2, ghost_size=8), nn.Flatten(), nn.Linear(72, 3))
    with pytest.raises(UserError, match=r"layer '1' normalises ghost batches of 8.*use small_batch_size=8"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)
    with pytest.raises(UserError, match=r"layer '1' couples.*use sampling='with_replacement'"):
        gradient_noise_scale(
            module, "cross_entropy", x, y, measurement=changed(small_batch_size=8, sampling="without_replacement")
        )
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=changed(mode="evaluate"))
    assert found.small_batch_size == 4


def test_a_module_that_cannot_be_vectorised_is_measured_one_batch_at_a_time() -> None:
    x, y = cases.blobs(64, seed=0)
    module = module_in(build=cases.BranchingNet)
    x = x.abs()  # one branch
    with pytest.raises(UserError, match="use num_at_once=1"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)
    found = gradient_noise_scale(module, "cross_entropy", x, y, measurement=changed(num_at_once=1))
    trace, _ = exact(torch.stack([gradient(module, cross_entropy, x[[i]], y[[i]]) for i in range(64)]))
    assert found.noise_trace.contains(trace)


def test_without_trainable_parameters_there_is_nothing_to_measure() -> None:
    x, y = cases.blobs(64, seed=0)
    with pytest.raises(UserError, match="no trainable parameters"):
        gradient_noise_scale(module_in().requires_grad_(False), "cross_entropy", x, y, measurement=SMALL)


def test_a_loss_that_is_not_finite_is_refused() -> None:
    x, y = cases.blobs(64, seed=0)
    module = module_in()
    nn.init.constant_(module[0].weight, NAN)
    with pytest.raises(UserError, match=r"the loss of a batch is nan at these parameters.*initialisation"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)
    first, *others = (set(draw.ravel().tolist()) for draw in SMALL.indices(64))
    x[min(set.union(*others) - first)] = INF  # found on the way
    with pytest.raises(UserError, match="the loss of a batch is nan"):
        gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=SMALL)


def test_zero_gradients_everywhere_are_refused() -> None:
    x, y = cases.blobs(64, seed=0)
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    nn.init.constant_(module[0].bias, -1e3)  # dead units
    with pytest.raises(UserError, match="every gradient is exactly zero"):
        gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL)


@pytest.mark.parametrize(
    ("num", "sampling", "words"),
    [
        (15, "with_replacement", "15 examples are too few for large batches of 16.*use large_batch_size=12"),
        (15, "without_replacement", "15 examples are too few for large batches of 16.*use large_batch_size=12"),
        (7, "with_replacement", "7 examples are too few.*use smaller batches, or give more examples"),
        (0, "with_replacement", "0 examples are too few"),
    ],
)
def test_too_few_examples_for_two_batch_sizes_are_refused(num: int, sampling: Any, words: str) -> None:
    x, y = cases.blobs(num, seed=0)
    with pytest.raises(UserError, match=words):
        gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=changed(sampling=sampling))
    x, y = cases.blobs(16, seed=0)
    assert gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=changed(sampling=sampling))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"small_batch_size": 0}, r"small_batch_size must be a whole number of at least \d, not 0"),
        ({"small_batch_size": True}, r"small_batch_size must be a whole number of at least \d, not True"),
        ({"large_batch_size": 4}, "large_batch_size=4 is not two or more small batches of 4; .*64"),
        ({"large_batch_size": 18}, "large_batch_size=18"),
        ({"large_batch_size": 16.5}, r"large_batch_size must be a whole number of at least \d, not 16.5"),
        ({"num_draws": 7}, "num_draws must be a whole number of at least 8, not 7"),
        ({"num_at_once": 0}, r"num_at_once must be a whole number of at least \d, not 0"),
        ({"num_windows_before": -1}, r"num_windows_before must be a whole number of at least \d, not -1"),
        ({"sampling": "with_replacemnt"}, "did you mean 'with_replacement'"),
        ({"mode": "test"}, "mode='test' is unknown"),
    ],
)
def test_measurements_that_cannot_be_made_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        changed(**changes)


def test_what_does_not_fit_together_is_refused() -> None:
    x, y = cases.blobs(64, seed=0)
    with pytest.raises(UserError, match=r"unknown loss 'cross_entropi'; did you mean 'cross_entropy'"):
        gradient_noise_scale(module_in(), "cross_entropi", x, y, measurement=SMALL)
    with pytest.raises(UserError, match="64 inputs and 63 targets"):
        gradient_noise_scale(module_in(), "cross_entropy", x, y[1:], measurement=SMALL)
    for penalty in ({"l2": -1.0}, {"l2": NAN}, {"l2": 0.1, "l2_scope": "biases"}):
        with pytest.raises(UserError, match="is not a valid penalty; give a number >= 0 and 'weights' or 'all'"):
            gradient_noise_scale(module_in(), "cross_entropy", x, y, measurement=SMALL, **penalty)
    with pytest.raises(UserError, match=r"the model is in torch\.bfloat16"):
        gradient_noise_scale(module_in(torch.bfloat16), "cross_entropy", x, y, measurement=SMALL)
    with pytest.raises(UserError, match="the gradient of a batch cannot be computed: RuntimeError"):
        gradient_noise_scale(module_in(), "cross_entropy", x.repeat(1, 2), y, measurement=SMALL)


# -- a task ---------------------------------------------------------------------------------------------------------


def test_a_task_is_measured_with_its_own_loss_and_penalty() -> None:
    task = dataclasses.replace(cases.blobs_task(), l2=0.5, l2_scope="all")
    x, y = task.train
    module = initial_model(task.model, seed=0).double()
    alone = gradient_noise_scale(module, "cross_entropy", x, y, measurement=SMALL, l2=0.5, l2_scope="all")
    assert noise_scale_of_task(task, measurement=SMALL, precision="float64") == alone
    single = noise_scale_of_task(task, measurement=SMALL)
    assert single.noise_trace.estimate == pytest.approx(alone.noise_trace.estimate, rel=1e-4)
    assert single != alone
    other = noise_scale_of_task(task, measurement=SMALL, precision="float64", parameters=module_with(task, seed=1))
    assert other.noise_trace != alone.noise_trace
    seeded, given = (
        noise_scale_of_task(task, measurement=changed(seed=1), parameters=parameters)
        for parameters in (None, module_with(task, seed=1))
    )
    assert seeded == given  # a run of that seed begins so


def module_with(task: Task, *, seed: int) -> dict[str, Tensor]:
    return initial_model(task.model, seed=seed).state_dict()


def test_regression_in_the_population_has_the_noise_of_the_formula() -> None:
    """For Gaussian inputs tr Σ = ‖G‖² + (δᵀHδ + σ²) tr H for ½ squared error at distance δ from the truth."""
    generator = torch.Generator().manual_seed(0)
    h = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
    x = torch.randn(40_000, 3, generator=generator, dtype=torch.float64) * h.sqrt()
    y = 0.5 * torch.randn(40_000, 1, generator=generator, dtype=torch.float64)  # the truth is 0
    delta = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    module = nn.Linear(3, 1, bias=False).double()
    module.weight.data.copy_(delta)
    found = gradient_noise_scale(
        module, "half_squared_error", x, y, measurement=Measurement(small_batch_size=8, num_draws=200)
    )
    norm = float((h * delta).square().sum())
    trace = norm + float(((h * delta.square()).sum() + 0.25) * h.sum())
    for interval, value in (
        (found.noise_trace, trace),
        (found.gradient_norm_squared, norm),
        (found.gradient_noise_scale, trace / norm),
    ):
        width = interval.high - interval.low  # four standard errors
        assert width < 0.1 * value
        assert interval.estimate == pytest.approx(value, abs=width)


def test_augmentation_is_part_of_the_noise() -> None:
    """Of two equal images only crops and flips tell one from the other."""
    (x, y), test = cases_paper.photos(1, seed=0), cases_paper.photos(4, seed=1)
    task = Task(
        name="crops",
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
        train=(x.repeat(32, 1, 1, 1), y.repeat(32)),
        test=test,
        transform=CropAndFlip(**cases_paper.PIXELS, pad=2),
    )
    moving = noise_scale_of_task(task, measurement=SMALL)
    assert moving.noise_trace.low > 0
    assert noise_scale_of_task(task, measurement=SMALL) == moving  # from the seed
    still = noise_scale_of_task(task, measurement=changed(mode="evaluate"))
    assert still.noise_trace.estimate < 1e-9 * moving.noise_trace.estimate
    with pytest.raises(UserError, match=r"the transform draws random numbers.*use sampling='with_replacement'"):
        noise_scale_of_task(task, measurement=changed(sampling="without_replacement"))
    fixed = noise_scale_of_task(task, measurement=changed(sampling="without_replacement", mode="evaluate"))
    assert fixed.noise_trace.estimate < 1e-9 * moving.noise_trace.estimate


def test_a_transform_without_random_numbers_takes_both_samplings() -> None:
    task = cases_paper.autoencoder_task()
    how = changed(sampling="without_replacement", large_batch_size=40)
    found = noise_scale_of_task(task, measurement=how, precision="float64")
    x = task.train[0].to(torch.float32) / 255
    module = initial_model(task.model, seed=0).double()
    full = gradient(module, task.loss_function, x, x.double(), l2=task.l2, scope="all")
    assert found.gradient_norm_squared.estimate == pytest.approx(float(full.square().sum()), rel=1e-9)


def test_inputs_on_disk_are_read_as_a_run_sees_them() -> None:
    task = cases_paper.lazy_task()
    how = Measurement(small_batch_size=cases_paper.GHOST, large_batch_size=16, num_draws=8, seed=3)
    found = noise_scale_of_task(task, measurement=how)
    calls = task.train[0].calls
    assert {seed for _, seed, _ in calls} == {None, 3}  # None: the check of the model
    steps = [step for _, seed, step in calls if seed == 3]
    assert len(set(steps)) == len(steps)  # augmented anew at every read
    assert found.noise_trace.low > 0
    task.train[0].calls.clear()
    noise_scale_of_task(task, measurement=dataclasses.replace(how, mode="evaluate"))
    assert {seed for _, seed, _ in calls} == {None}
    with pytest.raises(UserError, match=r"inputs on disk.*use sampling='with_replacement'"):
        noise_scale_of_task(task, measurement=dataclasses.replace(how, sampling="without_replacement"))


def test_windows_of_a_text_are_its_examples() -> None:
    """All 42 windows but the first ones, with the state after those before: tr Σ and ‖G‖² are exact, by hand."""
    task = cases_paper.language_task(drop_probability=0.0)
    tokens, following = task.train
    unroll = cases_paper.UNROLL
    module = initial_model(task.model, seed=0).double()

    def window_gradient(start: int, num_before: int) -> Tensor:
        state = module.initial_state(1).double()
        for k in range(num_before, 0, -1):
            state = module(tokens[None, start - k * unroll : start - (k - 1) * unroll], state)[1]
        logits = module(tokens[None, start : start + unroll], state)[0]
        loss = functional.cross_entropy(logits[0], following[start : start + unroll], reduction="sum")
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])

    for num_before, num in ((0, 42), (2, 40)):
        windows = [window_gradient((num_before + i) * unroll, num_before) for i in range(num)]
        trace, norm = exact(torch.stack(windows))
        how = Measurement(
            small_batch_size=1,
            large_batch_size=num,
            num_draws=8,
            sampling="without_replacement",
            num_windows_before=num_before,
        )
        found = noise_scale_of_task(task, measurement=how, precision="float64")
        assert found.gradient_norm_squared.estimate == pytest.approx(norm, rel=1e-9)
        assert found.noise_trace.estimate == pytest.approx(trace, rel=1e-9)
        with pytest.raises(UserError, match=f"{num} examples are too few"):
            noise_scale_of_task(task, measurement=dataclasses.replace(how, large_batch_size=num + 1))


def test_dropout_of_a_language_model_is_refused_in_training_mode() -> None:
    task = cases_paper.language_task()
    with pytest.raises(UserError, match=r"task 'language', step 0: the model draws random numbers"):
        noise_scale_of_task(task, measurement=SMALL)
    still = cases_paper.language_task(drop_probability=0.0)
    assert noise_scale_of_task(task, measurement=changed(mode="evaluate")) == noise_scale_of_task(
        still, measurement=SMALL
    )


def test_a_wide_resnet_with_ghost_batches_is_measured() -> None:
    task = cases_paper.ghost_task(l2=5e-4)
    how = Measurement(small_batch_size=cases_paper.GHOST, large_batch_size=4 * cases_paper.GHOST, num_draws=8)
    found, single = (
        noise_scale_of_task(task, measurement=dataclasses.replace(how, num_at_once=num)) for num in (None, 1)
    )
    assert found.noise_trace.low > 0
    assert single.noise_trace.estimate == pytest.approx(found.noise_trace.estimate, rel=1e-4)


def test_the_noise_scale_rises_along_the_training_of_a_regression() -> None:
    task = cases.regression_task()
    truth = cases.least_squares(task)
    far = torch.tensor([3.0, -3.0, 3.0, 2.0], dtype=torch.float64)

    def parameters(distance: float) -> dict[str, Tensor]:
        point = truth + distance * far
        return {"weight": point[None, :3], "bias": point[3:]}

    how = Measurement(small_batch_size=1, large_batch_size=64, num_draws=8, sampling="without_replacement")
    checkpoints = [(0, parameters(1.0)), (10, parameters(0.03)), (20, parameters(0.003))]
    found = noise_scale_along_training(task, checkpoints, measurement=how, precision="float64")
    assert [step for step, _ in found] == [0, 10, 20]
    inputs, targets = task.train
    for (_, scale), (_, values) in zip(found, checkpoints, strict=True):
        module = nn.Linear(3, 1).double()
        module.load_state_dict(values)
        each = [gradient(module, mean_squared_error, inputs[[i]], targets[[i]]) for i in range(64)]
        trace, norm = exact(torch.stack(each))
        assert scale.gradient_noise_scale.estimate == pytest.approx(trace / norm, rel=1e-9)
    scales = [scale.gradient_noise_scale.estimate for _, scale in found]
    assert scales == sorted(scales)
    assert scales[-1] > 10 * scales[0]


def test_initial_parameters_come_back_after_others() -> None:
    task = cases.blobs_task()
    others = module_with(task, seed=5)
    found = noise_scale_along_training(task, [(0, None), (1, others), (2, None)], measurement=SMALL)
    assert found[0][1] == found[2][1] != found[1][1]
    assert noise_scale_along_training(task, [], measurement=SMALL) == []


def test_checkpoints_that_do_not_fit_are_refused_with_their_step() -> None:
    task = cases.blobs_task()
    good = module_with(task, seed=0)
    missing = {name: value for name, value in good.items() if name != "2.bias"}
    bad = {
        "'2.bias' is missing": missing,
        "'extra' is unknown": {**good, "extra": torch.zeros(1)},
        "'2.bias' has another shape": {**good, "2.bias": torch.zeros(4)},
        "the loss of a batch is nan": {**good, "2.bias": torch.full((3,), NAN)},
    }
    for words, parameters in bad.items():
        with pytest.raises(UserError, match=f"task 'blobs', step 7: {words}"):
            noise_scale_along_training(task, [(0, good), (7, parameters)], measurement=SMALL)


def test_running_statistics_are_part_of_a_checkpoint() -> None:
    task, how = cases.batch_norm_task(), changed(mode="evaluate")
    weights = {name: value for name, value in module_with(task, seed=0).items() if "running" not in name}
    with pytest.raises(UserError, match=r"'1\.running_mean' is missing"):
        noise_scale_of_task(task, measurement=how, parameters=weights)
    shifted = {**module_with(task, seed=0), "1.running_var": torch.full((8,), 100.0)}
    whole, other = (noise_scale_of_task(task, measurement=how, parameters=p) for p in (None, shifted))
    assert whole.noise_trace != other.noise_trace


def test_tied_weights_may_be_given_once() -> None:
    task = cases.tied_task()
    module = initial_model(task.model, seed=0)
    once = dict(module.named_parameters())
    assert len(once) < len(module.state_dict())
    assert noise_scale_of_task(task, parameters=once, measurement=SMALL) == noise_scale_of_task(task, measurement=SMALL)


def test_a_precision_that_is_not_measured_in_is_refused() -> None:
    with pytest.raises(UserError, match="precision='mixed'"):
        noise_scale_of_task(cases.blobs_task(), measurement=SMALL, precision="mixed")  # type: ignore[arg-type]
