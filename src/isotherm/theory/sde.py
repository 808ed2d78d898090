"""SGD as a stochastic differential equation: the paper's equation 3, simulated.

    ω_{i+1} - ω_i = -ε dC/dω + √(εT) ν_i,    E(ν ν^T) = F,    T = ε / B

is one Euler-Maruyama step, of size ε, of dω = -(dC/dω) ds + √T F^{1/2} dW. This module has that step, SGD itself on
examples with explicit gradients, and the order of convergence for small steps. What SGD and the SDE do to a quadratic
loss is known exactly: `isotherm.theory.closed_forms`.

F is the centred covariance of per-example gradients. The paper names the uncentred Fisher matrix, which adds the
squared mean gradient; SGD with a finite batch has no such term.

Shapes: M trajectories (paths), D parameters, B examples of a batch, S steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.theory.checks import is_number, need_positive

Drift = Callable[[Floats], Floats]
"""state_MD -> -dC/dω, shape (M, D)."""

Covariance = Floats | Callable[[Floats], Floats]
"""Of ν: (D,) for a diagonal or (D, D); or a function state_MD -> (M, D) or (M, D, D)."""

Gradients = Callable[[Floats, Floats], Floats]
"""(state_MD, examples (M, B, ...)) -> the gradient of every example, shape (M, B, D)."""


# -- trajectories ----------------------------------------------------------------------------------


def euler_maruyama(
    drift: Drift,
    covariance: Covariance,
    start_MD: Floats,
    *,
    temperature: float,
    step_size: float,
    normals: Iterable[Floats],
) -> Iterator[Floats]:
    """Yield the states of all trajectories after every step of equation 3, each of shape (M, D).

    Args:
        drift: -dC/dω of all trajectories at once.
        covariance: of ν, constant or a function of the state; its symmetric square root is used.
        start_MD: initial states.
        temperature: T; 0 is gradient descent.
        step_size: ε, in units of the time s of the SDE.
        normals: standard normal numbers, one array (M, D) per step. Equal numbers give an equal Brownian path.

    Raises:
        UserError: before the first step for invalid arguments, and at the step where the drift or the covariance is
            invalid or a trajectory overflows.

    >>> steps = euler_maruyama(lambda w: -w, np.ones(1), np.ones((1, 1)), temperature=0, step_size=0.5,
    ...     normals=standard_normals((1, 1), num_steps=3, generator=np.random.default_rng(0)))
    >>> [state.item() for state in steps]
    [0.5, 0.25, 0.125]
    """
    start_MD = _checked_start(start_MD)
    need_positive("step_size", step_size)
    if not (is_number(temperature) and 0 <= temperature < math.inf):
        raise UserError(f"temperature={temperature!r} is not a finite number of 0 or more; it is ε / B")
    constant = None if callable(covariance) else _root(np.asarray(covariance), None, start_MD.shape[1])

    def steps() -> Iterator[Floats]:
        state_MD = start_MD
        for step, normal_MD in enumerate(normals):
            if np.shape(normal_MD) != state_MD.shape:
                raise UserError(f"normals of step {step} have shape {np.shape(normal_MD)}; need {state_MD.shape}")
            drift_MD = _called(drift, "drift", step, state_MD.shape, state_MD)
            root = _root(np.asarray(covariance(state_MD)), *state_MD.shape) if callable(covariance) else constant
            assert root is not None
            noise_MD = root * normal_MD if root.ndim == 2 else (root @ normal_MD[..., None])[..., 0]
            state_MD = _moved(state_MD, step, (step_size, drift_MD), (math.sqrt(step_size * temperature), noise_MD))
            yield state_MD

    return steps()


def standard_normals(shape: tuple[int, int], *, num_steps: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield an array of standard normal numbers per step, drawn lazily."""
    return (generator.standard_normal(shape) for _ in range(num_steps))


