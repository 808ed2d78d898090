"""The contract of the engines on what the paper's tasks need: augmentation, ghost batch norm, sequences, clipping,
inputs from disk and mixed precision. First what the reference is, by independent computations; then fleet = reference.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cases
from cases_paper import (
    GHOST,
    PIXELS,
    STREAMS,
    UNROLL,
    VOCABULARY,
    FromDisk,
    SmallGhostNet,
    autoencoder_task,
    build_language_model,
    ghost_task,
    image_task,
    language_task,
    lazy_task,
    photos,
    seen_by,
    skip_init_task,
    spec_of,
)
from helpers_engines import Trained, assert_same, assert_same_result, by_fleet, by_reference, distance
from isotherm.core.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.data.augment import CropAndFlip
from isotherm.engine import evaluation, reference
from isotherm.engine.dropout import KeyedBits, run_keys
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task, running_window
from isotherm.engine.reference import clip_gradients, run_reference
from isotherm.engine.stack import scoring, updates
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.model_check import check_model
from isotherm.tasks.seeding import DataOrder, initial_model
from isotherm.tasks.task import Task


def trained(task: Task, spec: RunSpec, **options: Any) -> tuple[RunResult, nn.Module]:
    """Return the reference's result and its trained module."""
    kept: list[nn.Module] = []
    result = run_reference(place_task(task, precision="float64"), spec, on_trained=kept.append, **options)
    return result, kept[0]


# -- the reference: sequences and clipping ----------------------------------------------------------------------


class PlainLanguageModel(nn.Module):
    """The language model of PyTorch's own parts, with a run's initial values, in float64."""

    def __init__(self, start: LSTMLanguageModel) -> None:
        super().__init__()
        self.embedding, self.softmax = nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)
        self.recurrent = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.embedding.weight, self.softmax.weight, self.softmax.bias = (
            start.embedding,
            start.softmax_weight,
            start.softmax_bias,
        )
        for layer in range(2):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(self.recurrent, f"{kind}_l{layer}", getattr(start, f"{kind}_{layer}"))
        self.double()

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.recurrent(self.embedding(x), state)
        return self.softmax(hidden), state


def language_by_hand(task: Task, spec: RunSpec) -> tuple[PlainLanguageModel, list[float], int]:
    """Train the language model with all written out; return it, the losses per token, and how many were clipped."""
    model = PlainLanguageModel(initial_model(task.model, seed=spec.seed))
    tokens = torch.cat([task.train[0], task.train[1][-1:]])
    length = len(tokens) // spec.batch_size
    streams = tokens[: length * spec.batch_size].view(spec.batch_size, length)
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    rate = spec.effective_learning_rate * (1 - spec.momentum)
    losses, num_clipped, state, begin = [], 0, None, 0
    for _ in range(spec.num_steps):
        if begin + UNROLL + 1 > length:  # the last token is only ever predicted
            state, begin = None, 0
        x, y = streams[:, begin : begin + UNROLL], streams[:, begin + 1 : begin + UNROLL + 1]
        begin += UNROLL
        output, state = model(x, state)
        state = tuple(part.detach() for part in state)
        by_token = functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
        losses.append(float(by_token.detach().mean()))
        gradients = torch.autograd.grad(by_token.sum() / spec.batch_size, parameters)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        factor = 1.0
        if spec.clip_norm is not None and norm > spec.clip_norm:
            factor, num_clipped = spec.clip_norm / norm, num_clipped + 1
        with torch.no_grad():
            for p, u, g in zip(parameters, velocity, gradients, strict=True):
                decay = spec.l2 if p.ndim >= 2 or spec.l2_scope == "all" else 0.0
                u.mul_(spec.momentum).add_(factor * g + decay * p)
                p.sub_(rate * u)
    return model, losses, num_clipped


