"""A diagnosis in one call, of a task or of its parts."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import cases
import isotherm as it
from helpers_diagnosis import make_diagnosis
from isotherm.diagnose import ask
from isotherm.errors import UserError
from isotherm.tasks.task import Task

PARTS = {"model": cases.build_mlp, "train": cases.blobs(30, seed=0), "test": cases.blobs(9, seed=1)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Task, it.DiagnoseOptions]]:
    """What the procedure is asked for in place of doing it."""
    calls = []

    def procedure(task: Task, options: it.DiagnoseOptions, **others: Any) -> it.Diagnosis:
        calls.append((task, options))
        others.get("on_stage", print)("checking the task")
        return make_diagnosis()

    monkeypatch.setattr(ask, "procedure", procedure)
    return calls


def test_the_parts_make_the_task(asked: list[Any]) -> None:
    found = it.diagnose(
        **PARTS, loss="cross_entropy", metric="accuracy", epochs=30, batch_size=16, learning_rate=0.1, progress=False
    )
    assert isinstance(found, it.Diagnosis)
    ((task, options),) = asked
    assert (task.name, task.model, task.metric) == ("build_mlp", cases.build_mlp, "accuracy")
    assert (options.epochs, options.batch_size, options.learning_rate) == (30, 16, 0.1)


def test_a_task_is_taken_as_it_is(asked: list[Any]) -> None:
    own = Task(name="mine", **PARTS)
    it.diagnose(own, steps=100, workers=1, minutes=2, progress=False)
    assert asked[0][0] is own
    assert (asked[0][1].steps, asked[0][1].workers, asked[0][1].minutes) == (100, 1, 2)


def test_workers_are_those_that_suit_the_machine(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "default_workers", lambda device: {"cpu": 3, "cuda": 1}[device])
    it.diagnose(**PARTS, epochs=1, progress=False)
    it.diagnose(**{**PARTS, "model": lambda: cases.build_mlp()}, epochs=1, progress=False, device="cuda")
    assert [options.workers for _, options in asked] == [3, 1]
    assert asked[1][0].name == "model"


def test_stages_are_told_unless_they_are_not_wanted(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def stages() -> Any:
        yield told.append

    monkeypatch.setattr("isotherm.cli.shown_progress.default_stages", stages)
    it.diagnose(**PARTS, epochs=1)
    assert told == ["checking the task"]
    it.diagnose(**PARTS, epochs=1, progress=False)
    assert told == ["checking the task"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "model=, train=, test= missing; give a task, or model="),
        ({"model": cases.build_mlp}, "train=, test= missing"),
        ({"epoch": 3}, "diagnose takes no 'epoch'; did you mean 'epochs'"),
        ({"task": Task(name="mine", **PARTS), "loss": "mse"}, "a task and loss= are both given"),
        ({"task": cases.build_mlp}, r"task is function; give an isotherm\.Task, or the parts of one"),
        ({**PARTS, "epochs": None}, "give epochs"),
    ],
)
def test_what_makes_no_task_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        it.diagnose(**{"epochs": 1, **given}, progress=False)
