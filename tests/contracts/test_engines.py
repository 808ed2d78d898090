"""The contract of the engines: `reference` says what a run is, `fleet` gives its numbers whatever the company."""

import dataclasses
import functools
import logging
import math

import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_engines import Trained, assert_same, assert_same_result, by_fleet, by_reference
from isotherm.core.divergence import FACTOR_WITHOUT_LEARNING
from isotherm.core.records import Outcome, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.reference import run_reference
from isotherm.engine.stack.plan import UPDATES_PER_WINDOW
from isotherm.tasks.inputs import Split
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.task import Task

TASKS = {
    "mlp": cases.blobs_task,
    "dropout": cases.dropout_task,
    "conv": cases.conv_task,
    "batch_norm": cases.batch_norm_task,
    "tied": cases.tied_task,
    "frozen": cases.frozen_task,
    "regression": cases.regression_task,
}
# Seven members, each its own learning rate, momentum, L2, γ or seed.
MEMBERS = (
    {"seed": 0, "effective_learning_rate": 0.1, "momentum": 0.9, "l2": 5e-4, "gamma": 2.0},
    {"seed": 0, "effective_learning_rate": 0.2, "momentum": 0.9, "l2": 5e-4, "gamma": 2.0},
    {"seed": 1, "effective_learning_rate": 0.1, "momentum": 0.0, "l2": 5e-4, "gamma": 2.0},
    {"seed": 1, "effective_learning_rate": 0.1, "momentum": 0.9, "l2": 0.0, "gamma": 2.0},
    {"seed": 2, "effective_learning_rate": 0.1, "momentum": 0.9, "l2": 0.1, "gamma": 1.0},
    {"seed": 3, "effective_learning_rate": 0.05, "momentum": 0.5, "l2": 0.01, "gamma": 1.3},
    {"seed": 2**40, "effective_learning_rate": 0.3, "momentum": 0.0, "l2": 0.0, "gamma": 1.5},
)


def placed_of(task: Task) -> PlacedTask:
    return place_task(task, precision="float64")


def members(task: Task, **changes) -> list[RunSpec]:
    return [cases.spec(task, **member, **changes) for member in MEMBERS]


@functools.cache
def shared_placed_task(name: str) -> PlacedTask:
    return placed_of(TASKS[name]())


@functools.cache
def shared_reference(name: str, spec: RunSpec) -> Trained:
    return by_reference(shared_placed_task(name), spec)


# -- the same numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_fleet_equals_reference(name, caplog):
    specs = members(TASKS[name](), num_evaluations=4)[:: {"mlp": 1, "dropout": 3, "conv": 3}.get(name, 2)]
    expected = [shared_reference(name, spec) for spec in specs]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert_same(by_fleet(shared_placed_task(name), specs), expected)
    assert caplog.text == ""  # it was a fleet indeed, not one run at a time
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}
    assert all(len(result.curve) == 4 for result, _ in expected)
    # Each member's own setting left its mark: no two runs are the same.
    assert len({result.train_loss for result, _ in expected}) == len(specs)


def test_pairs_of_learning_rates_share_a_fleet():
    """What a sweep of `final_learning_rates` trains together: every run has drops of its own."""
    task = TASKS["mlp"]()
    pairs = [(0.5, 0.5), (0.5, 0.01), (0.2, 0.01), (0.2, 2e-4)]
    gammas = [Schedule.ending_at(final).gamma_from(initial) for initial, final in pairs]
    specs = [
        cases.spec(task, effective_learning_rate=initial, gamma=gamma, num_steps=40)
        for (initial, _), gamma in zip(pairs, gammas, strict=True)
    ]
    expected = [shared_reference("mlp", spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task("mlp"), specs), expected)
    assert len({result.train_loss for result, _ in expected}) == len(specs)


@pytest.mark.parametrize("name", ["mlp", "batch_norm"])
def test_fleet_equals_reference_with_l2_on_everything(name):
    specs = members(TASKS[name](), l2_scope="all", num_steps=30)[3:6]
    expected = [shared_reference(name, spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task(name), specs), expected)
    weights_only = shared_reference(name, dataclasses.replace(specs[1], l2_scope="weights"))[0]
    assert expected[1][0].weight_norm_squared != pytest.approx(weights_only.weight_norm_squared, rel=1e-3)


