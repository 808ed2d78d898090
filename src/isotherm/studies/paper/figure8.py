"""Figure 8: the autoencoder at an equal number of epochs.

Run:     isotherm reproduce figure8 --scale laptop
Cost:    laptop 240 runs, 44 s; gpu 500 runs, 28 min; paper 1,078 runs, 4 h
Expect:  paper, best 5 of 7 runs: error flat to B = 16 (SGD) and 128 (momentum); the optimum rises as B, then stays.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.networks import EMBEDDED_AUTOENCODER
from isotherm.studies.paper.settings import around, both_optimisers, epochs, laptop_epochs, sizes, smoke_epochs

CAPTION = "caption of figure 8"
NETWORK = "autoencoder_mnist"
# ε_eff = 0.08 at B = 64; plain SGD stays near its optimum at B = 16.
TEMPERATURE, CEILING_SGD, CEILING_MOMENTUM = 0.00125, 0.02, 0.16

OBJECT = PaperObject(
    identifier="figure8",
    shows="Test and training error of an autoencoder and its optimal learning rate against batch size, equal epochs.",
    networks="autoencoder, MNIST",
    form=Form.BATCH_SIZES,
    metric="test squared error",
    text_values=(
        TextValue(what="SGD: B above which the error rises", value="16", source=CAPTION, measured=measured.kink(0.0)),
        TextValue(what="momentum: B above which it rises", value="128", source=CAPTION, measured=measured.kink(0.9)),
        TextValue(
            what="SGD: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.0)
        ),
        TextValue(
            what="momentum: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.9)
        ),
    ),
    claims=(
        PaperClaim(
            text="momentum: the test error does not depend on the batch size while that is small",
            source=f"{CAPTION}, a",
            test=claims.flat_below_kink(0.9),
        ),
        PaperClaim(
            text="SGD: the test error does not depend on the batch size while that is small",
            source="appendix C.3",
            test=claims.flat_below_kink(0.0),
        ),
        PaperClaim(
            text="momentum: the test error rises at large batches",
            source=f"{CAPTION}, a",
            test=claims.worse_above_kink(0.9),
        ),
        PaperClaim(
            text="SGD: the test error rises at large batches", source=f"{CAPTION}, a", test=claims.worse_above_kink(0.0)
        ),
        *(
            PaperClaim(
                text=f"{word}: the training error does not depend on the batch size while that is small",
                source=f"{CAPTION}, b",
                test=claims.flat_below_kink(momentum, quantity="train"),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: the training error rises at large batches",
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
            text="the largest ε_eff is larger with momentum", source=f"{CAPTION}, c", test=claims.larger_plateau()
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=both_optimisers(
                NETWORK,
                sizes(2, 12),
                epochs(200),
                rates=(around(TEMPERATURE, ceiling=CEILING_SGD), around(TEMPERATURE, ceiling=CEILING_MOMENTUM)),
                num_seeds=7,
                num_kept=5,
                precision="mixed",
            ),
            note="As in the paper; its batch sizes are read off no text.",
        ),
        Scale.GPU: ScaledStudy(
            settings=both_optimisers(
                NETWORK,
                sizes(3, 12),
                epochs(100),
                rates=(
                    around(TEMPERATURE, ceiling=CEILING_SGD, below=2, above=2),
                    around(TEMPERATURE, ceiling=CEILING_MOMENTUM, below=2, above=2),
                ),
                num_seeds=5,
                num_kept=5,
                max_extensions=1,
                precision="mixed",
            ),
            note="100 epochs instead of 200 (a half), B from 8, 5 seeds instead of 7.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=laptop_epochs(EMBEDDED_AUTOENCODER), note="An autoencoder of MNIST-1D, 20 epochs, 5 seeds."
        ),
        Scale.SMOKE: smoke_epochs(),
    },
)
