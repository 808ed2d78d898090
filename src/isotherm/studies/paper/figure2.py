"""Figure 2: one batch size, growing epoch budget, with and without batch norm.

Run:     isotherm reproduce figure2 --scale laptop
Cost:    laptop 165 runs, 76 s; gpu 120 runs, 27 min; paper 1,680 runs, 14 days
Expect:  paper: accuracy falls beyond 400 epochs without batch norm; its best rate stays, that of the loss falls.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import budgets as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.networks import EMBEDDED_NORM
from isotherm.studies.paper.settings import (
    WITH_NORM,
    WITHOUT_NORM,
    around,
    doubled,
    laptop_budgets,
    over_budgets,
    smoke_budgets,
)

CAPTION = "caption of figure 2"
NETWORKS = {WITH_NORM: "wrn16x4_cifar10", WITHOUT_NORM: "wrn16x4_skipinit_cifar10"}
TEMPERATURES = {WITH_NORM: 2.0**-7, WITHOUT_NORM: 2.0**-8}

OBJECT = PaperObject(
    identifier="figure2",
    shows="Test accuracy, training loss, and the learning rates that are best for each, against the epoch budget.",
    networks="WRN-16-4 with batch norm and with SkipInit, CIFAR-10",
    form=Form.BUDGETS,
    text_values=(
        TextValue(
            what="without batch norm: epochs beyond which test accuracy falls",
            value="400",
            source=f"{CAPTION}, a",
            measured=measured.best_budget(WITHOUT_NORM),
        ),
        TextValue(
            what="with batch norm: epochs after which it saturates",
            value="800",
            source=f"{CAPTION}, a",
            measured=measured.best_budget(WITH_NORM),
        ),
        TextValue(
            what="with batch norm: fall of the best ε_eff on the test set, 50 to 6,400 epochs",
            value="×2",
            source="section 6",
            measured=measured.fall_of_rate(WITH_NORM, "test"),
        ),
        TextValue(
            what="without batch norm: the same",
            value="×1 (constant)",
            source=f"{CAPTION}, d",
            measured=measured.fall_of_rate(WITHOUT_NORM, "test"),
        ),
        TextValue(
            what="with batch norm: fall of the best ε_eff for the training loss, 50 to 6,400 epochs",
            value="×16",
            source="section 1",
            measured=measured.fall_of_rate(WITH_NORM, "train"),
        ),
    ),
    claims=(
        PaperClaim(
            text="without batch norm: test accuracy falls at large epoch budgets",
            source=f"{CAPTION}, a",
            test=claims.metric_falls_in_the_end(WITHOUT_NORM),
        ),
        PaperClaim(
            text="with batch norm: test accuracy saturates",
            source=f"{CAPTION}, a",
            test=claims.metric_saturates(WITH_NORM),
        ),
        *(
            PaperClaim(
                text=f"{name}: the training loss falls with every doubling of the budget",
                source=f"{CAPTION}, b",
                test=claims.training_falls(name),
            )
            for name in (WITH_NORM, WITHOUT_NORM)
        ),
        *(
            PaperClaim(
                text=f"{name}: the learning rate that is best for the training loss falls",
                source=f"{CAPTION}, c and d",
                test=claims.rate_falls(name, "train"),
            )
            for name in (WITH_NORM, WITHOUT_NORM)
        ),
        PaperClaim(
            text="with batch norm: the learning rate that is best on the test set falls by at most a factor of 2",
            source=f"{CAPTION}, c",
            test=claims.rate_stays(WITH_NORM, "test", octaves=1.0),
        ),
        PaperClaim(
            text="without batch norm: the learning rate that is best on the test set is constant",
            source=f"{CAPTION}, d",
            test=claims.rate_stays(WITHOUT_NORM, "test"),
        ),
        *(
            PaperClaim(
                text=f"{name}: the learning rate for the training loss falls faster than that for the test set",
                source="section 6",
                test=claims.train_rate_falls_faster(name),
            )
            for name in (WITH_NORM, WITHOUT_NORM)
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=tuple(
                over_budgets(name, network, 64, doubled(50, 8), around(TEMPERATURES[name]), num_seeds=15, num_kept=12)
                for name, network in NETWORKS.items()
            ),
            note="50 to 6,400 epochs, as in the paper.",
        ),
        Scale.GPU: ScaledStudy(
            settings=tuple(
                over_budgets(
                    name,
                    network,
                    64,
                    doubled(5, 5),
                    around(2 * TEMPERATURES[name], below=2, above=1),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=1,
                )
                for name, network in NETWORKS.items()
            ),
            note="5 to 80 epochs instead of 50 to 6,400 (a tenth, and no budget beyond), 3 seeds instead of 15.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(
                laptop_budgets(WITH_NORM, EMBEDDED_NORM, budgets=doubled(5, 5)),
                laptop_budgets(WITHOUT_NORM),
            ),
            note="The embedded MLP with ghost batch norm for 5 to 80 epochs, without for 5 to 160, 5 seeds.",
        ),
        Scale.SMOKE: smoke_budgets(WITH_NORM, WITHOUT_NORM),
    },
)
