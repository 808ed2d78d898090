"""A whole diagnosis of small synthetic tasks, and the errors for tasks that cannot be diagnosed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isotherm.diagnose import DiagnoseOptions, Diagnosis, diagnose, searches
from isotherm.diagnose.answer import ceiling
from isotherm.errors import UserError
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

MOMENTUM = 0.9


def rays(num: int, *, seed: int) -> Split:
    """Return points of six dimensions and which of three directions they lie along, with noise."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(6, 3, generator=torch.Generator().manual_seed(9))
    x = torch.randn(num, 6, generator=generator)
    return x, (x @ directions + torch.randn(num, 3, generator=generator)).argmax(dim=1)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def make_task(model: Callable[[], nn.Module] = build, **changes: Any) -> Task:
    fields = {"train": rays(330, seed=0), "test": rays(40, seed=1)}
    return Task(name="rays", model=model, **{**fields, **changes})


@pytest.fixture(autouse=True, scope="module")
def _few_seeds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "MOST_SEEDS", 4)
        yield


@pytest.fixture(scope="module")
def found(_few_seeds: None) -> Diagnosis:
    """One diagnosis with more time than it can use."""
    return diagnose(make_task(), DiagnoseOptions(minutes=20, batch_size=8, learning_rate=0.1, momentum=MOMENTUM))


# -- a whole diagnosis -----------------------------------------------------------------------------------------------


def test_everything_is_found(found: Diagnosis) -> None:
    assert found.missing == ()
    assert [s.momentum for s in found.stability] == [0.0, MOMENTUM]
    assert [grid.batch_size for grid in found.grids] == [2, 8, 32]
    assert all(grid.optimum is not None and grid.num_seeds == 4 for grid in found.grids)
    assert [probe.step == 0 for probe in found.probes] == [True, False]
    assert all(b.batch_size is not None for b in found.boundaries)
    assert found.num_train == 330
    assert found.settings["judged_by"] == "validation"
    assert found.settings["batch_sizes"] == [2, 8, 32]


def test_plain_sgd_is_judged_as_what_it_is() -> None:
    """Momentum 0.9 is looked at beside it; the present setting is that of plain SGD."""
    found = diagnose(make_task(), DiagnoseOptions(minutes=20, batch_size=8, learning_rate=0.1, momentum=0.0))
    assert [s.momentum for s in found.stability] == [0.0, 0.9]
    assert found.momentum == 0.9
    assert found.current is not None
    assert (found.current.momentum, found.current.effective_learning_rate) == (0.0, 0.1)


def test_less_than_an_epoch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.diagnose.procedure.SHORT_EPOCHS", 0.5)
    monkeypatch.setattr("isotherm.diagnose.procedure.FEWEST_STEPS", 8)
    found = diagnose(make_task(train=rays(600, seed=0)), DiagnoseOptions(minutes=20, batch_sizes=[4, 16]))
    (told,) = [sentence for sentence in found.missing if sentence.startswith("a whole epoch")]
    assert "see 50 % of the training set" in told


def test_momentum_bears_a_larger_effective_learning_rate(found: Diagnosis) -> None:
    plain, heavy = found.limit(0.0), found.limit(MOMENTUM)
    assert plain is not None
    assert heavy is not None
    assert heavy.low > plain.estimate


def test_the_recommended_choice_is_one_of_the_choices_and_lies_below_the_boundary(found: Diagnosis) -> None:
    choice, boundary = found.choice, found.boundary(MOMENTUM)
    assert choice is not None
    assert boundary is not None
    assert choice.batch_size <= boundary.estimate
    assert choice.learning_rate(MOMENTUM) == pytest.approx(choice.rates[MOMENTUM].estimate * (1 - MOMENTUM))


def test_choices_follow_the_isotherm_up_to_half_of_the_limit(found: Diagnosis) -> None:
    temperature, limit = found.isotherm.temperature, found.limit(0.0)
    assert temperature is not None
    assert limit is not None
    for choice in found.choices:
        expected = min(temperature.estimate * choice.batch_size, ceiling(limit).estimate)
        assert choice.rates[0.0].estimate == pytest.approx(expected)
        assert choice.speed is not None
        assert choice.epoch_seconds == pytest.approx(330 / choice.speed)


def test_the_present_setting_is_judged(found: Diagnosis) -> None:
    assert found.current is not None
    assert found.current.effective_learning_rate == pytest.approx(1.0)
    assert found.current.temperature == pytest.approx(1 / 8)
    assert found.current.words


def test_the_cost_counts_all_runs(found: Diagnosis) -> None:
    stable = sum(sum(s.num_runs) for s in found.stability)
    grids = sum(len(grid.rates) * grid.num_seeds for grid in found.grids)
    assert found.cost.num_runs >= stable + grids
    steps = sum(grid.num_steps * grid.batch_size * len(grid.rates) * grid.num_seeds for grid in found.grids)
    assert found.cost.num_examples > steps / 2  # runs that diverge end early
    assert found.cost.seconds < 20 * 60


