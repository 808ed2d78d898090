"""Table 6: the LSTM at an equal number of updates.

Run:     isotherm reproduce table6 --scale laptop
Cost:    laptop 240 runs, 89 s; gpu 60 runs, 5 min; paper 245 runs, 78 min
Expect:  paper, best 5 of 7 runs: test perplexity 88.1 at B = 16, 81.7 at 64, 92.2 at 256; training falls throughout.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.figure7 import NETWORK, RATES
from isotherm.studies.paper.settings import (
    CLIP_NORM,
    CLIPPED_RATES,
    EQUAL_STEPS,
    equal_steps,
    laptop_steps,
    sizes,
    smoke_steps,
)

CAPTION = "caption of table 6"

OBJECT = PaperObject(
    identifier="table6",
    shows="Test and training perplexity of an LSTM against batch size at an equal number of updates.",
    networks="LSTM, Penn TreeBank",
    form=Form.TABLE,
    metric="test perplexity",
    train_quantity="train_metric",
    train_label="training perplexity",
    published=(
        Row(
            batch_size=16,
            test=Value(mean=88.06, deviation=0.26, decimals=2),
            train=Value(mean=35.85, deviation=0.06, decimals=2),
            rate=1.4,
            interval=(1.4, 1.4),
        ),
        Row(
            batch_size=32,
            test=Value(mean=82.5, deviation=0.13, decimals=2),
            train=Value(mean=28.99, deviation=0.03, decimals=2),
            rate=2.0,
            interval=(2.0, 2.0),
        ),
        Row(
            batch_size=64,
            test=Value(mean=81.67, deviation=0.26, decimals=2),
            train=Value(mean=23.25, deviation=0.05, decimals=2),
            rate=2.8,
            interval=(2.8, 2.8),
        ),
        Row(
            batch_size=128,
            test=Value(mean=86.04, deviation=0.49, decimals=2),
            train=Value(mean=21.16, deviation=0.06, decimals=2),
            rate=5.6,
            interval=(5.6, 5.6),
        ),
        Row(
            batch_size=256,
            test=Value(mean=92.19, deviation=0.26, decimals=2),
            train=Value(mean=15.74, deviation=0.03, decimals=2),
            rate=5.6,
            interval=(5.6, 5.6),
        ),
    ),
    text_values=(
        TextValue(
            what="batch size with the best test perplexity",
            value="64",
            source="table 6",
            measured=measured.best_batch_size(),
        ),
        TextValue(
            what="power of B with which ε_eff rises",
            value="1/2",
            source="caption of figure 7",
            measured=measured.slope(0.9, name=EQUAL_STEPS),
        ),
        TextValue(what="updates", value="16,560", source=CAPTION, measured=measured.budget(EQUAL_STEPS)),
    ),
    claims=(
        PaperClaim(
            text="the test metric is worse at the largest batch than at the best one",
            source=CAPTION,
            test=claims.best_batch_beats("last"),
        ),
        PaperClaim(
            text="the training metric improves as the batch size increases",
            source=CAPTION,
            test=claims.training_improves(),
        ),
        PaperClaim(
            text="the largest batch generalises worse than the best one although it fits no worse",
            source=CAPTION,
            test=claims.large_batches_worse(),
        ),
        PaperClaim(
            text="ε_eff is proportional to the square root of B while B is small",
            source="caption of figure 7",
            test=claims.square_root(0.9, name=EQUAL_STEPS),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(4, 8), 16_560, RATES[2:], num_seeds=7, num_kept=5, precision="mixed"),
            ),
            note="As in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                equal_steps(NETWORK, sizes(4, 8), 4_140, RATES[1::2], num_seeds=3, num_kept=3, max_extensions=1),
            ),
            note="4,140 updates instead of 16,560 (a quarter), learning rates a factor 2 apart, 3 seeds instead of 7.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_steps(rates=CLIPPED_RATES, clip_norm=CLIP_NORM),),
            note=f"The embedded MLP with its gradient clipped at {CLIP_NORM:g}, 1,500 updates, 5 seeds.",
        ),
        Scale.SMOKE: smoke_steps(),
    },
)