def test_l2_of_weights_leaves_a_model_of_vectors_alone():
    task = cases.quadratic_task()
    specs = [cases.spec(task, batch_size=2, num_steps=20, l2=l2) for l2 in (0.0, 0.5)]
    ours = by_fleet(placed_of(task), specs)
    assert_same(ours, [by_reference(placed_of(task), spec) for spec in specs])
    assert [result.l2_penalty for result, _ in ours] == [0.0, 0.0]
    assert ours[0][0].train_loss == ours[1][0].train_loss


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 1, "num_steps": 10},
        {"batch_size": 64, "num_steps": 10},
        {"batch_size": 150, "num_steps": 10},
        {"batch_size": 7, "num_steps": 1},
        {"batch_size": 7, "num_steps": 1, "num_evaluations": 3},
        {"batch_size": 7, "num_steps": UPDATES_PER_WINDOW + 1},
        {"batch_size": 7, "num_steps": 2 * UPDATES_PER_WINDOW, "num_evaluations": 7},
    ],
    ids=str,
)
def test_fleet_equals_reference_at_odd_sizes(changes):
    specs = members(cases.blobs_task(), **changes)[:3]
    expected = [shared_reference("mlp", spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task("mlp"), specs), expected)


def test_fleet_equals_reference_on_a_validation_set():
    task = cases.blobs_task().with_validation(0.25)
    specs = members(task, num_steps=30)[:3]
    ours = by_fleet(placed_of(task), specs)
    assert_same(ours, [by_reference(placed_of(task), spec) for spec in specs])
    assert all(result.validation_loss is not None for result, _ in ours)
    assert all(result.validation_metric is not None for result, _ in ours)


def test_fleet_equals_reference_in_single_precision():
    task = cases.batch_norm_task()
    placed = place_task(task, precision="float32")
    specs = members(task, precision="float32", num_steps=20)
    for ours, spec in zip(run_fleet(placed, specs), specs, strict=True):
        assert ours.train_loss == pytest.approx(run_reference(placed, spec).train_loss, rel=1e-4)


class WithUnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class WithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.mask)


class ScaledResidual(nn.Module):
    """Scales by a setting that happens to be one, then works on the copy in place; and adds a product to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, 3, bias=False)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        output = self.second(hidden + torch.relu_(hidden * self.scale))
        return output + output


@pytest.mark.parametrize("model", [WithUnusedLayer, WithMask, ScaledResidual])
def test_fleet_equals_reference_for_unusual_modules(model):
    task = cases.classification("unusual", model)
    specs = members(task, num_steps=20)[3:6]
    expected = [by_reference(placed_of(task), spec) for spec in specs]
    assert_same(by_fleet(placed_of(task), specs), expected)


# -- whatever the company ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "dropout", "conv", "batch_norm"])
def test_numbers_depend_on_neither_size_nor_order_nor_chunks(name):
    specs = members(TASKS[name](), num_steps=20, num_evaluations=2)
    placed = shared_placed_task(name)
    together = by_fleet(placed, specs)
    order = [4, 0, 6, 2, 5, 1, 3]
    shuffled = [specs[i] for i in order]
    chunks = by_fleet(placed, shuffled[:6]) + by_fleet(placed, shuffled[6:])  # the last one is alone
    assert_same(chunks, [together[i] for i in order])


def test_a_run_twice_in_a_fleet_is_twice_the_same():
    specs = members(cases.dropout_task(), num_steps=20)
    ours = by_fleet(shared_placed_task("dropout"), [specs[0], specs[2], specs[0]])
    assert_same([ours[0]], [ours[2]])


class RandomNet(nn.Module):
    """Draws noise that is not dropout, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + 0.1 * torch.randn_like(x))


RANDOM_TASKS = {
    "none": cases.blobs_task,
    "dropout": cases.dropout_task,
    "noise in training": cases.noisy_task,
    "noise in training and evaluation": lambda: cases.classification("random", RandomNet),
}
ENGINES = {
    "fleet": lambda placed, spec: run_fleet(placed, [spec])[0],
    "reference": run_reference,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RANDOM_TASKS)
def test_numbers_do_not_depend_on_the_global_generator(name, engine):
    task = RANDOM_TASKS[name]()
    results = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        results.append(ENGINES[engine](placed_of(task), cases.spec(task, num_steps=5, num_evaluations=1)))
    assert results[0] == results[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RANDOM_TASKS)
def test_the_global_generator_is_left_alone(name, engine):
    task = RANDOM_TASKS[name]()
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    ENGINES[engine](placed_of(task), cases.spec(task, num_steps=3))
    assert torch.equal(torch.rand(()), expected)


# -- divergence -------------------------------------------------------------------------------------------------

# ε far above 2/λ on the regression task: the weights grow by a constant factor until the loss overflows.
DIVERGING = {"effective_learning_rate": 1e3, "momentum": 0.0, "seed": 5}


