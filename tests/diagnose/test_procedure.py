"""A whole diagnosis of small synthetic tasks, and the errors for tasks that cannot be diagnosed."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isotherm.diagnose import DiagnoseOptions, Diagnosis, diagnose
from isotherm.diagnose.boundary import ceiling
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
    fields = {"train": rays(800, seed=0), "test": rays(40, seed=1)}
    return Task(name="rays", model=model, **{**fields, **changes})


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    """One diagnosis with more time than it can use."""
    return diagnose(
        make_task(), DiagnoseOptions(epochs=20, minutes=20, batch_size=16, learning_rate=0.1, momentum=MOMENTUM)
    )


# -- a whole diagnosis -----------------------------------------------------------------------------------------------


def test_everything_is_found(found: Diagnosis) -> None:
    assert [s.momentum for s in found.stability] == [0.0, MOMENTUM]
    assert {grid.batch_size for grid in found.grids} == {4, 16, 64}
    lengths = sorted({round(math.log2(grid.num_steps * grid.batch_size)) for grid in found.grids})
    assert len(lengths) >= 2
    assert [probe.step == 0 for probe in found.probes] == [True, False]
    assert all(b.batch_size is not None for b in found.boundaries)
    assert (found.num_train, found.budget, found.metric) == (800, "20 epochs", "accuracy")
    assert found.settings["judged_by"] == "validation"
    assert found.settings["batch_sizes"] == [4, 16, 64]
    assert found.settings["epochs"] == 20
    assert found.isotherm.exponent is not None
    assert found.isotherm.longest_part >= 0.2


def test_plain_sgd_is_judged_as_what_it_is() -> None:
    """Momentum 0.9 is looked at beside it; the present setting is that of plain SGD."""
    options = DiagnoseOptions(epochs=20, minutes=20, batch_size=16, learning_rate=0.1, momentum=0.0)
    found = diagnose(make_task(), options)
    assert [s.momentum for s in found.stability] == [0.0, 0.9]
    assert found.momentum == 0.9
    assert found.current is not None
    assert (found.current.momentum, found.current.effective_learning_rate) == (0.0, 0.1)


def test_momentum_bears_a_larger_effective_learning_rate(found: Diagnosis) -> None:
    plain, heavy = found.limit(0.0), found.limit(MOMENTUM)
    assert plain is not None
    assert heavy is not None
    assert heavy.estimate > plain.estimate


def test_each_optimiser_has_a_choice_below_its_boundary_with_enough_updates(found: Diagnosis) -> None:
    assert found.recommended.keys() == {0.0, MOMENTUM}
    for momentum, size in found.recommended.items():
        choice, boundary = found.choice_with(momentum), found.boundary(momentum)
        assert choice is not None
        assert boundary is not None
        assert choice.batch_size == size <= max(boundary.estimate, found.choices[0].batch_size)
        assert choice.learning_rate(momentum) == pytest.approx(choice.rates[momentum].estimate * (1 - momentum))
        assert choice.num_steps == 20 * 800 // size


def test_choices_follow_the_law_up_to_half_of_the_limit(found: Diagnosis) -> None:
    limit = found.limit(0.0)
    assert limit is not None
    for choice in found.choices:
        best = found.isotherm.rate(choice.batch_size)
        assert best is not None
        top = ceiling(limit).estimate
        assert choice.rates[0.0].estimate == pytest.approx((best**-2 + top**-2) ** -0.5, rel=1e-3)
        assert choice.speed is not None
        assert choice.epoch_seconds == pytest.approx(800 / choice.speed)


def test_the_present_setting_is_judged(found: Diagnosis) -> None:
    assert found.current is not None
    assert found.current.effective_learning_rate == pytest.approx(1.0)
    assert found.current.temperature == pytest.approx(1 / 16)
    assert found.current.words
    assert found.current.num_steps == 1000
    assert found.current.factor is not None
    assert found.current.is_stable is not None
    assert 16 in [choice.batch_size for choice in found.choices]


def test_the_answer_has_lines_to_paste_for_every_momentum(found: Diagnosis) -> None:
    assert found.code.keys() == found.recommended.keys()
    for momentum, lines in found.code.items():
        choice = found.choice_with(momentum)
        assert choice is not None
        assert lines[0] == f"# batch size {choice.batch_size:,}, {choice.num_steps:,} updates"
        rate = float(re.search(r"lr=([\d.e-]+)", "".join(lines)).group(1))  # type: ignore[union-attr]
        assert rate == pytest.approx(choice.learning_rate(momentum), rel=5e-3)  # three digits
        assert "LambdaLR" in "".join(lines)  # the paper's schedule
    assert found.choice_code in found.code.values()


def test_the_cost_counts_all_runs(found: Diagnosis) -> None:
    stable = sum(sum(s.num_runs) for s in found.stability)
    grids = sum(len(grid.rates) * grid.num_seeds for grid in found.grids)
    assert found.cost.num_runs >= stable + grids
    steps = sum(grid.num_steps * grid.batch_size * len(grid.rates) * grid.num_seeds for grid in found.grids)
    assert found.cost.num_examples > steps / 2  # runs that diverge end early
    assert found.cost.seconds < 20 * 60


def test_a_diagnosis_is_json(found: Diagnosis) -> None:
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["recommended"] == {str(m): size for m, size in found.recommended.items()}
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
    """Return what is found but for times and what follows from them: which batch size is the quickest, and its code."""
    content = found.to_json()
    del content["cost"]["seconds"], content["recommended"], content["code"]
    for choice in (*content["choices"], content["current"]):
        del choice["speed"], choice["epoch_seconds"]
    return content


def test_equal_seeds_find_the_same(found: Diagnosis) -> None:
    again = diagnose(
        make_task(), DiagnoseOptions(epochs=20, minutes=20, batch_size=16, learning_rate=0.1, momentum=MOMENTUM)
    )
    assert _without_times(again) == _without_times(found)


def test_stages_are_told_and_too_short_a_time_is_refused() -> None:
    told: list[str] = []
    with pytest.raises(UserError, match=r"minutes=0.001 is too short on this machine; give at least 0\.\d"):
        diagnose(make_task(), DiagnoseOptions(epochs=20, minutes=0.001), on_stage=told.append)
    assert told == ["checking the task", "how fast this machine trains"]


# -- what cannot be diagnosed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_sizes": [8]}, "give two or more"),
        ({"device": "abacus"}, "abacus"),
        ({"batch_size": 801}, "batch_size=801 is more than the 800 examples of the training set"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        diagnose(make_task(), DiagnoseOptions(epochs=20, **arguments))


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
        diagnose(make_task(model), DiagnoseOptions(epochs=20, minutes=0.01))


def test_equal_inputs_are_refused() -> None:
    x, y = rays(330, seed=0)
    with pytest.raises(UserError, match="outputs are the same for all examples"):
        diagnose(make_task(train=(torch.ones_like(x), y)), DiagnoseOptions(epochs=20, minutes=0.01))


def test_a_last_layer_that_starts_at_zero_is_no_constant_output() -> None:
    def model() -> nn.Module:
        net = build()
        nn.init.zeros_(net[2].weight)
        nn.init.zeros_(net[2].bias)
        return net

    with pytest.raises(UserError, match="is too short on this machine"):
        diagnose(make_task(model), DiagnoseOptions(epochs=20, minutes=0.001))


def test_a_training_set_too_small_for_two_batch_sizes_is_refused() -> None:
    with pytest.raises(UserError, match="training examples are too few for two batch sizes"):
        diagnose(make_task(train=rays(30, seed=0)), DiagnoseOptions(epochs=20))


def test_without_anything_to_learn_nothing_is_recommended_and_what_batch_norm_hides_is_told() -> None:
    """Targets are noise around the mean that the model starts with: no learning rate makes progress."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, generator=generator)
    y = 1.0 + 0.3 * torch.randn(600, 1, generator=generator)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1)

        def forward(self, x: Tensor) -> Tensor:
            return 1.0 + 1e-3 * self.norm(x)

    task = Task(name="noise", model=Mean, train=(x, y), test=(x[:20], y[:20]), loss="mean_squared_error")
    found = diagnose(task, DiagnoseOptions(epochs=20, minutes=1.0, batch_sizes=[8, 32]))
    assert found.choices == ()
    assert found.recommended == {}
    assert any(sentence.startswith("the largest stable learning rate of plain SGD") for sentence in found.missing)
    json.dumps(found.to_json(), allow_nan=False)
    assert [probe.step for probe in found.probes] == [0]
    assert found.probes[0].mode == "evaluate"
    told = [sentence.split(":")[0] for sentence in found.missing]
    assert "gradient noise in training mode" in told
    assert "curvature and gradient noise after a short training" in told


