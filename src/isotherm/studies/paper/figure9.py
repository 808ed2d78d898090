"""Figure 9: the LSTM at one batch size and growing epoch budget.

Run:     isotherm reproduce figure9 --scale laptop
Cost:    laptop 180 runs, 54 s; gpu 60 runs, 14 min; paper 392 runs, 8 h
Expect:  paper, best 5 of 7 runs: test perplexity is best at 56 epochs; its best learning rate moves within a factor 2.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import budgets as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.figure7 import NETWORK, RATES
from isotherm.studies.paper.settings import (
    BUDGETS,
    CLIP_NORM,
    CLIPPED_RATES,
    doubled,
    laptop_budgets,
    over_budgets,
    smoke_budgets,
)

CAPTION = "caption of figure 9"

OBJECT = PaperObject(
    identifier="figure9",
    shows="Test and training perplexity of an LSTM and its best learning rates against the epoch budget.",
    networks="LSTM, Penn TreeBank",
    form=Form.BUDGETS,
    metric="test perplexity",
    text_values=(
        TextValue(
            what="epochs beyond which test perplexity rises",
            value="56",
            source=f"{CAPTION}, a",
            measured=measured.best_budget(BUDGETS),
        ),
        TextValue(
            what="range of the best ε_eff on the test set",
            value="×2",
            source=f"{CAPTION}, c",
            measured=measured.fall_of_rate(BUDGETS, "test"),
        ),
        TextValue(what="epochs of the original paper", value="39", source="appendix E"),
    ),
    claims=(
        PaperClaim(
            text="the test metric gets worse at large epoch budgets",
            source=f"{CAPTION}, a",
            test=claims.metric_falls_in_the_end(BUDGETS),
        ),
        PaperClaim(
            text="the training metric improves with every doubling of the budget",
            source=f"{CAPTION}, b",
            test=claims.training_falls(BUDGETS),
        ),
        PaperClaim(
            text="the learning rate that is best for training falls",
            source=f"{CAPTION}, c",
            test=claims.rate_falls(BUDGETS, "train"),
        ),
        PaperClaim(
            text="the learning rate that is best on the test set falls by at most a factor of 2",
            source=f"{CAPTION}, c",
            test=claims.rate_stays(BUDGETS, "test", octaves=1.0),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(over_budgets(BUDGETS, NETWORK, 64, doubled(7, 8), RATES[1:8], num_seeds=7, num_kept=5),),
            note="7 to 896 epochs: 56 among them, as the caption needs.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS, NETWORK, 64, doubled(7, 5), RATES[1::2], num_seeds=3, num_kept=3, max_extensions=1
                ),
            ),
            note="7 to 112 epochs instead of 896 (an eighth), learning rates a factor 2 apart, 3 seeds instead of 7.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(laptop_budgets(BUDGETS, rates=CLIPPED_RATES, clip_norm=CLIP_NORM),),
            note=f"The embedded MLP with its gradient clipped at {CLIP_NORM:g}, 5 to 160 epochs, 5 seeds.",
        ),
        Scale.SMOKE: smoke_budgets(BUDGETS),
    },
)
