from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers_protocol import blobs, blobs_task, make_plan, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.records import Direction
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.sweep.sweep import GridAxes, IsothermGrid, SweepPlan, powers_of_two

# -- grids of learning rates -----------------------------------------------------------------------


def test_powers_of_two_includes_both_ends() -> None:
    assert powers_of_two(-2, 1) == (0.25, 0.5, 1.0, 2.0)
    assert powers_of_two(3, 3) == (8.0,)


def test_powers_of_two_in_the_wrong_order_is_refused() -> None:
    with pytest.raises(UserError, match=r"powers_of_two\(2, 1\) is empty; the lower exponent comes first"):
        powers_of_two(2, 1)


def test_isotherm_grid_is_centred_on_temperature_times_batch_size() -> None:
    grid = IsothermGrid(temperature=2**-6, num_below=1, num_above=3)
    assert grid.at(64) == (0.5, 1.0, 2.0, 4.0, 8.0)
    assert grid.at(128) == (1.0, 2.0, 4.0, 8.0, 16.0)


def test_isotherm_grid_stays_at_the_ceiling() -> None:
    grid = IsothermGrid(temperature=2**-5, ceiling=4.0, num_below=1, num_above=1)
    assert grid.at(64) == (1.0, 2.0, 4.0)
    assert grid.at(128) == (2.0, 4.0, 8.0)
    assert grid.at(4096) == (2.0, 4.0, 8.0)


def test_isotherm_grid_uses_its_ratio() -> None:
    assert IsothermGrid(temperature=0.25, ratio=4.0, num_below=1, num_above=1).at(4) == (0.25, 1.0, 4.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, r"temperature 0.0 is not a positive number; use"),
        ({"temperature": -1.0}, r"temperature -1.0 is not a positive number"),
        ({"temperature": math.nan}, r"temperature nan is not a positive number"),
        ({"temperature": math.inf}, r"temperature inf is not a positive number"),
        ({"temperature": "0.1"}, r"temperature '0.1' is not a positive number"),
        ({"temperature": True}, r"temperature True is not a positive number"),
        ({"ceiling": 0.0}, r"ceiling=0.0 is not positive; it is the largest learning rate worth trying"),
        ({"ceiling": math.nan}, r"ceiling=nan is not positive"),
        ({"num_below": -1}, r"num_below -1 is not a whole number of at least 0"),
        ({"num_above": -3}, r"num_above -3 is not a whole number of at least 0"),
        ({"ratio": 1.0}, r"ratio=1.0 is not above 1; neighbouring learning rates differ by this factor"),
        ({"ratio": 0.5}, r"ratio=0.5 is not above 1"),
        ({"ratio": math.nan}, r"ratio=nan is not above 1"),
        ({"ratio": math.inf}, r"ratio=inf is not above 1"),
    ],
)
def test_bad_isotherm_grid_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IsothermGrid(**{"temperature": 0.1, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [{"ceiling": "8"}, {"ratio": "2"}, {"num_below": "1"}, {"num_above": 1.5}, {"num_above": True}],
    ids=str,
)
def test_isotherm_grid_refuses_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(arguments))):
        IsothermGrid(**{"temperature": 0.1, **arguments})


