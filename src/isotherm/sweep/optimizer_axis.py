"""The optimisers of a sweep as an axis: what may stand together, and which learning rates go with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.core.checks import require_positive, require_some
from isotherm.core.optimizers import OPTIMIZERS, Optimizer, decays_weights, has_temperature, optimizer_of
from isotherm.core.rates import IsothermGrid
from isotherm.errors import UserError

# Extensions multiply learning rates, which must not leave what a float holds.
_RATES = (1e-30, 1e30)


def checked_optimizers(given: object, *, momentum: object, l2: float | None) -> tuple[Optimizer, ...]:
    """Return the optimisers that were given, one or several, as records or by name.

    Raises:
        UserError: one is unknown, they cannot share a sweep, or something else is given that they have no use for.
    """
    listed = given if isinstance(given, list | tuple) else [given]
    require_some("optimizer", listed)
    made = tuple(dict.fromkeys(map(_optimizer, listed)))
    if momentum is not None:
        raise UserError(
            f"momentum={momentum!r} and optimizer are both given; write optimizer=isotherm.SGD(momentum=0.9) alone"
        )
    if len(set(map(has_temperature, made))) > 1:
        raise UserError(
            f"optimizer holds {', '.join(one.label for one in made)}: learning rates of SGD and of the others have "
            "little in common; give them sweeps of their own"
        )
    if len(set(map(decays_weights, made))) > 1:
        raise UserError("Adam has L2, AdamW and Muon have weight decay instead; give them sweeps of their own")
    if l2 and decays_weights(made[0]):
        raise UserError(
            f"l2={l2!r}, but {made[0].title} has weight decay in place of L2; leave it out and write "
            f"optimizer=isotherm.{made[0].title}(weight_decay=...)"
        )
    return made


def check_learning_rates(methods: Sequence[Optimizer], *, effective: Any, bare: Any) -> None:
    """Refuse a grid that does not go with the optimisers.

    Args:
        methods: the optimisers, heavy ball included.
        effective: effective learning rates, or None.
        bare: the optimisers' own, or None.
    """
    other = next((one for one in methods if not has_temperature(one)), None)
    if other is not None and (effective is not None or bare is None):
        raise UserError(
            f"{other.title} has no effective learning rate: ε / (1 - momentum) is of SGD; give learning_rates=[...]"
        )
    if (effective is None) == (bare is None):
        what = "neither is given" if bare is None else "both are given"
        raise UserError(f"a sweep needs effective_learning_rates or learning_rates, and {what}; give exactly one")
    if isinstance(bare, IsothermGrid):
        raise UserError("an IsothermGrid holds effective learning rates; give it as effective_learning_rates")
    name, values = ("learning_rates", bare) if effective is None else ("effective_learning_rates", effective)
    if not isinstance(values, IsothermGrid):
        require_some(name, values)
        for value in values:
            one = name.removesuffix("s").replace("_", " ")
            require_positive(one, value)
            if not _RATES[0] <= value <= _RATES[1]:
                article = "a" if effective is None else "an"
                raise UserError(
                    f"{article} {one} of {value:g} is none that trains; use one between {_RATES[0]:g} and {_RATES[1]:g}"
                )


def _optimizer(given: object) -> Optimizer:
    """Return an optimiser, or the one of this name."""
    if isinstance(given, str):
        return optimizer_of({"name": given})
    if not isinstance(given, tuple(OPTIMIZERS.values())):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"
        known = ", ".join(f"isotherm.{kind.title}(...)" for kind in OPTIMIZERS.values())
        raise UserError(f"optimizer={given!r} is {what}; give one of {known}")
    return given  # type: ignore[return-value]