def diverging_spec(task: Task, **changes) -> RunSpec:
    return cases.spec(task, **{**DIVERGING, **changes})


def test_divergence_is_recorded_at_the_same_step():
    task = cases.regression_task()
    specs = [diverging_spec(task, effective_learning_rate=rate) for rate in (1e2, 1e3, 1e5, 1e20)]
    expected = [shared_reference("regression", spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task("regression"), specs), expected)
    steps = [result.divergence_step for result, _ in expected]
    assert {result.outcome for result, _ in expected} == {Outcome.DIVERGED}
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 4
    assert any(step % UPDATES_PER_WINDOW not in (0, UPDATES_PER_WINDOW - 1) for step in steps)  # in its middle
    assert steps[0] > UPDATES_PER_WINDOW > steps[1]  # not only in the first one


def test_a_diverged_run_has_no_numbers_but_its_curve_so_far():
    task = cases.regression_task()
    spec = diverging_spec(task, effective_learning_rate=1e2, num_evaluations=20)
    result, parameters = shared_reference("regression", spec)
    assert parameters == {}
    assert (result.train_loss, result.test_loss, result.weight_norm_squared) == (None, None, None)
    assert [point.step for point in result.curve] == list(range(10, result.divergence_step, 10))
    assert all(math.isfinite(point.test_loss) for point in result.curve)