# -- bad sweeps: the message names the value, the reason and the remedy ----------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "blobs"}, r"task is str; give an isotherm.Task, or isotherm.get_task\(name\)"),
        # learning rates
        ({"effective_learning_rates": []}, r"effective_learning_rates is empty; give at least one value"),
        ({"effective_learning_rates": [0.5, 0.0]}, r"effective learning rate 0.0 is not a positive number; use e.g."),
        ({"effective_learning_rates": [-0.5]}, r"effective learning rate -0.5 is not a positive number"),
        ({"effective_learning_rates": [math.nan]}, r"effective learning rate nan is not a positive number"),
        ({"effective_learning_rates": [math.inf]}, r"effective learning rate inf is not a positive number"),
        ({"effective_learning_rates": ["0.5"]}, r"effective learning rate '0.5' is not a positive number"),
        ({"effective_learning_rates": [True]}, r"effective learning rate True is not a positive number"),
        ({"effective_learning_rates": 0.5}, r"effective_learning_rates=0.5 is float; give a list"),
        ({"effective_learning_rates": "0.5"}, r"effective_learning_rates='0.5' is str; give a list"),
        # momentum
        ({"momentum": 1.0}, r"momentum=1.0 is not in \[0, 1\); the paper uses 0.9, and 0 is plain SGD"),
        ({"momentum": [0.9, 1.5]}, r"momentum=1.5 is not in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum=-0.1 is not in \[0, 1\)"),
        ({"momentum": math.nan}, r"momentum=nan is not in \[0, 1\)"),
        ({"momentum": True}, r"momentum=True is not in \[0, 1\)"),
        ({"momentum": None}, r"momentum=None is not in \[0, 1\)"),
        ({"momentum": []}, r"momentum is empty; give at least one value"),
        # batch sizes
        ({"batch_sizes": []}, r"batch_sizes is empty; give at least one value"),
        ({"batch_sizes": [0]}, r"batch size 0 is not a whole number of at least 1"),
        ({"batch_sizes": [-4]}, r"batch size -4 is not a whole number of at least 1"),
        ({"batch_sizes": [8.0]}, r"batch size 8.0 is not a whole number of at least 1"),
        ({"batch_sizes": ["8"]}, r"batch size '8' is not a whole number of at least 1"),
        ({"batch_sizes": [True]}, r"batch size True is not a whole number of at least 1"),
        ({"batch_sizes": 8}, r"batch_sizes=8 is int; give a list"),
        ({"batch_sizes": "8"}, r"batch_sizes='8' is str; give a list"),
        (
            {"batch_sizes": [8, 33]},
            r"batch size 33 is larger than the training set of 32 examples; use at most 32",
        ),
        # seeds
        ({"num_seeds": 0}, r"num_seeds 0 is not a whole number of at least 1"),
        ({"num_seeds": 2.0}, r"num_seeds 2.0 is not a whole number of at least 1"),
        ({"num_seeds": "2"}, r"num_seeds '2' is not a whole number of at least 1"),
        ({"num_seeds": True}, r"num_seeds True is not a whole number of at least 1"),
        ({"first_seed": -1}, r"first_seed -1 is not a whole number of at least 0"),
        (
            {"num_seeds": 3, "num_kept": 4},
            r"num_kept=4 is more than num_seeds=3; .* k <= n: lower num_kept or raise num_seeds",
        ),
        ({"num_kept": 0}, r"num_kept 0 is not a whole number of at least 1"),
        ({"num_kept": True}, r"num_kept True is not a whole number of at least 1"),
        ({"num_evaluations": -1}, r"num_evaluations -1 is not a whole number of at least 0"),
        ({"max_extensions": -1}, r"max_extensions -1 is not a whole number of at least 0"),
        ({"max_extensions": None}, r"max_extensions None is not a whole number of at least 0"),
        # choices
        ({"tune_on": "dev"}, r"tune_on='dev' is unknown; use one of 'validation', 'test', 'train'"),
        ({"tune_on": None}, r"tune_on=None is unknown; use one of 'validation', 'test', 'train'"),
        ({"tune_quantity": "accuracy"}, r"tune_quantity='accuracy' is unknown; use one of 'metric', 'loss'"),
        ({"l2_scope": "biases"}, r"l2_scope='biases' is unknown; use one of 'weights', 'all'"),
        ({"precision": "float16"}, r"precision='float16' is unknown; use one of 'float32', 'float64'"),
        # penalty
        ({"l2": -1e-4}, r"l2=-0.0001 is not a number >= 0; use 0 for no penalty"),
        ({"l2": math.nan}, r"l2=nan is not a number >= 0"),
        ({"l2": "0.1"}, r"l2='0.1' is not a number >= 0"),
        # budget
        ({"budget": []}, r"budget is empty; give at least one value"),
        ({"budget": [Budget.steps(10), 20]}, r"budget is 20; give Budget.steps\(n\) or Budget.epochs\(n\)"),
    ],
    ids=str,
)
def test_bad_sweep_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_sweep(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"budget": 10}, "budget.*10"),
        ({"budget": None}, "budget.*None"),
        ({"budget": "10 epochs"}, "budget.*10 epochs"),
        ({"momentum": "0.9"}, r"momentum='0\.9'"),
        ({"l2": True}, "l2.*True"),
        ({"schedule": 2.0}, r"schedule.*2\.0"),
        ({"name": 5}, "name.*5"),
        ({"validation_fraction": "0.1", "tune_on": "validation"}, r"validation_fraction.*0\.1"),
        ({"validation_fraction": math.nan, "tune_on": "validation"}, "validation_fraction.*nan"),
    ],
    ids=str,
)
def test_sweep_refuses_wrong_types_and_names_what_was_given(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named + ".*;"):
        tiny_sweep(**changes)


