"""Table 3: an equal number of updates at every batch size, without batch norm.

Run:     isotherm reproduce table3 --scale laptop
Cost:    laptop 120 runs, 44 s; gpu 72 runs, 36 min; paper 840 runs, 6 days
Expect:  paper, best 12 of 15 runs: 92.6 % at B = 16, 94.6 at 128, 93.0 at 2,048.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.settings import EQUAL_STEPS, around, equal_steps, laptop_steps, sizes, smoke_steps

CAPTION = "caption of table 3"
NETWORK = "wrn16x4_skipinit_cifar10"

OBJECT = PaperObject(
    identifier="table3",
    shows="Table 1 without batch norm.",
    networks="WRN-16-4 with SkipInit, CIFAR-10",
    form=Form.TABLE,
    published=(
        Row(
            batch_size=16,
            test=Value(mean=92.6, deviation=0.2, decimals=1),
            train=Value(mean=0.349, deviation=0.004, decimals=3),
            rate=2.0**-4,
            interval=(2.0**-4, 2.0**-2),
        ),
        Row(
            batch_size=32,
            test=Value(mean=93.9, deviation=0.1, decimals=1),
            train=Value(mean=0.269, deviation=0.004, decimals=3),
            rate=2.0**-3,
            interval=(2.0**-3, 2.0**-2),
        ),
        Row(
            batch_size=64,
            test=Value(mean=94.4, deviation=0.1, decimals=1),
            train=Value(mean=0.192, deviation=0.002, decimals=3),
            rate=2.0**-2,
            interval=(2.0**-2, 2.0**-1),
        ),
        Row(
            batch_size=128,
            test=Value(mean=94.6, deviation=0.1, decimals=1),
            train=Value(mean=0.122, deviation=0.0, decimals=3),
            rate=2.0**-1,
            interval=(2.0**-1, 2.0**-1),
        ),
        Row(
            batch_size=256,
            test=Value(mean=94.4, deviation=0.1, decimals=1),
            train=Value(mean=0.071, deviation=0.001, decimals=3),
            rate=2.0**-1,
            interval=(2.0**-1, 2.0**0),
        ),
        Row(
            batch_size=512,
            test=Value(mean=94.1, deviation=0.1, decimals=1),
            train=Value(mean=0.043, deviation=0.0, decimals=3),
            rate=2.0**0,
            interval=(2.0**-1, 2.0**1),
        ),
        Row(
            batch_size=1024,
            test=Value(mean=93.8, deviation=0.1, decimals=1),
            train=Value(mean=0.028, deviation=0.0, decimals=3),
            rate=2.0**-1,
            interval=(2.0**-1, 2.0**0),
        ),
        Row(
            batch_size=2048,
            test=Value(mean=93.0, deviation=0.6, decimals=1),
            train=Value(mean=0.054, deviation=0.05, decimals=3),
            rate=2.0**-1,
            interval=(2.0**-1, 2.0**0),
        ),
    ),
    text_values=(
        TextValue(
            what="batch size with the best test accuracy",
            value="128",
            source=CAPTION,
            measured=measured.best_batch_size(),
        ),
        TextValue(what="updates", value="156,250", source=CAPTION, measured=measured.budget(EQUAL_STEPS)),
    ),
    claims=(
        PaperClaim(
            text="test accuracy first rises with the batch size", source=CAPTION, test=claims.best_batch_beats("first")
        ),
        PaperClaim(
            text="test accuracy is worse at the largest batch than at the best one",
            source=CAPTION,
            test=claims.best_batch_beats("last"),
        ),
        PaperClaim(
            text="the training loss at the largest batch is no higher than at the best one",
            source=CAPTION,
            test=claims.fits_no_worse(),
        ),
        PaperClaim(
            text="the training loss falls as the batch size increases",
            source="appendix D",
            test=claims.training_improves(),
        ),
        PaperClaim(
            text="the training loss rises at the largest batch size",
            source=CAPTION,
            test=claims.training_rises_in_the_end(),
        ),
        PaperClaim(
            text="the best temperature ε_eff/B is the same at all batch sizes up to a kink, whatever the epochs",
            source="section 3.4, from the rates of table 3",
            test=claims.proportional(0.9, name=EQUAL_STEPS),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(4, 11), 156_250, around(2.0**-8, ceiling=0.5), num_seeds=15, num_kept=12),
            ),
            note="As in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                equal_steps(
                    NETWORK,
                    sizes(4, 11),
                    7812,
                    around(2.0**-7, ceiling=1.0, below=1, above=1),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=0,
                ),
            ),
            note="7,812 updates instead of 156,250 (a twentieth), 3 learning rates and 3 seeds.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_steps(),), note="The embedded MLP, 1,500 updates; shares its runs with table 1."
        ),
        Scale.SMOKE: smoke_steps(),
    },
)
