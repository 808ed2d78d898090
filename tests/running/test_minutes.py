"""Studies that run out of time: what is kept, what is left, and that the same call goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor, nn

from helpers_deadline import ends_after
from helpers_protocol import blobs_task, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.errors import UserError
from isotherm.running.runner import run, run_study
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep


class Branching(nn.Module):
    """What vmap cannot take: it looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.detach().sum()) > 0 else 2 * self.layer(x)


def sweep_of(**changes: object) -> Sweep:
    """Return a sweep of six runs, each of more than one window of updates."""
    return tiny_sweep(**{"budget": Budget.steps(200), **changes})


def test_time_enough_changes_nothing(tmp_path: Path) -> None:
    assert run(sweep_of(), store=tmp_path / "a.sqlite", minutes=60.0).by_key == run(sweep_of()).by_key


@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_out_of_time_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    study, store = Study.of(sweep_of()), tmp_path / "a.sqlite"
    with monkeypatch.context() as limited:
        ends_after(limited, 2)  # the fleet may start and one window is followed by another
        results = run_study(study, store=store, workers=workers, minutes=1.0)
    left = results.next_round()
    assert left is not None
    assert (left.number, len(left.specs)) == (0, 6)
    assert list((tmp_path / "a.sqlite.checkpoints").iterdir())
    told: list[float] = []

    class Told:
        def __getattr__(self, name: str) -> object:
            return told.append if name == "advanced" else lambda *_: None

    resumed = run_study(study, store=store, workers=workers, progress=Told())  # type: ignore[arg-type]
    assert resumed.next_round() is None
    assert sum(told) < sum(spec.num_steps for spec in left.specs) * (left.specs[0].batch_size + 40)
    assert resumed.by_key == run_study(study, workers=workers).by_key
    assert not (tmp_path / "a.sqlite.checkpoints").exists()


def test_fleets_after_the_deadline_are_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny_sweep(batch_sizes=[4, 8])  # runs of one window
    ends_after(monkeypatch, 2)
    results = run(sweep, store=tmp_path / "a.sqlite", minutes=1.0)
    assert results.counts() == {"finished": 6, "diverged": 0, "failed": 0, "missing": 6}


def test_runs_trained_one_at_a_time_are_kept_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, num_steps = blobs_task(model=Branching), 10
    ends_after(monkeypatch, 1 + 2 * (1 + num_steps) + 3)  # two runs and a bit
    results = run(tiny_sweep(task=task), store=tmp_path / "a.sqlite", minutes=1.0)
    assert results.counts() == {"finished": 2, "diverged": 0, "failed": 0, "missing": 4}
    monkeypatch.undo()
    assert run(tiny_sweep(task=task), store=tmp_path / "a.sqlite").by_key == run(tiny_sweep(task=task)).by_key


@pytest.mark.parametrize("store", [None, "a.sqlite"])
def test_minutes_too_short_for_anything_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    ends_after(monkeypatch, 0 if store else 1)
    with pytest.raises(UserError, match=r"0\.5 minutes are too short for one cell.*200 updates at B=8.*more minutes"):
        run(sweep_of(), store=store and tmp_path / store, minutes=0.5)


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_minutes_that_are_none_are_refused(minutes: float) -> None:
    with pytest.raises(UserError, match="minutes must be a positive number"):
        run(sweep_of(), minutes=minutes)