def test_batch_larger_than_what_the_hold_out_leaves_is_refused() -> None:
    assert tiny_sweep(batch_sizes=[32], tune_on="test").plan().batch_sizes == (32,)
    with pytest.raises(
        UserError,
        match=r"batch size 30 is larger than the training set of 29 examples "
        r"\(3 more are held out for validation\); use at most 29",
    ):
        tiny_sweep(batch_sizes=[30], tune_on="validation")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_validation_fraction_lies_between_0_and_1(fraction: float) -> None:
    with pytest.raises(UserError, match=rf"validation_fraction={fraction} is not between 0 and 1; use e\.g\."):
        tiny_sweep(tune_on="validation", validation_fraction=fraction)


def test_hold_out_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"validation_fraction=0\.001 of 32 .* choose a fraction"):
        tiny_sweep(tune_on="validation", validation_fraction=0.001)


def test_budget_of_no_whole_update_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"0.1 epochs on 32 examples is no whole update at batch_size=8; use at least"):
        tiny_sweep(batch_sizes=[2, 8], budget=Budget.epochs(0.1)).plan()


@pytest.mark.parametrize("make", [lambda: Budget.steps(0), lambda: Budget.epochs(-1), lambda: Budget.epochs(math.nan)])
def test_budget_that_is_not_positive_is_refused(make: Any) -> None:
    with pytest.raises(UserError, match=r"a budget of .* is not positive; use a number above 0"):
        make()


def test_budget_of_part_of_a_step_is_refused() -> None:
    with pytest.raises(UserError, match=r"a budget of 2.5 steps is not a whole number; round it"):
        Budget.steps(2.5)  # type: ignore[arg-type]


# -- plans -----------------------------------------------------------------------------------------


def test_plan_keeps_what_the_sweep_says() -> None:
    sweep = tiny_sweep(momentum=[0.0, 0.9], budget=[Budget.steps(10), Budget.epochs(2)], first_seed=7, num_seeds=3)
    plan = sweep.plan()
    assert (plan.task, plan.num_train, plan.metric, plan.metric_direction) == (
        "blobs",
        32,
        "accuracy",
        Direction.MAXIMISE,
    )
    assert plan.seeds == (7, 8, 9)
    assert plan.momenta == (0.0, 0.9)
    assert plan.learning_rates == ((0.125, 0.25, 0.5),)
    assert [str(axes) for axes in plan.grids()] == [
        "B=8, 10 steps, m=0",
        "B=8, 10 steps, m=0.9",
        "B=8, 2 epochs, m=0",
        "B=8, 2 epochs, m=0.9",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"budget": [Budget.epochs(0.75), Budget.steps(3)], "momentum": [0, 0.5]},
        {"schedule": Schedule.ending_at(0.01), "tune_on": "train", "l2": 1e-4, "l2_scope": "all"},
        {"effective_learning_rates": IsothermGrid(temperature=1 / 3, ceiling=2.0), "batch_sizes": [4, 32]},
        {"tune_on": "validation", "tune_quantity": "metric", "num_kept": 1, "name": "ε against B"},
    ],
    ids=str,
)
def test_plan_survives_json(changes: dict[str, Any]) -> None:
    plan = tiny_sweep(**changes).plan()
    again = SweepPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert [type(b.unit) for b in again.budgets] == [type(b.unit) for b in plan.budgets]
    axes, rates = plan.grids()[-1], plan.learning_rates[-1]
    arguments = {"effective_learning_rate": rates[0], "seed": 0}
    assert again.run_spec(again.grids()[-1], **arguments).key == plan.run_spec(axes, **arguments).key


def test_run_spec_counts_updates_from_epochs() -> None:
    plan = tiny_sweep(batch_sizes=[5, 8], budget=[Budget.epochs(3), Budget.steps(7)]).plan()
    steps = {
        (axes.batch_size, axes.budget.unit.value): plan.run_spec(axes, effective_learning_rate=0.5, seed=1).num_steps
        for axes in plan.grids()
    }
    # floor(3 · 32 / 5) = 19: batches run across epoch boundaries.
    assert steps == {(5, "epochs"): 19, (8, "epochs"): 12, (5, "steps"): 7, (8, "steps"): 7}


def test_run_spec_derives_gamma_from_the_final_learning_rate() -> None:
    plan = tiny_sweep(effective_learning_rates=[0.5, 512.0], schedule=Schedule.ending_at(0.5)).plan()
    gammas = [plan.run_spec(plan.grids()[0], effective_learning_rate=r, seed=0).gamma for r in (0.5, 512.0)]
    assert gammas == [1.0, pytest.approx(2.0, rel=1e-15)]
    assert tiny_sweep().plan().run_spec(plan.grids()[0], effective_learning_rate=0.5, seed=0).gamma == 2.0


