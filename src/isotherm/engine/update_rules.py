"""What an update does to a group of parameters of all runs: one rule per optimiser, each run with its own settings.

A rule reads a gradient, which a factor may shorten, and changes values and moments (M, N) in place. `moments` are what
the optimiser keeps of a group: a velocity, or the means of gradients and of their squares.

Shape suffixes: M runs, N values of a group, R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from isotherm.core.optimizers import SGD, Adam, AdamW, Adjustment, Muon, Optimizer

# Of `torch.optim.Muon`: the coefficients of an iteration, their number, and the least norm of a matrix.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
LEAST_NORM = 1e-7


class Adaptive(NamedTuple):
    """The settings of Adam, AdamW and Muon, shape (M, 1) each; `exact` ones are in float64."""

    exact_beta1_M1: Tensor
    exact_beta2_M1: Tensor
    new_in_mean_M1: Tensor  # 1 - β1
    new_in_square_M1: Tensor  # 1 - β2
    epsilon_M1: Tensor
    decay_M1: Tensor
    new_in_momentum_M1: Tensor  # 1 - m, of Muon
    ratio_M1: Tensor  # of AdamW's learning rate to Muon's


class Settings(NamedTuple):
    """What the update of every run is made with, shape (M, 1) each; without clipping or L2 there is None."""

    momentum_M1: Tensor
    l2_M1: Tensor | None
    clip_M1: Tensor | None
    adaptive: Adaptive | None = None

    def select(self, keep: Tensor) -> Settings:
        """Return those of some of the runs."""

        def chosen(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[keep]

        adaptive = None if self.adaptive is None else Adaptive(*(values[keep] for values in self.adaptive))
        return Settings(self.momentum_M1[keep], chosen(self.l2_M1), chosen(self.clip_M1), adaptive)


class Matrices(NamedTuple):
    """The matrices of a group: rows and columns, and the same as they lie in memory, padding included."""

    rows: int
    columns: int
    held: tuple[int, int]


class Group(NamedTuple):
    """What a rule is told of a group: whether L2 or weight decay moves it, and its matrices if Muon trains them."""

    decays: bool
    matrices: Matrices | None = None


class Rates(NamedTuple):
    """Learning rates of an update (M, 1), and Adam's bias corrections 1 - β1^t and √(1 - β2^t)."""

    rate_M1: Tensor
    of_mean_M1: Tensor | None = None
    of_root_M1: Tensor | None = None


