"""The page and the figures of a diagnosis: what reaches them, whatever is known; nothing from outside."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.legend import Legend

from helpers_diagnosis import (
    CEILINGS,
    TEMPERATURE,
    around,
    make_diagnosis,
    make_grid,
    momentum_unknown,
    nothing_recommended,
    unbounded,
)
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Interval
from isotherm.diagnose.diagnosis import Boundary, Diagnosis, Isotherm
from isotherm.errors import UserError
from isotherm.report.diagnosis.figures import failure_figure, has_map, loss_figure, map_figure
from isotherm.report.diagnosis.page import save_map, write_diagnosis
from isotherm.report.diagnosis.text import (
    answer_sentences,
    boundaries_table,
    choices_table,
    current_sentence,
    grids_table,
    headline,
    isotherm_sentence,
    probes_table,
    stability_table,
    value_text,
)
from isotherm.report.style import series_styles

NASTY = '<img src="x" onerror="alert(1)"></script>'
EVERY = [make_diagnosis, nothing_recommended, momentum_unknown, unbounded]
SGD, HEAVY = series_styles([0.0, 0.9])


class Page(HTMLParser):
    """Tags with attributes, and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self._text).split())

    @property
    def images(self) -> list[bytes]:
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
        return [base64.b64decode(source.partition(",")[2]) for source in sources]


def page_of(diagnosis: Diagnosis, folder: Path) -> Page:
    path = write_diagnosis(diagnosis, folder / "new" / "page.html")
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(make_diagnosis(), tmp_path_factory.mktemp("diagnosis"))


def with_colour(axes: Axes, colour: str) -> list[Any]:
    return [line for line in axes.lines if to_rgba(line.get_color()) == to_rgba(colour)]


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert isinstance(legend, Legend)
    return [text.get_text() for text in legend.get_texts()]


# -- words and tables -----------------------------------------------------------------------------------------------


def test_the_answer_has_what_an_optimiser_wants() -> None:
    found = make_diagnosis()
    assert headline(found) == "For 30 epochs, train with batch size 128 (momentum 0.9) or 32 (SGD)"
    assert answer_sentences(found) == [
        "SGD: batch size 32, learning rate 1 [0.8, 1.25]; 30 epochs, 3,750 updates",
        "momentum 0.9: batch size 128, learning rate 0.4 [0.32, 0.5], which is ε_eff = 4 [3.2, 5]; 30 epochs, "
        "937 updates",
        "temperature to keep: T = ε_eff / B = 0.0312 [0.026, 0.0375]",
        f"learning rates are the peak of the schedule: {Schedule()}",
    ]
    one = make_diagnosis(recommended={0.0: 32, 0.9: 32})
    assert headline(one) == "For 30 epochs, train with batch size 32"


def test_the_lines_to_paste_are_those_of_the_choice(tmp_path: Path) -> None:
    code = {0.0: ("optimizer = plain",), 0.9: ("optimizer = with_momentum", "scheduler = one")}
    assert make_diagnosis(code=code).choice_code == code[0.9]
    words = page_of(make_diagnosis(code=code), tmp_path).words
    assert words.index("optimizer = with_momentum scheduler = one") < words.index("What to use at each batch size")
    assert "optimizer = plain" not in words
    assert make_diagnosis().choice_code == ()


def test_a_slope_that_is_not_one_and_a_plateau_are_told() -> None:
    isotherm = make_diagnosis().isotherm
    limits = Interval(estimate=0.5, low=0.3, high=0.7)
    half = make_diagnosis(isotherm=dataclasses.replace(isotherm, used_slope=0.5, used_interval=limits))
    assert answer_sentences(half)[-2] == "the learning rate rises as B^0.50 [0.30, 0.70] here, not as B"
    limits = Interval(estimate=1.03, low=0.72, high=1.33)
    near = make_diagnosis(isotherm=dataclasses.replace(isotherm, used_slope=1.03, used_interval=limits))
    assert answer_sentences(near)[-2].endswith("rises as B^1.03 [0.72, 1.33] here, which is compatible with B")
    flat = make_diagnosis(isotherm=dataclasses.replace(isotherm, is_plateau=True))
    assert answer_sentences(flat)[-2].startswith("any learning rate inside the interval does as well")
    assert isotherm_sentence(flat).endswith("the metric is the same over the whole interval.")


