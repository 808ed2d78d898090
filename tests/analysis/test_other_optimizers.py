"""What is found of optimisers that have neither an effective learning rate nor a temperature."""

from __future__ import annotations

import functools

import pytest

from helpers_optimizers import METHODS, study_of_powers
from isotherm.analysis.analysis import Analysis, analyse
from isotherm.analysis.sweep_power import _num_verdicts
from isotherm.core.optimizers import SGD, AdamW, Optimizer


@functools.cache
def found(power: float, *methods: Optimizer) -> Analysis:
    return analyse(study_of_powers(power, *methods))


@pytest.mark.parametrize(("power", "words"), [(0.5, "with √B, not with B"), (1.0, "with B, not with √B")])
def test_the_exponent_is_measured(power: float, words: str) -> None:
    for law in found(power).regimes:
        assert law.slope.contains(power)
        assert f"(this agrees {words})" in str(law)
        assert "ε* ∝ B^" in str(law)
        assert "ε_eff" not in str(law)
    assert [law.label for law in found(power).regimes] == [method.label for method in METHODS]


@pytest.mark.parametrize(("power", "root", "linear"), [(0.5, True, False), (1.0, False, True)])
def test_both_rules_are_judged(power: float, root: bool, linear: bool) -> None:
    verdicts = found(power).verdicts
    of = {
        what: [v.holds for v in verdicts if v.claim.endswith(f"is proportional to {what}")]
        for what in ("the batch size", "the square root of the batch size")
    }
    assert of == {"the batch size": [linear] * 2, "the square root of the batch size": [root] * 2}
    assert not any("effective" in v.claim + v.evidence or "ε_eff" in v.claim + v.evidence for v in verdicts)
    assert len(verdicts) == _num_verdicts(found(power).plan.sweeps)


def test_a_recommendation_ends_in_the_lines_of_its_optimiser() -> None:
    adamw, muon = found(0.5).recommendations
    betas = METHODS[0].at(adamw.batch_size)
    assert isinstance(betas, AdamW)
    assert f"torch.optim.AdamW(groups, lr={adamw.learning_rate}, betas=({betas.beta1}, {betas.beta2})" in str(adamw)
    assert "torch.optim.Muon(" in str(muon)
    for advice in (adamw, muon):
        assert advice.temperature is None
        assert advice.learning_rate == advice.effective_learning_rate
        assert "temperature" not in str(advice)
        assert "ε_eff" not in str(advice)


def test_sgd_keeps_its_words() -> None:
    analysis = found(1.0, SGD(momentum=0.9))
    (advice,) = analysis.recommendations
    assert "temperature" in str(advice)
    assert advice.optimizer == "momentum 0.9"
    assert str(analysis.regimes[0]).startswith("ε_eff* ∝ B^")
    assert sum("square root" in verdict.claim for verdict in analysis.verdicts) == 0


def test_adamw_is_no_plain_sgd_beside_momentum() -> None:
    """AdamW has no momentum of SGD, and is compared with none."""
    assert found(0.5).joint_regimes == ()
