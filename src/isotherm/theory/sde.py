"""SGD as a stochastic differential equation: the paper's equation 3 and appendix A, simulated and in closed form.

    ω_{i+1} - ω_i = -ε dC/dω + √(εT) ν_i,    E(ν ν^T) = F,    T = ε / B

is one Euler-Maruyama step, of size ε, of dω = -(dC/dω) ds + √T F^{1/2} dW. Here are that step, SGD itself on examples
with explicit gradients, and appendix A's merging of n steps into one: where it is right, how fast it goes wrong, and
what is left of it when the noise has heavy tails. What SGD and the equation do to a quadratic loss is known exactly, in
`isotherm.theory.noisy_quadratic`.

Closed forms speak of one eigendirection: curvature h, per-example gradient variance c. F is the centred covariance of
per-example gradients. The paper names the uncentred Fisher matrix, which adds the squared mean gradient; SGD with a
finite batch does not have that part.

Shapes: M trajectories (paths), D parameters, B examples of a batch, N examples in all, S steps.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isotherm.errors import UserError
from isotherm.statistics import Floats

Drift = Callable[[Floats], Floats]
"""state_MD -> -dC/dω, shape (M, D)."""

Covariance = Floats | Callable[[Floats], Floats]
"""Of ν: (D,) for a diagonal or (D, D); or a function state_MD -> (M, D) or (M, D, D)."""

Gradients = Callable[[Floats, Floats], Floats]
"""(state_MD, examples (M, B, ...)) -> the gradient of every example, shape (M, B, D)."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""(generator, shape) -> independent gradient noise of single examples, mean (or, without a mean, median) 0."""


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
        covariance: of ν, constant or a function of the state; square roots are symmetric.
        start_MD: where the trajectories start.
        temperature: T; 0 leaves gradient descent.
        step_size: ε, in units of the time s of the differential equation.
        normals: standard normal numbers, one array (M, D) per step. Equal numbers are an equal Brownian path.

    Raises:
        UserError: before the first step for arguments that cannot be used, and at the step where the drift or the
            covariance cannot be used or a trajectory leaves the finite numbers.

    >>> steps = euler_maruyama(lambda w: -w, np.ones(1), np.ones((1, 1)), temperature=0, step_size=0.5,
    ...     normals=standard_normals((1, 1), num_steps=3, generator=np.random.default_rng(0)))
    >>> [state.item() for state in steps]
    [0.5, 0.25, 0.125]
    """
    start_MD = _checked_start(start_MD)
    _need_positive("step_size", step_size)
    if not (_is_number(temperature) and 0 <= temperature < math.inf):
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
    """Yield an array of standard normal numbers per step, drawn when it is asked for."""
    return (generator.standard_normal(shape) for _ in range(num_steps))


def sgd(gradients: Gradients, start_MD: Floats, *, learning_rate: float, batches: Iterable[Floats]) -> Iterator[Floats]:
    """Yield the states of all trajectories after every update of plain SGD, each of shape (M, D).

    Args:
        gradients: of every example of every trajectory's batch; their mean over the batch is followed.
        start_MD: where the trajectories start.
        learning_rate: ε.
        batches: one array of examples (M, B, ...) per update.

    >>> batches = [np.array([[[1.0], [3.0]]])]  # one trajectory, one batch of two examples
    >>> [w.item() for w in sgd(quadratic_gradients(1.0), np.zeros((1, 1)), learning_rate=0.5, batches=batches)]
    [-1.0]
    """
    start_MD = _checked_start(start_MD)
    _need_positive("learning_rate", learning_rate)

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
    """Return the gradients h ω + x of examples x, losses ½ Σ h ω² + x·ω; curvature is a number or shape (D,)."""
    h = np.asarray(curvature, dtype=np.float64)
    return lambda state_MD, batch_MBD: (h * state_MD)[:, None] + batch_MBD


class Sampling(StrEnum):
    """How batches come out of N examples."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"
    SHUFFLED = "shuffled epochs"