def test_a_diagnosis_is_json(found: Diagnosis) -> None:
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["recommended"] == found.recommended
    assert content["isotherm"]["batch_sizes"] == list(found.isotherm.batch_sizes)
    assert content["choices"][0]["rates"].keys() == {"0.0", "0.9"}


def test_what_is_not_finite_is_null_in_json(found: Diagnosis) -> None:
    probe = dataclasses.replace(
        found.probes[0], noise_scale=dataclasses.replace(found.probes[0].noise_scale, high=math.inf)
    )
    content = dataclasses.replace(found, probes=(probe,)).to_json()
    assert content["probes"][0]["noise_scale"]["high"] is None
    json.dumps(content, allow_nan=False)


def _without_times(found: Diagnosis) -> dict[str, Any]:
    content = found.to_json()
    del content["cost"]["seconds"], content["recommended"]
    for choice in content["choices"]:
        del choice["speed"], choice["epoch_seconds"]
    return content


def test_equal_seeds_find_the_same(found: Diagnosis) -> None:
    again = diagnose(make_task(), DiagnoseOptions(minutes=20, batch_size=8, learning_rate=0.1, momentum=MOMENTUM))
    assert _without_times(again) == _without_times(found)


def test_stages_are_told_and_too_short_a_time_is_refused() -> None:
    told: list[str] = []
    with pytest.raises(UserError, match=r"minutes=0.001 is too short on this machine; give at least 0\.\d"):
        diagnose(make_task(), DiagnoseOptions(minutes=0.001), on_stage=told.append)
    assert told == ["checking the task", "how fast this machine trains"]


# -- what cannot be diagnosed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_sizes": [8]}, "give two or more"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        diagnose(make_task(), DiagnoseOptions(**arguments))


class Scaled(nn.Module):
    """A linear layer whose outputs are multiplied by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.factor


class Detached(nn.Module):
    """Outputs that do not depend on the parameters, as far as gradients know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).detach()


class Dead(nn.Module):
    """All hidden units are off, so that only the last bias is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias, -1e3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class RootNet(nn.Module):
    """A root at zero: its slope is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).abs().sqrt()


def frozen() -> nn.Module:
    return build().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Scaled(math.nan), "loss of the untrained model is nan"),
        (lambda: Scaled(math.inf), "loss of the untrained model is nan"),
        (frozen, "no trainable parameters"),
        (nn.Identity, "no trainable parameters"),
        (lambda: Scaled(0.0), "no parameter has a gradient at the start"),
        (Detached, "no parameter has a gradient at the start"),
        (Dead, "the outputs are the same for all examples"),
        (RootNet, "a gradient is not finite"),
    ],
)
def test_a_model_about_which_nothing_can_be_said_is_refused(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UserError, match=rf"task 'rays': .*{message}"):
        diagnose(make_task(model), DiagnoseOptions(minutes=0.01))


def test_equal_inputs_are_refused() -> None:
    x, y = rays(330, seed=0)
    with pytest.raises(UserError, match="outputs are the same for all examples"):
        diagnose(make_task(train=(torch.ones_like(x), y)), DiagnoseOptions(minutes=0.01))


def test_a_last_layer_that_starts_at_zero_is_no_constant_output() -> None:
    def model() -> nn.Module:
        net = build()
        nn.init.zeros_(net[2].weight)
        nn.init.zeros_(net[2].bias)
        return net

    with pytest.raises(UserError, match="is too short on this machine"):
        diagnose(make_task(model), DiagnoseOptions(minutes=0.001))


def test_a_training_set_too_small_for_two_batch_sizes_is_refused() -> None:
    with pytest.raises(UserError, match="27 training examples are too few for two batch sizes"):
        diagnose(make_task(train=rays(30, seed=0)))


def test_without_anything_to_learn_nothing_is_recommended_and_what_batch_norm_hides_is_told() -> None:
    """Targets are noise around the mean that the model starts with: no learning rate makes progress."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(330, 1, generator=generator)
    y = 1.0 + 0.3 * torch.randn(330, 1, generator=generator)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1)

        def forward(self, x: Tensor) -> Tensor:
            return 1.0 + 1e-3 * self.norm(x)

    task = Task(name="noise", model=Mean, train=(x, y), test=(x[:20], y[:20]), loss="mean_squared_error")
    found = diagnose(task, DiagnoseOptions(minutes=1.0, batch_sizes=[8, 32]))
    assert found.choices == ()
    assert found.recommended is None
    assert any(sentence.startswith("the largest stable learning rate of plain SGD") for sentence in found.missing)
    json.dumps(found.to_json(), allow_nan=False)
    assert [probe.step for probe in found.probes] == [0]
    assert found.probes[0].mode == "evaluate"
    told = [sentence.split(":")[0] for sentence in found.missing]
    assert "gradient noise in training mode" in told
    assert "curvature and gradient noise after a short training" in told
