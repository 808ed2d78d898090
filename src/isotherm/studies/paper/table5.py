"""Table 5: an equal number of updates on CIFAR-100, without batch norm.

Run:     isotherm reproduce table5 --scale laptop
Cost:    laptop 120 runs, 44 s; gpu 42 runs, 60 min; paper 735 runs, 58 days
Expect:  paper, best 12 of 15 runs: 77.9 % at B = 32, 79.4 at 128, 74.2 at 2,048.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.settings import EQUAL_STEPS, around, equal_steps, laptop_steps, sizes, smoke_steps

CAPTION = "caption of table 5"
NETWORK = "wrn28x10_skipinit_cifar100"

OBJECT = PaperObject(
    identifier="table5",
    shows="Table 4 without batch norm.",
    networks="WRN-28-10 with SkipInit, CIFAR-100",
    form=Form.TABLE,
    train_quantity="last_batch_loss",
    train_label="training loss",
    published=(
        Row(
            batch_size=32,
            test=Value(mean=77.9, deviation=0.2, decimals=1),
            train=Value(mean=0.0512, deviation=0.0611, decimals=4),
            rate=0.025,
            interval=(0.025, 0.05),
        ),
        Row(
            batch_size=64,
            test=Value(mean=79.0, deviation=0.2, decimals=1),
            train=Value(mean=0.0141, deviation=0.0281, decimals=4),
            rate=0.05,
            interval=(0.05, 0.05),
        ),
        Row(
            batch_size=128,
            test=Value(mean=79.4, deviation=0.1, decimals=1),
            train=Value(mean=0.0011, deviation=0.0004, decimals=4),
            rate=0.1,
            interval=(0.1, 0.1),
        ),
        Row(
            batch_size=256,
            test=Value(mean=78.9, deviation=0.1, decimals=1),
            train=Value(mean=0.0191, deviation=0.0221, decimals=4),
            rate=0.2,
            interval=(0.2, 0.2),
        ),
        Row(
            batch_size=512,
            test=Value(mean=77.7, deviation=0.1, decimals=1),
            train=Value(mean=0.0022, deviation=0.0035, decimals=4),
            rate=0.2,
            interval=(0.2, 0.2),
        ),
        Row(
            batch_size=1024,
            test=Value(mean=76.0, deviation=0.1, decimals=1),
            train=Value(mean=0.0009, deviation=0.0012, decimals=4),
            rate=0.2,
            interval=(0.2, 0.2),
        ),
        Row(
            batch_size=2048,
            test=Value(mean=74.2, deviation=0.3, decimals=1),
            train=Value(mean=0.0029, deviation=0.0025, decimals=4),
            rate=0.2,
            interval=(0.2, 0.2),
        ),
    ),
    text_values=(
        TextValue(
            what="batch size with the best test accuracy",
            value="128",
            source="table 5",
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
            text="the training loss rises slightly at very large batches",
            source=CAPTION,
            test=claims.training_rises_in_the_end(),
        ),
        PaperClaim(
            text="the best temperature ε_eff/B is the same at all batch sizes up to a kink, whatever the epochs",
            source="section 3.4, from the rates of table 5",
            test=claims.proportional(0.9, name=EQUAL_STEPS),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(5, 11), 156_250, around(0.00078125, ceiling=0.2), num_seeds=15, num_kept=12),
            ),
            note="As in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                equal_steps(
                    NETWORK,
                    sizes(5, 11),
                    1953,
                    around(0.0015625, ceiling=0.4, below=1, above=1),
                    num_seeds=2,
                    num_kept=2,
                    max_extensions=0,
                ),
            ),
            note="1,953 updates instead of 156,250 (an eightieth), 3 learning rates, 2 seeds.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_steps(),), note="The embedded MLP, 1,500 updates; shares its runs with table 1."
        ),
        Scale.SMOKE: smoke_steps(),
    },
)