def test_an_answer_without_what_is_not_known() -> None:
    assert answer_sentences(momentum_unknown())[1] == "momentum 0.9: learning rate not determined"
    assert answer_sentences(nothing_recommended()) == []
    assert headline(nothing_recommended()) == "The data do not support a recommendation for 30 epochs"


def test_choices_have_both_learning_rates_and_their_price() -> None:
    table = choices_table(make_diagnosis())
    assert table.marked == (2, 4)
    assert table.rows[4] == (
        *("128", "curvature dominated", "1.5\n1.2–1.88", "4\n3.2–5", "0.4\n0.32–0.5"),
        *("937", "128,000\n0.0312 s", "× 2.67\n× 1"),
    )
    assert table.rows[7][5] == "234\ntoo few"
    assert len(table.columns) == len(table.rows[0]) == 8
    assert choices_table(unbounded()).rows[0][3:] == ("12\n8–∞", "1.2\n0.8–∞", "15,000", "–", "× 1\n× 1")
    assert choices_table(momentum_unknown()).rows[0][3:5] == ("–", "–")


def test_the_setting_in_use_is_a_row_with_what_it_costs() -> None:
    found = make_diagnosis()
    assert choices_table(found).rows[6] == (
        *("256\nyours", "curvature dominated\ncosts 2.3 points", "–", "1\nbest × 0.167", "0.1"),
        *("468", "256,000\n0.0156 s", "× 1.33"),
    )
    assert found.current is not None
    plain = dataclasses.replace(found.current, momentum=0.0, learning_rate=9.0, effective_learning_rate=9.0)
    failing = make_diagnosis(current=dataclasses.replace(plain, is_stable=False, factor=6.0))
    assert choices_table(failing).rows[6][:4] == (*("256\nyours", "curvature dominated\nfails", "9\nbest × 6", "–"),)
    far = make_diagnosis(current=dataclasses.replace(plain, factor=9.0))
    assert choices_table(far).rows[6][1] == "curvature dominated\ncosts more than measured"
    assert len(choices_table(momentum_unknown()).rows) == 7


def test_boundaries_stand_side_by_side() -> None:
    table = boundaries_table(make_diagnosis())
    assert table.columns == ("from", "SGD", "momentum 0.9", "how")
    assert [row[:3] for row in table.rows] == [
        ("sweep", "48\n34.3–67.2", "192\n137–269"),
        ("curvature", "40\n30.8–52", "760\n585–988"),
        ("noise scale", "90\n60–135", "–"),
    ]
    assert table.rows[0][3] == "half of the limit over the temperature"
    assert table.rows[1][3].split("; ") == [f"half of {n}/λ_max over the temperature" for n in (2, 38)]
    assert [row[1] for row in boundaries_table(unbounded()).rows] == ["above 96", "1,000,000\n0–∞"]
    assert boundaries_table(nothing_recommended()).rows[0][1] == "not determined"


def test_probes_give_the_limit_that_curvature_sets() -> None:
    assert probes_table(make_diagnosis()).rows[1] == (
        *("120", "0.8\n0.727–0.88", "2.5\n2.27–2.75", "90\n60–135", "2,000", "train"),
    )
    assert probes_table(unbounded()).rows[0][1:4] == ("-0.1\n-0.3 to 0.2", "–", "50\n10–∞")
    assert probes_table(nothing_recommended()).rows[0][1:4] == ("not determined",) * 3


def test_a_sharpness_that_may_be_zero_leaves_the_limit_open() -> None:
    (probe, _) = make_diagnosis().probes
    probe = dataclasses.replace(probe, sharpness=Interval(estimate=0.5, low=0.0, high=1.0))
    assert probes_table(make_diagnosis(probes=(probe,))).rows[0][2] == "4\n2–∞"


