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
from scipy import stats

from isotherm.errors import UserError
from isotherm.statistics import Floats
from isotherm.temperature import temperature as temperature_of
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.noisy_quadratic import diffusion_second_moment, diffusion_stationary_variance, sgd_second_moment

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
        weak_standard_errors=[_standard_error(d) for d in weak],
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


# -- demonstration ---------------------------------------------------------------------------------

ALPHA = 1.5
COUNTS = tuple(2**k for k in range(9))
LOSS = {"curvature": 1.0, "noise_variance": 1.0}


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Show SGD beside its differential equation, linear scaling and its error, and noise that does not average out."""
    generators = np.random.default_rng(seed).spawn(6)
    transient_panel, transient_table, excess = _show_transient(generators[0])
    order_table, orders = _show_order(generators[1])
    scaling_panel, scaling_table, slopes = _show_linear_scaling(generators[2])
    noise_panel, noise_table, growth = _show_noise(generators[3])
    stable_table, spreads, power = _show_stable(generators[4])
    sampling_table, (factor, correlation, shuffled) = _show_sampling(generators[5])
    paragraph = (
        f"Equation 3 of the paper is one Euler-Maruyama step of a differential equation in which learning rate and "
        f"batch size are present as the temperature T = ε / B only. Expectations converge to it with order "
        f"{orders[0]:.2f} in the step size (theory: 1), single paths with order {orders[1]:.2f} for constant noise (1) "
        f"and {orders[2]:.2f} for noise that depends on the state (1/2). SGD follows it while ε is small: at equal T, "
        f"ε = 1.5 / h leaves {excess:.2f} times the variance of the equation (2 / (2 - εh) = 4). Merging n steps into "
        f"one at (nε, nB) costs a relative error that grows like (nεh)^{slopes[0]:.2f} in the mean and "
        f"(nεh)^{slopes[1]:.2f} in the variance (2 and 1 while nεh is small). Skewed noise of finite variance adds up "
        f"like n^{growth[0]:.2f} (1/2) and becomes Gaussian. α-stable noise with α = {ALPHA} adds up like "
        f"n^{growth[1]:.2f} (1/α = {1 / ALPHA:.2f}) and keeps its tails: the √n of appendix A is too small by a factor "
        f"of {growth[2]:.1f} at n = {COUNTS[-1]}, and the spread of θ grows like T^{power:.2f} "
        f"(1 - 1/α = {1 - 1 / ALPHA:.2f}) instead of T^(1/2). The rule ε ∝ B does not need Gaussian noise, though: n "
        f"small batches and one large batch add up the same independent examples. At equal T the spread at B = 16 is "
        f"{100 * spreads[0]:+.1f} % off that at B = 1; the finite ε explains {100 * spreads[1]:+.1f} %. Last, epochs "
        f"are shuffled: a batch of 16 out of 64 has {factor:.3f} of the variance of independent draws "
        f"((N - B) / (N - 1) = {48 / 63:.3f}), the batches of one epoch are correlated by {correlation:.3f} "
        f"(-1 / (K - 1) = {-1 / 3:.3f}), and at εhK = 1/4, where SGD remembers more than an epoch of K updates, the "
        f"variance after an epoch is {shuffled:.4f} of the differential equation's."
    )
    return Demonstration(
        name="sde",
        title="SGD as a stochastic differential equation, and the linear scaling rule",
        paragraph=paragraph,
        panels=[transient_panel, scaling_panel, noise_panel],
        tables=[transient_table, order_table, scaling_table, noise_table, stable_table, sampling_table],
        settings={"seed": seed, **LOSS, "alpha": ALPHA, "counts": list(COUNTS)},
    )


def _show_transient(generator: np.random.Generator) -> tuple[Panel, Table, float]:
    """Return E θ² at small and large ε, and the last variance at large ε over that of the equation."""
    temperature, time, start_M1 = 1 / 16, 9.0, np.ones((20_000, 1))
    limit = float(diffusion_stationary_variance(temperature, **LOSS))
    examples_N1 = _standardised(skewed_noise(generator, (256, 1)))

    times = np.linspace(0, time, 181)
    exact = [float(diffusion_second_moment(s, temperature=temperature, initial=1.0, **LOSS)) for s in times]
    normals = standard_normals(start_M1.shape, num_steps=round(64 * time), generator=generator)
    steps = euler_maruyama(
        lambda w: -w, np.ones(1), start_M1, temperature=temperature, step_size=1 / 64, normals=normals
    )
    points, mean, error = _mean_squares("SDE, simulated", steps, step_size=1 / 64, every=32)
    curves = [Curve(label="SDE, closed form", x=times.tolist(), y=exact), points]
    rows: list[list[str | float]] = [
        ["SDE", 1 / 64, "-", round(mean, 5), round(error, 5), round(exact[-1], 5), round(exact[-1] / limit, 3)]
    ]
    for learning_rate, batch_size in ((1 / 16, 1), (1.5, 24)):
        num_steps = round(time / learning_rate)
        batches = finite_batches(
            examples_N1,
            batch_size=batch_size,
            sampling=Sampling.WITH_REPLACEMENT,
            num_paths=len(start_M1),
            num_steps=num_steps,
            generator=generator,
        )
        steps = sgd(quadratic_gradients(1.0), start_M1, learning_rate=learning_rate, batches=batches)
        name, every = f"SGD, ε = {learning_rate:g}, B = {batch_size}", max(1, num_steps // 18)
        points, mean, error = _mean_squares(f"{name}, simulated", steps, step_size=learning_rate, every=every)
        exact = [1.0] + [
            float(sgd_second_moment(t, learning_rate=learning_rate, batch_size=batch_size, initial=1.0, **LOSS))
            for t in range(1, num_steps + 1)
        ]
        x = [learning_rate * t for t in range(num_steps + 1)]
        curves += [Curve(label=f"{name}, closed form", x=x, y=exact, style="dashed"), points]
        values = [round(value, 5) for value in (mean, error, exact[-1])]
        rows.append(["SGD", learning_rate, batch_size, *values, round(exact[-1] / limit, 3)])
    panel = Panel(
        title=f"E θ² at T = {temperature:g}", x_label="time s = ε t", y_label="E θ²", curves=curves, y_log=True
    )
    columns = ["dynamics", "step ε", "B", "E θ², simulated", "standard error", "closed form", "over T c / 2h"]
    table = Table(title=f"E θ² at time {time:g}, T = {temperature:g}, h = c = 1", columns=columns, rows=rows)
    return panel, table, mean / limit


def _mean_squares(label: str, steps: Iterable[Floats], *, step_size: float, every: int) -> tuple[Curve, float, float]:
    """Return mean squares as points with two standard errors, and the last one with its standard error."""
    squares = [state_M1[:, 0] ** 2 for state_M1 in steps][every - 1 :: every]
    means, errors = [float(np.mean(square)) for square in squares], [_standard_error(square) for square in squares]
    curve = Curve(
        label=label,
        x=[step_size * every * (place + 1) for place in range(len(squares))],
        y=means,
        low=[mean - 2 * error for mean, error in zip(means, errors, strict=True)],
        high=[mean + 2 * error for mean, error in zip(means, errors, strict=True)],
        style="points",
    )
    return curve, means[-1], errors[-1]


def _show_order(generator: np.random.Generator) -> tuple[Table, tuple[float, float, float]]:
    """Return measured orders of convergence: weak and strong with constant noise, strong with multiplicative noise."""
    problems: list[tuple[str, Drift, Covariance, float]] = [
        ("quadratic, constant noise", lambda w: -w, np.ones(1), 1.0),
        ("double well, constant noise", lambda w: w - w**3, np.ones(1), 1.0),
        ("quadratic, noise ∝ θ", lambda w: -w, lambda w: w**2, 0.5),
    ]
    rows: list[list[str | float]] = []
    found = []
    for name, drift, covariance, strong_order in problems:
        result = convergence(
            drift,
            covariance,
            np.full((30_000, 1), 1.5),
            temperature=0.25,
            time=1.0,
            num_steps=32,
            num_halvings=3,
            observable=lambda w: w[:, 0] ** 2,
            generator=generator,
        )
        weak = [round(value, 3) for value in (result.weak_order, result.weak_order_standard_error)]
        rows.append([name, *weak, 1.0, round(result.strong_order, 3), strong_order])
        found.append(result)
    columns = ["problem", "weak order", "standard error", "theory", "strong order", "theory"]
    table = Table(title="Order of convergence of Euler-Maruyama, steps 1/32 to 1/256", columns=columns, rows=rows)
    return table, (found[0].weak_order, found[0].strong_order, found[2].strong_order)


def _show_linear_scaling(generator: np.random.Generator) -> tuple[Panel, Table, tuple[float, float]]:
    """Return the error of merging n steps, and the measured powers of nεh with which mean and variance go wrong."""
    measured, exact = [], []
    for num_merged in (8, 16, 32, 64, 128, 256, 384):
        exact.append(linear_scaling(num_merged, learning_rate=1 / 256, batch_size=1, **LOSS))
        measured.append(
            measure_linear_scaling(
                skewed_noise,
                num_merged,
                curvature=1.0,
                learning_rate=1 / 256,
                batch_size=1,
                num_paths=10_000,
                generator=generator,
            )
        )
    x = [pair.reach for pair in exact]
    curves = [
        Curve(label="mean, closed form", x=x, y=[-pair.mean_error for pair in exact]),
        Curve(label="mean, simulated", x=x, y=[-pair.mean_error for pair in measured], style="points"),
        Curve(label="mean ≈ (nεh)² / 2", x=x, y=[-pair.leading_mean_error for pair in exact], style="dashed"),
        Curve(label="variance, closed form", x=x, y=[pair.variance_error for pair in exact]),
        Curve(label="variance, simulated", x=x, y=[pair.variance_error for pair in measured], style="points"),
        Curve(label="variance ≈ nεh", x=x, y=[pair.leading_variance_error for pair in exact], style="dashed"),
    ]
    panel = Panel(
        title="n steps at (ε, B) against one at (nε, nB)",
        x_label="n ε λ_max",
        y_label="size of the relative error of the one step",
        curves=curves,
        x_log=True,
        y_log=True,
        note="The one step is unstable from 2 on.",
    )
    rows = [
        [e.num_merged, e.reach]
        + [round(value, 5) for value in (m.mean_error, e.mean_error, e.leading_mean_error)]
        + [round(value, 5) for value in (m.variance_error, e.variance_error, e.leading_variance_error)]
        for m, e in zip(measured, exact, strict=True)
    ]
    columns = ["n", "nεh", "mean: simulated", "exact", "leading", "variance: simulated", "exact", "leading"]
    table = Table(title="Relative error of linear scaling, skewed noise, ε = 1/256, B = 1", columns=columns, rows=rows)
    # Without 1 - 1/n, which is in the leading order of both and is no power of nεh.
    few = [(pair, 1 - 1 / pair.num_merged) for pair in measured if pair.reach <= 1 / 4]
    mean_slope = fitted_slope([pair.reach for pair, _ in few], [-pair.mean_error / part for pair, part in few])
    variance_slope = fitted_slope([pair.reach for pair, _ in few], [pair.variance_error / part for pair, part in few])
    return panel, table, (mean_slope, variance_slope)


def _show_noise(generator: np.random.Generator) -> tuple[Panel, Table, tuple[float, float, float]]:
    """Return tails of accumulated noise against n, the powers of n it grows with, and by how much √n falls short."""
    skewed = accumulated_noise(skewed_noise, COUNTS, num_paths=40_000, generator=generator)
    stable = accumulated_noise(stable_noise(ALPHA), COUNTS, num_paths=40_000, generator=generator)
    middle, quartile, tail = np.transpose([stats.gamma.ppf([0.5, 0.75, 0.99], n) for n in COUNTS])
    heavy = float(stats.levy_stable.ppf(0.99, ALPHA, 0.0) / stats.levy_stable.ppf(0.75, ALPHA, 0.0))
    gaussian = float(stats.norm.ppf(0.99) / stats.norm.ppf(0.75))
    x = [float(n) for n in COUNTS]
    curves = [
        Curve(label=f"α-stable, α = {ALPHA}", x=x, y=[tail_ratio(row) for row in stable], style="points"),
        Curve(label="α-stable, theory", x=x, y=[heavy] * len(x)),
        Curve(label="skewed", x=x, y=[tail_ratio(row) for row in skewed], style="points"),
        Curve(label="skewed, theory", x=x, y=((tail - middle) / (quartile - middle)).tolist()),
        Curve(label="Gaussian", x=x, y=[gaussian] * len(x), style="dashed"),
    ]
    panel = Panel(
        title="Tail of the noise of n examples together",
        x_label="n",
        y_label="(q99 - median) / (q75 - median)",
        curves=curves,
        x_log=True,
    )
    rows: list[list[str | float]] = []
    powers, scales = [], []
    for name, sums, theory in (("skewed", skewed, 0.5), (f"α-stable, α = {ALPHA}", stable, 1 / ALPHA)):
        scales.append([quartile_distance(row) for row in sums])
        powers.append(fitted_slope(x[3:], scales[-1][3:]))  # from n = 8 on: skewness shifts the quartiles before
        kurtosis = [float(stats.kurtosis(row)) for row in (sums[0], sums[4], sums[-1])]
        tails = [tail_ratio(row) for row in (sums[0], sums[-1])]
        rows.append([name, *(round(value, 3) for value in (powers[-1], theory, *kurtosis, *tails))])
    middle, last = (f"n={COUNTS[place]}" for place in (4, -1))
    table = Table(
        title="Noise of n examples: growth, excess kurtosis of the sample (skewed: 6/n; stable: infinite), tail",
        columns=[
            "noise",
            "power of n",
            "theory",
            "kurtosis n=1",
            *(f"kurtosis {n}" for n in (middle, last)),
            "tail n=1",
            f"tail {last}",
        ],
        rows=rows,
    )
    return panel, table, (powers[0], powers[1], scales[1][-1] / scales[1][0] / math.sqrt(COUNTS[-1]))


def _show_stable(generator: np.random.Generator) -> tuple[Table, tuple[float, float], float]:
    """Return spreads under α-stable noise, B = 16 against B = 1 at equal T measured and exact, and the power of T."""
    quartiles = 2 * float(stats.levy_stable.ppf(0.75, ALPHA, 0.0))
    start_M1 = np.zeros((20_000, 1))
    examples_MN1 = stable_noise(ALPHA)(generator, (len(start_M1), 384, 1))  # the same for all, in batches of B
    rows, measured, exact = [], [], []
    for learning_rate, batch_size in ((1 / 64, 1), (1 / 16, 4), (1 / 4, 16), (1 / 4, 4), (1 / 4, 1)):
        used = examples_MN1[:, : round(6 / learning_rate) * batch_size]
        batches = np.split(used, round(6 / learning_rate), axis=1)
        *_, final_M1 = sgd(quadratic_gradients(1.0), start_M1, learning_rate=learning_rate, batches=batches)
        scale = stable_stationary_scale(alpha=ALPHA, curvature=1.0, learning_rate=learning_rate, batch_size=batch_size)
        exact.append(quartiles * scale)
        measured.append(quartile_distance(final_M1))
        temperature = temperature_of(learning_rate, batch_size)
        rows.append([learning_rate, batch_size, temperature, round(measured[-1], 4), round(exact[-1], 4)])
    table = Table(
        title=f"Stationary distance of quartiles of θ under α-stable noise, α = {ALPHA}, h = 1",
        columns=["ε", "B", "T", "simulated", "closed form"],
        rows=rows,
    )
    power = fitted_slope([1 / 64, 1 / 16, 1 / 4], measured[2:])
    return table, (measured[2] / measured[0] - 1, exact[2] / exact[0] - 1), power


def _show_sampling(generator: np.random.Generator) -> tuple[Table, tuple[float, float, float]]:
    """Return what shuffling does to the noise of a batch, to two batches, and to the variance after an epoch."""
    examples_N1 = _standardised(generator.standard_normal((64, 1)))

    def shuffled(batch_size: int, num_paths: int, num_steps: int) -> Iterator[Floats]:
        return finite_batches(
            examples_N1,
            batch_size=batch_size,
            sampling=Sampling.SHUFFLED,
            num_paths=num_paths,
            num_steps=num_steps,
            generator=generator,
        )

    means_KM = np.stack([batch.mean(axis=(1, 2)) for batch in shuffled(16, 20_000, 4)])
    factor = float(16 * means_KM.var())
    correlation = float(np.corrcoef(means_KM)[np.triu_indices(4, k=1)].mean())

    rows, ratios = [], []
    for learning_rate in (1 / 64, 1 / 16, 1 / 4, 1.0):
        batches = shuffled(4, 10_000, 16 * math.ceil(4 / learning_rate / 16))
        start_M1 = np.zeros((10_000, 1))
        *_, final_M1 = sgd(quadratic_gradients(1.0), start_M1, learning_rate=learning_rate, batches=batches)
        limit = float(diffusion_stationary_variance(temperature_of(learning_rate, 4), **LOSS))
        ratios.append(float(np.mean(final_M1**2)) / limit)
        exact = [
            epoch_end_variance(learning_rate=learning_rate, batch_size=4, num_examples=64, sampling=sampling, **LOSS)
            for sampling in Sampling
        ]
        values = [round(value / limit, 4) for value in exact]
        rows.append([learning_rate, 16 * learning_rate, round(ratios[-1], 4), *values])
    table = Table(
        title="Variance of θ after an epoch over T c / 2h, N = 64, B = 4, K = 16",
        columns=["ε", "εhK", "shuffled epochs, simulated", *(f"{sampling}, exact" for sampling in Sampling)],
        rows=rows,
    )
    return table, (factor, correlation, ratios[0])


def _standardised(examples_N1: Floats) -> Floats:
    """Return the examples with mean 0 and variance 1, both exactly."""
    return np.asarray((examples_N1 - examples_N1.mean()) / examples_N1.std())


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


def _standard_error(sample: Floats) -> float:
    return float(np.std(sample, ddof=1) / math.sqrt(len(sample)))
