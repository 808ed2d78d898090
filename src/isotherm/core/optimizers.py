"""Optimisers as records: what they are called, their hyperparameters, and how those depend on the batch size.

The effective learning rate ε / (1 - m) and the temperature belong to SGD and heavy ball. For the others a grid is over
the learning rate itself. No torch here: `engine` says what an update is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

from isotherm.core.checks import is_finite, is_number, require_choice, require_whole
from isotherm.core.options import with_named_options
from isotherm.core.rates import tidy
from isotherm.errors import UserError, nearest

# How Muon's learning rate depends on the shape (rows, columns) of a matrix; the names are those of `torch.optim.Muon`.
Adjustment = Literal["match_rms_adamw", "original"]

# Names of fields whose half-life is kept at another batch size.
_DECAYING = ("beta1", "beta2", "momentum")


@with_named_options(lambda kind, option: _owners(kind, option))
@dataclass(frozen=True, kw_only=True, slots=True)
class SGD:
    """Stochastic gradient descent, `torch.optim.SGD`: heavy ball, or Nesterov's momentum.

    >>> SGD(momentum=0.9).label, SGD(momentum=0.0).label
    ('momentum 0.9', 'SGD')
    """

    name: ClassVar[str] = "sgd"
    title: ClassVar[str] = "SGD"

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", _fraction("momentum", self.momentum, "the paper uses 0.9"))
        _require_truth("nesterov", self.nesterov)
        if self.nesterov and self.momentum == 0:
            raise UserError("nesterov=True with momentum=0 is plain SGD; give a momentum, e.g. 0.9")

    @property
    def label(self) -> str:
        """The optimiser in words."""
        kind = "Nesterov momentum" if self.nesterov else "momentum"
        return "SGD" if self.momentum == 0 else f"{kind} {self.momentum:g}"

    def at(self, batch_size: int) -> SGD:
        """Return itself: the momentum is one for all batch sizes."""
        return self


@with_named_options(lambda kind, option: _owners(kind, option))
@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """Adam, `torch.optim.Adam`; L2 is part of the gradient, as its `weight_decay`.

    Args:
        beta1: decay of the mean of gradients, per update.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of the latter.
        reference_batch_size: where given, the betas are those at this batch size, and at others keep their half-life in
            examples: β^(B / reference). To first order 1 - β is then proportional to B.

    >>> Adam(beta2=0.99, reference_batch_size=64).at(128).beta2
    0.9801
    """

    name: ClassVar[str] = "adam"
    title: ClassVar[str] = "Adam"

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    reference_batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_adam(self)

    @property
    def label(self) -> str:
        """The optimiser in words: its name and what differs from the defaults."""
        return label_of(self)

    def at(self, batch_size: int) -> Adam:
        """Return the optimiser at a batch size."""
        return _at(self, batch_size)


@with_named_options(lambda kind, option: _owners(kind, option))
@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW:
    """AdamW, `torch.optim.AdamW`: Adam with decoupled weight decay.

    Args:
        beta1: decay of the mean of gradients, per update.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of the latter.
        weight_decay: every update shrinks the weights by the learning rate times this; `l2_scope` says which.
        reference_batch_size: as in `Adam`.

    >>> AdamW(weight_decay=0.1).label
    'AdamW(weight_decay=0.1)'
    """

    name: ClassVar[str] = "adamw"
    title: ClassVar[str] = "AdamW"

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    reference_batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_adam(self)
        object.__setattr__(self, "weight_decay", _not_negative("weight_decay", self.weight_decay))

    @property
    def label(self) -> str:
        """The optimiser in words: its name and what differs from the defaults."""
        return label_of(self)

    def at(self, batch_size: int) -> AdamW:
        """Return the optimiser at a batch size."""
        return _at(self, batch_size)


@with_named_options(lambda kind, option: _owners(kind, option))
@dataclass(frozen=True, kw_only=True, slots=True)
class Muon:
    """Muon for matrices, as `torch.optim.Muon`, and AdamW for all other parameters and for embeddings.

    The matrices' momentum is orthogonalised by five Newton-Schulz iterations, in the precision of the run and, in mixed
    precision, in bfloat16, which `torch.optim.Muon` always uses.

    Args:
        momentum: of the matrices.
        nesterov: whether theirs is Nesterov's.
        weight_decay: decoupled, of the matrices and of the rest; `l2_scope` says of which parameters.
        adjustment: "match_rms_adamw" scales the rate of a matrix by 0.2 √max(rows, columns), so that one learning rate
            suits both; "original" by √max(1, rows / columns).
        adamw_ratio: learning rate of AdamW over that of Muon.
        beta1: of AdamW, as are the following two.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of the latter.
        reference_batch_size: as in `Adam`; the momentum keeps its half-life too.
    """

    name: ClassVar[str] = "muon"
    title: ClassVar[str] = "Muon"

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    adjustment: Adjustment = "match_rms_adamw"
    adamw_ratio: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    reference_batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_adam(self)
        object.__setattr__(self, "momentum", _fraction("momentum", self.momentum, "the usual one is 0.95"))
        object.__setattr__(self, "weight_decay", _not_negative("weight_decay", self.weight_decay))
        object.__setattr__(self, "adamw_ratio", _positive("adamw_ratio", self.adamw_ratio, "use e.g. 1"))
        _require_truth("nesterov", self.nesterov)
        require_choice("adjustment", self.adjustment, get_args(Adjustment))

    @property
    def label(self) -> str:
        """The optimiser in words: its name and what differs from the defaults."""
        return label_of(self)

    def at(self, batch_size: int) -> Muon:
        """Return the optimiser at a batch size."""
        return _at(self, batch_size)


Optimizer = SGD | Adam | AdamW | Muon
Adaptive = TypeVar("Adaptive", Adam, AdamW, Muon)
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW, Muon)}


def has_temperature(optimizer: Optimizer) -> bool:
    """Tell whether ε_eff = ε / (1 - m) and T = ε_eff / B mean something: for SGD and its momenta."""
    return isinstance(optimizer, SGD)


def kind_of(optimizer: Optimizer) -> tuple[str | bool, ...]:
    """Return what the runs of one fleet must share; all other hyperparameters are each run's own."""
    options = ("nesterov", "adjustment")
    return optimizer.name, *(getattr(optimizer, name) for name in options if hasattr(optimizer, name))