def test_limits_and_optima() -> None:
    assert stability_table(make_diagnosis()).rows[0] == (
        *("SGD", "3 [2.4, 3.75]", "128", "120", "10 of 24", "0.375 to 12"),
    )
    assert grids_table(make_diagnosis()).rows[1] == ("32", "momentum 0.9", "500", "4", "1 [0.714, 1.4]", "0.0312")
    assert grids_table(nothing_recommended()).rows[1][4:] == ("not determined", "–")


def test_the_isotherm_in_words() -> None:
    words = isotherm_sentence(make_diagnosis())
    assert "for 30 epochs; log ε_eff* rises with slope 0.97 [0.82, 1.11] in log B" in words
    assert "slope -0.5 [-0.8, -0.2] in the log of the training's length" in words
    assert words.endswith("The longest short runs have 0.5 of the intended length.")
    assert "T = 0.0312 [0, 0.1] for 30 epochs; whether" in isotherm_sentence(unbounded())
    assert "no isotherm" in isotherm_sentence(nothing_recommended())


def test_the_present_setting_in_words() -> None:
    text = current_sentence(make_diagnosis())
    assert text is not None
    assert text.startswith("B = 256, learning rate 0.1, momentum 0.9 (ε_eff = 1, T = 0.00391): curvature dominated. 6")
    assert text.endswith("Expected cost in accuracy: 2.3 points.")
    assert ": unknown regime" in (current_sentence(nothing_recommended()) or "")
    assert current_sentence(momentum_unknown()) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.4, "999"), (999.6, "1,000"), (123456.0, "123,000"), (1e-7, "1e-07"), (-math.inf, "−∞"), (math.nan, "–")],
)
def test_numbers_in_three_digits(value: float, text: str) -> None:
    assert value_text(value) == text


# -- figures --------------------------------------------------------------------------------------------------------


def test_failures_are_parts_of_runs_with_limits_and_intervals() -> None:
    (axes,) = failure_figure(make_diagnosis()).axes
    curve, limit = with_colour(axes, SGD.colour)
    assert list(curve.get_xdata()) == [0.375, 0.75, 1.5, 3.0, 6.0, 12.0]
    assert list(curve.get_ydata()) == [0, 0, 0, 0.5, 1, 1]
    assert list(limit.get_xdata()) == [3.0, 3.0]
    bands = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]  # type: ignore[attr-defined]
    assert bands == [pytest.approx((2.4, 3.75)), pytest.approx((9.6, 15.0))]
    assert legend_of(axes) == ["SGD", "momentum 0.9", "limit: half fail", "its 95 % interval"]


def test_an_open_interval_goes_to_the_end_of_the_panel() -> None:
    (axes,) = failure_figure(unbounded()).axes
    band = axes.patches[1]
    assert band.get_x() == 8.0  # type: ignore[attr-defined]
    assert band.get_x() + band.get_width() == pytest.approx(axes.get_xlim()[1])  # type: ignore[attr-defined]


def test_a_limit_that_was_not_found_is_told() -> None:
    (axes,) = failure_figure(nothing_recommended()).axes
    assert legend_of(axes) == ["SGD: no limit found", "momentum 0.9: no limit found"]
    assert not axes.patches


def test_losses_optima_and_failures() -> None:
    (axes,) = loss_figure(make_diagnosis()).axes
    lines = [container.lines[0] for container in axes.containers]
    assert list(lines[0].get_xdata()) == [0.0625, 0.125, 0.25, 0.5]
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert [line.get_xdata()[0] for line in rings] == [0.25, 1.0, 4.0]
    assert [line.get_ydata()[0] for line in rings] == pytest.approx([1.008, 1.032, 1.128])
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[1.0], [4.0], [16.0]]
    assert legend_of(axes) == ["B = 8", "B = 32", "B = 128", "runs fail", "optimum, 95 % interval"]
    bars = [line for line in axes.lines if line.get_linewidth() == 5]
    assert list(bars[1].get_xdata()) == pytest.approx([1 / 1.4, 1.4])


def test_losses_far_above_the_start_do_not_flatten_the_others() -> None:
    means = (1.2, 1.1, 1.0, 5.0, 1e6)
    grid = dataclasses.replace(make_grid(8), means=means, standard_deviations=(0.0,) * 5)
    (axes,) = loss_figure(make_diagnosis(grids=(grid,), metric="cross_entropy")).axes
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[1] == pytest.approx(2 * 2.31 * 1.05)


