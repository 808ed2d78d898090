"""Optimisers as an axis of a sweep: what is refused, which learning rates go with them, and plans in stores."""

import dataclasses
import json

import pytest

from helpers_protocol import blobs_task
from isotherm.core.budget import Budget
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.core.rates import IsothermGrid
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.running.store import Store
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.rounds import all_runs
from isotherm.sweep.sweep import Sweep

GRID = IsothermGrid(temperature=2**-5)


def sweep(**changes) -> Sweep:
    fields = {"task": blobs_task(), "batch_sizes": [8, 16], "budget": Budget.steps(4), "num_seeds": 2}
    return Sweep(**{**fields, "num_confirm": 0, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "effective_learning_rates or learning_rates, and neither is given"),
        ({"learning_rates": [1.0], "effective_learning_rates": [1.0]}, "both are given; give exactly one"),
        ({"learning_rates": []}, "learning_rates is empty"),
        ({"learning_rates": [0]}, "learning rate must be a positive number, not 0"),
        ({"learning_rates": GRID}, "an IsothermGrid holds effective learning rates"),
        ({"optimizer": "adamw"}, r"AdamW has no effective learning rate: .* give learning_rates=\[...\]"),
        ({"optimizer": AdamW(), "effective_learning_rates": GRID}, "AdamW has no effective learning rate"),
        ({"optimizer": [], "learning_rates": [1.0]}, "optimizer is empty"),
        ({"optimizer": "adamm", "learning_rates": [1.0]}, "'adamm' is no optimiser; did you mean 'adam'"),
        ({"optimizer": AdamW, "learning_rates": [1.0]}, r"is the class AdamW; give one of isotherm.SGD\(...\)"),
        ({"optimizer": 3, "learning_rates": [1.0]}, "optimizer=3 is of type int"),
        ({"optimizer": AdamW(), "learning_rates": [1.0], "momentum": 0.9}, "momentum=0.9 and optimizer are both given"),
        ({"optimizer": AdamW(), "learning_rates": [1.0], "l2": 0.1}, "l2=0.1, but AdamW has weight decay in place"),
        ({"optimizer": ["sgd", "adam"], "learning_rates": [1.0]}, "give them sweeps of their own"),
        ({"optimizer": ["adam", "muon"], "learning_rates": [1.0]}, "Adam has L2, AdamW and Muon have weight decay"),
        ({"learning_rates": [1.0], "final_learning_rates": [0.1]}, "give both as effective ones"),
    ],
    ids=str,
)
def test_what_cannot_be_swept_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        sweep(**changes)


def test_heavy_ball_is_the_sweep_it_always_was():
    """With an optimiser or without: the same plan, the same keys."""
    plans = [
        sweep(effective_learning_rates=[0.5, 1.0], **given).plan()
        for given in ({}, {"momentum": 0.9}, {"optimizer": SGD()}, {"optimizer": "sgd"}, {"optimizer": ["sgd"]})
    ]
    assert all(plan == plans[0] for plan in plans)
    assert "optimizers" not in plans[0].to_json()
    assert plans[0].methods == (SGD(),)
    bare = sweep(learning_rates=[0.05, 0.1]).plan()
    assert all_runs([bare], {}).keys() == all_runs([plans[0]], {}).keys()


def test_learning_rates_of_sgd_are_the_optimisers_own_for_every_momentum():
    plan = sweep(learning_rates=[0.1], momentum=[0.0, 0.5, 0.9]).plan()
    specs = all_runs([plan], {}).values()
    assert {(spec.momentum, spec.effective_learning_rate) for spec in specs} == {(0.0, 0.1), (0.5, 0.2), (0.9, 1.0)}
    assert {round(spec.learning_rate, 12) for spec in specs} == {0.1}
    assert plan.has_temperature


def test_every_optimiser_has_its_grids_and_betas_of_its_batch_size():
    optimizers = [AdamW(beta2=0.99, reference_batch_size=8), Muon(weight_decay=0.0)]
    plan = sweep(optimizer=optimizers, learning_rates=[0.01, 0.02]).plan()
    assert [(axes.method, axes.batch_size) for axes in plan.grids()] == [(o, b) for o in optimizers for b in (8, 16)]
    assert not plan.has_temperature
    assert plan.l2 == 0.0
    specs = list(all_runs([plan], {}).values())
    assert len(specs) == len({spec.key for spec in specs}) == 2 * 2 * 2 * 2
    betas = {(s.batch_size, s.optimizer.beta2) for s in specs if isinstance(s.optimizer, AdamW)}
    assert betas == {(8, 0.99), (16, 0.9801)}
    assert str(plan.grids()[0]) == "B=8, 4 steps, AdamW(beta2=0.99, reference_batch_size=8)"


def test_a_plan_comes_back_from_a_store():
    for changes in (
        {"optimizer": [AdamW(weight_decay=0.1), Muon(reference_batch_size=8)], "learning_rates": [0.01]},
        {"learning_rates": [0.1], "momentum": [0.0, 0.9]},
        {"optimizer": SGD(nesterov=True), "effective_learning_rates": [0.5]},
    ):
        plan = sweep(**changes).plan()
        assert SweepPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_adam_has_the_penalty_of_its_task_and_adamw_has_none():
    task = dataclasses.replace(blobs_task(), l2=0.25)
    found = {name: sweep(task=task, optimizer=name, learning_rates=[0.01]).plan().l2 for name in ("adam", "adamw")}
    assert found == {"adam": 0.25, "adamw": 0.0}
    assert sweep(task=task, optimizer=Adam(), learning_rates=[0.01], l2=0.5).plan().l2 == 0.5


def test_runs_of_several_optimisers_are_stored_and_not_trained_twice():
    given = sweep(optimizer=["adamw", AdamW(beta1=0.5), "muon"], learning_rates=[0.01, 0.02], resolution="paper")
    given = dataclasses.replace(given, max_extensions=0)
    with Store.in_memory() as store:
        first = run(given, store=store)
        again = run(given, store=store)
        assert first.counts() == again.counts()
        assert first.counts()["finished"] == 3 * 2 * 2 * 2
        kept = {stored.spec.key: stored.spec for stored in store.runs()}
    assert kept.keys() == first.by_key.keys()
    assert {spec.optimizer for spec in kept.values()} == {AdamW(), AdamW(beta1=0.5), Muon()}
    assert [grid.axes.method for grid in first.grids()] == [m for m in given.methods for _ in (8, 16)]


def test_muon_without_matrices_stores_nothing(tmp_path):
    from torch import nn

    filters = dataclasses.replace(
        blobs_task(),
        model=lambda: nn.Sequential(
            nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 3, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        ),
    )
    path = tmp_path / "s.sqlite"
    with pytest.raises(UserError, match="has none besides embeddings"):
        run(sweep(task=filters, optimizer="muon", learning_rates=[0.01]), store=path)
    assert not path.exists()
