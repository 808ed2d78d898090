"""A sweep without its task: what is stored and turned into runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers_protocol import make_plan, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.rates import IsothermGrid
from isotherm.core.records import Direction, RunSpec
from isotherm.core.run_schedule import RunSchedule
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.sweep.plan import SweepPlan


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


@pytest.mark.parametrize(
    ("tune_on", "quantity", "objective", "direction"),
    [
        ("test", "metric", "test_metric", Direction.MAXIMISE),
        ("test", "loss", "test_loss", Direction.MINIMISE),
        ("validation", "metric", "validation_metric", Direction.MAXIMISE),
        ("validation", "loss", "validation_loss", Direction.MINIMISE),
        ("train", "metric", "train_objective", Direction.MINIMISE),
    ],
)
def test_objective_follows_from_what_is_tuned_on(tune_on: Any, quantity: Any, objective: str, direction: Any) -> None:
    plan = make_plan(tune_on=tune_on, tune_quantity=quantity)
    assert (plan.objective, plan.direction) == (objective, direction)


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


def test_plans_of_earlier_stores_are_the_paper_s() -> None:
    content = json.loads(json.dumps(make_plan().to_json()))
    for name in ("resolution", "smallest_ratio", "num_confirm", "metric_bounds"):
        del content[name]
    plan = SweepPlan.from_json(content)
    assert (plan.resolution, plan.num_confirm, plan.confirming_seeds) == ("paper", 0, ())
    assert plan.metric_bounds == (0.0, 1.0)  # an accuracy
    assert SweepPlan.from_json({**content, "metric": "perplexity"}).metric_bounds is None


def test_resolution_and_confirming_seeds_are_stored() -> None:
    plan = make_plan(resolution="adaptive", smallest_ratio=1.1, num_confirm=3, metric_bounds=(-1.0, 1.0))
    assert SweepPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.confirming_seeds == (2, 3, 4)


# -- schedules --------------------------------------------------------------------------------------------------


def runs_with(schedule: Schedule | str, **changes: Any) -> list[RunSpec]:
    plan = tiny_sweep(schedule=schedule, budget=Budget.steps(40), **changes).plan()
    return [plan.run_spec(axes, effective_learning_rate=0.5, seed=0) for axes in plan.grids()]


def test_runs_carry_the_schedule_of_their_sweep() -> None:
    (run,) = runs_with(Schedule.cosine(warmup_fraction=0.1, final_effective_learning_rate=0.05))
    assert run.schedule == RunSchedule(shape="cosine", warmup_steps=4, final_fraction=0.1)
    assert runs_with("linear")[0].schedule == RunSchedule(shape="linear", final_fraction=0.0)
    assert runs_with("paper")[0].key == runs_with(Schedule())[0].key


def test_final_learning_rates_end_any_schedule_that_has_one() -> None:
    for shape in ("linear", "cosine", "wsd"):
        plan = tiny_sweep(schedule=shape, final_learning_rates=[0.1, 0.25]).plan()
        made = [
            plan.run_spec(plan.grids()[0], effective_learning_rate=0.5, seed=0, final_learning_rate=final)
            for final in plan.final_learning_rates
        ]
        assert [run.schedule.final_fraction for run in made if run.schedule is not None] == [0.2, 0.5]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "cosin"}, "schedule 'cosin' is unknown; did you mean 'cosine'"),
        ({"schedule": lambda done: 1 - done}, r"is function; use isotherm.Schedule.of\(function\)"),
        ({"schedule": 0.1}, "is float; give an isotherm.Schedule"),
        ({"schedule": Schedule.cosine(warmup_steps=40)}, "batch size 8: a warm-up of 40 .* a training of 40 updates"),
        (
            {"schedule": Schedule.cosine(warmup_steps=9), "estimate_at": Budget.steps(8)},
            "warm-up of 9 .* a training of 8",
        ),
        ({"schedule": "constant", "final_learning_rates": [0.1]}, "need a schedule that ends at one"),
        ({"schedule": Schedule.of(lambda _: 1.0), "final_learning_rates": [0.1]}, "need a schedule that ends at one"),
        (
            {"schedule": Schedule.linear(final_fraction=0.1), "final_learning_rates": [0.1]},
            "both say where training ends",
        ),
    ],
)
def test_schedules_that_do_not_suit_a_sweep_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_sweep(**{"budget": Budget.steps(40), **changes})


@pytest.mark.parametrize("schedule", [Schedule.wsd(warmup_steps=3), Schedule.of(lambda done: (1 - done) ** 2)])
def test_a_plan_with_a_schedule_survives_json(schedule: Schedule) -> None:
    plan = tiny_sweep(schedule=schedule).plan()
    again = SweepPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    axes = plan.grids()[0]
    keys = [p.run_spec(axes, effective_learning_rate=0.5, seed=0).key for p in (plan, again)]
    assert keys[0] == keys[1]
