"""Figure 1: two regimes of SGD at an equal number of epochs, with batch norm.

Run:     isotherm reproduce figure1 --scale laptop
Cost:    laptop 240 runs, 27 s; gpu 192 runs, 24 min; paper 1,680 runs, 35 h
Expect:  paper, best 12 of 15 runs: SGD's optimum rises with B up to 512, then stays; momentum goes on above.
"""

from __future__ import annotations

from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.claims import measured
from isotherm.studies.paper.definition import Form, PaperClaim, PaperObject, Scale, ScaledStudy, Setting, TextValue
from isotherm.studies.paper.settings import around, both_optimisers, epochs, laptop_epochs, sizes, smoke_epochs

CAPTION = "caption of figure 1"
NETWORK = "wrn16x4_cifar10"
# ε_eff = B/128 at 200 epochs; plain SGD stays below 4 beyond B = 512 (section 5).
TEMPERATURE, CEILING_SGD = 2.0**-7, 4.0


def paper_settings() -> tuple[Setting, Setting]:
    """Return the paper's sweeps; figure 5 has two batch sizes of them with more learning rates."""
    rates = (around(TEMPERATURE, ceiling=CEILING_SGD), around(TEMPERATURE, ceiling=32.0))
    return both_optimisers(NETWORK, sizes(6, 13), epochs(200), rates=rates, num_seeds=15, num_kept=12)


def gpu_settings() -> tuple[Setting, Setting]:
    """Return 20 of 200 epochs."""
    rates = (
        around(TEMPERATURE, ceiling=CEILING_SGD, below=1, above=2),
        around(TEMPERATURE, ceiling=32.0, below=1, above=2),
    )
    changes = {"num_seeds": 3, "num_kept": 3, "max_extensions": 1}
    return both_optimisers(NETWORK, sizes(6, 13), epochs(20), rates=rates, **changes)


OBJECT = PaperObject(
    identifier="figure1",
    shows="Test accuracy, training loss and optimal learning rate against batch size, SGD and momentum, equal epochs.",
    networks="WRN-16-4 with batch norm, CIFAR-10",
    form=Form.BATCH_SIZES,
    text_values=(
        TextValue(
            what="SGD: B above which test accuracy falls", value="512", source=CAPTION, measured=measured.kink(0.0)
        ),
        TextValue(what="B below which momentum matches SGD", value="about 512", source=CAPTION),
        TextValue(
            what="SGD: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.0)
        ),
        TextValue(
            what="momentum: power of B with which ε_eff rises", value="1", source=CAPTION, measured=measured.slope(0.9)
        ),
        TextValue(what="epochs of the original paper", value="200", source="section 5"),
    ),
    claims=(
        PaperClaim(
            text="SGD: test accuracy does not depend on the batch size while that is small",
            source=CAPTION,
            test=claims.flat_below_kink(0.0),
        ),
        PaperClaim(text="SGD: test accuracy falls at large batches", source=CAPTION, test=claims.worse_above_kink(0.0)),
        PaperClaim(text="momentum matches SGD at small batches", source=CAPTION, test=claims.no_help_below()),
        PaperClaim(text="momentum outperforms SGD at large batches", source=CAPTION, test=claims.help_above()),
        PaperClaim(
            text="momentum: test accuracy does not depend on the batch size while that is small",
            source=CAPTION,
            test=claims.flat_below_kink(0.9),
        ),
        PaperClaim(
            text="SGD: the training loss too does not depend on the batch size while that is small",
            source=f"{CAPTION}, b",
            test=claims.flat_below_kink(0.0, quantity="train"),
        ),
        PaperClaim(
            text="momentum matches the training loss of SGD at small batches",
            source=f"{CAPTION}, b",
            test=claims.training_gain("below"),
        ),
        PaperClaim(
            text="momentum has a lower training loss than SGD at large batches",
            source=f"{CAPTION}, b",
            test=claims.training_gain("above"),
        ),
        PaperClaim(
            text="SGD: the training loss too rises at large batches",
            source=f"{CAPTION}, b",
            test=claims.worse_above_kink(0.0, quantity="train"),
        ),
        PaperClaim(
            text="SGD: ε_eff is proportional to B while B is small",
            source=f"{CAPTION}, c",
            test=claims.proportional(0.0),
        ),
        PaperClaim(text="SGD: ε_eff is constant at large B", source=f"{CAPTION}, c", test=claims.levels_off(0.0)),
        PaperClaim(
            text="momentum: ε_eff is proportional to B while B is small",
            source=f"{CAPTION}, c",
            test=claims.proportional(0.9),
        ),
        PaperClaim(
            text="momentum scales to larger effective learning rates",
            source=f"{CAPTION}, c",
            test=claims.larger_plateau(),
        ),
    ),
    scales={
        Scale.PAPER: ScaledStudy(
            settings=paper_settings(), note="As in the paper; its batch sizes are read off no text."
        ),
        Scale.GPU: ScaledStudy(
            settings=gpu_settings(), note="20 epochs instead of 200 (a tenth), 3 seeds instead of 15."
        ),
        Scale.LAPTOP: ScaledStudy(
            settings=laptop_epochs(), note="The embedded MLP, which has no batch norm, 20 epochs, 5 seeds."
        ),
        Scale.SMOKE: smoke_epochs(),
    },
)
