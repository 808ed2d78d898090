"""Table 2: ResNet-50 on ImageNet, SGD and momentum at an equal number of epochs.

Run:     isotherm reproduce table2 --scale laptop
Cost:    laptop 180 runs, 23 s; gpu 18 runs, 57 min; paper 42 runs, 4 days
Expect:  paper, single runs: 77.0 % at B = 256 with both; at 4,096 76.1 with SGD, 76.8 with momentum.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Row, Scale, ScaledStudy, TextValue, Value
from isotherm.studies.paper.settings import (
    EQUAL_EPOCHS,
    around,
    both_optimisers,
    epochs,
    laptop_epochs,
    sizes,
    smoke_epochs,
)

CAPTION = "caption of table 2"
NETWORK = "resnet50_imagenet"
SIZES = (256, 1024, 4096)


def _row(momentum: float, batch_size: int, test: float, train: float, rate: float) -> Row:
    """Return a row of a single run."""
    return Row(
        momentum=momentum,
        batch_size=batch_size,
        test=Value(mean=test, decimals=1),
        train=Value(mean=train, decimals=2),
        rate=rate,
        interval=(rate, rate),
    )


OBJECT = PaperObject(
    identifier="table2",
    shows="ResNet-50 with SGD and momentum at three batch sizes, equal epochs.",
    networks="ResNet-50, ImageNet",
    form=Form.TABLE,
    published=(
        _row(0.0, 256, 77.0, 2.25, 1.0),
        _row(0.0, 1024, 76.7, 2.25, 4.0),
        _row(0.0, 4096, 76.1, 2.30, 8.0),
        _row(0.9, 256, 77.0, 2.25, 1.0),
        _row(0.9, 1024, 76.8, 2.25, 4.0),
        _row(0.9, 4096, 76.8, 2.25, 16.0),
    ),
    text_values=(
        TextValue(
            what="momentum: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.9)
        ),
        TextValue(what="epochs", value="90", source=CAPTION, measured=measured.budget(EQUAL_EPOCHS)),
    ),
    claims=(
        PaperClaim(
            text="SGD and momentum have equal accuracies at small batches", source=CAPTION, test=claims.no_help_below()
        ),
        PaperClaim(text="momentum outperforms SGD at large batches", source=CAPTION, test=claims.help_above()),
        PaperClaim(
            text="momentum: ε_eff is proportional to B at all batch sizes",
            source=CAPTION,
            test=claims.proportional_throughout(0.9),
        ),
        PaperClaim(
            text="SGD: ε_eff rises less than in proportion to B",
            source=CAPTION,
            test=claims.less_than_proportional(0.0),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=both_optimisers(
                NETWORK,
                SIZES,
                epochs(90),
                rates=(around(2.0**-8, ceiling=8.0), around(2.0**-8)),
                num_seeds=1,
                num_kept=1,
            ),
            note="As in the paper: single runs, from which no claim can be judged.",
        ),
        Scale.GPU: ScaledStudy(
            settings=both_optimisers(
                NETWORK,
                SIZES,
                epochs(2),
                rates=(around(2.0**-8, ceiling=8.0, below=1, above=1), around(2.0**-8, below=1, above=1)),
                num_seeds=1,
                num_kept=1,
                max_extensions=0,
            ),
            note="2 epochs instead of 90 (a forty-fifth), 3 learning rates, single runs: an hour decides no claim.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=laptop_epochs(batch_sizes=sizes(3, 8)),
            note="The embedded MLP, B from 8 to 256, 20 epochs, 5 seeds; shares its runs with figure 1.",
        ),
        Scale.SMOKE: smoke_epochs(),
    },
)
