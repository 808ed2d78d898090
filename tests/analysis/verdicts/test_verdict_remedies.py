from __future__ import annotations

import math
import tomllib

import pytest

from helpers_protocol import make_plan
from isotherm.analysis.verdicts.remedies import (
    Remedy,
    finer_grids,
    finish,
    first_seeds,
    more_batch_sizes,
    more_seeds,
    wider_grids,
)
from isotherm.cli.main import app
from isotherm.studies.load import _Sweep

PLAN = make_plan(batch_sizes=(8, 16, 32), num_train=100, seeds=tuple(range(5)), max_extensions=2, resolution="adaptive")
PAPER = make_plan(seeds=tuple(range(5)), resolution="paper")
ALL = [
    finish(),
    finer_grids(),
    first_seeds(PLAN),
    wider_grids(PLAN),
    more_batch_sizes(PLAN),
    more_batch_sizes(PLAN, smaller=False),
    more_seeds(PLAN, 2.3),
    more_seeds(PLAN, math.inf),
    more_seeds(PLAN, 1e9),
    more_seeds(PAPER, 2.3),
]


@pytest.mark.parametrize("remedy", ALL, ids=lambda r: r.what[:20])
def test_every_remedy_is_a_command_that_parses_and_a_line_that_a_study_takes(remedy: Remedy) -> None:
    import shlex

    import typer.main

    words = shlex.split(remedy.command(["isotherm", "run", "my study.toml"]))
    assert words[:3] == ["isotherm", "run", "my study.toml"]
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    context = run.make_context("run", words[2:])
    assert context.params
    if remedy.line:
        fields = tomllib.loads(f'name = "{remedy.sweep}"\n{remedy.line}')
        assert _Sweep.model_validate(fields).batch_sizes
        assert remedy.line in remedy.words
        assert f'in the sweep "{PLAN.name}", then' in remedy.words


def test_seeds_are_named_by_power_and_always_more_than_there_are() -> None:
    assert more_seeds(PLAN, 2.3).options == ("--seeds", "12")
    assert more_seeds(PLAN, 0.3).options == ("--seeds", "6")
    assert more_seeds(PLAN, 20.0).options == ("--seeds", "100")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (20.1, "80 % power would take some 100)"),
        (1425.0, "80 % power would take some 7,100)"),
        (1e9, "lies on a margin)"),
        (math.inf, "lies on a margin)"),
    ],
)
def test_a_number_of_seeds_that_nobody_runs_is_said_and_not_asked_for(factor: float, words: str) -> None:
    remedy = more_seeds(PLAN, factor)
    assert remedy.options == ("--seeds", "20")
    assert remedy.words.startswith("run 20 seeds instead of 5 (to begin with: ")
    assert remedy.words.endswith(words)


def test_a_fixed_grid_is_refined_as_well() -> None:
    remedy = more_seeds(PAPER, 2.3)
    assert remedy.options == ("--seeds", "12", "--resolution", "adaptive")
    assert remedy.words.endswith("and refine the grids")


def test_batch_sizes_stay_within_the_training_set_and_above_nothing() -> None:
    assert more_batch_sizes(PLAN).line == "batch_sizes = [2, 4, 8, 16, 32, 64]"
    assert more_batch_sizes(PLAN, larger=False).line == "batch_sizes = [2, 4, 8, 16, 32]"
    small = make_plan(batch_sizes=(1, 2), num_train=1000)
    assert more_batch_sizes(small).line == "batch_sizes = [1, 2, 4, 8]"


def test_grids_may_grow_further_than_before() -> None:
    assert wider_grids(PLAN).options == ("--max-extensions", "5")