@pytest.mark.parametrize(
    ("changes", "clipped"),
    [
        ({}, None),
        ({"clip_norm": 1.5, "l2": 0.05}, "some"),
        ({"clip_norm": 0.05, "effective_learning_rate": 1.0}, "all"),
        ({"clip_norm": 1e6, "momentum": 0.0, "l2_scope": "all"}, "none"),
    ],
    ids=str,
)
def test_the_reference_trains_a_language_model_as_written_out_by_hand(changes, clipped):
    task = language_task(drop_probability=0.0)
    settings = {"batch_size": STREAMS, "num_steps": 23, "gamma": 1.0, "effective_learning_rate": 0.5, **changes}
    spec = spec_of(task, **settings)
    result, module = trained(task, spec)
    model, losses, num_clipped = language_by_hand(task, spec)

    by_name = dict(module.module.named_parameters())
    torch.testing.assert_close(by_name["embedding"].detach(), model.embedding.weight.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(by_name["weight_hh_1"].detach(), model.recurrent.weight_hh_l1.detach())
    norm = sum(float(p.detach().square().sum()) for p in model.parameters() if spec.l2_scope == "all" or p.ndim >= 2)
    assert result.weight_norm_squared == pytest.approx(norm, rel=1e-10)
    assert result.last_batch_loss == pytest.approx(losses[-1], rel=1e-10)
    # 211 tokens in 4 streams of 52: (52 - 1) // 5 = 10 updates a pass, so there were two resets of the state.
    assert result.train_loss_running == pytest.approx(np.mean(losses[-10:]), rel=1e-10)
    kinds = {None: [None], "none": [0.0], "all": [1.0]}
    if clipped == "some":
        assert 0 < num_clipped < 23
    assert result.clipped_fraction in kinds.get(clipped, [num_clipped / 23])

    with torch.no_grad():  # every split in one call, from its first token to its last
        for name, (x, y) in task.splits.items():
            loss = float(functional.cross_entropy(model(x.unsqueeze(0))[0][0], y))
            assert getattr(result, f"{name}_loss") == pytest.approx(loss, rel=1e-10)
            assert getattr(result, f"{name}_metric") == pytest.approx(math.exp(loss), rel=1e-9)


def test_an_epoch_of_a_sequence_is_one_pass():
    task = language_task()
    placed = place_task(task, precision="float64")
    for batch_size, num_steps, window in ((STREAMS, 23, 10), (STREAMS, 7, 7), (1, 100, 42), (35, 5, 1)):
        spec = spec_of(task, batch_size=batch_size, num_steps=num_steps)
        assert running_window(spec, placed) == window


def test_a_hopeless_language_model_has_diverged():
    task = language_task(drop_probability=0.0)
    spec = spec_of(task, batch_size=STREAMS, num_steps=2, effective_learning_rate=1e6, gamma=1.0, momentum=0.0)
    placed = place_task(task, precision="float64")
    for result in (run_reference(placed, spec), run_fleet(placed, [spec])[0]):
        assert result.outcome is Outcome.DIVERGED
        assert (result.test_loss, result.test_metric) == (None, None)


@pytest.mark.parametrize(("clip_norm", "is_clipped"), [(1.0, True), (12.9, True), (13.0, False), (100.0, False)])
def test_clipping_scales_all_gradients_by_one_factor(clip_norm, is_clipped):
    gradients = [torch.tensor([3.0, -4.0]), torch.tensor([[12.0]]), None, torch.zeros(2)]  # norm 13
    parameters = [nn.Parameter(torch.zeros(2 if g is None else g.shape)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    assert clip_gradients(parameters, clip_norm) == is_clipped
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, gradient * min(1.0, clip_norm / 13))


def test_clipping_leaves_gradients_of_zero_alone():
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3)
    assert not clip_gradients([parameter], 1.0)
    assert parameter.grad.tolist() == [0, 0, 0]


def test_clipping_comes_before_l2_and_momentum():
    """On a noiseless quadratic, with every update clipped to 0.1 and a strong penalty."""
    task = cases.quadratic_task()
    changes = {"batch_size": 2, "num_steps": 4, "gamma": 1.0, "clip_norm": 0.1, "l2": 0.5, "l2_scope": "all"}
    spec = spec_of(task, **changes, effective_learning_rate=0.5, momentum=0.8)
    result, module = trained(task, spec)
    w, u, curvatures = np.ones(2), np.zeros(2), np.array(cases.CURVATURES)
    for _ in range(4):
        g = curvatures * w
        u = 0.8 * u + 0.1 * g / np.linalg.norm(g) + 0.5 * w
        w = w - 0.1 * u
    np.testing.assert_allclose(module.point.detach().numpy(), w, rtol=1e-12)
    assert result.clipped_fraction == 1.0


# -- the reference: augmentation and ghost batch norm -----------------------------------------------------------


def test_a_run_sees_the_crops_of_its_seed_and_update():
    task = image_task(SmallGhostNet, metric="cross_entropy")
    for seed in (0, 5):
        spec = spec_of(task, seed=seed, batch_size=16, num_steps=2, effective_learning_rate=1e-12, l2=0.0)
        result, _ = trained(task, spec)
        index = torch.from_numpy(DataOrder(seed=seed, num_train=48, batch_size=16).block(1, 1)[0])
        crops = task.transform.train(task.train[0][index], KeyedBits(run_keys(seed)[1], torch.tensor(1)))
        model = initial_model(task.model, seed=seed).double().train()
        expected = float(cross_entropy(model(crops.double()), task.train[1][index]).detach())
        assert result.last_batch_loss == pytest.approx(expected, rel=1e-9)


def with_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy with PyTorch's batch norm for ghost batch norm: same scales, running statistics of one batch."""
    model = copy.deepcopy(model)
    for name, part in list(model.named_modules()):
        if isinstance(part, GhostBatchNorm2d):
            norm = nn.BatchNorm2d(part.num_features, eps=part.eps, momentum=1.0, dtype=torch.float64)
            norm.load_state_dict({**part.state_dict(), "num_batches_tracked": torch.tensor(0)}, strict=False)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, norm)
    return model


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]


