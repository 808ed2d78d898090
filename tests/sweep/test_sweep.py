from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from helpers_protocol import blobs, blobs_task, make_plan, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.rates import IsothermGrid
from isotherm.core.records import Direction
from isotherm.errors import UserError
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.sweep import Sweep

# -- bad sweeps: the message names the value, the reason and the remedy ----------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "blobs"}, r"task is str; give an isotherm.Task, or isotherm.get_task\(name\)"),
        # learning rates
        ({"effective_learning_rates": []}, r"effective_learning_rates is empty; give at least one value"),
        (
            {"effective_learning_rates": [0.5, 0.0]},
            r"effective learning rate must be a positive number, not 0.0",
        ),
        (
            {"effective_learning_rates": [-0.5]},
            r"effective learning rate must be a positive number, not -0.5",
        ),
        (
            {"effective_learning_rates": [math.nan]},
            r"effective learning rate must be a positive number, not nan",
        ),
        (
            {"effective_learning_rates": [math.inf]},
            r"effective learning rate must be a positive number, not inf",
        ),
        (
            {"effective_learning_rates": ["0.5"]},
            r"effective learning rate must be a positive number, not '0.5'",
        ),
        (
            {"effective_learning_rates": [True]},
            r"effective learning rate must be a positive number, not True",
        ),
        ({"effective_learning_rates": 0.5}, r"effective_learning_rates must be a list, not 0.5"),
        ({"effective_learning_rates": "0.5"}, r"effective_learning_rates must be a list, not '0.5'"),
        # momentum
        ({"momentum": 1.0}, r"momentum=1.0 is not in \[0, 1\); the paper uses 0.9, and 0 is plain SGD"),
        ({"momentum": [0.9, 1.5]}, r"momentum=1.5 is not in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum=-0.1 is not in \[0, 1\)"),
        ({"momentum": math.nan}, r"momentum=nan is not in \[0, 1\)"),
        ({"momentum": True}, r"momentum=True is not in \[0, 1\)"),
        ({"momentum": []}, r"momentum is empty; give at least one value"),
        # batch sizes
        ({"batch_sizes": []}, r"batch_sizes is empty; give at least one value"),
        ({"batch_sizes": [0]}, r"batch size must be a whole number of at least 1, not 0"),
        ({"batch_sizes": [-4]}, r"batch size must be a whole number of at least 1, not -4"),
        ({"batch_sizes": [8.0]}, r"batch size must be a whole number of at least 1, not 8.0"),
        ({"batch_sizes": ["8"]}, r"batch size must be a whole number of at least 1, not '8'"),
        ({"batch_sizes": [True]}, r"batch size must be a whole number of at least 1, not True"),
        ({"batch_sizes": 8}, r"batch_sizes must be a list, not 8"),
        ({"batch_sizes": "8"}, r"batch_sizes must be a list, not '8'"),
        (
            {"batch_sizes": [8, 33]},
            r"batch size 33 is larger than the training set of 32 examples; use at most 32",
        ),
        # seeds
        ({"num_seeds": 0}, r"num_seeds must be a whole number of at least 1, not 0"),
        ({"num_seeds": 2.0}, r"num_seeds must be a whole number of at least 1, not 2.0"),
        ({"num_seeds": "2"}, r"num_seeds must be a whole number of at least 1, not '2'"),
        ({"num_seeds": True}, r"num_seeds must be a whole number of at least 1, not True"),
        ({"first_seed": -1}, r"first_seed must be a whole number of at least 0, not -1"),
        (
            {"num_seeds": 3, "num_kept": 4},
            r"num_kept=4 is more than num_seeds=3; .* k <= n: lower num_kept or raise num_seeds",
        ),
        ({"num_kept": 0}, r"num_kept must be a whole number of at least 1, not 0"),
        ({"num_kept": True}, r"num_kept must be a whole number of at least 1, not True"),
        ({"num_evaluations": -1}, r"num_evaluations must be a whole number of at least 0, not -1"),
        ({"max_extensions": -1}, r"max_extensions must be a whole number of at least 0, not -1"),
        ({"max_extensions": None}, r"max_extensions must be a whole number of at least 0, not None"),
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
    with pytest.raises(
        UserError, match=r"0.1 epochs on 32 examples is less than one update at batch_size=8; use at least"
    ):
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


@pytest.mark.parametrize("num_seeds", [1, 2, 5, 15])
def test_all_seeds_are_kept_unless_fewer_are_asked_for(num_seeds: int) -> None:
    assert tiny_sweep(num_seeds=num_seeds).plan().num_kept == num_seeds
    assert tiny_sweep(num_seeds=num_seeds, num_kept=1).plan().num_kept == 1


def test_grids_are_refined_and_optima_confirmed_by_default() -> None:
    default = Sweep(
        task=blobs_task(), batch_sizes=[8], effective_learning_rates=[0.5], budget=Budget.steps(10), num_seeds=3
    ).plan()
    assert (default.resolution, default.smallest_ratio, default.num_confirm) == ("adaptive", 2.0**0.25, 3)
    assert (default.seeds, default.confirming_seeds) == ((0, 1, 2), (3, 4, 5))
    assert default.metric_bounds == (0.0, 1.0)


@pytest.mark.parametrize(
    ("resolution", "asked", "num_confirm"),
    [("paper", None, 0), ("paper", 4, 4), ("adaptive", 0, 0), ("adaptive", 7, 7)],
)
def test_confirming_seeds_follow_the_others(resolution: str, asked: int | None, num_confirm: int) -> None:
    plan = tiny_sweep(resolution=resolution, num_confirm=asked, first_seed=10).plan()
    assert plan.num_confirm == num_confirm
    assert plan.confirming_seeds == tuple(range(12, 12 + num_confirm))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resolution": "fine"}, "resolution"),
        ({"num_confirm": -1}, "num_confirm"),
        ({"num_confirm": 1.5}, "num_confirm"),
        ({"smallest_ratio": 1.0}, "smallest_ratio=1.0 is not a factor of at least 1.001"),
        ({"smallest_ratio": math.inf}, "smallest_ratio=inf"),
        ({"smallest_ratio": "2"}, "smallest_ratio='2'"),
    ],
)
def test_wrong_resolution_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_sweep(**changes)


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


def test_metric_to_be_minimised_gives_its_direction() -> None:
    assert make_plan(metric_direction=Direction.MINIMISE).direction is Direction.MINIMISE


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
    with pytest.raises(UserError, match="are too few for a window of 4 tokens"):
        tiny_sweep(task=task, batch_sizes=[21], budget=Budget.steps(7))
