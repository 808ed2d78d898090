"""Curvature of a training objective: the top of the spectrum of its Hessian, and the sharpness of a run.

Gradient descent is stable along a direction of curvature λ while ε < 2/λ, heavy ball while ε < 2(1 + m)/λ. The largest
eigenvalue λ_max of the Hessian, the sharpness, therefore sets the critical learning rate of the paper's section 2. It
is not constant: full-batch descent tends to raise it until it reaches 2(1 + m)/ε, the edge of stability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from isotherm.core.statistics import Floats, Interval, t_interval
from isotherm.core.temperature import effective_learning_rate
from isotherm.errors import UserError
from isotherm.tasks.seeding import derive
from isotherm.theory.closed_forms import critical_learning_rate
from isotherm.theory.hessian import Hessian, NotFiniteError

# Up to this many parameters the Hessian is computed in full and diagonalised, which no iteration can beat.
DENSE_PARAMETERS = 40
# Weight of a random vector mixed into an earlier eigenvector that an iteration starts from. Without it, the iteration
# would miss a larger eigenvalue in a block of the Hessian in which that eigenvector is zero.
FRESH_PART = 0.1


# -- the top of the spectrum ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Eigenpairs:
    """Eigenvalues from one end of the spectrum, the outermost first, with unit eigenvectors as rows.

    `residuals` are ‖Hv - λv‖, measured with one more Hessian-vector product each: an eigenvalue of H lies within that
    distance of λ.
    """

    values: Floats
    vectors: Floats
    residuals: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spectrum:
    """Both ends of a Hessian's spectrum, and the cost of finding them."""

    largest: Eigenpairs
    smallest: Eigenpairs
    num_parameters: int
    num_examples: int
    num_products: int

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue."""
        return float(self.largest.values[0])

    @property
    def most_negative(self) -> float:
        """The smallest eigenvalue; positive in a basin."""
        return float(self.smallest.values[0])

    def critical_learning_rate(self, *, momentum: float = 0.0) -> float:
        """Return 2(1 + m)/λ_max, from which descent is unstable; infinite if no direction curves upwards."""
        return math.inf if self.sharpness <= 0 else critical_learning_rate(self.sharpness, momentum=momentum)

    def critical_effective_learning_rate(self, *, momentum: float = 0.0) -> float:
        """Return the same as an effective learning rate, 2(1 + m)/((1 - m) λ_max)."""
        return effective_learning_rate(self.critical_learning_rate(momentum=momentum), momentum=momentum)


def spectrum(hessian: Hessian, *, num_eigenvalues: int = 5, tolerance: float = 1e-6, seed: int = 0) -> Spectrum:
    """Return the largest eigenvalues of a Hessian and the smallest one.

    Args:
        hessian: over fixed examples.
        num_eigenvalues: how many of the largest.
        tolerance: at which the iteration stops, relative to the eigenvalue; `residuals` tell what was reached.
        seed: of the starting vector.
    """
    before = hessian.num_products
    largest = largest_eigenpairs(hessian, num=num_eigenvalues, tolerance=tolerance, seed=seed)
    smallest = _smallest_eigenpair(hessian, scale=abs(float(largest.values[0])), tolerance=tolerance, seed=seed)
    return Spectrum(
        largest=largest,
        smallest=smallest,
        num_parameters=hessian.num_parameters,
        num_examples=hessian.num_examples,
        num_products=hessian.num_products - before,
    )


def largest_eigenpairs(
    hessian: Hessian, *, num: int = 1, tolerance: float = 1e-6, seed: int = 0, near: Floats | None = None
) -> Eigenpairs:
    """Return the largest eigenvalues of a Hessian; all zero if the Hessian is zero, as for constant outputs.

    Args:
        hessian: over fixed examples.
        num: how many.
        tolerance: at which the iteration stops, relative to the eigenvalue.
        seed: of the random starting vector.
        near: start from this vector, e.g. the last eigenvector, with some of the random one mixed in.
    """
    size = hessian.num_parameters
    if not 1 <= num <= size:
        raise UserError(f"a Hessian of {size} parameters does not have {num} eigenvalues; ask for 1 to {size}")
    if max(DENSE_PARAMETERS, num + 1) >= size:
        values, vectors = _dense(hessian)
        return _checked(hessian, values[::-1][:num], vectors[:, ::-1][:, :num])
    start = _start(size, seed=seed, near=near)
    if not hessian.product(start).any():
        return _checked(hessian, np.zeros(num), np.eye(size, num))
    # Starting from a good vector takes a smaller basis.
    basis = min(size, max(2 * num + 1, 20) if near is None else 2 * num + 7)
    values, vectors = _lanczos(hessian.operator(), num=num, which="LA", start=start, tolerance=tolerance, basis=basis)
    return _checked(hessian, values[::-1], vectors[:, ::-1])


def _smallest_eigenpair(hessian: Hessian, *, scale: float, tolerance: float, seed: int) -> Eigenpairs:
    """Return the smallest eigenvalue, to a tolerance relative to a given scale, as it may be close to zero."""
    size = hessian.num_parameters
    if size <= DENSE_PARAMETERS:
        values, vectors = _dense(hessian)
        return _checked(hessian, values[:1], vectors[:, :1])
    start = _start(size, seed=seed)
    if not hessian.product(start).any():
        return _checked(hessian, np.zeros(1), np.eye(size, 1))

    def shifted(vector: Floats) -> Floats:
        return hessian.product(vector) - 2 * scale * vector

    operator = LinearOperator((size, size), matvec=shifted, rmatvec=shifted, dtype=np.float64)
    values, vectors = _lanczos(operator, num=1, which="LM", start=start, tolerance=tolerance, basis=min(size, 20))
    return _checked(hessian, values + 2 * scale, vectors)


def _lanczos(
    operator: LinearOperator[np.float64],
    *,
    num: int,
    which: Literal["LA", "LM"],
    start: Floats,
    tolerance: float,
    basis: int,
) -> tuple[Floats, Floats]:
    try:
        values, vectors = eigsh(operator, k=num, which=which, v0=start, tol=tolerance, ncv=basis)
    except ArpackNoConvergence as error:
        raise UserError(
            f"{num} eigenvalues did not converge to a tolerance of {tolerance}: {error}; ask for fewer eigenvalues, or "
            "raise the tolerance"
        ) from error
    return np.asarray(values, dtype=np.float64), np.asarray(vectors, dtype=np.float64)


def _dense(hessian: Hessian) -> tuple[Floats, Floats]:
    """Return all eigenvalues of the full Hessian in ascending order, and their eigenvectors as columns."""
    matrix = np.stack([hessian.product(row) for row in np.eye(hessian.num_parameters)])
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values, vectors


def _start(size: int, *, seed: int, near: Floats | None = None) -> Floats:
    """Return a random unit vector, or one near a given vector."""
    vector = np.random.default_rng(derive(seed, "curvature start")).standard_normal(size)
    vector /= np.linalg.norm(vector)
    return vector if near is None else near / np.linalg.norm(near) + FRESH_PART * vector


def _checked(hessian: Hessian, values: Floats, vectors: Floats) -> Eigenpairs:
    """Return eigenpairs with their measured residuals; vectors are columns here."""
    rows = np.ascontiguousarray(vectors.T)
    residuals = [np.linalg.norm(hessian.product(v) - value * v) for value, v in zip(values, rows, strict=True)]
    return Eigenpairs(values=np.array(values), vectors=rows, residuals=np.array(residuals))


# -- the sharpness of a sample ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledSharpness:
    """The sharpness over a sample of examples, as an estimate of the population's.

    Two values bracket it. The largest eigenvalue over a sample is too large on average, as its direction is chosen on
    the same examples; with many parameters small samples even agree with each other on a wrong value. The curvature
    along that direction over other examples is too small on average, as no direction curves more than λ_max.

    Args:
        of_all: the largest eigenvalue over all given examples.
        held_out: mean over blocks of a block's curvature along the sharpest direction of all the others.
        interval: from the lower limit of `held_out` to the upper limit of `of_all`; the estimate is halfway between the
            two, whose errors are opposite and equal to first order.
    """

    of_all: float
    held_out: float
    interval: Interval


def sampled_sharpness(
    hessian: Hessian, *, num_blocks: int = 8, level: float = 0.95, tolerance: float = 1e-4, seed: int = 0
) -> SampledSharpness:
    """Return the sharpness with an interval for the choice of the sample.

    Args:
        hessian: over examples drawn at random, in random order.
        num_blocks: number of equal blocks; each costs an eigenvalue over all the others.
        level: of the interval.
        tolerance: of each eigenvalue.
        seed: of the starting vectors.
    """
    size, rest = divmod(hessian.num_examples, num_blocks) if num_blocks > 1 else (0, 0)
    if size == 0 or rest or size % hessian.group_size:
        raise UserError(
            f"{hessian.num_examples} examples in groups of {hessian.group_size} cannot be cut into {num_blocks} equal "
            "blocks of whole groups; choose a number of examples that can, and 2 blocks or more"
        )
    hessian.refuse_coupled(size)
    pair = largest_eigenpairs(hessian, tolerance=tolerance, seed=seed)
    vector = pair.vectors[0]
    everything = np.arange(hessian.num_examples)
    along, held_out = [], []
    for indices in np.split(everything, num_blocks):
        block, others = hessian.over(indices), hessian.over(np.setdiff1d(everything, indices))
        apart = largest_eigenpairs(others, tolerance=tolerance, seed=seed, near=vector).vectors[0]
        along.append(float(vector @ block.product(vector)))
        held_out.append(float(apart @ block.product(apart)))
    upper, lower = t_interval(along, level=level), t_interval(held_out, level=level)
    middle = (upper.estimate + lower.estimate) / 2
    return SampledSharpness(
        of_all=float(pair.values[0]),
        held_out=lower.estimate,
        interval=Interval(estimate=middle, low=lower.low, high=upper.high),
    )


# -- the sharpness of a run -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SharpnessRecord:
    """Sharpness and objective before an update; the sharpness is NaN if the run has diverged."""

    step: int
    objective: float
    sharpness: float
    residual: float


class SharpnessProbe:
    """Records the sharpness every few updates of a training loop, each time starting from the last eigenvector.

    Args:
        hessian: over the examples to use; evaluated at the current parameters.
        every: updates between two measurements.
        tolerance: of the eigenvalue.
        seed: of the starting vectors.

    >>> import torch
    >>> from torch import nn
    >>> from isotherm.tasks.losses import half_squared_error
    >>> module = nn.Linear(1, 1, bias=False)
    >>> data = {"inputs": torch.tensor([[2.0]]), "targets": torch.zeros(1, 1)}
    >>> probe = SharpnessProbe(Hessian(module, half_squared_error, **data, mode="train"), every=2)
    >>> for step in range(4):
    ...     _ = probe(step, module.named_parameters())
    >>> [(record.step, record.sharpness) for record in probe.records]
    [(0, 4.0), (2, 4.0)]
    """

    def __init__(self, hessian: Hessian, *, every: int, tolerance: float = 1e-3, seed: int = 0) -> None:
        if every < 1:
            raise UserError(f"every must be a positive number of updates, not {every}")
        self._hessian, self._every, self._tolerance, self._seed = hessian, every, tolerance, seed
        self._vector: Floats | None = None
        self.records: list[SharpnessRecord] = []

    def __call__(
        self,
        step: int,
        parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        buffers: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None,
    ) -> SharpnessRecord | None:
        """Measure the sharpness if it is time to, and return the record.

        Args:
            step: index of the next update, from 0.
            parameters: by name, e.g. `module.named_parameters()`.
            buffers: by name; needed in "eval" mode if a layer has running statistics.
        """
        if step % self._every:
            return None
        hessian = self._hessian.at(parameters, buffers)
        objective = hessian.objective()
        sharpness = residual = math.nan
        if math.isfinite(objective):
            with suppress(NotFiniteError):  # close to divergence the Hessian overflows before the objective does
                pair = largest_eigenpairs(hessian, tolerance=self._tolerance, seed=self._seed + step, near=self._vector)
                self._vector, sharpness, residual = pair.vectors[0], float(pair.values[0]), float(pair.residuals[0])
        record = SharpnessRecord(step=step, objective=objective, sharpness=sharpness, residual=residual)
        self.records.append(record)
        return record
