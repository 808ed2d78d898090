"""Figure 5: every learning rate at a small and a large batch size; shares its runs with figure 1.

Run:     isotherm reproduce figure5 --scale laptop
Cost:    laptop 200 runs, 23 s; gpu 108 runs, 14 min; paper 720 runs, 16 h
Expect:  paper: at B = 64 both have the same optimum, at B = 1,024 momentum is better, at a larger learning rate.
"""

from __future__ import annotations

from isotherm.core.rates import powers_of_two
from isotherm.studies.paper.claims import cells as claims
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, Setting, TextValue
from isotherm.studies.paper.figure1 import NETWORK
from isotherm.studies.paper.networks import EMBEDDED
from isotherm.studies.paper.settings import ADAPTIVE, both_optimisers, epochs, smoke_epochs

CAPTION = "caption of figure 5"


def _settings(num_epochs: float, rates: tuple[float, ...], **changes: int) -> tuple[Setting, Setting]:
    return both_optimisers(NETWORK, (64, 1024), epochs(num_epochs), rates=(rates, rates), max_extensions=0, **changes)


OBJECT = PaperObject(
    identifier="figure5",
    shows="Test accuracy and training loss against learning rate at a small and a large batch size.",
    networks="WRN-16-4 with batch norm, CIFAR-10",
    form=Form.LEARNING_RATES,
    text_values=(
        TextValue(what="batch size of the noise dominated regime", value="64", source=CAPTION),
        TextValue(what="batch size of the curvature dominated regime", value="1,024", source=CAPTION),
    ),
    claims=(
        PaperClaim(
            text="small batch: SGD and momentum agree at small learning rates",
            source=CAPTION,
            test=claims.same_at_small_rates(0),
        ),
        PaperClaim(
            text="large batch: SGD and momentum agree at small learning rates",
            source=CAPTION,
            test=claims.same_at_small_rates(-1),
        ),
        PaperClaim(
            text="large batch: SGD performs poorly at large learning rates",
            source=CAPTION,
            test=claims.worse_at_large_rates(-1),
        ),
        PaperClaim(
            text="small batch: at their optima both have similar accuracy",
            source=CAPTION,
            test=claims.optimum_gain(0, helps=False),
        ),
        PaperClaim(
            text="large batch: at their optima momentum performs better",
            source=CAPTION,
            test=claims.optimum_gain(-1, helps=True),
        ),
        *(
            PaperClaim(
                text=f"{word} batch: the training losses of SGD and momentum agree at small learning rates",
                source=CAPTION,
                test=claims.same_at_small_rates(which, quantity="train_objective"),
            )
            for word, which in (("small", 0), ("large", -1))
        ),
        PaperClaim(
            text="large batch: SGD has a higher training loss at large learning rates",
            source=CAPTION,
            test=claims.worse_at_large_rates(-1, quantity="train_objective"),
        ),
        PaperClaim(
            text="small batch: at their optima both have similar training losses",
            source=CAPTION,
            test=claims.optimum_gain(0, helps=False, quantity="train_objective"),
        ),
        PaperClaim(
            text="large batch: at their optima momentum has a lower training loss",
            source=CAPTION,
            test=claims.optimum_gain(-1, helps=True, quantity="train_objective"),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=_settings(200, powers_of_two(-6, 5), num_seeds=15, num_kept=12),
            note="As in the paper, with 12 learning rates of our choice.",
        ),
        Scale.GPU: ScaledStudy(
            settings=_settings(20, powers_of_two(-4, 4), num_seeds=3, num_kept=3),
            note="20 epochs instead of 200 (a tenth), 9 learning rates, 3 seeds instead of 15.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=both_optimisers(
                EMBEDDED,
                (16, 512),
                epochs(20),
                rates=(powers_of_two(-5, 4), powers_of_two(-5, 4)),
                **{**ADAPTIVE, "resolution": "paper", "max_extensions": 0},
            ),
            note="The embedded MLP at B = 16 and 512, 20 epochs, 10 learning rates, 5 seeds.",
        ),
        Scale.SMOKE: smoke_epochs(),
    },
)
