"""Sweeps that several objects share, so that their runs are equal and are stored once.

The names of sweeps are those by which claims find them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from isotherm.core.budget import Budget
from isotherm.core.rates import IsothermGrid, powers_of_two
from isotherm.studies.paper.definition import ScaledStudy, Setting
from isotherm.studies.paper.networks import EMBEDDED, EMBEDDED_AUTOENCODER

EQUAL_EPOCHS, EQUAL_STEPS = "equal epochs", "equal steps"
WITH_NORM, WITHOUT_NORM = "with batch norm", "without batch norm"
BUDGETS, ALONG = "epoch budgets", "along training"

# Optimal temperature and largest learning rates of the embedded MLP, on which grids are centred.
TEMPERATURE, CEILING_SGD, CEILING_MOMENTUM = 2.0**-5, 2.0, 8.0
# The same for the embedded autoencoder.
AUTOENCODER_TEMPERATURE, AUTOENCODER_CEILINGS = 2.0**-9, (2.0**-4, 2.0**-2)
# The LSTM's gradients are clipped; so are the MLP's that stands for it, most of them.
CLIP_NORM = 0.25
CLIPPED_RATES = powers_of_two(-1, 4)

ADAPTIVE: dict[str, Any] = {"num_seeds": 5, "num_kept": 5, "num_evaluations": 0, "resolution": "adaptive"}
SMOKE: dict[str, Any] = {"num_seeds": 3, "num_kept": 3, "num_evaluations": 0, "max_extensions": 0}
SMOKE_NOTE = "The embedded MLP, a few updates: shows that everything runs, and nothing else."


def sizes(lowest: int, highest: int, *, step: int = 1) -> tuple[int, ...]:
    """Return batch sizes 2^lowest .. 2^highest.

    >>> sizes(3, 7, step=2)
    (8, 32, 128)
    """
    return tuple(2**k for k in range(lowest, highest + 1, step))


def epochs(*amounts: float) -> tuple[Budget, ...]:
    """Return budgets in epochs."""
    return tuple(Budget.epochs(amount) for amount in amounts)


def steps(*amounts: int) -> tuple[Budget, ...]:
    """Return budgets in updates."""
    return tuple(Budget.steps(amount) for amount in amounts)


def doubled(first: float, number: int) -> tuple[Budget, ...]:
    """Return epoch budgets, each twice the one before.

    >>> [str(budget) for budget in doubled(50, 3)]
    ['50 epochs', '100 epochs', '200 epochs']
    """
    return epochs(*(first * 2**k for k in range(number)))


def around(
    temperature: float, *, ceiling: float = float("inf"), below: int = 3, above: int = 3, ratio: float = 2.0
) -> IsothermGrid:
    """Return the learning rates on both sides of an isotherm; the paper's objects have seven."""
    return IsothermGrid(temperature=temperature, ceiling=ceiling, num_below=below, num_above=above, ratio=ratio)


def both_optimisers(
    network: str,
    batch_sizes: Iterable[int],
    budgets: tuple[Budget, ...],
    *,
    rates: tuple[IsothermGrid | tuple[float, ...], IsothermGrid | tuple[float, ...]],
    **changes: Any,
) -> tuple[Setting, Setting]:
    """Return plain SGD and momentum at an equal number of epochs; `rates` are of the one and the other."""
    plain, heavy = (
        Setting(
            name=EQUAL_EPOCHS,
            network=network,
            batch_sizes=tuple(batch_sizes),
            rates=grid,
            budgets=budgets,
            momentum=momentum,
            **changes,
        )
        for grid, momentum in zip(rates, (0.0, 0.9), strict=True)
    )
    return plain, heavy


def equal_steps(
    network: str,
    batch_sizes: Iterable[int],
    num_steps: int,
    rates: IsothermGrid | tuple[float, ...],
    **changes: Any,
) -> Setting:
    """Return momentum at an equal number of updates."""
    return Setting(
        name=EQUAL_STEPS,
        network=network,
        batch_sizes=tuple(batch_sizes),
        rates=rates,
        budgets=steps(num_steps),
        **changes,
    )


def over_budgets(
    name: str,
    network: str,
    batch_size: int,
    budgets: tuple[Budget, ...],
    rates: IsothermGrid | tuple[float, ...],
    **changes: Any,
) -> Setting:
    """Return one batch size at several budgets."""
    return Setting(name=name, network=network, batch_sizes=(batch_size,), rates=rates, budgets=budgets, **changes)


# -- the embedded networks, for a laptop and for tests --------------------------------------------------------------


def laptop_epochs(network: str = EMBEDDED, **changes: Any) -> tuple[Setting, Setting]:
    """Return both optimisers for 20 epochs, B = 8 to 1,024: the quickstart's own runs on the MLP."""
    temperature, ceilings = TEMPERATURE, (CEILING_SGD, CEILING_MOMENTUM)
    if network == EMBEDDED_AUTOENCODER:
        temperature, ceilings = AUTOENCODER_TEMPERATURE, AUTOENCODER_CEILINGS
    plain, heavy = (around(temperature, ceiling=ceiling, below=1, above=1) for ceiling in ceilings)
    rates = changes.pop("rates", (plain, heavy))
    batch_sizes = changes.pop("batch_sizes", sizes(3, 10))
    return both_optimisers(network, batch_sizes, epochs(20), rates=rates, **{**ADAPTIVE, **changes})


def laptop_steps(network: str = EMBEDDED, **changes: Any) -> Setting:
    """Return momentum for 1,500 updates, B = 8 to 1,024: the quickstart's own runs on the MLP."""
    grid = around(TEMPERATURE, ceiling=CEILING_MOMENTUM, below=1, above=1)
    if network == EMBEDDED_AUTOENCODER:
        grid = around(AUTOENCODER_TEMPERATURE, ceiling=AUTOENCODER_CEILINGS[1], below=1, above=1)
    return equal_steps(network, sizes(3, 10), 1500, changes.pop("rates", grid), **{**ADAPTIVE, **changes})


def laptop_budgets(name: str, network: str = EMBEDDED, **changes: Any) -> Setting:
    """Return momentum at B = 32 from 5 to 160 epochs."""
    grid = around(2.0**-8 if network == EMBEDDED_AUTOENCODER else TEMPERATURE, below=1, above=1)
    rates = changes.pop("rates", grid)
    budgets = changes.pop("budgets", doubled(5, 6))
    return over_budgets(name, network, 32, budgets, rates, **{**ADAPTIVE, **changes})


def smoke_epochs() -> ScaledStudy:
    """Return both optimisers for tests."""
    grid = around(TEMPERATURE, below=1, above=1)
    settings = both_optimisers(EMBEDDED, sizes(5, 9, step=2), epochs(1), rates=(grid, grid), **SMOKE)
    return ScaledStudy(settings=settings, note=SMOKE_NOTE)


def smoke_steps() -> ScaledStudy:
    """Return equal updates for tests."""
    grid = around(TEMPERATURE, below=1, above=1)
    return ScaledStudy(settings=(equal_steps(EMBEDDED, sizes(4, 8, step=2), 30, grid, **SMOKE),), note=SMOKE_NOTE)


def smoke_budgets(*names: str) -> ScaledStudy:
    """Return three budgets for tests."""
    grid = around(2.0**-6, below=1, above=1)
    budgets = epochs(0.25, 0.5, 1)
    settings = tuple(over_budgets(name, EMBEDDED, 64, budgets, grid, **SMOKE) for name in names)
    return ScaledStudy(settings=settings, note=SMOKE_NOTE)
