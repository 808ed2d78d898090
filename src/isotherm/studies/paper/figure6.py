"""Figure 6: two regimes of SGD at an equal number of epochs, without batch norm.

Run:     isotherm reproduce figure6 --scale laptop
Cost:    laptop 360 runs, 78 s; gpu 288 runs, 45 min; paper 3,150 runs, 5 days
Expect:  paper: flat to B = 8 with SGD and to 256 with momentum, at smaller learning rates than with batch norm.
"""

from __future__ import annotations

import dataclasses

from isotherm.studies.paper import figure1
from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, Setting, TextValue
from isotherm.studies.paper.networks import EMBEDDED_NORM
from isotherm.studies.paper.settings import (
    WITH_NORM,
    around,
    both_optimisers,
    epochs,
    laptop_epochs,
    sizes,
    smoke_epochs,
)

CAPTION = "caption of figure 6"
NETWORK = "wrn16x4_skipinit_cifar10"
# ε_eff = B/256 at 200 epochs; plain SGD stays below B = 8's.
TEMPERATURE, CEILING_SGD, CEILING_MOMENTUM = 2.0**-8, 2.0**-5, 1.0


def _with_norm(setting: Setting) -> Setting:
    """Return plain SGD of figure 1, whose largest learning rate is compared."""
    return dataclasses.replace(setting, name=WITH_NORM)


OBJECT = PaperObject(
    identifier="figure6",
    shows="Figure 1 without batch norm: accuracy, training loss and optimal learning rate against batch size.",
    networks="WRN-16-4 with SkipInit, CIFAR-10",
    form=Form.BATCH_SIZES,
    text_values=(
        TextValue(what="SGD: B above which it degrades", value="8", source=CAPTION, measured=measured.kink(0.0)),
        TextValue(what="momentum: B above which it degrades", value="256", source=CAPTION, measured=measured.kink(0.9)),
        TextValue(
            what="SGD: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.0)
        ),
        TextValue(
            what="momentum: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.9)
        ),
    ),
    claims=(
        *(
            PaperClaim(
                text=f"{word}: test accuracy does not depend on the batch size while that is small",
                source=f"{CAPTION}, a",
                test=claims.flat_below_kink(momentum),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: test accuracy falls at large batches",
                source=f"{CAPTION}, a",
                test=claims.worse_above_kink(momentum),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: the training loss too does not depend on the batch size while that is small",
                source=f"{CAPTION}, b",
                test=claims.flat_below_kink(momentum, quantity="train"),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: the training loss too rises at large batches",
                source=f"{CAPTION}, b",
                test=claims.worse_above_kink(momentum, quantity="train"),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: ε_eff is proportional to B while B is small",
                source=f"{CAPTION}, c",
                test=claims.proportional(momentum),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: ε_eff is constant at large B", source=f"{CAPTION}, c", test=claims.levels_off(momentum)
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        PaperClaim(
            text="momentum has a significantly larger maximum stable learning rate",
            source="appendix C.2",
            test=claims.larger_plateau(),
        ),
        PaperClaim(
            text="SGD: the largest useful learning rate is significantly smaller than with batch norm",
            source="appendix C.2",
            test=claims.smaller_plateau_than(WITH_NORM),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=(
                _with_norm(figure1.paper_settings()[0]),
                *both_optimisers(
                    NETWORK,
                    sizes(1, 11),
                    epochs(200),
                    rates=(around(TEMPERATURE, ceiling=CEILING_SGD), around(TEMPERATURE, ceiling=CEILING_MOMENTUM)),
                    num_seeds=15,
                    num_kept=12,
                ),
            ),
            note="As in the paper; its batch sizes are read off no text.",
        ),
        Scale.GPU: ScaledStudy(
            settings=(
                _with_norm(figure1.gpu_settings()[0]),
                *both_optimisers(
                    NETWORK,
                    sizes(3, 10),
                    epochs(20),
                    rates=(
                        around(2 * TEMPERATURE, ceiling=CEILING_SGD, below=1, above=2),
                        around(2 * TEMPERATURE, ceiling=CEILING_MOMENTUM, below=1, above=2),
                    ),
                    num_seeds=3,
                    num_kept=3,
                    max_extensions=1,
                ),
            ),
            note="20 epochs instead of 200 (a tenth), B from 8 to 1,024, 3 seeds instead of 15.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=(_with_norm(laptop_epochs(EMBEDDED_NORM)[0]), *laptop_epochs()),
            note="The embedded MLP, which has no batch norm, and one with ghost batch norm; shares runs with figure 1.",
        ),
        Scale.SMOKE: dataclasses.replace(
            smoke_epochs(), settings=(_with_norm(smoke_epochs().settings[0]), *smoke_epochs().settings)
        ),
    },
)