def test_run_spec_takes_every_value_of_the_plan() -> None:
    plan = tiny_sweep(l2=0.01, l2_scope="all", num_evaluations=4, momentum=0.5, precision="float32", clip_norm=2).plan()
    spec = plan.run_spec(plan.grids()[0], effective_learning_rate=0.25, seed=3)
    assert spec.to_json() == {
        "task": "blobs",
        "data_id": plan.data_id,
        "model_id": plan.model_id,
        "batch_size": 8,
        "num_steps": 10,
        "effective_learning_rate": 0.25,
        "momentum": 0.5,
        "gamma": 2.0,
        "l2": 0.01,
        "l2_scope": "all",
        "precision": "float32",
        "num_evaluations": 4,
        "seed": 3,
        "clip_norm": 2.0,
    }
    assert spec.learning_rate == 0.125


@pytest.mark.parametrize(("num_seeds", "num_kept"), [(15, 12), (5, 4), (1, 1), (2, 2), (10, 8)])
def test_four_fifths_of_the_seeds_are_kept_by_default(num_seeds: int, num_kept: int) -> None:
    assert tiny_sweep(num_seeds=num_seeds).plan().num_kept == num_kept


def test_num_kept_is_taken_as_given() -> None:
    assert tiny_sweep(num_seeds=7, num_kept=5).plan().num_kept == 5


def test_duplicates_are_removed() -> None:
    plan = tiny_sweep(
        batch_sizes=[8, 4, 8],
        effective_learning_rates=[0.5, 1, 0.25, 1.0, 0.5],
        momentum=[0, 0.0, 0.9],
        budget=[Budget.steps(5), Budget.steps(5)],
    ).plan()
    assert plan.batch_sizes == (8, 4)
    assert plan.learning_rates == ((0.25, 0.5, 1.0), (0.25, 0.5, 1.0))
    assert plan.momenta == (0.0, 0.9)
    assert plan.budgets == (Budget.steps(5),)


def test_isotherm_grid_gives_each_batch_size_its_own_rates() -> None:
    plan = tiny_sweep(
        batch_sizes=[4, 16], effective_learning_rates=IsothermGrid(temperature=2**-4, num_below=1, num_above=1)
    ).plan()
    assert plan.learning_rates == ((0.125, 0.25, 0.5), (0.5, 1.0, 2.0))
    axes = GridAxes(batch_size=16, budget=Budget.steps(10), momentum=0.9)
    assert plan.base_learning_rates(axes) == (0.5, 1.0, 2.0)


def test_tuning_on_validation_data_holds_them_out() -> None:
    task = blobs_task()
    on_test = tiny_sweep(task=task, tune_on="test").plan()
    held = tiny_sweep(task=task, tune_on="validation").plan()
    more = tiny_sweep(task=task, tune_on="validation", validation_fraction=0.25).plan()
    assert (on_test.num_train, held.num_train, more.num_train) == (32, 29, 24)
    assert len({on_test.data_id, held.data_id, more.data_id}) == 3
    assert on_test.model_id == held.model_id


def test_held_out_examples_are_neither_lost_nor_shared() -> None:
    task = tiny_sweep(tune_on="validation", validation_fraction=0.25).prepared_task
    assert task.validation is not None
    together = torch.cat([task.train[0], task.validation[0]])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, blobs()[0].tolist()))


def test_own_validation_set_is_used_as_it_is() -> None:
    task = blobs_task(validation=blobs(6, seed=2))
    plan = tiny_sweep(task=task, tune_on="validation").plan()
    assert (plan.num_train, plan.data_id) == (32, task.identify().data_id)
    assert plan.data_id != blobs_task().identify().data_id


@pytest.mark.parametrize(
    ("tune_on", "quantity", "objective", "direction"),
    [
        ("test", "metric", "test_metric", Direction.MAXIMISE),
        ("test", "loss", "test_loss", Direction.MINIMISE),
        ("validation", "metric", "validation_metric", Direction.MAXIMISE),
        ("validation", "loss", "validation_loss", Direction.MINIMISE),
        ("train", "metric", "train_loss", Direction.MINIMISE),
    ],
)
def test_objective_follows_from_what_is_tuned_on(tune_on: Any, quantity: Any, objective: str, direction: Any) -> None:
    plan = make_plan(tune_on=tune_on, tune_quantity=quantity)
    assert (plan.objective, plan.direction) == (objective, direction)