def test_losses_below_zero_can_be_drawn() -> None:
    grid = dataclasses.replace(make_grid(8), means=(-1.0, -2.0, -3.0, -2.0, -1.0), standard_deviations=(math.nan,) * 5)
    (axes,) = loss_figure(make_diagnosis(grids=(grid,))).axes
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[0] < -3.0


def test_the_map_has_isotherm_ceilings_optima_and_the_user() -> None:
    (axes,) = map_figure(make_diagnosis()).axes
    (isotherm,) = (line for line in axes.lines if line.get_label().startswith("isotherm"))
    assert [y / x for x, y in zip(isotherm.get_xdata(), isotherm.get_ydata(), strict=True)] == [TEMPERATURE] * 2
    ceilings = {line.get_label(): line.get_ydata()[0] for line in axes.lines if line.get_label().startswith("ceiling")}
    assert ceilings == {"ceiling, SGD": CEILINGS[0.0], "ceiling, momentum 0.9": CEILINGS[0.9]}
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [48.0, 192.0]
    (container,) = axes.containers
    points, _, (bars,) = container.lines  # type: ignore[misc]
    assert list(zip(points.get_xdata(), points.get_ydata(), strict=True)) == [(8, 0.25), (32, 1.0), (128, 4.0)]
    assert bars.get_segments()[1][:, 1].tolist() == pytest.approx([1 / 1.4, 1.4])
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (256, 1.0)
    diamonds = [(line.get_color(), line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "D"]
    assert [rate for _, rate in diamonds] == [1.0, 4.0]


def test_the_map_has_the_optima_of_the_longest_runs_only() -> None:
    grids = make_diagnosis().grids
    longer = [
        dataclasses.replace(g, num_steps=2 * g.num_steps, optimum=Interval(estimate=r, low=r, high=r))
        for g, r in zip(grids, (0.1, 0.4, 1.6), strict=True)
    ]
    longer[2] = dataclasses.replace(longer[2], optimum=None)
    (axes,) = map_figure(make_diagnosis(grids=(*longer, *grids))).axes
    (container,) = axes.containers
    points = container.lines[0]  # type: ignore[index]
    assert dict(zip(points.get_xdata(), points.get_ydata(), strict=True)) == {8: 0.1, 32: 0.4, 128: 4.0}
    assert "best of longest grid, momentum 0.9" in legend_of(axes)


def test_every_estimate_of_the_boundary_stands_in_the_strip() -> None:
    (axes,) = map_figure(make_diagnosis()).axes
    strip = axes.get_xaxis_transform()
    marks = [line for line in axes.lines if line.get_transform() == strip and line.get_linestyle() == "None"]
    assert sorted(line.get_xdata()[0] for line in marks) == [40.0, 48.0, 90.0, 192.0, 760.0]
    assert len({line.get_ydata()[0] for line in marks}) == 5  # none hides another
    assert [text.get_text() for text in axes.texts] == ["B* by noise scale", "B* by curvature", "B* by sweep"]


@pytest.mark.parametrize(("estimate", "marker", "end"), [(0.01, "<", 0), (1e6, ">", 1), (math.inf, ">", 1)])
def test_an_estimate_beyond_the_map_is_an_arrow_at_its_end(estimate: float, marker: str, end: int) -> None:
    far = Boundary(source="curvature", momentum=0.0, batch_size=around(estimate), how="")
    (axes,) = map_figure(make_diagnosis(boundaries=(far,))).axes
    assert axes.get_xlim() == (4.0, 1024.0)
    arrows = [(line.get_marker(), line.get_xdata()[0]) for line in axes.lines if line.get_marker() in ("<", ">")]
    assert arrows == [(marker, axes.get_xlim()[end])]


def test_without_a_temperature_limits_and_optima_still_have_a_map() -> None:
    found = make_diagnosis(isotherm=Isotherm(temperature=None, slope=None, batch_sizes=()))
    assert has_map(found)
    (axes,) = map_figure(found).axes
    assert not any(label.startswith("isotherm") for label in legend_of(axes))
    assert not has_map(nothing_recommended())


def test_momentum_looks_the_same_in_every_figure() -> None:
    found = make_diagnosis()
    for make in (failure_figure, map_figure):
        (axes,) = make(found).axes
        assert with_colour(axes, SGD.colour)
        assert with_colour(axes, HEAVY.colour)


@pytest.mark.parametrize("make", EVERY)
def test_whatever_is_known_can_be_drawn(make: Callable[[], Diagnosis]) -> None:
    for figure in (failure_figure, loss_figure, map_figure):
        figure(make()).draw_without_rendering()


def test_nothing_at_all_can_be_drawn() -> None:
    empty = make_diagnosis(stability=(), grids=(), boundaries=(), choices=(), recommended={}, current=None, probes=())
    for figure in (failure_figure, loss_figure, map_figure):
        figure(empty).draw_without_rendering()


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_map_as_a_file(tmp_path: Path, ending: str, start: bytes) -> None:
    path = save_map(make_diagnosis(), tmp_path / "new" / f"map.{ending}")
    assert path.read_bytes().startswith(start)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'\.gif' is not a known format; use \.png, \.pdf or \.svg"):
        save_map(make_diagnosis(), tmp_path / "map.gif")


# -- the page -------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "script"), attributes
        assert not {"href", "action", "onerror"} & set(attributes)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_three_figures_are_inside_with_words_for_those_who_do_not_see(page: Page) -> None:
    assert len(page.images) == 3
    assert all(b"<svg" in image for image in page.images)
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")


def test_sections_come_in_order_with_the_answer_first(page: Page) -> None:
    order = ["mlp_mnist1d", "train with batch size 128", "Missing:", "Your setting", "Choices", "Noise or curvature"]
    order += ["agree within a factor of two", "What to expect", "The largest stable learning rate", "Short grids"]
    order += ["Probes", "Reproduce", '"batch_sizes"']
    places = [page.words.index(part) for part in order]
    assert places == sorted(places)


def test_the_recommended_row_is_marked(page: Page) -> None:
    assert sum(attributes.get("class") == "marked" for tag, attributes in page.tags if tag == "tr") == 2
    assert "Rows in bold are recommended." in page.words


def test_intervals_and_symbols_are_set_as_the_paper_has_them(page: Page) -> None:
    assert "0.4 0.32–0.5" in page.words
    assert "ε_eff" not in page.words
    assert ("sub", {}) in page.tags


def test_no_recommendation_is_plain_to_see(tmp_path: Path) -> None:
    page = page_of(nothing_recommended(), tmp_path)
    assert "The data do not support a recommendation" in page.words
    assert any("open" in (attributes.get("class") or "").split() for tag, attributes in page.tags if tag == "section")
    assert "Missing: The limit of stability: no run failed" in page.words
    assert "Choices" not in page.words
    assert "What to expect" not in page.words
    assert len(page.images) == 2


@pytest.mark.parametrize("make", [momentum_unknown, unbounded])
def test_what_is_open_or_unknown_is_shown_as_such(tmp_path: Path, make: Callable[[], Diagnosis]) -> None:
    words = page_of(make(), tmp_path).words
    assert ("not determined" if make is momentum_unknown else "12 [8, ∞)") in words
    assert ("Your setting" in words) == (make is unbounded)
    assert "nan" not in words


def test_what_a_user_wrote_stays_text(tmp_path: Path) -> None:
    found = make_diagnosis(
        task=NASTY,
        agreement=NASTY,
        missing=(NASTY,),
        expectations=(NASTY,),
        current=dataclasses.replace(make_diagnosis().current, words=NASTY),  # type: ignore[type-var]
        settings={"note": NASTY},
        boundaries=(Boundary(source="sweep", momentum=0.0, batch_size=None, how=NASTY),),
    )
    page = page_of(found, tmp_path)
    assert len(page.images) == 3  # and no other
    assert page.words.count(NASTY) == 7  # title and heading among them
    assert not any("onerror" in attributes for _, attributes in page.tags)


def test_equal_diagnoses_give_equal_files(tmp_path: Path) -> None:
    paths = [write_diagnosis(make_diagnosis(), tmp_path / name) for name in ("a.html", "b.html")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
