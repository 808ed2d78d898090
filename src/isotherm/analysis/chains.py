"""An ensemble of Markov chains (differential evolution): draws from a density without tuning.

Every chain moves along the difference of two others, so that steps have the size and direction of the density itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isotherm.core.statistics import Floats

WHOLE_STEPS = 0.1  # part of the moves that are a whole difference, which crosses gaps
TREMOR = 1e-4  # keeps chains from collapsing into a plane
BEHIND = 10.0  # logarithm of a ratio of densities, beyond what the number of parameters explains


def walk(
    log_density: Callable[[Floats], Floats],
    states: Floats,
    generator: np.random.Generator,
    *,
    num_rounds: int,
    num_ignored: int,
) -> Floats:
    """Return the states that chains visit after the first rounds, shape (num_visited, num_parameters).

    Each half of the chains moves along differences in the other half. In the first rounds chains that lag far behind
    the best are moved to others: they would stay in some corner for ever.

    Args:
        log_density: of states, up to a constant; minus infinity where nothing may be.
        states: where the chains start, one row each; at least four.
        generator: of random numbers.
        num_rounds: how often every chain moves.
        num_ignored: rounds at the start that are not returned.
    """
    states = states.copy()
    densities = log_density(states)
    half = len(states) // 2
    visited = []
    for round_ in range(num_rounds):
        for mine, others in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            moved = states[mine] + _moves(states[others], len(states[mine]), generator)
            found = log_density(moved)
            with np.errstate(invalid="ignore"):  # from nowhere to nowhere: stay
                accepted = np.log(generator.random(len(moved))) < found - densities[mine]
            states[mine] = np.where(accepted[:, None], moved, states[mine])
            densities[mine] = np.where(accepted, found, densities[mine])
        if round_ >= num_ignored:
            visited.append(states.copy())
        elif round_ % 5 == 4:
            _catch_up(states, densities, generator)
    return np.concatenate(visited)


def _catch_up(states: Floats, densities: Floats, generator: np.random.Generator) -> None:
    """Move chains whose density is negligible to others, in place."""
    behind = densities < densities.max() - BEHIND - 2 * states.shape[1]
    chosen = generator.choice(np.flatnonzero(~behind), size=int(behind.sum()))
    states[behind], densities[behind] = states[chosen], densities[chosen]


def _moves(others: Floats, num_moves: int, generator: np.random.Generator) -> Floats:
    """Return differences of two other states, scaled to be accepted often."""
    num_parameters = others.shape[1]
    first = generator.integers(len(others), size=num_moves)
    second = (first + generator.integers(1, len(others), size=num_moves)) % len(others)
    scales = 2.38 / math.sqrt(2 * num_parameters) * generator.uniform(0.4, 1.1, size=num_moves)
    scales = np.where(generator.random(num_moves) < WHOLE_STEPS, 1.0, scales)
    tremor = TREMOR * generator.standard_normal((num_moves, num_parameters))
    return np.asarray(scales[:, None] * (others[first] - others[second]) + tremor)