def test_metric_to_be_minimised_gives_its_direction() -> None:
    assert make_plan(metric_direction=Direction.MINIMISE).direction is Direction.MINIMISE


positive = st.floats(min_value=1e-6, max_value=1e6)


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(positive, min_size=1, max_size=6, unique=True),
    batch_sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
    momenta=st.lists(st.floats(0.0, 0.99).map(abs), min_size=1, max_size=2, unique=True),
    steps=st.lists(st.integers(1, 10**6), min_size=1, max_size=2, unique=True),
    num_seeds=st.integers(1, 4),
    final=st.none() | positive,
)
def test_every_run_of_a_plan_has_its_own_key(
    rates: list[float],
    batch_sizes: list[int],
    momenta: list[float],
    steps: list[int],
    num_seeds: int,
    final: float | None,
) -> None:
    plan = make_plan(
        rates=sorted(rates),
        batch_sizes=batch_sizes,
        momenta=tuple(momenta),
        budgets=tuple(Budget.steps(n) for n in steps),
        seeds=tuple(range(num_seeds)),
        schedule=Schedule() if final is None else Schedule.ending_at(final),
    )
    keys = [
        plan.run_spec(axes, effective_learning_rate=rate, seed=seed).key
        for axes in plan.grids()
        for rate in plan.base_learning_rates(axes)
        for seed in plan.seeds
    ]
    assert len(keys) == len(rates) * len(batch_sizes) * len(momenta) * len(steps) * num_seeds
    assert len(set(keys)) == len(keys)


def test_key_tells_tasks_and_precisions_apart_but_not_names() -> None:
    def key(**changes: Any) -> str:
        plan = make_plan(**changes)
        return plan.run_spec(plan.grids()[0], effective_learning_rate=1.0, seed=0).key

    others = [
        {"data_id": "other"},
        {"model_id": "other"},
        {"precision": "float64"},
        {"l2": 0.1},
        {"l2_scope": "all"},
        {"num_evaluations": 3},
        {"schedule": Schedule(gamma=3.0)},
    ]
    assert len({key(), *(key(**other) for other in others)}) == 1 + len(others)
    assert key(task="renamed", name="renamed", num_kept=1, tune_on="train", max_extensions=0) == key()


# -- what the task says ----------------------------------------------------------------------------


def test_a_sweep_takes_what_the_task_says_unless_it_says_otherwise() -> None:
    task = blobs_task(l2=0.25, l2_scope="all", clip_norm=5, precision="float32")
    plan = tiny_sweep(task=task, precision=None).plan()
    assert (plan.l2, plan.l2_scope, plan.clip_norm, plan.precision) == (0.25, "all", 5.0, "float32")
    other = tiny_sweep(task=task, l2=0, l2_scope="weights", clip_norm=1, precision="mixed").plan()
    assert (other.l2, other.l2_scope, other.clip_norm, other.precision) == (0.0, "weights", 1.0, "mixed")


def test_an_infinite_norm_clips_nothing() -> None:
    assert tiny_sweep(task=blobs_task(clip_norm=5.0), clip_norm=math.inf).plan().clip_norm is None
    assert tiny_sweep(task=blobs_task(clip_norm=math.inf)).plan().clip_norm is None
    assert tiny_sweep().plan().clip_norm is None


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "5", True])
def test_a_clipping_norm_is_positive(value: Any) -> None:
    with pytest.raises(UserError, match=r"clip_norm=.* is not above 0; use e\.g\. 5\.0, or infinity"):
        tiny_sweep(clip_norm=value)


def test_epochs_of_a_sequence_are_passes_over_its_streams() -> None:
    tokens = torch.arange(101) % 3
    split = (tokens[:-1], tokens[1:])
    task = blobs_task(train=split, test=split, model=lambda: torch.nn.Embedding(3, 3), unroll=4)
    plan = tiny_sweep(task=task, batch_sizes=[5, 10], budget=[Budget.epochs(3), Budget.steps(7)]).plan()
    steps = {(axes.batch_size, axes.budget.unit.value): plan.num_steps(axes) for axes in plan.grids()}
    # 101 tokens: streams of 20 and of 10, with (20 - 1) // 4 and (10 - 1) // 4 windows.
    assert steps == {(5, "epochs"): 12, (10, "epochs"): 6, (5, "steps"): 7, (10, "steps"): 7}
    assert SweepPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(UserError, match="hold no window of 4 tokens"):
        tiny_sweep(task=task, batch_sizes=[21], budget=Budget.steps(7))
