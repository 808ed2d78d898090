"""Effective learning rate and temperature of SGD: defined only here.

The paper's section 2: with heavy-ball momentum m, learning rate ε and batch size B,

    ε_eff = ε / (1 - m),        T = ε_eff / B.

Runs of equal temperature (one isotherm) reach the same result as long as noise, not curvature, is the limit.
"""

from __future__ import annotations


def effective_learning_rate(learning_rate: float, *, momentum: float = 0.0) -> float:
    """Return ε_eff = ε / (1 - m), the learning rate that SGD without momentum would need.

    >>> effective_learning_rate(0.25, momentum=0.75)
    1.0
    """
    return learning_rate / (1.0 - momentum)


def bare_learning_rate(effective_learning_rate: float, *, momentum: float = 0.0) -> float:
    """Return ε = ε_eff (1 - m), the number an optimiser wants; inverse of `effective_learning_rate`.

    >>> bare_learning_rate(1.0, momentum=0.75)
    0.25
    """
    return effective_learning_rate * (1.0 - momentum)


def temperature(learning_rate: float, batch_size: int, *, momentum: float = 0.0) -> float:
    """Return the temperature of SGD, T = ε_eff / B.

    >>> temperature(0.5, 64, momentum=0.5)  # same as 1.0 without momentum
    0.015625
    """
    return effective_learning_rate(learning_rate, momentum=momentum) / batch_size


def effective_learning_rate_at(temperature: float, batch_size: int) -> float:
    """Return ε_eff = T B, the effective learning rate on the isotherm T at batch size B.

    >>> effective_learning_rate_at(0.015625, 128)
    2.0
    """
    return temperature * batch_size
