"""Figure 7: the LSTM at an equal number of epochs, where the learning rate follows the square root of the batch size.

Run:     isotherm reproduce figure7 --scale laptop
Cost:    laptop 480 runs, 55 s; gpu 168 runs, 21 min; paper 882 runs, 4 h
Expect:  paper, best 5 of 7 runs: perplexity flat to B = 64 (SGD) and 128 (momentum); the optimum rises as √B.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, TextValue
from isotherm.studies.paper.settings import (
    CLIP_NORM,
    CLIPPED_RATES,
    both_optimisers,
    epochs,
    laptop_epochs,
    sizes,
    smoke_epochs,
)

CAPTION = "caption of figure 7"
NETWORK = "lstm_ptb"
# 2^(k/2), written as the paper writes them.
RATES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)

OBJECT = PaperObject(
    identifier="figure7",
    shows="Test and training perplexity of an LSTM and its optimal learning rate against batch size, equal epochs.",
    networks="LSTM, Penn TreeBank",
    form=Form.BATCH_SIZES,
    metric="test perplexity",
    text_values=(
        TextValue(what="SGD: B above which perplexity rises", value="64", source=CAPTION, measured=measured.kink(0.0)),
        TextValue(what="momentum: B above which it rises", value="128", source=CAPTION, measured=measured.kink(0.9)),
        TextValue(
            what="momentum: power of B with which ε_eff rises",
            value="1/2",
            source=CAPTION,
            measured=measured.slope(0.9),
        ),
        TextValue(
            what="SGD: power of B with which ε_eff rises", value="1/2", source=CAPTION, measured=measured.slope(0.0)
        ),
        TextValue(what="epochs of the original paper", value="39", source="appendix E"),
    ),
    claims=(
        PaperClaim(
            text="momentum: the test metric does not depend on the batch size while that is small",
            source=f"{CAPTION}, a",
            test=claims.flat_below_kink(0.9),
        ),
        PaperClaim(
            text="SGD: the test metric does not depend on the batch size while that is small",
            source=f"{CAPTION}, a",
            test=claims.flat_below_kink(0.0),
        ),
        PaperClaim(
            text="momentum: the test metric gets worse at large batches",
            source=f"{CAPTION}, a",
            test=claims.worse_above_kink(0.9),
        ),
        PaperClaim(
            text="SGD: the test metric gets worse at large batches",
            source=f"{CAPTION}, a",
            test=claims.worse_above_kink(0.0),
        ),
        PaperClaim(
            text="SGD and momentum perform alike at small batches", source="appendix C.3", test=claims.no_help_below()
        ),
        *(
            PaperClaim(
                text=f"{word}: the training metric does not depend on the batch size while that is small",
                source=f"{CAPTION}, b",
                test=claims.flat_below_kink(momentum, quantity="train"),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: the training metric gets worse at large batches",
                source=f"{CAPTION}, b",
                test=claims.worse_above_kink(momentum, quantity="train"),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: ε_eff is proportional to the square root of B while B is small",
                source=f"{CAPTION}, c",
                test=claims.square_root(momentum),
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
        *(
            PaperClaim(
                text=f"{word}: ε_eff levels off at large B", source=f"{CAPTION}, c", test=claims.levels_off(momentum)
            )
            for word, momentum in (("SGD", 0.0), ("momentum", 0.9))
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=both_optimisers(NETWORK, sizes(3, 9), epochs(40), rates=(RATES, RATES), num_seeds=7, num_kept=5),
            note="As in the paper; its batch sizes are read off no text.",
        ),
        Scale.GPU: ScaledStudy(
            settings=both_optimisers(
                NETWORK,
                sizes(3, 9),
                epochs(20),
                rates=(RATES[1::2], RATES[1::2]),
                num_seeds=3,
                num_kept=3,
                max_extensions=1,
            ),
            note="20 epochs instead of 40 (a half), learning rates a factor 2 apart, 3 seeds instead of 7.",
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=laptop_epochs(rates=(CLIPPED_RATES, CLIPPED_RATES), clip_norm=CLIP_NORM),
            note=(
                f"The embedded MLP with its gradient clipped at {CLIP_NORM:g}, as the LSTM's is at 5: it is no "
                "sequence model, and shows what clipping alone does."
            ),
        ),
        Scale.SMOKE: smoke_epochs(),
    },
)