def loss_of(model: nn.Module, transform: CropAndFlip, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(cross_entropy(model.eval()(transform.evaluate(x).double()), y))


@pytest.mark.parametrize("chunk", [500, 20, 1])
@pytest.mark.parametrize("num_train", [48, 45, 7])
def test_statistics_are_re_estimated_ghost_by_ghost_with_the_final_weights(monkeypatch, chunk, num_train):
    monkeypatch.setitem(evaluation.reestimated.__kwdefaults__, "chunk", chunk)
    transform = CropAndFlip(**PIXELS, pad=0, flip=False)
    task = image_task(SmallGhostNet, transform=transform, train=photos(num_train, seed=0), metric="cross_entropy")
    spec = spec_of(task, batch_size=7 if num_train == 7 else 16, num_steps=5, num_evaluations=1)
    result, module = trained(task, spec)

    plain = with_batch_norm(module)
    # The module has the running averages of training, which evaluation put back.
    assert result.test_metric_running == pytest.approx(loss_of(plain, transform, *task.test), rel=1e-9)
    order = torch.randperm(num_train, generator=torch.Generator().manual_seed(0))
    ghosts = [order[i : i + GHOST] for i in range(0, num_train - GHOST + 1, GHOST)] or [order]
    found: list[list[Tensor]] = [[] for _ in norms(plain)]
    with torch.no_grad():
        for ghost in ghosts:
            plain.train()(transform.evaluate(task.train[0][ghost]).double())
            for place, norm in enumerate(norms(plain)):
                found[place].append(torch.stack([norm.running_mean, norm.running_var]))
        for place, norm in enumerate(norms(plain)):
            mean, var = torch.stack(found[place]).mean(dim=0)
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(var)
    assert result.test_loss == pytest.approx(loss_of(plain, transform, *task.test), rel=1e-9)
    assert result.train_loss == pytest.approx(loss_of(plain, transform, *task.train), rel=1e-9)
    assert (result.test_metric, result.train_metric) == pytest.approx((result.test_loss, result.train_loss))
    assert abs(result.test_metric_running - result.test_metric) > 1e-4
    assert result.curve[-1].test_loss == pytest.approx(result.test_loss)  # fewer than 4,096 examples: all of them


def test_running_averages_where_the_task_says_so():
    task = image_task(SmallGhostNet, norm_statistics="running", metric="cross_entropy")
    spec = spec_of(task, batch_size=16, num_steps=5)
    result, module = trained(task, spec)
    assert result.test_metric_running is None
    assert result.test_loss == pytest.approx(loss_of(module, task.transform, *task.test), rel=1e-9)
    both = trained(image_task(SmallGhostNet, metric="cross_entropy"), spec)[0]
    assert result.test_metric == pytest.approx(both.test_metric_running, rel=1e-9)


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def test_evaluation_leaves_the_running_averages_alone():
    task = image_task(SmallGhostNet)
    found = [trained(task, spec_of(task, batch_size=16, num_steps=6, num_evaluations=n)) for n in (0, 6)]
    before, after = (running_statistics(module) for _, module in found)
    assert (
        before.keys()
        == after.keys()
        == {f"norm{i}.{name}" for i in (1, 2) for name in ("running_mean", "running_var", "update_rate")}
    )
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert float(before["norm1.update_rate"]) == pytest.approx(0.1)
    assert dataclasses.replace(found[1][0], curve=()) == found[0][0]

    placed = place_task(task, precision="float64")
    fleets = [
        by_fleet(placed, [spec_of(task, seed=s, batch_size=16, num_steps=6, num_evaluations=n) for s in (0, 1)])
        for n in (0, 6)
    ]
    looked = [(dataclasses.replace(result, curve=()), parameters) for result, parameters in fleets[1]]
    assert_same(looked, fleets[0])


def test_a_look_uses_fewer_examples_for_its_statistics(monkeypatch):
    for engine in (reference, scoring):
        monkeypatch.setattr(engine, "REESTIMATION_EXAMPLES", 2 * GHOST)
    task = image_task(SmallGhostNet)
    placed = place_task(task, precision="float64")
    specs = [spec_of(task, seed=seed, batch_size=16, num_steps=6, num_evaluations=2) for seed in (0, 1)]
    expected = [by_reference(placed, spec) for spec in specs]
    assert_same(by_fleet(placed, specs), expected)
    assert all(abs(result.curve[-1].test_loss - result.test_loss) > 1e-6 for result, _ in expected)


def test_the_training_metric_is_over_the_whole_training_set_in_evaluation_mode():
    task = cases.dropout_task()
    result, module = trained(task, spec_of(task, num_steps=20))
    with torch.no_grad():
        hits = (module.eval()(task.train[0].double()).argmax(dim=1) == task.train[1]).double().mean()
    assert result.train_metric == pytest.approx(float(hits))
    assert (result.test_metric_running, result.clipped_fraction) == (None, None)


def test_bytes_as_targets_are_scaled_like_the_inputs():
    task = autoencoder_task()
    result, module = trained(task, spec_of(task, batch_size=8, num_steps=10, l2_scope="all"))
    for name, (x, _) in task.splits.items():
        pixels = (x.float() / 255).double()
        with torch.no_grad():
            errors = (module(pixels) - pixels).square().sum(dim=1)
        assert getattr(result, f"{name}_loss") == pytest.approx(float(errors.mean()) / 2, rel=1e-9)
        assert getattr(result, f"{name}_metric") == pytest.approx(float(errors.mean()), rel=1e-9)
    still = spec_of(
        task, batch_size=40, num_steps=1, effective_learning_rate=1e-12, l2=0.0
    )  # one batch is all there is
    result, _ = trained(task, still)
    assert result.last_batch_loss == pytest.approx(result.train_loss, rel=1e-9)


# -- the reference: inputs from disk ----------------------------------------------------------------------------


def test_a_run_reads_its_own_batches_from_disk():
    task = lazy_task(norm_statistics="running")
    spec = spec_of(task, seed=3, batch_size=16, num_steps=4, effective_learning_rate=1e-12, l2=0.0)
    result, _ = trained(task, spec)
    source = task.train[0]
    order = DataOrder(seed=3, num_train=48, batch_size=16).block(0, 4)
    whole = (tuple(range(48)), None, 0)
    batches = [(tuple(batch.tolist()), 3, step) for step, batch in enumerate(order)]
    assert source.calls == [*batches, whole, *batches]  # once more for the loss of the untrained network
    images = seen_by(source._images[torch.from_numpy(order[3])], 3, 3)
    model = initial_model(task.model, seed=3).double().train()
    labels = task.train[1][torch.from_numpy(order[3])]
    expected = float(cross_entropy(model(task.transform.evaluate(images).double()), labels).detach())
    assert result.last_batch_loss == pytest.approx(expected, rel=1e-9)


def test_inputs_from_disk_without_randomness_are_the_tensor(monkeypatch):
    monkeypatch.setattr(FromDisk, "fetch", lambda self, indices, **_: self._images[torch.as_tensor(indices)])
    transform = CropAndFlip(**PIXELS, pad=0, flip=False)
    spec = spec_of(image_task(SmallGhostNet), batch_size=16, num_steps=7, num_evaluations=2)
    results = [
        by_reference(place_task(task, precision="float64"), spec)
        for task in (lazy_task(), image_task(SmallGhostNet, transform=transform, test=photos(20, seed=1)))
    ]
    assert_same(results[:1], results[1:])


def test_a_fleet_reads_every_batch_once_for_each_seed():
    task = lazy_task(norm_statistics="running")
    placed = place_task(task, precision="float64")
    seeds = (1, 2, 1)
    specs = [
        spec_of(task, seed=s, batch_size=16, num_steps=9, effective_learning_rate=r)
        for s, r in zip(seeds, (0.1, 0.1, 0.2), strict=True)
    ]
    run_fleet(placed, specs, updates_per_window=4)
    training = [call for call in task.train[0].calls if call[1] is not None and call[2] > 1]  # two are tried out before
    expected = {
        (tuple(DataOrder(seed=seed, num_train=48, batch_size=16).block(step, 1)[0].tolist()), seed, step)
        for seed in (1, 2)
        for step in range(2, 9)
    }
    assert len(training) == 2 * len(expected)  # once more for the loss of the untrained network
    assert set(training) == expected


# -- fleet = reference ------------------------------------------------------------------------------------------

TASKS = {
    "ghost batch norm": ghost_task,
    "SkipInit": skip_init_task,
    "language": language_task,
    "autoencoder": autoencoder_task,
    "lazy": lazy_task,
    "lazy, running": functools.partial(lazy_task, norm_statistics="running"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ghost batch norm": {"batch_size": 16, "num_steps": 10},
    "SkipInit": {"batch_size": 16, "num_steps": 10},
    "language": {"batch_size": STREAMS, "num_steps": 24},
    "autoencoder": {"batch_size": 8, "num_steps": 40, "l2_scope": "all"},
    "lazy": {"batch_size": 16, "num_steps": 20},
    "lazy, running": {"batch_size": 16, "num_steps": 20},
}
MEMBERS = (
    {"seed": 0, "effective_learning_rate": 0.1, "momentum": 0.9, "l2": 5e-4, "gamma": 2.0},
    {"seed": 0, "effective_learning_rate": 0.3, "momentum": 0.5, "l2": 0.05, "gamma": 1.3},
    {"seed": 7, "effective_learning_rate": 0.2, "momentum": 0.0, "l2": 0.0, "gamma": 1.0},
)


def members(name: str, **changes: Any) -> list[RunSpec]:
    task = TASKS[name]()
    return [spec_of(task, **{**SETTINGS[name], **member, "num_evaluations": 2, **changes}) for member in MEMBERS]


@functools.cache
def shared_reference(name: str) -> list[Trained]:
    placed = place_task(TASKS[name](), precision="float64")
    return [by_reference(placed, spec) for spec in members(name)]


@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_pass_the_check_of_their_model(name):
    assert check_model(TASKS[name]()) is None


@pytest.mark.parametrize("name", TASKS)
def test_fleet_equals_reference(name, caplog):
    placed = place_task(TASKS[name](), precision="float64")
    expected = shared_reference(name)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert_same(by_fleet(placed, members(name)), expected)
    assert caplog.text == ""  # it was a fleet indeed, not one run at a time
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}
    assert len({result.train_loss for result, _ in expected}) == len(MEMBERS)
    has_both = name in ("ghost batch norm", "lazy")
    assert all((result.test_metric_running is not None) == has_both for result, _ in expected)


@pytest.mark.parametrize("name", TASKS)
def test_one_run_alone_equals_the_same_run_in_company(name, caplog):
    placed = place_task(TASKS[name](), precision="float64")
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert_same(by_fleet(placed, members(name)[1:2]), shared_reference(name)[1:2])
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["language", "lazy"])
def test_numbers_do_not_depend_on_the_window(name):
    placed = place_task(TASKS[name](), precision="float64")
    assert_same(by_fleet(placed, members(name), updates_per_window=3), shared_reference(name))


