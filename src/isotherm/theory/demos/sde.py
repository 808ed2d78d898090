"""`isotherm theory sde`: SGD and its stochastic differential equation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from scipy import stats

from isotherm.core.statistics import Floats
from isotherm.core.temperature import temperature as temperature_of
from isotherm.theory.batch_sampling import Sampling, epoch_end_variance, finite_batches
from isotherm.theory.closed_forms import diffusion_second_moment, diffusion_stationary_variance, sgd_second_moment
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.linear_scaling import linear_scaling, measure_linear_scaling
from isotherm.theory.noise_kinds import (
    accumulated_noise,
    quartile_distance,
    skewed_noise,
    stable_noise,
    stable_stationary_scale,
    tail_ratio,
)
from isotherm.theory.sde import (
    Covariance,
    Drift,
    convergence,
    euler_maruyama,
    fitted_slope,
    quadratic_gradients,
    sgd,
    standard_error,
    standard_normals,
)

ALPHA = 1.5
COUNTS = tuple(2**k for k in range(9))
LOSS = {"curvature": 1.0, "noise_variance": 1.0}


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Show SGD and its differential equation, linear scaling and its error, and noise that does not average out."""
    generators = np.random.default_rng(seed).spawn(6)
    transient_panel, transient_table, excess = _show_transient(generators[0])
    order_table, orders = _show_order(generators[1])
    scaling_panel, scaling_table, slopes = _show_linear_scaling(generators[2])
    noise_panel, noise_table, growth = _show_noise(generators[3])
    stable_table, spreads, power = _show_stable(generators[4])
    sampling_table, (factor, correlation, shuffled) = _show_sampling(generators[5])
    paragraph = (
        f"Equation 3 of the paper is one Euler-Maruyama step of a differential equation in which learning rate and "
        f"batch size appear only as the temperature T = ε / B. Expectations converge to it with order "
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
    """Return E θ² at small and large ε, and the final variance at large ε relative to the equation's."""
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
    means, errors = [float(np.mean(square)) for square in squares], [standard_error(square) for square in squares]
    curve = Curve(
        label=label,
        x=[step_size * every * (index + 1) for index in range(len(squares))],
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
    """Return the error of merging n steps, and the measured powers of nεh with which mean and variance errors grow."""
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
        y_label="relative error of the one step",
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
    # Divided by 1 - 1/n, a factor of both leading orders that is no power of nεh.
    few = [(pair, 1 - 1 / pair.num_merged) for pair in measured if pair.reach <= 1 / 4]
    mean_slope = fitted_slope([pair.reach for pair, _ in few], [-pair.mean_error / part for pair, part in few])
    variance_slope = fitted_slope([pair.reach for pair, _ in few], [pair.variance_error / part for pair, part in few])
    return panel, table, (mean_slope, variance_slope)


def _show_noise(generator: np.random.Generator) -> tuple[Panel, Table, tuple[float, float, float]]:
    """Return tails of accumulated noise against n, the powers of n with which it grows, and the factor √n lacks."""
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
        title="Tail of the summed noise of n examples",
        x_label="n",
        y_label="(q99 - median) / (q75 - median)",
        curves=curves,
        x_log=True,
    )
    rows: list[list[str | float]] = []
    powers, scales = [], []
    for name, sums, theory in (("skewed", skewed, 0.5), (f"α-stable, α = {ALPHA}", stable, 1 / ALPHA)):
        scales.append([quartile_distance(row) for row in sums])
        powers.append(
            fitted_slope(x[3:], scales[-1][3:])
        )  # from n = 8 on: for smaller n, skewness shifts the quartiles
        kurtosis = [float(stats.kurtosis(row)) for row in (sums[0], sums[4], sums[-1])]
        tails = [tail_ratio(row) for row in (sums[0], sums[-1])]
        rows.append([name, *(round(value, 3) for value in (powers[-1], theory, *kurtosis, *tails))])
    middle, last = (f"n={COUNTS[index]}" for index in (4, -1))
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
    examples_MN1 = stable_noise(ALPHA)(generator, (len(start_M1), 384, 1))  # the same examples for all, in batches of B
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
        title=f"Stationary interquartile range of θ under α-stable noise, α = {ALPHA}, h = 1",
        columns=["ε", "B", "T", "simulated", "closed form"],
        rows=rows,
    )
    power = fitted_slope([1 / 64, 1 / 16, 1 / 4], measured[2:])
    return table, (measured[2] / measured[0] - 1, exact[2] / exact[0] - 1), power


def _show_sampling(generator: np.random.Generator) -> tuple[Table, tuple[float, float, float]]:
    """Return the effect of shuffling on the noise of a batch, on two batches, and on the variance after an epoch."""
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
    """Return the examples with mean exactly 0 and variance exactly 1."""
    return np.asarray((examples_N1 - examples_N1.mean()) / examples_N1.std())