@pytest.mark.parametrize("num_neighbours", [1, 10], ids=["half leaves", "nobody leaves"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_neighbours_of_a_diverged_run_do_not_notice(num_neighbours, place):
    task = cases.regression_task()
    neighbours = [cases.spec(task, seed=seed, num_evaluations=3) for seed in range(num_neighbours)]
    bad = diverging_spec(task, num_evaluations=3)
    specs = [bad, *neighbours] if place == "first" else [*neighbours, bad]
    ours = by_fleet(shared_placed_task("regression"), specs)
    without = by_fleet(shared_placed_task("regression"), neighbours)
    bad_place = 0 if place == "first" else -1
    assert ours[bad_place][0].outcome is Outcome.DIVERGED
    assert_same([ours[bad_place]], [shared_reference("regression", bad)])
    del ours[bad_place]
    assert_same(ours, without)
    assert {result.outcome for result, _ in ours} == {Outcome.FINISHED}


@pytest.mark.parametrize("name", ["conv", "batch_norm"])
def test_values_that_are_not_numbers_stay_in_their_own_run(name):
    task = TASKS[name]()
    specs = [
        cases.spec(task, seed=seed, num_steps=80, effective_learning_rate=1e200 if seed == 1 else 0.1)
        for seed in range(10)
    ]
    ours = by_fleet(shared_placed_task(name), specs)
    assert [index for index, (result, _) in enumerate(ours) if result.outcome is Outcome.DIVERGED] == [1]
    assert_same([ours[1]], [shared_reference(name, specs[1])])
    assert_same(ours[2:3], [shared_reference(name, specs[2])])


def test_runs_that_leave_one_after_another():
    task = cases.regression_task()
    rates = (0.1, 1e2, 0.05, 1e3, 2e1, 0.2, 5e2, 0.02)
    specs = [
        cases.spec(task, seed=seed, effective_learning_rate=rate, momentum=0.0, num_evaluations=5)
        for seed, rate in enumerate(rates)
    ]
    expected = [shared_reference("regression", spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task("regression"), specs), expected)
    assert [result.outcome is Outcome.DIVERGED for result, _ in expected] == [rate > 1 for rate in rates]


def test_all_members_diverge():
    task = cases.regression_task()
    specs = [diverging_spec(task, seed=seed) for seed in range(5)]
    ours = by_fleet(shared_placed_task("regression"), specs)
    assert_same(ours, [shared_reference("regression", spec) for spec in specs])
    assert {result.outcome for result, _ in ours} == {Outcome.DIVERGED}


def test_a_loss_that_is_not_finite_only_after_the_last_update():
    task = cases.regression_task()
    step = shared_reference("regression", diverging_spec(task))[0].divergence_step
    spec = diverging_spec(task, num_steps=step, gamma=1.0)  # gamma=1: the schedule does not depend on the length
    longer = shared_reference("regression", dataclasses.replace(spec, num_steps=2 * step))[0]
    spec = dataclasses.replace(spec, num_steps=longer.divergence_step)
    expected = shared_reference("regression", spec)
    assert expected[0].outcome is Outcome.DIVERGED
    assert expected[0].divergence_step == spec.num_steps
    neighbour = cases.spec(task, num_steps=spec.num_steps)
    ours = by_fleet(shared_placed_task("regression"), [spec, neighbour])
    assert_same_result(ours[0][0], expected[0])
    assert ours[1][0].outcome is Outcome.FINISHED


def test_a_loss_far_above_its_start_is_a_divergence_at_the_end():
    """Of a linear regression with a rate just too high: the loss is finite, and says nothing."""
    task = cases.regression_task()
    rates = (0.1, 1.3, 2.0)
    specs = [
        cases.spec(task, effective_learning_rate=rate, momentum=0.0, num_steps=40, gamma=1.0, num_evaluations=2)
        for rate in rates
    ]
    expected = [shared_reference("regression", spec) for spec in specs]
    assert_same(by_fleet(shared_placed_task("regression"), specs), expected)
    assert [result.outcome for result, _ in expected] == [Outcome.FINISHED, Outcome.DIVERGED, Outcome.DIVERGED]
    for result, parameters in expected[1:]:
        assert result.divergence_step == 40
        assert result.train_loss is None
        assert parameters == {}
        assert result.curve[-1].test_loss > 1e2


def two_far_blobs(num: int, *, seed: int, flipped: float) -> Split:
    """Two classes that a line separates, some of whose labels are wrong."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (num,), generator=generator)
    x = torch.randn(num, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += 12.0 * y - 6.0
    return x, torch.where(torch.rand(num, generator=generator) < flipped, 1 - y, y)


@pytest.mark.parametrize(
    ("flipped", "metric", "outcome"),
    [
        (0.1, "accuracy", Outcome.FINISHED),  # 5.8 times the loss of its start, 87 % right
        (0.1, "perplexity", Outcome.DIVERGED),
        (0.5, "accuracy", Outcome.DIVERGED),  # 30 times, 44 % right
    ],
)
def test_a_sure_classifier_works_and_one_that_knows_nothing_has_diverged(flipped, metric, outcome):
    splits = {"train": two_far_blobs(100, seed=0, flipped=flipped), "test": two_far_blobs(50, seed=1, flipped=0.0)}
    task = cases.classification("far blobs", functools.partial(nn.Linear, 2, 2), metric=metric, **splits)
    placed = placed_of(task)
    spec = cases.spec(task, effective_learning_rate=3.0, momentum=0.0, num_steps=50, gamma=1.0, l2=0.0)
    expected = [by_reference(placed, spec)]
    assert_same(by_fleet(placed, [spec]), expected)
    result = expected[0][0]
    assert result.outcome is outcome
    if outcome is Outcome.FINISHED:
        assert result.train_loss > FACTOR_WITHOUT_LEARNING * 1.5
        assert result.train_metric == pytest.approx(0.87)


def test_a_run_that_learns_nothing_has_not_diverged():
    task = cases.blobs_task()
    spec = cases.spec(task, effective_learning_rate=1e-9)
    ((result, _),) = by_fleet(shared_placed_task("mlp"), [spec])
    assert result.outcome is Outcome.FINISHED


def loss_with_an_infinite_example(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy, infinite if label 2 is in the batch; its gradient is finite all the same."""
    return cross_entropy(output, target) + torch.where((target == 2).any(), math.inf, 0.0)


def test_the_curve_of_a_diverged_run_ends_where_it_diverged():
    """Also when its loss recovers, as here, where the test set lacks the example that makes it infinite."""
    x, y = cases.blobs(40, seed=0)
    labels = (torch.arange(40) == 7).long() * 2  # one example of label 2 among forty, four in a batch
    task = cases.classification(
        "recovering",
        cases.build_mlp,
        train=(x, labels),
        test=(x[y < 2], y[y < 2]),
        loss=loss_with_an_infinite_example,
    )
    placed = placed_of(task)
    specs = [cases.spec(task, seed=seed, batch_size=4, num_steps=8, num_evaluations=4) for seed in range(9)]
    expected = [by_reference(placed, spec)[0] for spec in specs]
    steps = {result.divergence_step for result in expected}
    assert len(steps) > 3
    for ours, theirs in zip(run_fleet(placed, specs), expected, strict=True):
        assert_same_result(ours, theirs)


# -- one run at a time where a fleet cannot ---------------------------------------------------------------------


class ReassignsBuffer(nn.Module):
    """Replaces a buffer instead of changing it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return self.layer(x - self.mean)


class LateCounter(nn.Module):
    """Its output changes after ten calls: the first two look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.layer(x) * (2.0 if self.num_calls > 10 else 1.0)


FALLING_BACK = {
    "unvectorisable": cases.unvectorisable_task,
    "stateful": cases.stateful_task,
    "noisy": cases.noisy_task,
    "reassigned buffer": lambda: cases.classification("reassigned", ReassignsBuffer),
    "alpha dropout": lambda: cases.classification(
        "alpha", lambda: nn.Sequential(nn.Linear(2, 8), nn.AlphaDropout(0.2), nn.Linear(8, 3))
    ),
    "late counter": lambda: cases.classification("late", LateCounter),
}


@pytest.mark.parametrize("name", FALLING_BACK)
def test_a_module_no_fleet_can_train_gets_the_references_numbers_and_a_warning(name, caplog):
    task = FALLING_BACK[name]()
    placed = placed_of(task)
    specs = members(task, num_steps=25, num_evaluations=2)[:4]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed, specs)
    assert_same(ours, [by_reference(placed, spec) for spec in specs])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "one run at a time" in caplog.text


class NoisyEvaluation(nn.Module):
    """Adds noise in evaluation mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if self.training else x + 0.1 * torch.randn_like(x))


@pytest.mark.parametrize("name", [*FALLING_BACK, "noisy evaluation"])
def test_one_such_run_alone_gets_the_references_numbers_too(name):
    others = {"noisy evaluation": lambda: cases.classification("noisy evaluation", NoisyEvaluation)}
    task = {**FALLING_BACK, **others}[name]()
    spec = cases.spec(task, num_steps=15, num_evaluations=2)
    assert_same(by_fleet(placed_of(task), [spec]), [by_reference(placed_of(task), spec)])


def test_a_module_that_works_in_place_on_a_scaled_copy_is_trained_as_a_fleet(caplog):
    task = cases.classification("scaled residual", ScaledResidual)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        run_fleet(placed_of(task), members(task, num_steps=3)[:3])
    assert caplog.text == ""


class FrozenBranching(cases.BranchingNet):
    def __init__(self) -> None:
        super().__init__()
        self.layer.bias.requires_grad_(False)


class FrozenPlain(FrozenBranching):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_the_same_parameters_are_handed_over_with_and_without_a_fleet():
    names = []
    for model in (FrozenBranching, FrozenPlain):
        task = cases.classification("frozen", model)
        [(_, parameters)] = by_fleet(placed_of(task), [cases.spec(task, num_steps=2)])
        names.append(sorted(parameters))
    assert names[0] == names[1]


# -- looks at the test set, and at the clock --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "num_evaluations", "steps"),
    [
        (30, 0, []),
        (30, 1, [30]),
        (30, 3, [10, 20, 30]),
        (10, 3, [3, 6, 10]),
        (100, 2, [50, 100]),
        (3, 10, [1, 2, 3]),
    ],
)
def test_the_test_set_is_looked_at_evenly_and_at_the_end(num_steps, num_evaluations, steps):
    task = cases.blobs_task()
    spec = cases.spec(task, num_steps=num_steps, num_evaluations=num_evaluations)
    placed = shared_placed_task("mlp")
    for result in (run_reference(placed, spec), *run_fleet(placed, [spec])):
        assert [point.step for point in result.curve] == steps
        if steps:
            last = result.curve[-1]
            assert (last.test_loss, last.test_metric) == pytest.approx((result.test_loss, result.test_metric))


def test_looking_at_the_test_set_changes_nothing():
    task = cases.batch_norm_task()
    placed = shared_placed_task("batch_norm")
    for engine in (lambda spec: by_reference(placed, spec), lambda spec: by_fleet(placed, [spec])[0]):
        plain, looked = (engine(cases.spec(task, num_steps=20, num_evaluations=n)) for n in (0, 5))
        assert_same([(dataclasses.replace(looked[0], curve=()), looked[1])], [plain])


@pytest.mark.parametrize("name", ["blobs", "unvectorisable"])
def test_every_update_is_counted_once(name):
    task = {"blobs": cases.blobs_task, "unvectorisable": cases.unvectorisable_task}[name]()
    counted: list[int] = []
    specs = [cases.spec(task, seed=seed, num_steps=UPDATES_PER_WINDOW + 6, num_evaluations=2) for seed in range(3)]
    run_fleet(placed_of(task), specs, on_steps=counted.append)
    assert sum(counted) == 3 * (UPDATES_PER_WINDOW + 6)
    counted.clear()
    run_reference(placed_of(task), specs[0], on_steps=counted.append)
    assert sum(counted) == UPDATES_PER_WINDOW + 6