def finite_batches(
    examples_ND: Floats,
    *,
    batch_size: int,
    sampling: Sampling,
    num_paths: int,
    num_steps: int,
    generator: np.random.Generator,
) -> Iterator[Floats]:
    """Yield batches (M, B, ...) of a finite set of examples, drawn independently for every trajectory.

    Without replacement, every batch is drawn afresh from all examples; in shuffled epochs, one permutation is cut into
    batches until it is used up, as in training.
    """
    num_examples = len(examples_ND)
    _check_batch(batch_size, num_examples, sampling)

    def batches() -> Iterator[Floats]:
        in_order = np.broadcast_to(np.arange(num_examples), (num_paths, num_examples))
        epoch = in_order
        per_epoch = num_examples // batch_size if sampling is Sampling.SHUFFLED else 1
        for step in range(num_steps):
            if sampling is Sampling.WITH_REPLACEMENT:
                yield examples_ND[generator.integers(num_examples, size=(num_paths, batch_size))]
                continue
            place = step % per_epoch
            if place == 0:
                epoch = generator.permuted(in_order, axis=1)
            yield examples_ND[epoch[:, place * batch_size : (place + 1) * batch_size]]

    return batches()


# -- batches of a finite set ------------------------------------------------------------------------


def batch_covariance(*, batch_size: int, num_examples: int, sampling: Sampling) -> tuple[float, float]:
    """Return variance of a batch mean, and covariance of two batches of one epoch, for examples of variance 1.

    1 / B with replacement, (N - B) / (N - 1) of that without. Batches of a shuffled epoch have covariance -1 / (N - 1):
    all of them together are always the whole set.

    >>> batch_covariance(batch_size=2, num_examples=5, sampling=Sampling.WITHOUT_REPLACEMENT)
    (0.375, 0.0)
    >>> batch_covariance(batch_size=2, num_examples=4, sampling=Sampling.SHUFFLED)  # the other half: -1 times this one
    (0.3333333333333333, -0.3333333333333333)
    """
    _check_batch(batch_size, num_examples, sampling)
    if sampling is Sampling.WITH_REPLACEMENT:
        return 1 / batch_size, 0.0
    if num_examples == 1:  # one example has no variance
        return 0.0, 0.0
    variance = (num_examples - batch_size) / (num_examples - 1) / batch_size
    return variance, -1 / (num_examples - 1) if sampling is Sampling.SHUFFLED else 0.0


