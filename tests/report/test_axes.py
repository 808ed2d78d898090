"""What matplotlib figures share."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from isotherm.report.axes import MAX_TICKS, finish, power_of_two_axis, with_math


def test_ticks_stand_at_the_values_or_at_powers_of_two() -> None:
    axes = Figure().add_subplot()
    power_of_two_axis(axes, "x", {8.0, 16.0, 32.0})
    axes.set_xlim(4, 64)
    assert axes.get_xticks().tolist() == [8.0, 16.0, 32.0]
    power_of_two_axis(axes, "y", None)
    axes.set_ylim(0.1, 20)
    ticks = axes.get_yticks()
    assert set(ticks) <= {2.0**k for k in range(-20, 20)}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_many_values_share_few_ticks() -> None:
    axes = Figure().add_subplot()
    power_of_two_axis(axes, "x", {2.0**k for k in range(20)})
    assert len(axes.get_xticks()) <= MAX_TICKS
    assert len(axes.get_xticks()) + len(axes.get_xticks(minor=True)) == 20


@pytest.mark.parametrize(
    ("text", "expected"), [("best ε_eff", r"best $\epsilon_{\mathrm{eff}}$"), ("cost in $", r"cost in \$")]
)
def test_symbols_are_mathematics_and_dollars_are_text(text: str, expected: str) -> None:
    assert with_math(text) == expected


def test_a_panel_gets_its_letter() -> None:
    axes = Figure().add_subplot()
    finish(axes, "b")
    assert axes.get_title(loc="left") == "b"
    assert not axes.spines["top"].get_visible()