def sgd(gradients: Gradients, start_MD: Floats, *, learning_rate: float, batches: Iterable[Floats]) -> Iterator[Floats]:
    """Yield the states of all trajectories after every update of plain SGD, each of shape (M, D).

    Args:
        gradients: of every example of every trajectory's batch; SGD follows their mean over the batch.
        start_MD: initial states.
        learning_rate: ε.
        batches: one array of examples (M, B, ...) per update.

    >>> batches = [np.array([[[1.0], [3.0]]])]  # one trajectory, one batch of two examples
    >>> [w.item() for w in sgd(quadratic_gradients(1.0), np.zeros((1, 1)), learning_rate=0.5, batches=batches)]
    [-1.0]
    """
    start_MD = _checked_start(start_MD)
    need_positive("learning_rate", learning_rate)

    def steps() -> Iterator[Floats]:
        state_MD = start_MD
        for step, batch in enumerate(batches):
            num_paths, dim = state_MD.shape
            if batch.ndim < 2 or len(batch) != num_paths:
                raise UserError(f"batch {step} has shape {batch.shape}; need ({num_paths}, batch size, ...)")
            shape = (num_paths, batch.shape[1], dim)
            mean_MD = _called(gradients, "gradients", step, shape, state_MD, batch).mean(axis=1)
            state_MD = _moved(state_MD, step, (-learning_rate, mean_MD))
            yield state_MD

    return steps()


def quadratic_gradients(curvature: ArrayLike) -> Gradients:
    """Return the gradients h ω + x of examples x with losses ½ Σ h ω² + x·ω; the curvature is a number or (D,)."""
    h = np.asarray(curvature, dtype=np.float64)
    return lambda state_MD, batch_MBD: (h * state_MD)[:, None] + batch_MBD


# -- order of convergence --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """Differences between trajectories at step sizes h and h / 2 on the same Brownian paths, at the final time.

    Args:
        step_sizes: h, each half the one before.
        weak_errors: |E f(ω_h) - E f(ω_{h/2})|.
        weak_standard_errors: of these, from the spread between paths.
        strong_errors: √E ‖ω_h - ω_{h/2}‖².
    """

    step_sizes: Sequence[float]
    weak_errors: Sequence[float]
    weak_standard_errors: Sequence[float]
    strong_errors: Sequence[float]

    @property
    def weak_order(self) -> float:
        """The power of h with which expectations converge."""
        return fitted_slope(self.step_sizes, self.weak_errors)

    @property
    def weak_order_standard_error(self) -> float:
        """Standard error of the weak order, taking the differences as independent."""
        x = np.log(self.step_sizes) - np.mean(np.log(self.step_sizes))
        relative = np.divide(self.weak_standard_errors, self.weak_errors)
        return float(np.sqrt(np.sum((x * relative) ** 2)) / np.sum(x**2))

    @property
    def strong_order(self) -> float:
        """The power of h with which single paths converge."""
        return fitted_slope(self.step_sizes, self.strong_errors)


def convergence(
    drift: Drift,
    covariance: Covariance,
    start_MD: Floats,
    *,
    temperature: float,
    time: float,
    num_steps: int,
    num_halvings: int,
    observable: Callable[[Floats], Floats],
    generator: np.random.Generator,
) -> Convergence:
    """Measure how fast Euler-Maruyama converges as its step is halved repeatedly.

    Args:
        drift: as for `euler_maruyama`, like covariance, start_MD and temperature.
        covariance: of the noise.
        start_MD: initial states.
        temperature: T.
        time: the final time.
        num_steps: of the coarsest simulation; step size time / num_steps.
        num_halvings: of the step size; also the number of differences. A slope needs at least two.
        observable: f, state_MD -> (M,), whose expectation is compared.
        generator: of the Brownian paths.
    """
    need_positive("time", time)
    if num_steps < 1 or num_halvings < 2:
        raise UserError(f"num_steps={num_steps} and num_halvings={num_halvings}; need at least 1 and 2")
    normals_SMD = generator.standard_normal((num_steps * 2**num_halvings, *np.shape(start_MD)))
    finals, step_sizes = [], []
    for _ in range(num_halvings + 1):
        step_sizes.append(time / len(normals_SMD))
        steps = euler_maruyama(
            drift, covariance, start_MD, temperature=temperature, step_size=step_sizes[-1], normals=normals_SMD
        )
        *_, final_MD = steps
        finals.append(final_MD)
        if len(step_sizes) <= num_halvings:  # the same path in steps twice as long
            normals_SMD = (normals_SMD[0::2] + normals_SMD[1::2]) / math.sqrt(2)
    finals.reverse()
    step_sizes.reverse()
    weak = [observable(coarse) - observable(fine) for coarse, fine in itertools.pairwise(finals)]
    strong = [np.sum((coarse - fine) ** 2, axis=1) for coarse, fine in itertools.pairwise(finals)]
    return Convergence(
        step_sizes=step_sizes[:-1],
        weak_errors=[abs(float(np.mean(d))) for d in weak],
        weak_standard_errors=[standard_error(d) for d in weak],
        strong_errors=[math.sqrt(float(np.mean(d))) for d in strong],
    )


def fitted_slope(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Return the power p of the least-squares fit y ∝ x^p; all numbers positive.

    >>> round(fitted_slope([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 12)
    2.0
    """
    if not (np.all(np.asarray(x) > 0) and np.all(np.asarray(y) > 0)):
        raise ValueError(f"a power needs positive numbers; got x={list(x)}, y={list(y)}")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def standard_error(sample: Floats) -> float:
    """Return the standard error of the mean of a sample."""
    return float(np.std(sample, ddof=1) / math.sqrt(len(sample)))


