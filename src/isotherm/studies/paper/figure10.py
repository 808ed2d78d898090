"""Figure 10: the autoencoder at one batch size and growing epoch budget, and its error along training.

Run:     isotherm reproduce figure10 --scale laptop
Cost:    laptop 100 runs, 58 s; gpu 135 runs, 16 min; paper 406 runs, 4 h
Expect:  paper: the test error rises slightly in the end; its best learning rate falls, that of training stays.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import budgets as claims
from isotherm.studies.paper.claims import cells, measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.networks import EMBEDDED, EMBEDDED_AUTOENCODER
from isotherm.studies.paper.settings import (
    ADAPTIVE,
    ALONG,
    BUDGETS,
    SMOKE,
    SMOKE_NOTE,
    doubled,
    epochs,
    laptop_budgets,
    over_budgets,
    smoke_budgets,
)

CAPTION = "caption of figure 10"
NETWORK = "autoencoder_mnist"
# ε_eff; the caption quotes the bare ε = 0.002 and 0.004.
LOW, HIGH = 0.02, 0.04
RATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
FIXED = {"max_extensions": 0, "num_evaluations": 40}

OBJECT = PaperObject(
    identifier="figure10",
    shows="Error of an autoencoder and its best learning rates against the epoch budget; the test error in training.",
    networks="autoencoder, MNIST",
    form=Form.BUDGETS,
    metric="test squared error",
    text_values=(
        TextValue(what="ε of panel d that overfits before the first drop", value="0.004 (ε_eff 0.04)", source=CAPTION),
        TextValue(what="ε of panel d that does not", value="0.002 (ε_eff 0.02)", source=CAPTION),
        TextValue(what="epoch of the first drop, of 800", value="400", source=CAPTION),
        TextValue(what="epochs above which the larger ε overfits", value="200", source="appendix E"),
        TextValue(
            what="fall of the best ε_eff on the test set",
            value="falls",
            source=f"{CAPTION}, c",
            measured=measured.fall_of_rate(BUDGETS, "test"),
        ),
        TextValue(
            what="fall of the best ε_eff for training",
            value="about constant",
            source=f"{CAPTION}, c",
            measured=measured.fall_of_rate(BUDGETS, "train"),
        ),
    ),
    claims=(
        PaperClaim(
            text="the test error rises slightly at large epoch budgets",
            source=f"{CAPTION}, a",
            test=claims.metric_falls_in_the_end(BUDGETS),
        ),
        PaperClaim(
            text="the training error falls with every doubling of the budget",
            source=f"{CAPTION}, b",
            test=claims.training_falls(BUDGETS),
        ),
        PaperClaim(
            text="the learning rate that is best on the test set falls",
            source=f"{CAPTION}, c",
            test=claims.rate_falls(BUDGETS, "test"),
        ),
        PaperClaim(
            text="the learning rate that is best for training stays constant",
            source=f"{CAPTION}, c",
            test=claims.rate_stays(BUDGETS, "train"),
        ),
        PaperClaim(
            text="at the larger learning rate the test error rises before the first drop",
            source=f"{CAPTION}, d",
            test=cells.rises_before_first_drop(ALONG, -1, rises=True),
        ),
        PaperClaim(
            text="so it does at all budgets over 200 epochs",
            source="appendix E",
            test=cells.overfits_at_budgets_over(BUDGETS, 200, HIGH),
        ),
        PaperClaim(
            text="at the smaller learning rate it does not rise before the first drop",
            source=f"{CAPTION}, d",
            test=cells.rises_before_first_drop(ALONG, 0, rises=False),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                over_budgets(BUDGETS, NETWORK, 32, doubled(25, 8), RATES, num_seeds=7, num_kept=5, precision="mixed"),
                over_budgets(
                    ALONG, NETWORK, 32, epochs(800), (LOW, HIGH), num_seeds=7, num_kept=5, precision="mixed", **FIXED
                ),
            ),
            note="25 to 3,200 epochs: 200 and 800 among them, as the caption needs.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    NETWORK,
                    32,
                    doubled(25, 5),
                    RATES[1:6],
                    num_seeds=5,
                    num_kept=5,
                    max_extensions=1,
                    precision="mixed",
                ),
                over_budgets(
                    ALONG, NETWORK, 32, epochs(400), (LOW, HIGH), num_seeds=5, num_kept=5, precision="mixed", **FIXED
                ),
            ),
            note="25 to 400 epochs instead of 3,200 (an eighth); panel d at 400 epochs instead of 800; 5 seeds.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(
                laptop_budgets(BUDGETS, EMBEDDED_AUTOENCODER),
                over_budgets(
                    ALONG,
                    EMBEDDED_AUTOENCODER,
                    32,
                    epochs(160),
                    (2.0**-5, 2.0**-4),
                    **{**ADAPTIVE, "resolution": "paper", "max_extensions": 0, "num_evaluations": 40},
                ),
            ),
            note="An autoencoder of MNIST-1D, 5 to 160 epochs; panel d at 160 epochs, ε_eff 1/32 and 1/16; 5 seeds.",
        ),
        Scale.SMOKE: ScaledStudy(
            settings=(
                *smoke_budgets(BUDGETS).settings,
                over_budgets(ALONG, EMBEDDED, 64, epochs(1), (0.5, 1.0), **{**SMOKE, "num_evaluations": 8}),
            ),
            note=SMOKE_NOTE,
        ),
    },
)
