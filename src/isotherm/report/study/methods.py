"""The protocol in sentences: how a study's numbers were obtained, and how to read them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from isotherm.core.optimizers import Optimizer, decays_weights, optimizer_json
from isotherm.core.records import Precision
from isotherm.report.wording import count_text, objective_words, rate_symbol
from isotherm.sweep.plan import SweepPlan

_NUM_DRAWS = 200_000
_MOST_VALUES = 15 * _NUM_DRAWS  # cells of more runs need fewer draws for the same digits
_PAPERS_CHOICES = ((12, 15), (5, 7))


@functools.cache
def selection_bias(num_kept: int, num_seeds: int) -> tuple[float, float]:
    """Return the effect of keeping the best k of n Gaussian runs, in σ: (shift of the mean, expected sample deviation).

    Simulated with a fixed seed; accurate to two digits.

    >>> [round(value, 2) for value in selection_bias(12, 15)]
    [0.33, 0.76]
    """
    num_draws = max(100, min(_NUM_DRAWS, _MOST_VALUES // num_seeds))
    draws = np.random.default_rng(0).standard_normal((num_draws, num_seeds))
    best = np.sort(draws, axis=1)[:, num_seeds - num_kept :]
    deviation = float(best.std(axis=1, ddof=1).mean()) if num_kept > 1 else 0.0
    return float(best.mean()), deviation


_LAW = (
    "At every batch size the metric over log ε_eff is fitted as a peak with a height and an optimum of its own; its "
    "shape, which may be steeper above the optimum than below, is shared by all batch sizes. The law of the optima is "
    "a broken line: log ε_eff rises with log B up to a kink and is constant beyond. Estimates are medians, intervals "
    "95 % of the posterior; they include the seeds, the spacing of the learning rates, the shape of the peaks and the "
    "scatter of the optima about the line."
)


def protocol_paragraphs(plans: Sequence[SweepPlan]) -> list[str]:
    """Return the protocol of a study in paragraphs, with one per sweep where sweeps differ."""
    return [
        *_distinct(_selection(plan) for plan in plans),
        *_distinct(_extension(plan) for plan in plans),
        *_distinct(_refinement(plan) for plan in plans),
        *_distinct(sentence for plan in plans for sentence in _order(plan)),
        f"{_sharing(plans)} "
        "Learning rates are thus compared with common random numbers: error bars show the spread over seeds at one "
        "learning rate, not the error of a difference between two.",
        *_distinct(_bias(plan.num_kept, len(plan.seeds)) for plan in plans),
        *_distinct(_confirmation(plan) for plan in plans),
        *_distinct(_law(plan) for plan in plans if len(plan.batch_sizes) >= 3),
        *_distinct(_tuning(plan) for plan in plans),
        *_distinct(_training(plan) for plan in plans),
    ]


def _sharing(plans: Sequence[SweepPlan]) -> str:
    """Say what runs of equal and of different seeds share; every seed reads a text in the same order."""
    sentences = []
    if any(plan.unroll is None for plan in plans):
        sentences.append(
            "Equal seeds share initialisation and data order across learning rates; different seeds share nothing."
        )
    if any(plan.unroll is not None for plan in plans):
        sentences.append(
            "On sequences, equal seeds share initialisation and dropout across learning rates; the order of the text "
            "is the same for every seed, so different seeds share it too."
        )
    return " ".join(sentences)


def _law(plan: SweepPlan) -> str:
    """Say how optima and their law are fitted, and what stands in place of a temperature where there is none."""
    if plan.has_temperature:
        return _LAW
    return f"{_LAW.replace('ε_eff', 'ε')} {_RATIOS}"


_RATIOS = (
    "These optimisers have neither an effective learning rate nor a temperature: the exponent of the rise is what is "
    "measured, and ε/B and ε/√B are given at every optimum, one of which is constant where ε ∝ B or ε ∝ √B."
)


def _effective(plan: SweepPlan) -> str:
    return "effective " if plan.has_temperature else ""


def _minimiser(plan: SweepPlan) -> str:
    return "SGD" if plan.has_temperature else "training"


def _selection(plan: SweepPlan) -> str:
    k, n = plan.num_kept, len(plan.seeds)
    tuned = objective_words(plan.objective, plan.metric)
    which = f"All {count_text(n, 'run')}" if k == n else f"The best {k} of {n} runs by {tuned}"
    unstable = (
        "A learning rate at which a run diverged is unstable and cannot be optimal."
        if k == n
        else f"A learning rate at which more than {n - k} of {n} runs diverged is unstable and cannot be optimal."
    )
    return (
        f"At every batch size and budget a grid of {_effective(plan)}learning rates is run, with "
        f"{count_text(n, 'seed')} at each. {which} give mean and standard deviation; the optimum is the learning rate "
        f"with the best mean {tuned}. Its interval holds every learning rate tried whose mean lies within one "
        f"standard deviation of the optimum's; its ends are learning rates tried, too. {unstable}"
    )


def _extension(plan: SweepPlan) -> str:
    if plan.max_extensions == 0:
        return "Grids are not extended; an optimum or interval that touches an end of its grid is flagged."
    return (
        "Where the optimum or its interval touches an end of a grid, the grid is extended there by two learning rates, "
        f"up to {count_text(plan.max_extensions, 'time')}; an optimum that still touches an end is flagged."
    )


def _refinement(plan: SweepPlan) -> str:
    bound = "what a curve that is concave in log ε may still gain between neighbouring learning rates"
    if plan.resolution == "paper":
        return f"Grids are not refined; {bound} is given with every optimum, and flagged where it exceeds the error."
    which = "the optimum" if plan.extend_for == "tuned" else "the optimum and around that of training loss + L2"
    return (
        f"Around {which}, learning rates halfway to the neighbours are added, round by round, until {bound} is below "
        f"the error of the mean, or their ratio is at most {plan.smallest_ratio:.3g}."
    )


def _order(plan: SweepPlan) -> list[str]:
    """Say what is special about the order or the axes of a sweep."""
    found = []
    if plan.final_learning_rates:
        found.append(
            "Learning rates at the start and at the end of training are swept apart, in all pairs that do not rise. An "
            "effective learning rate stands for its best pair, also in the fits; the best of several means flatters."
        )
    if plan.estimate_at is not None:
        found.append(
            f"Every grid is run at {plan.estimate_at} first, without refinement; at the full budget it starts with the "
            "interval of the optimum found and one learning rate on either side."
        )
    if plan.until is not None:
        aim = "" if plan.until.target is None else f" meets {plan.until.target:g} or"
        found.append(
            f"Budgets double from {plan.budgets[0]}, each with its own optimum, until what is tuned{aim} no longer "
            "improves by more than the standard error of the difference in "
            f"{count_text(plan.until.patience, 'doubling')}, or {plan.budgets[-1]} are reached."
        )
    return found


def _confirmation(plan: SweepPlan) -> str:
    if not plan.num_confirm:
        return (
            "What is reported at an optimum comes from the seeds that chose it: the best of several noisy means is "
            "optimistic, the more so the finer the grid."
        )
    return (
        f"What is reported at an optimum comes from {count_text(plan.num_confirm, 'further seed')}, which took no part "
        "in choosing it. The selection bias is the mean over the seeds that chose less the mean over those."
    )


def _bias(num_kept: int, num_seeds: int) -> str:
    if num_seeds == 1:
        return "One run per learning rate says nothing about spread: standard deviations are 0, intervals one point."
    others = [pair for pair in _PAPERS_CHOICES if pair != (num_kept, num_seeds)]
    compare = "; ".join(f"best {k} of {n}: {_bias_numbers(k, n)}" for k, n in others)
    if num_kept == num_seeds:
        return (
            f"All {num_seeds} runs are kept: the mean at a learning rate is unbiased (the paper's choices: {compare})."
        )
    return (
        f"Keeping the best {num_kept} of {num_seeds} runs is optimistic: for Gaussian runs, it shifts the mean of the "
        f"ranked quantity by {selection_bias(num_kept, num_seeds)[0]:+.2f} standard deviations and shrinks the sample "
        f"standard deviation to {selection_bias(num_kept, num_seeds)[1]:.2f} of the true one ({compare}). The numbers "
        "over all runs are therefore shown too."
    )


def _bias_numbers(num_kept: int, num_seeds: int) -> str:
    shift, deviation = selection_bias(num_kept, num_seeds)
    return f"{shift:+.2f}, {deviation:.2f}"


def _tuning(plan: SweepPlan) -> str:
    tuned = objective_words(plan.objective, plan.metric)
    if plan.tune_on == "validation":
        return (
            f"Learning rates are chosen by {tuned}. The test set takes no part in choosing learning rates or runs, so "
            "test results have no selection bias."
        )
    if plan.tune_on == "test" and plan.num_confirm:
        return (
            f"Learning rates are chosen by {tuned}, on the same set that is reported, as in the paper. Confirming "
            "seeds take away what chance between seeds adds to the results, not what suits this test set by chance."
        )
    if plan.tune_on == "test":
        return (
            f"Learning rates are chosen by {tuned}, on the same set that is reported, as in the paper: test results at "
            "the optimum are optimistic, slightly more so for a finer grid."
        )
    return (
        f"Learning rates are chosen by what {_minimiser(plan)} minimises, the final training loss plus L2 penalty; the "
        "test set takes no part in the choice."
    )


_PRECISIONS: dict[Precision, str] = {
    "float32": "float32",
    "float64": "float64",
    "tf32": "float32, inputs of matmuls and convolutions rounded to TF32",
    "mixed": "mixed precision (matmuls in bfloat16; weights, statistics and losses in float32)",
}


def _training(plan: SweepPlan) -> str:
    penalised = "weights only" if plan.l2_scope == "weights" else "all parameters"
    penalty = f"an L2 penalty of {plan.l2:g} on {penalised}" if plan.l2 else "no L2 penalty"
    clipping = "" if plan.clip_norm is None else f", gradients clipped to a norm of {plan.clip_norm:g} before momentum"
    kinds = " and ".join(dict.fromkeys(method.title for method in plan.methods))
    if any(map(decays_weights, plan.methods)):
        penalty = f"weight decay of {penalised}, no L2 penalty"
    text = (
        f"{_schedule(plan)}; {kinds} with {penalty}{clipping}, in {_PRECISIONS[plan.precision]}. {_streams(plan)}"
        "The training loss is over the whole training set with the final parameters, without the penalty. "
    )
    if plan.has_temperature:
        return f"{text}Effective learning rate: ε_eff = ε / (1 - m); temperature: T = ε_eff / B."
    return f"{text}Optimisers: {'; '.join(_in_full(method) for method in plan.methods)}."


def _in_full(method: Optimizer) -> str:
    """Return an optimiser with all its hyperparameters."""
    options = ", ".join(f"{name}={value}" for name, value in optimizer_json(method).items() if name != "name")
    return f"{method.title}({options})"


def _schedule(plan: SweepPlan) -> str:
    """Return how the learning rate of the runs changes, without a full stop."""
    schedule = plan.schedule
    if schedule.shape != "paper":
        swept = "to a final learning rate that is swept apart" if plan.final_learning_rates else None
        return f"Schedule of the learning rate: {schedule.words(end=swept)}"
    if plan.final_learning_rates:
        drops = "down to a final learning rate that is swept apart"
    elif schedule.gamma is None:
        drops = f"down to {rate_symbol(plan)} = {schedule.final_effective_learning_rate:g}"
    else:
        drops = f"by a factor of {schedule.gamma:g} each"
    warmup = "" if schedule.warmup is None else f"After a linear warm-up over {schedule.warmup}, "
    runs = "runs" if warmup else "Runs"
    half = "half of the other updates" if warmup else "half of their updates"
    return f"{warmup}{runs} keep the learning rate constant for {half} and then drop it ten times, {drops}"


def _streams(plan: SweepPlan) -> str:
    if plan.unroll is None:
        return ""
    return (
        f"A batch is B parallel streams, read {plan.unroll} tokens at a time with the model's state carried over; the "
        "loss of an update is summed over these tokens and averaged over streams, while reported losses are per token. "
    )


def _distinct(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