class UpdateRule(Protocol):
    """How an optimiser updates the parameters of all runs."""

    def num_moments(self, group: Group) -> int:
        """Return how many tensors it keeps of a group."""
        ...

    def rates(self, rate_M1: Tensor, settings: Settings, step: Tensor | None) -> Rates:
        """Return what all groups share in the update number `step`, from 0."""
        ...

    def update(
        self,
        group: Group,
        value: Tensor,
        moments: Sequence[Tensor],
        gradient: Tensor,
        rates: Rates,
        settings: Settings,
        factor_M1: Tensor | None,
    ) -> None:
        """Change the values and moments of a group in place; the gradient is only read."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HeavyBall:
    """SGD with coupled L2 and heavy-ball or Nesterov momentum, as `torch.optim.SGD`."""

    nesterov: bool = False

    def num_moments(self, group: Group) -> int:
        """Return 1: the velocity."""
        return 1

    def rates(self, rate_M1: Tensor, settings: Settings, step: Tensor | None) -> Rates:
        """Return the learning rates."""
        return Rates(rate_M1)

    def update(
        self,
        group: Group,
        value: Tensor,
        moments: Sequence[Tensor],
        gradient: Tensor,
        rates: Rates,
        settings: Settings,
        factor_M1: Tensor | None,
    ) -> None:
        """U = m u + g + λ w, and w = w - ε u; with Nesterov's momentum w = w - ε (g + λ w + m u)."""
        (velocity,) = moments
        l2_M1 = settings.l2_M1 if group.decays else None
        if not self.nesterov:
            heavy_ball(value, velocity, gradient, rates.rate_M1, settings.momentum_M1, l2_M1, factor_M1=factor_M1)
            return
        gradient = _whole(gradient, factor_M1, value, l2_M1)
        torch.addcmul(gradient, velocity, settings.momentum_M1, out=velocity)
        ahead = torch.addcmul(gradient, velocity, settings.momentum_M1)
        value.addcmul_(ahead, rates.rate_M1, value=-1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptively:
    """Adam with coupled L2, or AdamW with decoupled weight decay, as in `torch.optim`."""

    def num_moments(self, group: Group) -> int:
        """Return 2: the means of gradients and of their squares."""
        return 2

    def rates(self, rate_M1: Tensor, settings: Settings, step: Tensor | None) -> Rates:
        """Return the learning rates and the bias corrections."""
        own = settings.adaptive
        assert own is not None
        assert step is not None
        number = (step + 1).to(torch.float64)
        of_mean_M1, of_square_M1 = (1.0 - beta_M1**number for beta_M1 in (own.exact_beta1_M1, own.exact_beta2_M1))
        return Rates(rate_M1, of_mean_M1.to(rate_M1.dtype), of_square_M1.sqrt().to(rate_M1.dtype))

    def update(
        self,
        group: Group,
        value: Tensor,
        moments: Sequence[Tensor],
        gradient: Tensor,
        rates: Rates,
        settings: Settings,
        factor_M1: Tensor | None,
    ) -> None:
        """W = w - ε λ w - ε (mean / c1) / (√square / √c2 + epsilon), with c the bias corrections."""
        own, (mean, square) = settings.adaptive, moments
        assert own is not None
        assert rates.of_mean_M1 is not None
        assert rates.of_root_M1 is not None
        gradient = _whole(gradient, factor_M1, value, settings.l2_M1 if group.decays else None)
        rate_M1 = rates.rate_M1 * own.ratio_M1
        if group.decays:
            value.mul_(1.0 - rate_M1 * own.decay_M1)
        mean.lerp_(gradient, own.new_in_mean_M1)
        square.lerp_(gradient.square(), own.new_in_square_M1)
        size = square.sqrt().div_(rates.of_root_M1).add_(own.epsilon_M1)
        value.addcdiv_(mean * (rate_M1 / rates.of_mean_M1), size, value=-1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orthogonally:
    """Muon for groups of matrices, AdamW for the rest.

    Args:
        nesterov: whether the matrices' momentum is Nesterov's.
        adjustment: how their learning rate depends on their shape.
        dtype: of the Newton-Schulz iterations; that of the parameters by default.
    """

    nesterov: bool
    adjustment: Adjustment
    dtype: torch.dtype | None = None

    def num_moments(self, group: Group) -> int:
        """Return 1 for matrices: their momentum; 2 for the rest."""
        return 2 if group.matrices is None else 1

    def rates(self, rate_M1: Tensor, settings: Settings, step: Tensor | None) -> Rates:
        """Return the learning rates and the bias corrections of the rest."""
        return Adaptively().rates(rate_M1, settings, step)

    def update(
        self,
        group: Group,
        value: Tensor,
        moments: Sequence[Tensor],
        gradient: Tensor,
        rates: Rates,
        settings: Settings,
        factor_M1: Tensor | None,
    ) -> None:
        """B = m b + (1 - m) g and w = w - ε λ w - ε a orthogonalised(b), with a from the shape of the matrix."""
        if group.matrices is None:
            Adaptively().update(group, value, moments, gradient, rates, settings, factor_M1)
            return
        own, (momentum,), shape = settings.adaptive, moments, group.matrices
        assert own is not None
        gradient = _whole(gradient, factor_M1, value, None)
        momentum.lerp_(gradient, own.new_in_momentum_M1)
        wanted = gradient.lerp(momentum, settings.momentum_M1) if self.nesterov else momentum
        matrices_MRC = wanted.view(-1, *shape.held).to(self.dtype or wanted.dtype)
        direction = orthogonalised(matrices_MRC).flatten(1).to(value.dtype)
        if group.decays:
            value.mul_(1.0 - rates.rate_M1 * own.decay_M1)
        value.addcmul_(direction, rates.rate_M1 * adjusted(shape.rows, shape.columns, self.adjustment), value=-1.0)


def update_rule(optimizer: Optimizer, *, is_mixed: bool) -> UpdateRule:
    """Return the rule of an optimiser; of Muon, in mixed precision, with iterations in bfloat16."""
    if isinstance(optimizer, SGD):
        return HeavyBall(nesterov=optimizer.nesterov)
    if isinstance(optimizer, Muon):
        dtype = torch.bfloat16 if is_mixed else None
        return Orthogonally(nesterov=optimizer.nesterov, adjustment=optimizer.adjustment, dtype=dtype)
    return Adaptively()


def adaptive_settings(
    optimizers: Sequence[Optimizer], *, dtype: torch.dtype, device: torch.device | str
) -> Adaptive | None:
    """Return the settings of runs of Adam, AdamW or Muon; None for SGD."""
    own = [optimizer for optimizer in optimizers if isinstance(optimizer, Adam | AdamW | Muon)]
    if not own:
        return None

    def column(values: Sequence[float], kind: torch.dtype = dtype) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device).to(kind).unsqueeze(1)

    return Adaptive(
        exact_beta1_M1=column([one.beta1 for one in own], torch.float64),
        exact_beta2_M1=column([one.beta2 for one in own], torch.float64),
        new_in_mean_M1=column([1.0 - one.beta1 for one in own]),
        new_in_square_M1=column([1.0 - one.beta2 for one in own]),
        epsilon_M1=column([one.epsilon for one in own]),
        decay_M1=column([getattr(one, "weight_decay", 0.0) for one in own]),
        new_in_momentum_M1=column([1.0 - getattr(one, "momentum", 0.0) for one in own]),
        ratio_M1=column([getattr(one, "adamw_ratio", 1.0) for one in own]),
    )


def adjusted(rows: int, columns: int, adjustment: Adjustment) -> float:
    """Return the factor of Muon's learning rate for a matrix, as `torch.optim.Muon` has it."""
    return 0.2 * math.sqrt(max(rows, columns)) if adjustment == "match_rms_adamw" else math.sqrt(max(1, rows / columns))


def orthogonalised(matrices_MRC: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and values near 1: five Newton-Schulz iterations.

    >>> [f"{value:.1f}" for value in orthogonalised(torch.diag_embed(torch.tensor([[3.0, 4.0]])))[0].diagonal()]
    ['0.7', '1.1']
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices_MRC.shape[1] > matrices_MRC.shape[2]
    x = matrices_MRC.mT if is_tall else matrices_MRC
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def heavy_ball(
    value: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    learning_rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
    *,
    factor_M1: Tensor | None = None,
) -> None:
    """Update values (M, N) and their velocities in place by a gradient, which a clipping factor may shorten."""
    if factor_M1 is None:
        torch.addcmul(gradient, velocity, momentum_M1, out=velocity)
    else:
        velocity.mul_(momentum_M1).addcmul_(gradient, factor_M1)
    if l2_M1 is not None:
        velocity.addcmul_(value, l2_M1)
    value.addcmul_(velocity, learning_rate_M1, value=-1.0)


def _whole(gradient: Tensor, factor_M1: Tensor | None, value: Tensor, l2_M1: Tensor | None) -> Tensor:
    """Return a gradient, shortened by clipping and with that of the penalty."""
    shortened = gradient if factor_M1 is None else gradient * factor_M1
    return shortened if l2_M1 is None else torch.addcmul(shortened, value, l2_M1)