def test_fleet_equals_reference_for_ghosts_of_different_sizes():
    task = image_task(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            GhostBatchNorm2d(4, ghost_size=4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            GhostBatchNorm2d(4, ghost_size=6),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
    )
    placed = place_task(task, precision="float64")
    specs = [spec_of(task, seed=seed, batch_size=24, num_steps=6, num_evaluations=1) for seed in (0, 1)]
    assert_same(by_fleet(placed, specs), [by_reference(placed, spec) for spec in specs])


# Norms that cut none, some and all of the updates, at different learning rates.
CLIPPING = (
    {"clip_norm": 1e3, "effective_learning_rate": 0.1},
    {"clip_norm": 1.5, "effective_learning_rate": 0.5, "seed": 1},
    {"clip_norm": 1.7, "effective_learning_rate": 0.2, "momentum": 0.0},
    {"clip_norm": 0.01, "effective_learning_rate": 1.0, "seed": 2},
)


@pytest.mark.parametrize("num_runs", [4, 1])
def test_fleet_equals_reference_with_clipping(num_runs):
    task = language_task()
    placed = place_task(task, precision="float64")
    specs = [spec_of(task, batch_size=STREAMS, num_steps=25, l2=0.01, **clip) for clip in CLIPPING][-num_runs:]
    expected = [by_reference(placed, spec) for spec in specs]
    assert_same(by_fleet(placed, specs), expected)
    fractions = [result.clipped_fraction for result, _ in expected]
    assert fractions[-1] == 1.0
    if num_runs == 4:
        assert fractions[0] == 0.0
        assert all(0 < fraction < 1 for fraction in fractions[1:3])


SHRINKING = {
    "language": lambda: language_task(model=functools.partial(build_language_model, num_layers=1), unroll=3),
    "lazy": lazy_task,
    "autoencoder": autoencoder_task,
}


def shrinking_specs(name: str, **changes: Any) -> list[RunSpec]:
    """Return six runs: one diverges at once, one halfway, when a γ far below one drives the learning rate up."""
    task = SHRINKING[name]()
    specs = []
    for index in range(6):
        rates = {"effective_learning_rate": 0.1, "gamma": 1.5}
        if index == 1:
            rates = {"effective_learning_rate": 1e308, "gamma": 1.0}
        elif index == 3:
            rates = {"effective_learning_rate": 0.1, "gamma": 1e-30}
        own = {"seed": index % 4, "momentum": 0.1 * (index % 3)}
        specs.append(
            spec_of(task, **{**SETTINGS[name], "num_steps": 40, "num_evaluations": 1, **own, **rates, **changes})
        )
    return specs


@pytest.mark.parametrize(("name", "clips"), [("language", True), ("lazy", False), ("autoencoder", True)])
def test_a_fleet_that_loses_runs_goes_on_with_the_references_numbers(name, clips, monkeypatch):
    """Its state of streams, buffers, batches from disk and clipping limits stay with the runs they belong to."""
    sizes: list[int] = []
    plain = updates.trace

    def watch(function, *arguments, **options):
        sizes.append(len(arguments[0]))
        return plain(function, *arguments, **options)

    monkeypatch.setattr(updates, "trace", watch)
    placed = place_task(SHRINKING[name](), precision="float64")
    specs = shrinking_specs(name)
    if clips:
        specs = [dataclasses.replace(s, clip_norm=0.2 * (1 + i)) for i, s in enumerate(specs)]
    expected = [by_reference(placed, spec) for spec in specs]
    ours = by_fleet(placed, specs, updates_per_window=4)
    for both in zip(ours, expected, strict=True):
        result, theirs = (result for result, _ in both)
        if name == "autoencoder" and theirs.outcome is Outcome.DIVERGED:
            # Its units saturate, so the loss is finite until inf meets -inf; when that is, the order of sums decides.
            assert result.divergence_step == pytest.approx(theirs.divergence_step, abs=3)
            theirs = dataclasses.replace(theirs, divergence_step=result.divergence_step)
        assert_same_result(result, theirs)
    assert [i for i, (result, _) in enumerate(expected) if result.outcome is Outcome.DIVERGED] == [1, 3]
    alive = [0, 2, 4, 5]
    assert_same([ours[i] for i in alive], [expected[i] for i in alive])
    assert sizes[-3:] == [6, 5, 4]  # perhaps after a trial
    if clips:
        assert len({result.clipped_fraction for result, _ in (ours[i] for i in alive)}) > 1


@pytest.mark.parametrize("num_runs", [3, 1])
def test_looks_are_told_as_they_happen(num_runs):
    task = language_task()
    placed = place_task(task, precision="float64")
    specs = members("language", num_steps=12, num_evaluations=3)[:num_runs]
    seen: list[tuple[int, CurvePoint]] = []
    results = run_fleet(placed, specs, on_evaluation=lambda index, point: seen.append((index, point)))
    assert [index for index, _ in seen] == list(range(num_runs)) * 3
    for index, result in enumerate(results):
        assert tuple(point for i, point in seen if i == index) == result.curve
        told: list[CurvePoint] = []
        assert run_reference(placed, specs[index], on_evaluation=told.append).curve == tuple(told)


def test_looks_of_diverged_runs_are_not_told():
    specs = shrinking_specs("autoencoder", num_evaluations=8)
    seen: list[tuple[int, CurvePoint]] = []
    placed = place_task(autoencoder_task(), precision="float64")
    results = run_fleet(placed, specs, on_evaluation=lambda index, point: seen.append((index, point)))
    for index, result in enumerate(results):
        told = tuple(point for i, point in seen if i == index)
        assert told[: len(result.curve)] == result.curve
        if result.outcome is Outcome.DIVERGED:
            assert all(point.step <= result.divergence_step for point in told)


def test_looks_are_told_by_one_run_at_a_time_too():
    task = cases.unvectorisable_task()
    placed = place_task(task, precision="float64")
    specs = [spec_of(task, seed=seed, num_steps=6, num_evaluations=2) for seed in (0, 1)]
    seen: list[tuple[int, CurvePoint]] = []
    results = run_fleet(placed, specs, on_evaluation=lambda index, point: seen.append((index, point)))
    assert seen == [(index, point) for index, result in enumerate(results) for point in result.curve]


# -- mixed precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_runs", "num_steps"),
    [
        ("language", 2, 8),
        ("language", 1, 8),
        ("autoencoder", 3, 10),
        ("small ghosts", 2, 4),
        ("ghost batch norm", 1, 2),
        ("SkipInit", 1, 3),
    ],
)
def test_mixed_precision_of_fleet_and_reference_agree_as_bfloat16_does(name, num_runs, num_steps, caplog):
    # Not the dropout of the language model: units added for alignment move its masks.
    others = {
        "language": functools.partial(language_task, drop_probability=0.0),
        "small ghosts": functools.partial(image_task, SmallGhostNet),
    }
    task = {**TASKS, **others}[name]()
    placed, single = place_task(task, precision="mixed"), place_task(task, precision="float32")
    specs = members("lazy" if name == "small ghosts" else name, precision="mixed", num_steps=num_steps)[:num_runs]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed, specs)
    assert caplog.text == ""
    for (result, parameters), spec in zip(ours, specs, strict=True):
        model = placed.model(seed=spec.seed, batch_size=spec.batch_size)
        start = {name: p.detach() for name, p in model.named_parameters()}
        expected, expected_parameters = by_reference(placed, spec)
        exact, exact_parameters = by_reference(single, dataclasses.replace(spec, precision="float32"))
        assert {p.dtype for p in parameters.values()} == {torch.float32}
        # A bfloat16 has 8 bits, so a product is off by 2^-9 of its size, and small networks average little of it away.
        for quantity in ("train_loss", "test_loss", "train_loss_running"):
            value = getattr(expected, quantity)
            assert getattr(result, quantity) == pytest.approx(value, rel=0.005), quantity
            assert value == pytest.approx(getattr(exact, quantity), rel=0.01), quantity
        moved = distance(start, expected_parameters)
        assert distance(parameters, expected_parameters) < 0.02 * moved
        assert 0 < distance(expected_parameters, exact_parameters) < 0.15 * moved


