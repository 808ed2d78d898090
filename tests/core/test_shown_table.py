"""Tables for a console, a notebook and code."""

from __future__ import annotations

from isotherm.core.shown_table import ShownTable, ShownTables

TABLE = ShownTable(
    title="ε <a>",
    columns=("B", "rate"),
    cells=(("16", "0.5\n0.4-0.6"), ("1,024", "2")),
    notes=("a & b",),
    values=({"B": 16, "rate": 0.5}, {"B": 1024, "rate": 2.0}),
)


def test_as_text_as_html_and_as_values() -> None:
    both = ShownTables(parts=(TABLE, TABLE))
    assert repr(ShownTables(parts=(TABLE,))).splitlines() == [
        "eps <a>",
        "    B         rate",
        "   16  0.5 0.4-0.6",
        "1,024            2",
        "a & b",
    ]
    assert str(both).count("ε <a>") == 2
    html = both._repr_html_()
    assert html.count("<table>") == 2
    assert "ε &lt;a&gt;" in html
    assert "<td>0.5<br>0.4-0.6</td>" in html
    assert "a &amp; b" in html
    assert both.rows == [*TABLE.values, *TABLE.values]
    assert list(both) == [TABLE, TABLE]
    assert len(both) == 2