# -- answers that are known ------------------------------------------------------------------------------------------


def teacher(num: int, *, seed: int, flipped: float = 0.0) -> Split:
    """Return labels of a linear map of ten inputs, a fraction of which is wrong."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 10, generator=generator)
    y = (x @ torch.randn(10, 3, generator=torch.Generator().manual_seed(5))).argmax(dim=1)
    wrong = (y + 1 + torch.randint(2, (num,), generator=generator)) % 3
    return x, torch.where(torch.rand(num, generator=generator) < flipped, wrong, y)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))


def known_task(train: Split, **changes: Any) -> Task:
    return Task(name="known", model=network, train=train, test=teacher(50, seed=9), **changes)


def test_with_wrong_labels_a_longer_training_wants_a_lower_learning_rate() -> None:
    """One in five labels is wrong: what 40 epochs learn beyond 4 is noise."""
    task = known_task(teacher(800, seed=0, flipped=0.2))
    short, long = (diagnose(task, DiagnoseOptions(epochs=epochs, minutes=5)) for epochs in (4, 40))
    rates = [found.isotherm.rate(32) for found in (short, long)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[1] < rates[0] / 2
    assert long.isotherm.exponent is not None
    assert long.isotherm.exponent.estimate < -0.2


def test_where_gradients_are_clipped_the_learning_rate_rises_less_than_the_batch() -> None:
    task = known_task(teacher(800, seed=0, flipped=0.2), clip_norm=0.02)
    found = diagnose(task, DiagnoseOptions(epochs=20, minutes=5))
    assert found.isotherm.slope is not None
    assert found.isotherm.slope.estimate < 0.85


def test_random_labels_get_no_recommendation_and_a_reason() -> None:
    generator = torch.Generator().manual_seed(3)
    train = torch.randn(600, 10, generator=generator), torch.randint(3, (600,), generator=generator)
    found = diagnose(known_task(train), DiagnoseOptions(epochs=10, minutes=5))
    assert found.recommended == {}
    assert found.choices == ()
    assert any(
        sentence.startswith("anything learned: no short run has a lower held-out loss") for sentence in found.missing
    )


def test_where_every_sensible_learning_rate_is_perfect_the_interval_is_wide() -> None:
    labels = torch.arange(600) % 3
    noise = torch.randn(600, 10, generator=torch.Generator().manual_seed(0))
    found = diagnose(
        known_task((6.0 * torch.eye(3, 10)[labels] + 0.3 * noise, labels)), DiagnoseOptions(epochs=10, minutes=5)
    )
    assert found.isotherm.is_plateau
    assert found.isotherm.temperature is not None
    assert found.isotherm.temperature.high > 8 * found.isotherm.temperature.low
    assert found.recommended