def num_moments(optimizer: Optimizer) -> int:
    """Return how many values an optimiser keeps of a parameter, at most."""
    return 1 if isinstance(optimizer, SGD) else 2


def decays_weights(optimizer: Optimizer | None) -> bool:
    """Tell whether weight decay takes the place of L2."""
    return isinstance(optimizer, AdamW | Muon)


def label_of(optimizer: Optimizer) -> str:
    """Return the name of an optimiser with the fields that differ from their defaults.

    >>> label_of(Muon(nesterov=False)), label_of(AdamW())
    ('Muon(nesterov=False)', 'AdamW')
    """
    plain = type(optimizer)()
    changed = [
        f"{field.name}={_shown(getattr(optimizer, field.name))}"
        for field in dataclasses.fields(optimizer)
        if getattr(optimizer, field.name) != getattr(plain, field.name)
    ]
    return optimizer.title + (f"({', '.join(changed)})" if changed else "")


def optimizer_json(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimiser as plain values, its name among them; a batch size that is not given is left out.

    >>> optimizer_json(SGD())
    {'name': 'sgd', 'momentum': 0.9, 'nesterov': False}
    """
    content = {"name": optimizer.name, **dataclasses.asdict(optimizer)}
    return {name: value for name, value in content.items() if value is not None}


def optimizer_of(content: Mapping[str, Any]) -> Optimizer:
    """Return the optimiser of plain values: what `optimizer_json` wrote, or a table with a name and some options.

    >>> optimizer_of({"name": "adamw", "weight_decay": 0.1})
    AdamW(beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.1, reference_batch_size=None)
    """
    options = dict(content)
    name = options.pop("name", None)
    if name is None:
        raise UserError(f'the optimiser has no name; add e.g. name = "adamw" (known: {", ".join(sorted(OPTIMIZERS))})')
    kind = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UserError(f"{name!r} is no optimiser; {nearest(str(name).lower(), OPTIMIZERS)}")
    return kind(**options)


def heavy_ball_momentum(optimizer: Optimizer) -> float | None:
    """Return the momentum of heavy ball or plain SGD; None for everything else."""
    return optimizer.momentum if isinstance(optimizer, SGD) and not optimizer.nesterov else None


def _owners(kind: type, option: str) -> str:
    """Return which optimisers have an option that one of them has not, and what takes its place there."""
    owners = [other.title for other in OPTIMIZERS.values() if option in {f.name for f in dataclasses.fields(other)}]
    if option == "weight_decay":
        return f", which is one of {' and '.join(owners)}: use AdamW, or for L2 give the sweep or the task l2="
    return f", which is one of {' and '.join(owners)}" if owners else ""


def _at(optimizer: Adaptive, batch_size: int) -> Adaptive:
    """Return an optimiser whose decays keep their half-life in examples."""
    if optimizer.reference_batch_size is None:
        return optimizer
    ratio = batch_size / optimizer.reference_batch_size
    names = [name for name in _DECAYING if hasattr(optimizer, name)]
    scaled: dict[str, Any] = {name: tidy(float(getattr(optimizer, name)) ** ratio) for name in names}
    return dataclasses.replace(optimizer, reference_batch_size=None, **scaled)


def _check_adam(optimizer: Adam | AdamW | Muon) -> None:
    for name, usual in (("beta1", "0.9"), ("beta2", "0.999")):
        object.__setattr__(optimizer, name, _fraction(name, getattr(optimizer, name), f"the usual one is {usual}"))
    object.__setattr__(optimizer, "epsilon", _positive("epsilon", optimizer.epsilon, "the usual one is 1e-8"))
    if optimizer.reference_batch_size is not None:
        require_whole("reference_batch_size", optimizer.reference_batch_size, at_least=1)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _fraction(name: str, value: Any, remedy: str) -> float:
    if not is_number(value) or not 0 <= value < 1:
        raise UserError(f"{name}={value!r} is not in [0, 1); {remedy}")
    return float(value)


def _positive(name: str, value: Any, remedy: str) -> float:
    if not is_number(value) or not (is_finite(value) and value > 0):
        raise UserError(f"{name}={value!r} is not a positive number; {remedy}")
    return float(value)


def _not_negative(name: str, value: Any) -> float:
    if not is_number(value) or not (is_finite(value) and value >= 0):
        raise UserError(f"{name}={value!r} is not a number >= 0; use 0 for none")
    return float(value)


def _require_truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UserError(f"{name}={value!r} is neither True nor False")
