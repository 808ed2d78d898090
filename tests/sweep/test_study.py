from __future__ import annotations

import json
from typing import Any

import pytest

import isotherm
from helpers_protocol import blobs_task, tiny_sweep
from isotherm.errors import UserError
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.study import Study


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a\\b", "line\nbreak", "star*", "end\n", "a:b"])
def test_name_that_no_file_could_have_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"study name .*: use letters, digits, spaces, '\.', '_' and '-'"):
        Study(name=name, sweeps=(tiny_sweep(),))


@pytest.mark.parametrize("name", ["B and ε", "figure-1_b", "v1.2"])
def test_name_for_people_is_taken(name: str) -> None:
    assert Study(name=name, sweeps=(tiny_sweep(),)).plan().name == name


@pytest.mark.parametrize("name", [None, 5], ids=str)
def test_name_of_another_type_is_refused(name: Any) -> None:
    with pytest.raises(UserError, match=f"name.*{name}"):
        Study(name=name, sweeps=(tiny_sweep(),))


def test_study_without_sweeps_is_refused() -> None:
    with pytest.raises(UserError, match=r"study 'empty' has no sweeps; give at least one"):
        Study(name="empty", sweeps=())


def test_study_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match=r"study 'mixed': sweeps holds str; give an isotherm.Sweep"):
        Study(name="mixed", sweeps=(tiny_sweep(), "sweep"))  # type: ignore[arg-type]


def test_a_task_is_no_sweep_and_the_remedy_makes_one() -> None:
    task = blobs_task()
    for make in (lambda given: Study(name="mine", sweeps=(given,)), Study.of):
        with pytest.raises(UserError, match=r"a Task; say what to try on it: isotherm\.Sweep\(") as caught:
            make(task)  # type: ignore[operator]
        sweep = eval(str(caught.value).partition("on it: ")[2], {"isotherm": isotherm, "task": task})
        assert make(sweep).sweeps == (sweep,)  # type: ignore[operator]


def test_a_study_is_run_as_one() -> None:
    study = Study.of(tiny_sweep())
    with pytest.raises(UserError, match=r"sweep is a Study; run it with isotherm\.run_study\(study\)"):
        isotherm.run(study)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"study is Sweep; run one with isotherm\.run\(sweep\)"):
        isotherm.run_study(tiny_sweep())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"study is NoneType; give an isotherm\.Study"):
        isotherm.run_study(None)  # type: ignore[arg-type]


def test_single_sweep_where_several_are_expected_is_refused() -> None:
    with pytest.raises(UserError, match="study 'one'"):
        Study(name="one", sweeps=tiny_sweep())  # type: ignore[arg-type]


def test_study_of_one_sweep_takes_its_name() -> None:
    sweep = tiny_sweep(name="mine")
    study = Study.of(sweep)
    assert (study.name, study.sweeps) == ("mine", (sweep,))
    with pytest.raises(UserError, match=r"study name 'a/b'"):
        Study.of(tiny_sweep(name="a/b"))


def test_plan_survives_json() -> None:
    task = blobs_task()
    study = Study(
        name="two",
        question="Does temperature alone decide?",
        sweeps=(tiny_sweep(task=task), tiny_sweep(task=task, tune_on="validation", num_seeds=5)),
    )
    plan = study.plan()
    again = StudyPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.question == "Does temperature alone decide?"
    assert [p.tune_on for p in again.sweeps] == ["test", "validation"]


def test_resolution_of_all_sweeps_at_once() -> None:
    sweep = tiny_sweep(num_seeds=3)
    study = Study(name="two", sweeps=(sweep, tiny_sweep(name="own", num_confirm=1)), question="Why?")
    refined = study.with_resolution("adaptive")
    assert [plan.resolution for plan in refined.plan().sweeps] == ["adaptive", "adaptive"]
    assert [plan.num_confirm for plan in refined.plan().sweeps] == [3, 1]  # what is given stays
    assert [plan.num_confirm for plan in refined.with_resolution("paper").plan().sweeps] == [0, 1]
    assert (refined.name, refined.question) == ("two", "Why?")
