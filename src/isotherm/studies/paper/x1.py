"""X1, a check in the text of section 5: does the largest batch do better with fewer updates?

Run:     isotherm reproduce x1 --scale laptop
Cost:    laptop 60 runs, 40 s; gpu 36 runs, 64 min; paper 420 runs, 63 h
Expect:  paper: no; at B = 16,384 the most updates are the best.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import budgets as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.networks import EMBEDDED
from isotherm.studies.paper.settings import (
    ADAPTIVE,
    BUDGETS,
    CEILING_MOMENTUM,
    TEMPERATURE,
    around,
    over_budgets,
    smoke_budgets,
    steps,
)
from isotherm.studies.paper.table1 import NETWORK

SOURCE = "section 5"

OBJECT = PaperObject(
    identifier="x1",
    shows="The largest batch of table 1 with fewer updates.",
    networks="WRN-16-4 with batch norm, CIFAR-10",
    form=Form.BUDGETS,
    text_values=(
        TextValue(
            what="number of updates with the best test accuracy at B = 16,384",
            value="9,765, the most",
            source=SOURCE,
            measured=measured.best_budget(BUDGETS),
        ),
    ),
    claims=(
        PaperClaim(
            text="a batch size of 16,384 does not achieve higher test accuracy with smaller step budgets",
            source=SOURCE,
            test=claims.no_smaller_budget_is_better(BUDGETS),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    NETWORK,
                    16_384,
                    steps(1220, 2441, 4882, 9765),
                    around(2.0**-7, ceiling=16.0),
                    num_seeds=15,
                    num_kept=12,
                ),
            ),
            note="An eighth, a quarter and half of table 1's updates; the paper does not say which it tried.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    NETWORK,
                    16_384,
                    steps(244, 488, 976, 1953),
                    around(2.0**-7, ceiling=16.0, below=1, above=1),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=0,
                ),
            ),
            note="1,953 updates and fewer instead of 9,765 (a fifth); shares runs with table 1.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(
                over_budgets(
                    BUDGETS,
                    EMBEDDED,
                    1024,
                    steps(187, 375, 750, 1500),
                    around(TEMPERATURE, ceiling=CEILING_MOMENTUM, below=1, above=1),
                    **ADAPTIVE,
                ),
            ),
            note="The embedded MLP at B = 1,024, 1,500 updates and fewer, 5 seeds; shares runs with table 1.",
        ),
        Scale.SMOKE: smoke_budgets(BUDGETS),
    },
)
