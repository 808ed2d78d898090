"""Table 1: an equal number of updates at every batch size, with batch norm.

Run:     isotherm reproduce table1 --scale laptop
Cost:    laptop 120 runs, 44 s; gpu 63 runs, 68 min; paper 840 runs, 6 days
Expect:  paper, best 12 of 15 runs: 93.5 % at B = 256, 94.9 at 2,048, 92.5 at 16,384, while the training loss falls.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.settings import EQUAL_STEPS, around, equal_steps, laptop_steps, sizes, smoke_steps

CAPTION = "caption of table 1"
NETWORK = "wrn16x4_cifar10"

OBJECT = PaperObject(
    identifier="table1",
    shows="Test accuracy, training loss and optimal learning rate against batch size at an equal number of updates.",
    networks="WRN-16-4 with batch norm, CIFAR-10",
    form=Form.TABLE,
    published=(
        Row(
            batch_size=256,
            test=Value(mean=93.5, deviation=0.1, decimals=1),
            train=Value(mean=0.232, deviation=0.001, decimals=3),
            rate=2.0**2,
            interval=(2.0**1, 2.0**2),
        ),
        Row(
            batch_size=512,
            test=Value(mean=94.2, deviation=0.1, decimals=1),
            train=Value(mean=0.171, deviation=0.001, decimals=3),
            rate=2.0**2,
            interval=(2.0**2, 2.0**3),
        ),
        Row(
            batch_size=1024,
            test=Value(mean=94.5, deviation=0.1, decimals=1),
            train=Value(mean=0.107, deviation=0.001, decimals=3),
            rate=2.0**3,
            interval=(2.0**3, 2.0**3),
        ),
        Row(
            batch_size=2048,
            test=Value(mean=94.9, deviation=0.1, decimals=1),
            train=Value(mean=0.058, deviation=0.0, decimals=3),
            rate=2.0**3,
            interval=(2.0**3, 2.0**3),
        ),
        Row(
            batch_size=4096,
            test=Value(mean=94.7, deviation=0.1, decimals=1),
            train=Value(mean=0.025, deviation=0.0, decimals=3),
            rate=2.0**4,
            interval=(2.0**4, 2.0**5),
        ),
        Row(
            batch_size=8192,
            test=Value(mean=94.6, deviation=0.1, decimals=1),
            train=Value(mean=0.017, deviation=0.0, decimals=3),
            rate=2.0**2,
            interval=(2.0**2, 2.0**2),
        ),
        Row(
            batch_size=16384,
            test=Value(mean=92.5, deviation=0.6, decimals=1),
            train=Value(mean=0.019, deviation=0.004, decimals=3),
            rate=2.0**5,
            interval=(2.0**4, 2.0**5),
        ),
        Row(
            batch_size=32768,
            test=Value(mean=89.9, deviation=0.7, decimals=1),
            train=Value(mean=0.039, deviation=0.011, decimals=3),
            rate=2.0**5,
            interval=(2.0**0, 2.0**5),
        ),
    ),
    text_values=(
        TextValue(
            what="batch size with the best test accuracy",
            value="2,048",
            source="section 5",
            measured=measured.best_batch_size(),
        ),
        TextValue(what="test accuracy there", value="94.9 %", source="section 1", measured=measured.metric_at(None)),
        TextValue(
            what="test accuracy at B = 16,384", value="92.5 %", source="section 1", measured=measured.metric_at(16_384)
        ),
        TextValue(
            what="updates at the first learning rate, of 9,765",
            value="4,882",
            source="section 5",
            computed=lambda: measured.hold_of_schedule(9765),
        ),
        TextValue(
            what="updates between drops, of 9,765",
            value="488",
            source="section 5",
            computed=lambda: measured.drop_of_schedule(9765),
        ),
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
            source=CAPTION,
            test=claims.large_batches_worse(),
        ),
        PaperClaim(
            text="the training loss falls as the batch size increases", source=CAPTION, test=claims.training_improves()
        ),
        PaperClaim(
            text="the training loss rises at the largest batch size",
            source="section 5",
            test=claims.training_rises_in_the_end(),
        ),
        PaperClaim(
            text="the training loss at the largest batch is no higher than at the best one",
            source="section 5",
            test=claims.fits_no_worse(),
        ),
        PaperClaim(
            text="the best temperature ε_eff/B is the same at all batch sizes up to a kink, whatever the epochs",
            source="section 3.4, from the rates of table 1",
            test=claims.proportional(0.9, name=EQUAL_STEPS),
        ),
        PaperClaim(
            text="the best learning rate on the test set lies above the one that fits best",
            source="section 3.4",
            test=claims.higher_test_optimum(),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(8, 15), 9765, around(2.0**-7, ceiling=16.0), num_seeds=15, num_kept=12),
            ),
            note="As in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                equal_steps(
                    NETWORK,
                    sizes(8, 14),
                    1953,
                    around(2.0**-7, ceiling=16.0, below=1, above=1),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=0,
                ),
            ),
            note="1,953 updates instead of 9,765 (a fifth), B to 16,384, 3 learning rates and 3 seeds.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_steps(),), note="The embedded MLP, which has no batch norm, 1,500 updates, 5 seeds."
        ),
        Scale.SMOKE: smoke_steps(),
    },
)
