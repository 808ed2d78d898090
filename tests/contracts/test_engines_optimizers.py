"""The contract of the engines for every optimiser: 200 updates of a fleet are those of `torch.optim`, to 1e-9."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

import cases
from cases_optimizers import KINDS, compare_unused_bias, members
from helpers_engines import Trained, assert_same, by_fleet, by_reference
from isotherm.core.records import Outcome, RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.errors import UserError

TASKS = {"mlp": cases.blobs_task, "conv": cases.conv_task, "batch_norm": cases.batch_norm_task}


@functools.cache
def placed(name: str) -> PlacedTask:
    return place_task(TASKS[name](), precision="float64")


@functools.cache
def reference(name: str, spec: RunSpec) -> Trained:
    return by_reference(placed(name), spec)


@pytest.mark.parametrize(
    ("name", "kind"), [*(("mlp", kind) for kind in KINDS), ("conv", "adamw"), ("conv", "muon"), ("batch_norm", "adamw")]
)
def test_fleet_equals_reference_after_200_updates(name, kind, caplog):
    specs = members(TASKS[name](), kind, num_evaluations=2)
    assert specs[0].num_steps == 200
    expected = [reference(name, spec) for spec in specs]
    ours = by_fleet(placed(name), specs)
    if name == "batch_norm":
        compare_unused_bias(ours, expected)
    assert_same(ours, expected)
    assert caplog.text == ""  # it was a fleet indeed, not one run at a time
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}
    assert len({result.train_loss for result, _ in expected}) == len(specs)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_is_that_of_the_reference(kind):
    specs = members(TASKS["mlp"](), kind, num_steps=60, clip_norm=0.5)
    expected = [reference("mlp", spec) for spec in specs]
    assert_same(by_fleet(placed("mlp"), specs), expected)
    fractions = [result.clipped_fraction for result, _ in expected]
    assert all(fraction > 0 for fraction in fractions)
    assert any(fraction < 1 for fraction in fractions)


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_decay_may_cover_all_parameters(kind):
    specs = members(TASKS["mlp"](), kind, num_steps=40, l2_scope="all")
    expected = [reference("mlp", spec) for spec in specs]
    assert_same(by_fleet(placed("mlp"), specs), expected)
    weights_only = reference("mlp", dataclasses.replace(specs[0], l2_scope="weights"))
    assert expected[0][0].train_loss != weights_only[0].train_loss


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_alone_and_in_company_is_the_same(kind):
    specs = members(TASKS["mlp"](), kind, num_steps=30)
    together = by_fleet(placed("mlp"), specs)
    assert_same(by_fleet(placed("mlp"), specs[1:2]), together[1:2])
    assert_same(by_fleet(placed("mlp"), specs[::-1]), together[::-1])


@pytest.mark.parametrize("kind", KINDS)
def test_diverged_runs_leave_and_the_others_go_on(kind):
    """Losses overflow at a huge rate; the fleet shrinks and keeps every run's own settings."""
    task = TASKS["mlp"]()
    specs = members(task, kind, num_steps=150)
    lost = [dataclasses.replace(specs[0], effective_learning_rate=1e200, seed=seed) for seed in (5, 6)]
    ours = by_fleet(placed("mlp"), [lost[0], *specs, lost[1]], updates_per_window=16)
    assert_same(ours[1:-1], [reference("mlp", spec) for spec in specs])
    for (result, _), spec in zip((ours[0], ours[-1]), lost, strict=True):
        expected = reference("mlp", spec)[0]
        assert result.outcome is Outcome.DIVERGED
        assert result.divergence_step == expected.divergence_step


@pytest.mark.parametrize("kind", KINDS)
def test_a_fleet_continues_from_a_checkpoint(kind, tmp_path):
    specs = members(TASKS["mlp"](), kind, num_steps=100)

    class Stops(Exception):
        pass

    made = 0

    def stop(num: int) -> None:
        nonlocal made
        made += num
        if made >= 64 * len(specs):
            raise Stops

    def checkpoint() -> Checkpoint:
        return Checkpoint(tmp_path / "fleet", seconds=0.0, identity="these")

    with pytest.raises(Stops):
        run_fleet(placed("mlp"), specs, on_steps=stop, checkpoint=checkpoint(), updates_per_window=32)
    continued = []
    ours = by_fleet(
        placed("mlp"), specs, checkpoint=checkpoint(), updates_per_window=32, on_steps=lambda num: continued.append(num)
    )
    assert sum(continued) == (100 - 32) * len(specs)
    assert_same(ours, [reference("mlp", spec) for spec in specs])


def test_kinds_do_not_share_a_fleet():
    task = TASKS["mlp"]()
    specs = [members(task, kind, num_steps=5)[0] for kind in ("adamw", "muon")]
    with pytest.raises(UserError, match="kind of optimiser"):
        run_fleet(placed("mlp"), specs)


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(2, 3), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weight_decay_leaves_alone_what_the_loss_does_not_use(kind):
    task = cases.classification("unused", WithUnused)
    specs = members(task, kind, num_steps=20)
    here = place_task(task, precision="float64")
    ours, expected = by_fleet(here, specs), [by_reference(here, spec) for spec in specs]
    assert_same(ours, expected)
    initial = dict(here.model(seed=0, batch_size=10).named_parameters())
    assert torch.equal(ours[0][1]["spare.weight"], initial["spare.weight"])
    assert not torch.equal(ours[0][1]["used.weight"], initial["used.weight"])


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_single_precision_agrees_as_far_as_it_reaches(kind):
    task = TASKS["mlp"]()
    here = place_task(task, precision="float32")
    for spec in members(task, kind, precision="float32", num_steps=20):
        (ours,) = run_fleet(here, [spec])
        assert ours.train_loss == pytest.approx(by_reference(here, spec)[0].train_loss, rel=1e-3)
