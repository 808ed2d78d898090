"""Colours and markers, the same in matplotlib and plotly.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; series differ in marker too. Batch sizes are
ordered, so their series run from dark to light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.colors import to_hex

# In octaves on the x axis, so that equal optima of two series stand side by side.
DODGE = 0.11
# The factor between an interval's end and the arrow beyond it, drawn where it touches the grid's end.
ARROW_GAP = 1.25


@dataclass(frozen=True, slots=True)
class Style:
    """The look of a series; `marker` is matplotlib's name, `symbol` plotly's."""

    colour: str
    marker: str
    symbol: str


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
)
_PLAIN_SGD = 1  # plain SGD looks the same in every figure of a report


def series_styles(momenta: Sequence[float | None]) -> list[Style]:
    """Return a style for every series, given their momenta; None for optimisers other than SGD."""
    styles = [Style(colour, *marker) for colour, marker in zip(_COLOURS, _MARKERS, strict=True)]
    free = [index for index in range(len(styles)) if index != _PLAIN_SGD]
    chosen: list[Style] = []
    num_others = 0
    for momentum in momenta:
        if momentum == 0 and styles[_PLAIN_SGD] not in chosen:
            chosen.append(styles[_PLAIN_SGD])
        else:
            chosen.append(styles[free[num_others % len(free)]])
            num_others += 1
    return chosen


def ordered_styles(number: int) -> list[Style]:
    """Return styles for an ordered axis, from dark to light; the lightest still shows on white."""
    scale = matplotlib.colormaps["viridis"]
    positions = [0.85 * k / max(1, number - 1) for k in range(number)]
    return [Style(to_hex(scale(index)), *_MARKERS[k % len(_MARKERS)]) for k, index in enumerate(positions)]


def dodges(number: int) -> list[float]:
    """Return the factors by which the x of every series is multiplied.

    >>> dodges(1)
    [1.0]
    """
    return [2.0 ** (DODGE * (k - (number - 1) / 2)) for k in range(number)]


def scale_colours(number: int) -> list[str]:
    """Return colours for a scale from worst to best, dark to light: viridis, as lines of an ordered axis have it."""
    scale = matplotlib.colormaps["viridis"]
    return [to_hex(scale(k / (number - 1))) for k in range(number)]
