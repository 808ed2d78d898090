"""Figure 4: the learning rate schedule. It is computed; nothing is trained.

Run:     isotherm reproduce figure4 --scale smoke
Cost:    nothing is trained
Expect:  4,882 of 9,765 updates at the first learning rate, then ten halvings, every 488 updates; measured: the same.
"""

from __future__ import annotations

from isotherm.analysis.verdicts.claim import Verdict
from isotherm.core.multipliers import multipliers
from isotherm.core.schedule import Schedule
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue

NUM_STEPS, HOLD, INTERVAL = 9765, 4882, 488


def _verdict(text: str) -> Verdict:
    """Return whether our schedule is the one of the text."""
    ours = multipliers(NUM_STEPS, gamma=2.0)
    theirs = [2.0 ** -min(10, 0 if i < HOLD else 1 + (i - HOLD) // INTERVAL) for i in range(NUM_STEPS)]
    num_equal = int((ours == theirs).sum())
    return Verdict(
        claim=text, holds=num_equal == NUM_STEPS, evidence=f"{num_equal:,} of {NUM_STEPS:,} learning rates are equal"
    )


def _decay_factor() -> str:
    """Return the ratio of the learning rates before and after the first drop of the schedule that runs have unasked."""
    gamma = Schedule().gamma
    assert gamma is not None
    values = multipliers(NUM_STEPS, gamma=gamma)
    return f"{values[0] / values[values < values[0]].max():g}"


OBJECT = PaperObject(
    identifier="figure4",
    shows="The learning rate schedule with γ = 2: constant for half of training, then ten drops.",
    networks="none",
    form=Form.SCHEDULE,
    text_values=(
        TextValue(what="decay factor γ", value="2", source="caption of figure 4", computed=_decay_factor),
        TextValue(
            what="updates at the first learning rate, of 9,765",
            value="4,882",
            source="section 5",
            computed=lambda: measured.hold_of_schedule(NUM_STEPS),
        ),
        TextValue(
            what="updates between drops, of 9,765",
            value="488",
            source="section 5",
            computed=lambda: measured.drop_of_schedule(NUM_STEPS),
        ),
    ),
    claims=(
        PaperClaim(
            text="of 9,765 updates 4,882 are at the first learning rate, then it halves every 488",
            source="section 5",
            verdict=_verdict,
        ),
    ),
    scales={scale: ScaledStudy(settings=(), note="The schedule itself; the same at every scale.") for scale in Scale},
)
