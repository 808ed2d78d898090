"""What a console shows of an object."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from isotherm.core.one_screen import LINES, WIDTH, ascii_text, columns_text, fields_text, one_screen, short_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("ε_eff ∝ B^1.0, κ(1−β)", "eps_eff ~ B^1.0, kappa(1-beta)"),
        ("2⁻⁴ and ‖w‖²", "2^-4 and |w|^2"),
        ("73.2 ± 0.3, × 2, 50\N{NO-BREAK SPACE}%", "73.2 +- 0.3, x 2, 50 %"),
        ("Müller", "Muller"),
        ("\N{SNOWMAN}", "?"),
    ],
)
def test_symbols_are_written_by_their_names(text: str, expected: str) -> None:
    assert ascii_text(text) == expected


def test_long_lines_are_wrapped_and_many_are_counted() -> None:
    shown = one_screen(["word " * 60, *(f"line {k}" for k in range(50))]).splitlines()
    assert len(shown) == LINES
    assert max(map(len, shown)) <= WIDTH
    assert shown[-1] == "... and 31 more lines"


def test_columns_are_flush_right() -> None:
    assert columns_text(("a", "bb"), [("100", "1"), ("2", "ε")]) == ["  a   bb", "100    1", "  2  eps"]


@dataclass(frozen=True)
class Record:
    name: str
    values: tuple[int, ...] = (1, 2)
    other: dict[str, int] = field(default_factory=dict)


def test_fields_with_their_defaults_are_left_out() -> None:
    assert fields_text(Record("a")) == "Record(name='a')"
    text = fields_text(Record("a", values=tuple(range(9)), other={"x": 1}), shown={"name": str.upper})
    assert text == "Record(name=A, values=(0, 1, 2, ..., 8: 9 in all), other={'x': 1})"


def test_values_in_a_few_words() -> None:
    assert short_text(0.1 + 0.2) == "0.3"
    assert short_text((1,)) == "(1,)"
    assert short_text({str(k): k for k in range(9)}).endswith("... 9 in all}")
    assert short_text(test_values_in_a_few_words) == "test_values_in_a_few_words"