def epoch_end_variance(
    *,
    curvature: float,
    noise_variance: float,
    learning_rate: float,
    batch_size: int,
    num_examples: int,
    sampling: Sampling,
) -> float:
    """Return the stationary variance of SGD as seen after every epoch of K = N / B updates.

    With w_j = (1 - εh)^j, batch variance v and covariance u of `batch_covariance`, an epoch adds
    ε² c ((v - u) Σ w_j² + u (Σ w_j)²). In shuffled epochs the noise of an epoch cancels but for the decay within it, so
    the variance is far below T c / (2h) unless εhK ≫ 1, that is, unless memory is much shorter than an epoch.

    >>> settings = dict(curvature=1.0, noise_variance=1.0, learning_rate=0.01, batch_size=1, num_examples=10)
    >>> [round(epoch_end_variance(**settings, sampling=sampling), 6) for sampling in Sampling]
    [0.005025, 0.005025, 5e-06]
    """
    _need_stable(curvature, learning_rate)
    variance, covariance = batch_covariance(batch_size=batch_size, num_examples=num_examples, sampling=sampling)
    if num_examples % batch_size:
        raise UserError(f"batch_size={batch_size} does not divide num_examples={num_examples}; an epoch needs it to")
    decay = 1 - learning_rate * curvature
    weights = decay ** np.arange(num_examples // batch_size)
    spread = (variance - covariance) * np.sum(weights**2) + covariance * np.sum(weights) ** 2
    return float(learning_rate**2 * noise_variance * spread / (1 - decay ** (2 * len(weights))))


# -- linear scaling: n steps at (ε, B) against one at (nε, nB) -------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Mean (over θ_0) and variance of θ after n small steps, and after the one large step that should replace them.

    Args:
        num_merged: n.
        reach: n ε h, which appendix A wants to be much smaller than 2.
        mean_small: over θ_0, of n steps at (ε, B).
        mean_large: over θ_0, of one step at (nε, nB).
        variance_small: of n steps.
        variance_large: of one step.
    """

    num_merged: int
    reach: float
    mean_small: float
    mean_large: float
    variance_small: float
    variance_large: float

    @property
    def mean_error(self) -> float:
        """Error of the large step's mean, relative to the small steps'."""
        return self.mean_large / self.mean_small - 1

    @property
    def variance_error(self) -> float:
        """Error of the large step's variance, relative to the small steps'."""
        return self.variance_large / self.variance_small - 1

    @property
    def leading_mean_error(self) -> float:
        """What the mean's error grows like: -(1 - 1/n) (nεh)² / 2."""
        return -(1 - 1 / self.num_merged) * self.reach**2 / 2

    @property
    def leading_variance_error(self) -> float:
        """What the variance's error grows like: (1 - 1/n) nεh."""
        return (1 - 1 / self.num_merged) * self.reach


def linear_scaling(
    num_merged: int, *, curvature: float, noise_variance: float, learning_rate: float, batch_size: int
) -> LinearScaling:
    """Return what n steps at (ε, B) and one at (nε, nB) do to one eigendirection, exactly.

    Needs εh < 1, so that the small steps themselves do not jump over the minimum.

    >>> pair = linear_scaling(2, curvature=1.0, noise_variance=1.0, learning_rate=0.5, batch_size=1)
    >>> pair.mean_small, pair.mean_large, pair.variance_small, pair.variance_large
    (0.25, 0.0, 0.3125, 0.5)
    """
    decay = _checked_merge(num_merged, curvature, learning_rate)
    _need_positive("noise_variance", noise_variance)
    _need_positive("batch_size", batch_size)
    one_step = learning_rate**2 * noise_variance / batch_size
    return LinearScaling(
        num_merged=num_merged,
        reach=num_merged * learning_rate * curvature,
        mean_small=decay**num_merged,
        mean_large=1 - num_merged * learning_rate * curvature,
        variance_small=one_step * math.expm1(2 * num_merged * math.log(decay)) / math.expm1(2 * math.log(decay)),
        variance_large=num_merged * one_step,
    )


def measure_linear_scaling(
    draw: Draw,
    num_merged: int,
    *,
    curvature: float,
    learning_rate: float,
    batch_size: int,
    num_paths: int,
    generator: np.random.Generator,
) -> LinearScaling:
    """Return the same from SGD on drawn examples; both sides see the same ones, as they would in one epoch."""
    if num_paths < 2:
        raise UserError(f"num_paths={num_paths} has no variance; give 2 or more")
    small_M1, large_M1 = merged_states(
        draw,
        num_merged,
        curvature=curvature,
        learning_rate=learning_rate,
        batch_size=batch_size,
        start_M1=np.ones((num_paths, 1)),
        generator=generator,
    )
    return LinearScaling(
        num_merged=num_merged,
        reach=num_merged * learning_rate * curvature,
        mean_small=float(small_M1.mean()),
        mean_large=float(large_M1.mean()),
        variance_small=float(small_M1.var(ddof=1)),
        variance_large=float(large_M1.var(ddof=1)),
    )


def merged_states(
    draw: Draw,
    num_merged: int,
    *,
    curvature: float,
    learning_rate: float,
    batch_size: int,
    start_M1: Floats,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return the states after n steps at (ε, B) and after one at (nε, nB) over the same examples, shape (M, 1) each."""
    _checked_merge(num_merged, curvature, learning_rate)
    batches = [draw(generator, (len(start_M1), batch_size, 1)) for _ in range(num_merged)]
    gradients = quadratic_gradients(curvature)
    *_, small_M1 = sgd(gradients, start_M1, learning_rate=learning_rate, batches=batches)
    whole = [np.concatenate(batches, axis=1)]
    (large_M1,) = sgd(gradients, start_M1, learning_rate=num_merged * learning_rate, batches=whole)
    return small_M1, large_M1


# -- noise that becomes Gaussian, and noise that does not ------------------------------------------


def skewed_noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draw exponential noise less its mean: variance 1, skewness 2, excess kurtosis 6."""
    return generator.exponential(size=shape) - 1.0


def stable_noise(alpha: float) -> Draw:
    """Return how to draw symmetric α-stable noise of scale 1: infinite variance for α < 2, no mean for α ≤ 1.

    Characteristic function exp(-|k|^α), by the formula of Chambers, Mallows and Stuck; α = 2 is Gaussian of variance 2.
    """
    _check_alpha(alpha)

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        angle = generator.uniform(-np.pi / 2, np.pi / 2, shape)
        weight = generator.exponential(size=shape)
        tilt = (np.cos((1 - alpha) * angle) / weight) ** ((1 - alpha) / alpha)
        return np.asarray(np.sin(alpha * angle) / np.cos(angle) ** (1 / alpha) * tilt)

    return draw


def accumulated_noise(draw: Draw, counts: Sequence[int], *, num_paths: int, generator: np.random.Generator) -> Floats:
    """Return Σ ν over the first n draws of every path, for rising n in counts, shape (len(counts), M).

    Divided by √n this is appendix A's ξ.
    """
    if list(counts) != sorted(set(counts)) or not counts or counts[0] < 1:
        raise UserError(f"counts={list(counts)} must rise from 1 or more, as in [1, 2, 4]")
    total_M, sums = np.zeros(num_paths), []
    for done in range(1, counts[-1] + 1):
        total_M = total_M + draw(generator, (num_paths,))
        if done in counts:
            sums.append(total_M)
    return np.stack(sums)


def quartile_distance(sample: Floats) -> float:
    """Return the distance of the quartiles, a measure of scale that infinite variance leaves alone.

    >>> quartile_distance(np.arange(101.0))
    50.0
    """
    low, high = np.quantile(sample, [0.25, 0.75])
    return float(high - low)


def tail_ratio(sample: Floats) -> float:
    """Return how far the 99 % quantile lies from the median, in units of the upper quartile's distance from it.

    Gaussian numbers have 3.45 at every scale; heavier upper tails have more.

    >>> tail_ratio(np.arange(101.0))
    1.96
    """
    middle, quartile, tail = np.quantile(sample, [0.5, 0.75, 0.99])
    return float((tail - middle) / (quartile - middle))


def stable_stationary_scale(*, alpha: float, curvature: float, learning_rate: float, batch_size: int) -> float:
    """Return the scale of θ after many updates with symmetric α-stable example noise of scale 1.

    scale^α = ε^α B^{1-α} / (1 - |1 - εh|^α), near T^{α-1} / (αh) for small ε: a function of T = ε / B still, but with
    the power 1 - 1/α of T where finite variance has 1/2.

    >>> round(stable_stationary_scale(alpha=2.0, curvature=1.0, learning_rate=1.0, batch_size=4), 6)
    0.5
    """
    _check_alpha(alpha)
    _need_stable(curvature, learning_rate)
    _need_positive("batch_size", batch_size)
    power = learning_rate**alpha * batch_size ** (1 - alpha) / (1 - abs(1 - learning_rate * curvature) ** alpha)
    return float(power ** (1 / alpha))


# -- order of convergence --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """Differences between trajectories at step sizes h and h / 2 on the same Brownian paths, at the final time.

    Args:
        step_sizes: h, falling by halves.
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
        """Of the weak order, from the standard errors of the differences, taken as independent of each other."""
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
    """Measure how fast Euler-Maruyama converges as its step is halved again and again.

    Args:
        drift: as for `euler_maruyama`, as are covariance, start_MD and temperature.
        covariance: of the noise.
        start_MD: where the trajectories start.
        temperature: T.
        time: the final time.
        num_steps: of the coarsest simulation; step size time / num_steps.
        num_halvings: of the step size; also the number of differences, and two are the least for a slope.
        observable: f, state_MD -> (M,), whose expectation is compared.
        generator: of the Brownian paths.
    """
    _need_positive("time", time)
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


# -- checks ----------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _need_positive(name: str, value: Any) -> None:
    if not (_is_number(value) and 0 < value < math.inf):
        raise UserError(f"{name}={value!r} is not a positive number; give one above 0")


def _check_alpha(alpha: Any) -> None:
    if not (_is_number(alpha) and 0 < alpha <= 2):
        raise UserError(f"alpha={alpha!r} is not above 0 and at most 2; stable distributions exist for these only")


def _need_stable(curvature: float, learning_rate: float) -> None:
    _need_positive("curvature", curvature)
    _need_positive("learning_rate", learning_rate)
    if learning_rate * curvature >= 2:
        raise UserError(
            f"learning_rate={learning_rate} is not below the critical learning rate 2 / h = {2 / curvature:g}, "
            f"so SGD has no stationary state; lower it"
        )


def _checked_merge(num_merged: int, curvature: float, learning_rate: float) -> float:
    """Return 1 - εh for steps that can be merged."""
    if num_merged < 1:
        raise UserError(f"num_merged={num_merged} is not a number of steps; give 1 or more")
    _need_positive("curvature", curvature)
    _need_positive("learning_rate", learning_rate)
    if learning_rate * curvature >= 1:
        raise UserError(
            f"learning_rate={learning_rate} times curvature={curvature} is not below 1; merging steps is about "
            f"small ones, so give a learning rate below {1 / curvature:g}"
        )
    return 1 - learning_rate * curvature


def _check_batch(batch_size: int, num_examples: int, sampling: Sampling) -> None:
    if not (isinstance(batch_size, numbers.Integral) and batch_size >= 1 and num_examples >= 1):
        raise UserError(f"batch_size={batch_size!r} of num_examples={num_examples}; both must be whole, 1 or more")
    if sampling is not Sampling.WITH_REPLACEMENT and batch_size > num_examples:
        raise UserError(
            f"batch_size={batch_size} is more than the num_examples={num_examples} there are; take a smaller batch or "
            f"draw with replacement"
        )
    if sampling is Sampling.SHUFFLED and num_examples % batch_size:
        raise UserError(
            f"batch_size={batch_size} does not divide num_examples={num_examples}; shuffled epochs here consist of "
            f"whole batches, so take a divisor"
        )


def _checked_start(start_MD: Floats) -> Floats:
    start_MD = np.asarray(start_MD, dtype=np.float64)
    if start_MD.ndim != 2 or not np.isfinite(start_MD).all():
        raise UserError(
            f"the start has shape {start_MD.shape}; it must be finite numbers of shape (trajectories, parameters)"
        )
    return start_MD


def _called(function: Callable[..., Floats], name: str, step: int, shape: tuple[int, ...], *given: Floats) -> Floats:
    """Return what a user's function gives, once its shape and numbers are right."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.asarray(function(*given))
    if value.shape != shape:
        raise UserError(f"the {name} returned shape {value.shape} at step {step}; need {shape}")
    if not np.isfinite(value).all():
        raise UserError(
            f"the {name} returned NaN or infinity at step {step}; check it at the states reached by then, or take "
            f"smaller steps if those have run away"
        )
    return value


def _moved(state_MD: Floats, step: int, *changes: tuple[float, Floats]) -> Floats:
    """Return the state with every change, a factor and a direction, added to it."""
    with np.errstate(over="ignore", invalid="ignore"):
        for factor, direction_MD in changes:
            state_MD = state_MD + factor * direction_MD
    if not np.isfinite(state_MD).all():
        raise UserError(f"a trajectory left the finite numbers at step {step}; take smaller steps")
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


def standard_error(sample: Floats) -> float:
    """Return the standard error of the mean of a sample."""
    return float(np.std(sample, ddof=1) / math.sqrt(len(sample)))
