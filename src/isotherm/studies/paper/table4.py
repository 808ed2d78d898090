"""Table 4: an equal number of updates on CIFAR-100, with batch norm.

Run:     isotherm reproduce table4 --scale laptop
Cost:    laptop 120 runs, 44 s; gpu 21 runs, 60 min; paper 735 runs, 29 days
Expect:  paper, best 12 of 15 runs: 78.9 % at B = 256, 80.2 at 2,048, 72.2 at 16,384.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.settings import EQUAL_STEPS, around, equal_steps, laptop_steps, sizes, smoke_steps

CAPTION = "caption of table 4"
NETWORK = "wrn28x10_cifar100"

OBJECT = PaperObject(
    identifier="table4",
    shows="Table 1 on CIFAR-100 with a larger network.",
    networks="WRN-28-10 with batch norm, CIFAR-100",
    form=Form.TABLE,
    published=(
        Row(
            batch_size=256,
            test=Value(mean=78.9, deviation=0.1, decimals=1),
            train=Value(mean=0.609, deviation=0.004, decimals=3),
            rate=2.0**2,
            interval=(2.0**2, 2.0**2),
        ),
        Row(
            batch_size=512,
            test=Value(mean=79.9, deviation=0.2, decimals=1),
            train=Value(mean=0.462, deviation=0.008, decimals=3),
            rate=2.0**3,
            interval=(2.0**2, 2.0**3),
        ),
        Row(
            batch_size=1024,
            test=Value(mean=80.1, deviation=0.2, decimals=1),
            train=Value(mean=0.274, deviation=0.003, decimals=3),
            rate=2.0**4,
            interval=(2.0**3, 2.0**4),
        ),
        Row(
            batch_size=2048,
            test=Value(mean=80.2, deviation=0.2, decimals=1),
            train=Value(mean=0.132, deviation=0.002, decimals=3),
            rate=2.0**4,
            interval=(2.0**4, 2.0**4),
        ),
        Row(
            batch_size=4096,
            test=Value(mean=79.6, deviation=0.2, decimals=1),
            train=Value(mean=0.073, deviation=0.001, decimals=3),
            rate=2.0**5,
            interval=(2.0**5, 2.0**5),
        ),
        Row(
            batch_size=8192,
            test=Value(mean=78.1, deviation=0.4, decimals=1),
            train=Value(mean=0.045, deviation=0.001, decimals=3),
            rate=2.0**5,
            interval=(2.0**1, 2.0**5),
        ),
        Row(
            batch_size=16384,
            test=Value(mean=72.2, deviation=0.2, decimals=1),
            train=Value(mean=0.156, deviation=0.036, decimals=3),
            rate=2.0**1,
            interval=(2.0**1, 2.0**2),
        ),
    ),
    text_values=(
        TextValue(
            what="batch size with the best test accuracy",
            value="2,048",
            source="table 4",
            measured=measured.best_batch_size(),
        ),
        TextValue(what="updates", value="9,765", source=CAPTION, measured=measured.budget(EQUAL_STEPS)),
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
            text="the largest batch generalises worse than the best one although it fits no worse",
            source="appendix D",
            test=claims.large_batches_worse(),
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
            text="the training loss at the largest batch is no higher than at the best one",
            source=CAPTION,
            test=claims.fits_no_worse(),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(8, 14), 9765, around(2.0**-6, ceiling=16.0), num_seeds=15, num_kept=12),
            ),
            note="As in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                equal_steps(
                    NETWORK,
                    sizes(8, 14),
                    488,
                    around(2.0**-6, ceiling=16.0, below=1, above=1),
                    num_seeds=1,
                    num_kept=1,
                    max_extensions=0,
                ),
            ),
            note="488 updates instead of 9,765 (a twentieth), 3 learning rates, one seed: an hour decides no claim.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_steps(),), note="The embedded MLP, 1,500 updates; shares its runs with table 1."
        ),
        Scale.SMOKE: smoke_steps(),
    },
)
