"""Claims about initial and final learning rates on made-up planes whose optima are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers_protocol import finished, make_plan
from helpers_verdicts import alone
from isotherm.analysis.analysis import analyse
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import RunSpec
from isotherm.report.paper.draw import figures
from isotherm.report.paper.finding import Finding
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.claims import two_rates as claims
from isotherm.studies.paper.definition import Scale
from isotherm.studies.paper.registry import objects
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

BUDGETS = (5, 20, 80)


def made(*, initial: tuple[float, float], final: tuple[float, float], train: tuple[float, float]) -> Any:
    """Return an analysis in which log2 of both optima runs from the first value to the second over the budgets.

    `train` are those of the training loss at every budget.
    """
    plan = make_plan(
        rates=powers_of_two(-3, 3),
        final_learning_rates=powers_of_two(-12, -4),
        budgets=tuple(Budget.epochs(e) for e in BUDGETS),
        momenta=(0.9,),
        num_train=64,
        seeds=tuple(range(5)),
        num_kept=5,
        max_extensions=0,
    )
    results = {spec.key: _run(spec, initial, final, train) for spec in all_runs([plan], {}).values()}
    study = StudyPlan(name="made", question="", sweeps=(plan,))
    return analyse(StudyResults(plan=study, by_key=results))


def _run(spec: RunSpec, initial: tuple[float, float], final: tuple[float, float], train: tuple[float, float]) -> Any:
    part = math.log2(spec.num_steps / 20) / 4  # 0 at the first budget, 1 at the last
    start = math.log2(spec.effective_learning_rate)
    end = start - 10 * math.log2(spec.gamma)
    noise = np.random.default_rng([spec.seed, spec.num_steps, round(10 * start + 500), round(10 * end + 500)])
    best = [values[0] + part * (values[1] - values[0]) for values in (initial, final)]
    lost = 0.03 * (start - best[0]) ** 2 + 0.004 * (end - best[1]) ** 2
    fit = (start - train[0]) ** 2 + 0.1 * (end - train[1]) ** 2
    return finished(
        0.7 - lost + 0.001 * float(noise.normal()),
        train_loss=0.3 - 0.1 * part + 0.01 * fit + 1e-4 * float(noise.uniform()),
        l2_penalty=0.0,
    )


@pytest.fixture(scope="module")
def analysis() -> Any:
    """As in the paper: the initial rate stays, the final one falls; the training loss wants them closer together."""
    return made(initial=(0.5, 0.5), final=(-6.5, -9.5), train=(-0.5, -6.2))


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (claims.initial_stays(), True),
        (claims.falls("final", "test"), True),
        (claims.falls("initial", "test"), None),  # it does not fall, to within more than the margin
        (claims.test_above_train("initial", sign=1), True),
        (claims.test_above_train("final", sign=-1), True),
        (claims.test_above_train("final", sign=1), False),
        (claims.metric_saturates(), True),
        (claims.training_falls(), True),
    ],
)
def test_claims(analysis: Any, test: claims.Test, holds: bool | None) -> None:
    assert alone(test("a claim", analysis)).holds is holds


def test_an_initial_rate_that_falls_does_not_stay() -> None:
    found = made(initial=(2.0, -2.0), final=(-8.0, -8.0), train=(0.0, -8.0))
    assert alone(claims.initial_stays()("a claim", found)).holds is False
    assert alone(claims.falls("initial", "test")("a claim", found)).holds is True


def test_three_budgets_do_not_show_that_one_rate_matters_less(analysis: Any) -> None:
    found = alone(claims.wider_final()("a claim", analysis))
    assert found.holds is None
    assert "sign test" in found.evidence


def test_a_final_rate_at_the_end_of_its_grid_leaves_claims_open() -> None:
    found = made(initial=(0.0, 0.0), final=(-13.0, -13.0), train=(0.0, -8.0))
    verdict = alone(claims.falls("final", "test")("a claim", found))
    assert verdict.holds is None
    assert "end of its grid" in verdict.evidence


def test_an_initial_rate_that_rises_does_not_fall() -> None:
    found = made(initial=(-1.5, 1.5), final=(-8.0, -8.0), train=(0.0, -8.0))
    assert alone(claims.falls("initial", "test")("a claim", found)).holds is False


def test_the_figure_has_the_paper_s_four_panels_and_a_map_per_budget(analysis: Any) -> None:
    finding = Finding(wanted=objects()["figure3"], scale=Scale.SMOKE, analysis=analysis, verdicts=())
    (_, first), *maps = figures(finding)
    assert [panel.get_title(loc="left") for panel in first.axes] == list("abcd")
    points = [container.lines[0].get_xydata() for panel in first.axes for container in panel.containers]
    assert [len(found) for found in points] == [3] * 6  # metric, loss, two rates of either
    assert points[0][:, 1] == pytest.approx([70.0] * 3, abs=0.5)  # percent
    assert points[2][:, 1] == pytest.approx([2.0**0.5] * 3, rel=0.15)
    assert points[3][:, 1] == pytest.approx([2.0**-6.5, 2.0**-8.0, 2.0**-9.5], rel=0.15)
    assert len(maps) == 3
    for _, drawn in maps:  # test metric and training loss, each with both optima and their error bars
        panels = [panel for panel in drawn.axes if panel.containers]
        assert [len(panel.containers) for panel in panels] == [2, 2]


def test_numbers_of_the_text_are_read_from_the_planes(analysis: Any) -> None:
    assert measured.saturation()(analysis) == "5 epochs of 5 epochs to 80 epochs"
    assert measured.constant_initial()(analysis) == "5 epochs of 5 epochs to 80 epochs"
    assert str(measured.decay_factor()(analysis)).startswith("2.0")  # 2 to the power of (0.5 + 9.5) / 10
    falling = made(initial=(1.5, -0.5), final=(-6.5, -9.5), train=(-0.5, -6.2))
    assert measured.constant_initial()(falling) == "not up to 80 epochs"
