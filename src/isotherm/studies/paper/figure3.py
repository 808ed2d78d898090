"""Figure 3: initial and final learning rate tuned apart, growing epoch budget.

Run:     isotherm reproduce figure3 --scale laptop
Cost:    laptop 300 runs, 60 s; gpu 144 runs, 37 min; paper 2,744 runs, 22 days
Expect:  paper, best 5 of 7 runs: from 400 epochs the best initial rate for accuracy stays, the final one falls.
"""

from __future__ import annotations

from isotherm.core.rates import powers_of_two
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.claims import two_rates as claims
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.networks import EMBEDDED
from isotherm.studies.paper.settings import ADAPTIVE, BUDGETS, SMOKE, SMOKE_NOTE, doubled, epochs, over_budgets

CAPTION = "caption of figure 3"


OBJECT = PaperObject(
    identifier="figure3",
    shows="Initial and final learning rate tuned apart, for the test accuracy and for the training loss.",
    networks="WRN-16-4 with batch norm, CIFAR-10",
    form=Form.TWO_RATES,
    text_values=(
        TextValue(
            what="epochs beyond which test accuracy saturates",
            value="800",
            source=f"{CAPTION}, a",
            measured=measured.saturation(),
        ),
        TextValue(
            what="epochs beyond which the best initial ε_eff is constant",
            value="400",
            source=f"{CAPTION}, c",
            measured=measured.constant_initial(),
        ),
        TextValue(
            what="decay factor γ of the other figures",
            value="2",
            source="section 6.1",
            measured=measured.decay_factor(),
        ),
    ),
    claims=(
        PaperClaim(text="test accuracy saturates", source=f"{CAPTION}, a", test=claims.metric_saturates()),
        PaperClaim(
            text="the training loss falls as the epoch budget rises",
            source=f"{CAPTION}, b",
            test=claims.training_falls(),
        ),
        PaperClaim(
            text="the best initial learning rate on the test set is constant at large budgets",
            source=f"{CAPTION}, c",
            test=claims.initial_stays(),
        ),
        PaperClaim(
            text="the best final learning rate on the test set falls",
            source=f"{CAPTION}, c",
            test=claims.falls("final", "test"),
        ),
        PaperClaim(
            text="the best initial learning rate for the training loss falls",
            source=f"{CAPTION}, d",
            test=claims.falls("initial", "train"),
        ),
        PaperClaim(
            text="the best final learning rate for the training loss falls",
            source=f"{CAPTION}, d",
            test=claims.falls("final", "train"),
        ),
        PaperClaim(
            text="the final learning rate is known much less well than the initial one",
            source="section 6.1",
            test=claims.wider_final(),
        ),
        PaperClaim(
            text="the best initial learning rate on the test set is above that for the training loss",
            source="section 6.1",
            test=claims.test_above_train("initial", sign=1),
        ),
        PaperClaim(
            text="the best final learning rate on the test set is below that for the training loss",
            source="section 6.1",
            test=claims.test_above_train("final", sign=-1),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    "wrn16x4_cifar10",
                    64,
                    doubled(50, 8),
                    rates=powers_of_two(-4, 2),
                    final_rates=powers_of_two(-16, -4)[::2],
                    num_seeds=7,
                    num_kept=5,
                ),
            ),
            note="50 to 6,400 epochs, as in the paper; the grid of 7 × 7 rates is ours.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    "wrn16x4_cifar10",
                    64,
                    epochs(5, 20, 80),
                    rates=powers_of_two(-2, 1),
                    final_rates=(2.0**-13, 2.0**-10, 2.0**-7, 2.0**-4),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=0,
                ),
            ),
            note="5, 20 and 80 epochs instead of 50 to 6,400 (a tenth), 4 × 4 rates, 3 seeds instead of 7.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    EMBEDDED,
                    32,
                    epochs(5, 20, 80),
                    rates=powers_of_two(-2, 2),
                    final_rates=(2.0**-11, 2.0**-8, 2.0**-5, 2.0**-2),
                    **{**ADAPTIVE, "resolution": "paper", "max_extensions": 1},
                ),
            ),
            note="The embedded MLP at B = 32, 5, 20 and 80 epochs, 5 × 4 rates, 5 seeds.",
        ),
        Scale.SMOKE: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    EMBEDDED,
                    64,
                    epochs(0.25, 0.5),
                    rates=(0.5, 1.0, 2.0),
                    final_rates=(2.0**-9, 2.0**-5),
                    **SMOKE,
                ),
            ),
            note=SMOKE_NOTE,
        ),
    },
)