# -- sequence models of a user ----------------------------------------------------------------------------------


class Remembering(nn.Module):
    """A recurrent model that keeps an average of its inputs in a buffer and starts from a state of its own."""

    average: Tensor

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.first = first
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.linear = nn.Linear(4, VOCABULARY)
        self.register_buffer("average", torch.zeros(4))

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.full((batch_size, 4), self.first)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(tokens)
        if self.training:
            self.average.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 1)))
        outputs = []
        for token in x.unbind(1):
            state = 0.5 * state + token
            outputs.append(self.linear(torch.tanh(state - self.average)))
        return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_buffers_of_a_sequence_model_are_evaluated_as_trained(num_seeds: int) -> None:
    task = language_task(model=Remembering)
    placed = place_task(task, precision="float64")
    specs = [
        spec_of(task, batch_size=STREAMS, num_steps=15, seed=seed, effective_learning_rate=0.5, num_evaluations=2)
        for seed in range(num_seeds)
    ]
    assert_same(by_fleet(placed, specs), [by_reference(placed, spec) for spec in specs])


def test_training_starts_every_pass_from_the_models_own_state() -> None:
    spec = spec_of(language_task(), batch_size=STREAMS, num_steps=1, num_evaluations=0)
    task = language_task(model=functools.partial(Remembering, first=3.0))
    placed = place_task(task, precision="float64")
    result = run_reference(placed, spec)
    model = initial_model(task.model, seed=spec.seed).double().train()
    index = torch.from_numpy(placed.order(seed=spec.seed, batch_size=STREAMS).block(0, 1)[0])
    output, _ = model(task.train[0][index], model.initial_state(STREAMS).double())
    assert result.last_batch_loss == pytest.approx(float(cross_entropy(output, task.train[1][index]).detach()))
    other = run_reference(place_task(language_task(model=Remembering), precision="float64"), spec)
    assert other.last_batch_loss != result.last_batch_loss


def test_numbers_do_not_depend_on_windows_of_one_update() -> None:
    task = autoencoder_task()
    placed = place_task(task, precision="float64")
    spec = spec_of(task, batch_size=8, num_steps=4)
    assert_same(by_fleet(placed, [spec], updates_per_window=1), [by_reference(placed, spec)])
