"""A stack from the outside: what listeners are told, what a checkpoint holds, and who may look inside."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch

import cases
from isotherm.core.records import CurvePoint, Outcome
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import run_stack
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.run_stack import Listeners, RunStack

PACKAGE = Path(run_stack.__file__).parent
SOURCE = PACKAGE.parents[1]
NUM_STEPS = 12
# What a stack is made with, made of and refused by; the rest is its own.
PUBLIC = {"plan", "run_stack", "model"}


class Told:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.points: list[tuple[int, CurvePoint]] = []
        self.trained: list[int] = []

    def listeners(self) -> Listeners:
        return Listeners(
            on_steps=self.steps.append,
            on_evaluation=lambda index, point: self.points.append((index, point)),
            on_trained=lambda index, _: self.trained.append(index),
        )


def stack_of(told: Told, *, first_index: int = 0, wild: bool = True, **changes: bool) -> RunStack:
    """Return a stack of three runs, of which the second diverges."""
    task = cases.regression_task()
    rates = (0.1, 1e200 if wild else 0.2, 0.05)
    specs = [
        cases.spec(task, seed=seed, num_steps=NUM_STEPS, num_evaluations=2, effective_learning_rate=rate)
        for seed, rate in enumerate(rates)
    ]
    placed = place_task(task, precision="float64")
    plan = StackPlan.of(placed, specs, convolves=False, updates_per_window=4, first_index=first_index)
    return RunStack.of(dataclasses.replace(plan, **changes), told.listeners())


def advance(stack: RunStack) -> None:
    stack.start_window()
    stack.finish_window()
    if stack.wants_evaluation:
        stack.evaluate()
    if not stack.is_done:
        stack.shrink()


def test_listeners_are_told_of_runs_by_their_index_in_the_fleet() -> None:
    told = Told()
    stack = stack_of(told, first_index=10)
    while not stack.is_done:
        advance(stack)
    assert told.steps == [3 * 4, 2 * 2, 2 * 4, 2 * 2]  # windows end at updates 4, 6, 10 and 12
    assert [index for index, _ in told.points] == [10, 12, 10, 12]
    assert [point.step for _, point in told.points] == [6, 6, 12, 12]
    results = stack.results()
    assert told.trained == [10, 12]
    assert [result.outcome for result in results] == [Outcome.FINISHED, Outcome.DIVERGED, Outcome.FINISHED]
    assert results[0].curve == tuple(point for index, point in told.points if index == 10)


@pytest.mark.parametrize("num_windows", [0, 1, 3])
def test_a_saved_stack_continues_with_the_same_bits(num_windows: int) -> None:
    first, second = stack_of(Told()), stack_of(Told())
    for _ in range(num_windows):
        advance(first)
    saved = first.saved()
    assert second.can_restore(saved)
    second.restore(saved)
    for stack in (first, second):
        while not stack.is_done:
            advance(stack)
    assert second.results() == first.results()


def test_the_program_of_another_stack_gives_the_same_numbers() -> None:
    """With the same shapes, by the kind of program that is handed its batch; the first must have begun."""
    first, second, alone = (stack_of(Told(), wild=False, binds_batch=False) for _ in range(3))
    second.share_program(first)
    for stack in (first, second, alone):
        stack.start_window()
        stack.finish_window()
    states = [stack.saved()["values"] for stack in (second, alone)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*states, strict=True))


def _imported(path: Path) -> set[str]:
    """Return the modules of the stack that a file imports, by their last name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == "isotherm.engine.stack":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("isotherm.engine.stack."):
                found.add(node.module.rpartition(".")[2])
    return found


OUTSIDE = [path for path in sorted(SOURCE.rglob("*.py")) if PACKAGE not in path.parents]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_outside_knows_the_parts_of_a_stack(path: Path) -> None:
    assert _imported(path) <= PUBLIC
    assert "._parts" not in path.read_text()
