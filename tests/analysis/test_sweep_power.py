from __future__ import annotations

import dataclasses

import pytest

from helpers_landscape import broken_line, landscape_study
from helpers_protocol import make_plan
from isotherm.analysis import power as formulas
from isotherm.analysis.sweep_power import power
from isotherm.analysis.verdicts.draws import HEIGHT_WIDENING
from isotherm.core.budget import Budget
from isotherm.errors import UserError
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.results import StudyResults

SIZES = (8, 16, 32, 64)


def seeded(num_seeds: int, **changes: object) -> SweepPlan:
    fields = {"batch_sizes": SIZES, "seeds": tuple(range(num_seeds)), "num_kept": num_seeds, **changes}
    return make_plan(**fields)


def stored(noise: float = 0.01) -> StudyResults:
    return landscape_study(
        optimum=broken_line(1.0, 2**20, 2.0**19), peak=lambda _b, _m: 0.7, noise=noise, sizes=SIZES, momenta=(0.0,)
    )


def test_without_any_run_differences_are_in_standard_deviations_and_no_noise_is_invented() -> None:
    (found,) = power(seeded(5), difference=0.5)
    # SGD at equal steps: proportional, kink, large batches, test above train.
    assert (found.num_comparisons, found.num_verdicts, found.level) == (3, 4, 0.05 / 12)
    assert found.noise is None
    assert found.unit == "standard deviations between seeds"
    assert found.smallest_difference == formulas.smallest_difference(
        noise=HEIGHT_WIDENING, num_seeds=5, level=0.05 / 12
    )
    assert found.hidden is found.seeds_needed is None
    assert found.slope is not None
    assert found.slope.smallest_deviation is found.slope.decides_proportional is None
    assert "No stored run of this task tells the noise" in str(found)
    assert "depends on the noise between seeds" in str(found)
    assert "not known before a grid of this task is stored" in str(found)


def test_a_given_noise_is_in_points_and_tells_how_many_seeds_a_difference_needs() -> None:
    (found,) = power(seeded(5), noise=1.0, difference=0.5)
    assert found.unit == "points"
    assert found.noise is not None
    assert found.noise.standard_deviation == 0.01
    assert found.seeds_needed is not None
    (enough,) = power(seeded(found.seeds_needed), noise=1.0)
    (fewer,) = power(seeded(found.seeds_needed - 1), noise=1.0)
    assert enough.smallest_difference is not None
    assert fewer.smallest_difference is not None
    assert enough.smallest_difference <= 0.5 < fewer.smallest_difference
    assert f"A difference of 0.5 points needs {found.seeds_needed} seeds at each optimum; now 5." in str(found)
    (loss,) = power(seeded(5, metric="loss"), noise=1.0)
    assert (loss.unit, loss.noise) == ("loss", dataclasses.replace(found.noise, standard_deviation=1.0))


def test_stored_runs_of_the_same_task_tell_noise_and_curvature() -> None:
    earlier = stored(noise=0.01)
    (found,) = power(earlier.plan, results=earlier, difference=0.5)
    assert found.noise is not None
    assert found.noise.standard_deviation == pytest.approx(0.01, rel=0.3)
    assert found.noise.num_runs == 3 * 5 * len(SIZES)
    assert found.hidden == pytest.approx(0.75, rel=0.3)  # 3 points per octave squared, half an octave off
    assert found.seeds_needed is None
    assert "no more than the grid hides: seeds alone do not show it" in str(found)
    (wider,) = power(earlier.plan, results=earlier, difference=2.0)
    assert wider.seeds_needed is not None
    others = [seeded(5, data_id="another"), seeded(5, model_id="another"), seeded(5, metric="loss")]
    for other in others:
        assert power(other, results=earlier)[0].noise is None


def test_what_is_given_by_hand_goes_before_what_is_stored() -> None:
    earlier = stored()
    (found,) = power(earlier.plan, results=earlier.sweeps[0], noise=2.0)
    assert found.noise is not None
    assert (found.noise.standard_deviation, found.noise.num_runs) == (0.02, 0)
    assert found.hidden is not None
    assert "as given" in str(found)


def test_the_slope_is_decided_by_quiet_runs_over_many_batch_sizes() -> None:
    def decides(noise: float) -> bool | None:
        earlier = stored(noise)
        (found,) = power(earlier.plan, results=earlier)
        assert found.slope is not None
        return found.slope.decides_proportional

    assert decides(0.002) is True
    assert decides(0.06) is False
    (few,) = power(seeded(5, batch_sizes=(8, 16)))
    assert few.slope is None
    (single,) = power(seeded(5, batch_sizes=(8,)))
    assert single.smallest_difference is None


def test_verdicts_of_all_sweeps_share_the_level() -> None:
    plain = seeded(3, momenta=(0.0,), budgets=(Budget.epochs(4),))
    heavy = dataclasses.replace(plain, momenta=(0.9,))
    both = StudyPlan(name="both", question="", sweeps=(plain, heavy))
    # Twice proportional and kink, and momentum below and above the kink.
    assert [found.num_verdicts for found in power(both)] == [6, 6]
    assert [found.num_verdicts for found in power(plain)] == [2]
    assert "give no verdict" not in str(power(plain)[0])
    assert "Fewer than 3 seeds give no verdict." in str(power(seeded(2))[0])


@pytest.mark.parametrize("name", ["noise", "difference"])
def test_what_is_not_positive_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be a positive number"):
        power(seeded(3), **{name: 0.0})  # type: ignore[arg-type]


def test_confirming_seeds_and_refinement_count() -> None:
    earlier = stored(noise=0.01)
    (plan,) = earlier.plan.sweeps
    finer = dataclasses.replace(plan, resolution="adaptive", num_confirm=5)
    (coarse,), (fine,) = power(plan, results=earlier), power(finer, results=earlier, difference=0.5)
    assert coarse.hidden is not None
    assert fine.hidden == pytest.approx(coarse.hidden / 16)
    assert fine.ratio == pytest.approx(2**0.25)
    assert coarse.smallest_difference is not None
    assert fine.smallest_difference is not None
    assert fine.smallest_difference < 0.75 * coarse.smallest_difference
    assert fine.seeds_needed is not None
    assert f"needs {fine.seeds_needed} seeds at each optimum, confirming ones included; now 10." in str(fine)
