"""Schedules as numbers: against `torch.optim.lr_scheduler`, update by update, and against formulas in plain loops."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

from isotherm.core.multipliers import multipliers
from isotherm.core.run_schedule import RunSchedule, num_drops
from isotherm.core.schedule import Schedule

PEAK = 0.3


def multipliers_of(schedule: Schedule, num_steps: int, *, initial: float = PEAK) -> np.ndarray:
    gamma, rest = schedule.of_run(num_steps=num_steps, initial=initial)
    return multipliers(num_steps, gamma=gamma, schedule=rest)


def rates_by_torch(make, num_steps: int) -> list[float]:
    """Return the learning rates that an optimiser has at each of its updates under a scheduler of PyTorch's."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler: LRScheduler = make(optimizer)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls step with an epoch, which it deprecates
        for _ in range(num_steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


def after_warmup(warmup, make):
    """Return a scheduler that warms up linearly over so many updates and then does as another."""

    def made(optimizer):
        if not warmup:
            return make(optimizer)
        rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
        return SequentialLR(optimizer, [rise, make(optimizer)], milestones=[warmup])

    return made


def falls(length, final):
    return lambda o: LinearLR(o, start_factor=1.0, end_factor=final, total_iters=length)


def stays(length):
    return lambda o: ConstantLR(o, factor=1.0, total_iters=length)


def stable_then_falls(num_steps, warmup, decay, final):
    def made(optimizer):
        rise = [LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)] if warmup else []
        flat, fall = stays(num_steps)(optimizer), falls(decay, final)(optimizer)
        milestones = [*([warmup] if warmup else []), num_steps - decay]
        return SequentialLR(optimizer, [*rise, flat, fall], milestones=milestones)

    return made


@pytest.mark.parametrize("warmup", [0, 2, 25])
@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("num_steps", [40, 101])
def test_every_learning_rate_is_that_of_pytorchs_scheduler(warmup, final, num_steps):
    rest, warm = num_steps - warmup, {"warmup_steps": warmup}
    pairs = [
        (Schedule.constant(**warm), after_warmup(warmup, stays(num_steps))),
        (Schedule.linear(final_fraction=final, **warm), after_warmup(warmup, falls(rest, final))),
        (
            Schedule.cosine(final_fraction=final, **warm),
            after_warmup(warmup, lambda o: CosineAnnealingLR(o, T_max=rest, eta_min=final * PEAK)),
        ),
        (
            Schedule.wsd(decay_fraction=0.2, final_fraction=final, **warm),
            stable_then_falls(num_steps, warmup, round(0.2 * num_steps), final),
        ),
        (
            Schedule(gamma=1.5, **warm),
            after_warmup(warmup, lambda o: LambdaLR(o, lambda i: 1.5 ** -num_drops(i, num_steps=rest))),
        ),
    ]
    for schedule, make in pairs:
        expected = rates_by_torch(make, num_steps)
        np.testing.assert_allclose(PEAK * multipliers_of(schedule, num_steps), expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(
    "function",
    [
        lambda done: 1.0 if done < 0.3 else 0.1,
        lambda done: 1.0 if done <= 0.3 else 0.1,
        lambda done: (1 - done) ** 2,
        lambda done: 0.5 * (1 + math.cos(math.pi * done)),
        lambda done: 0.2**done,
        lambda done: 1.0 - math.sqrt(max(0.0, (done - 0.8) / 0.2)),
        lambda done: 0.0,
        lambda done: 5.0 - done,
    ],
)
def test_a_function_of_ones_own_is_that_of_lambda_lr(function):
    schedule = Schedule.of(function)
    for num_steps in (1, 7, 10, 1000):
        expected = rates_by_torch(lambda o, n=num_steps: LambdaLR(o, lambda i: function(i / n)), num_steps)
        ours = PEAK * multipliers_of(schedule, num_steps)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1.01e-5 * PEAK * max(function(0.0), 1.0))


def test_a_jump_stays_a_jump_at_every_length():
    schedule = Schedule.of(lambda done: 1.0 if done < 0.3 else 0.1)
    for num_steps in (10, 30, 997, 10_000):
        expected = [1.0 if i / num_steps < 0.3 else 0.1 for i in range(num_steps)]
        assert multipliers_of(schedule, num_steps).tolist() == expected


def test_points_are_joined_by_lines_and_the_later_one_counts_at_a_jump():
    schedule = Schedule.piecewise([(0, 0.5), (0.5, 1), (0.5, 0.25), (1, 0)])
    assert multipliers_of(schedule, 8).tolist() == [0.5, 0.625, 0.75, 0.875, 0.25, 0.1875, 0.125, 0.0625]


def test_a_warm_up_rises_to_where_the_function_begins_and_its_fractions_count_the_rest():
    schedule = Schedule.piecewise([(0, 0.5), (1, 0)], warmup_steps=4)
    assert multipliers_of(schedule, 8).tolist() == [0.125, 0.25, 0.375, 0.5, 0.5, 0.375, 0.25, 0.125]


shapes = st.sampled_from(["paper", "constant", "linear", "cosine", "wsd"])


@given(shapes, st.integers(1, 300), st.floats(0, 0.5), st.data())
def test_a_window_of_updates_has_the_values_of_the_whole(shape, num_steps, fraction, data):
    gamma, rest = Schedule.named(shape, warmup_fraction=fraction).of_run(num_steps=num_steps, initial=1.0)
    whole = multipliers(num_steps, gamma=gamma, schedule=rest)
    start = data.draw(st.integers(0, num_steps - 1))
    stop = data.draw(st.integers(start + 1, num_steps))
    window = multipliers(num_steps, gamma=gamma, schedule=rest, start=start, stop=stop)
    assert window.tolist() == whole[start:stop].tolist()
    assert len(whole) == num_steps
    assert np.isfinite(whole).all()
    assert 0 < whole[0] <= whole.max() <= 1


@pytest.mark.parametrize("num_steps", range(1, 60))
def test_the_papers_shape_is_the_papers_schedule(num_steps):
    assert (
        multipliers(num_steps, gamma=1.7, schedule=RunSchedule(shape="paper")).tolist()
        == multipliers(num_steps, gamma=1.7).tolist()
    )


@pytest.mark.parametrize("num_steps", [20, 200, 2000])
def test_a_final_learning_rate_is_where_training_ends_whatever_the_first(num_steps):
    for schedule in (Schedule.linear(), Schedule.cosine(), Schedule.wsd()):
        for initial in (0.02, 3.0):
            last = initial * multipliers_of(schedule.ending(0.01), num_steps, initial=initial)[-1]
            assert last == pytest.approx(0.01, abs=6 * initial / num_steps)