# -- checks ----------------------------------------------------------------------------------------


def _checked_start(start_MD: Floats) -> Floats:
    start_MD = np.asarray(start_MD, dtype=np.float64)
    if start_MD.ndim != 2 or not np.isfinite(start_MD).all():
        raise UserError(
            f"the start has shape {start_MD.shape}; it must be finite numbers of shape (trajectories, parameters)"
        )
    return start_MD


def _called(function: Callable[..., Floats], name: str, step: int, shape: tuple[int, ...], *given: Floats) -> Floats:
    """Return the result of a user's function, or raise a UserError if its shape or numbers are wrong."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.asarray(function(*given))
    if value.shape != shape:
        raise UserError(f"the {name} returned shape {value.shape} at step {step}; need {shape}")
    if not np.isfinite(value).all():
        raise UserError(
            f"the {name} returned NaN or infinity at step {step}; check it at the states reached by then, or take "
            f"smaller steps if those have diverged"
        )
    return value


def _moved(state_MD: Floats, step: int, *changes: tuple[float, Floats]) -> Floats:
    """Return the state plus all changes, each a factor and a direction."""
    with np.errstate(over="ignore", invalid="ignore"):
        for factor, direction_MD in changes:
            state_MD = state_MD + factor * direction_MD
    if not np.isfinite(state_MD).all():
        raise UserError(f"a trajectory overflowed at step {step}; take smaller steps")
    return state_MD


def _root(covariance: Floats, num_paths: int | None, dim: int) -> Floats:
    """Return symmetric square roots, (M or 1, D) of diagonals and (M or 1, D, D) of matrices; None: one for all."""
    leading = () if num_paths is None else (num_paths,)
    diagonal, matrix = (*leading, dim), (*leading, dim, dim)
    if covariance.shape not in (diagonal, matrix):
        raise UserError(f"the covariance has shape {covariance.shape}; need {diagonal} for a diagonal or {matrix}")
    if not np.isfinite(covariance).all():
        raise UserError("the covariance has NaN or infinity; check what it was computed from")
    if covariance.shape == diagonal:
        if covariance.min() < 0:
            raise UserError(f"the covariance has the negative variance {covariance.min():.3g}; variances are 0 or more")
        root = np.sqrt(covariance)
    else:
        root = _matrix_root(covariance)
    return root if leading else root[None]


def _matrix_root(covariance: Floats) -> Floats:
    rounding = 1e-10 * np.abs(covariance).max()
    if np.abs(covariance - covariance.swapaxes(-1, -2)).max() > rounding:
        raise UserError("the covariance is not symmetric; give (A + A^T) / 2 if it should be")
    values, vectors = np.linalg.eigh(covariance)
    if values.min() < -rounding:
        raise UserError(
            f"the covariance is not positive semidefinite, it has the eigenvalue {values.min():.3g}; one computed from "
            f"per-example gradients always is"
        )
    stretched = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    return np.asarray(stretched @ vectors.swapaxes(-1, -2))
