"""The report: one file, nothing from outside, nothing a user wrote taken for markup."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly import graph_objects

from helpers_landscape import landscape_study
from helpers_report import diverged, embedded_study, make_plan, make_results, make_study, peaked
from isotherm.analysis.analysis import analyse
from isotherm.analysis.verdicts import Verdict
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.figures import Spread
from isotherm.report.study.html import write_page
from isotherm.report.study.interactive import panels
from isotherm.report.study.methods import protocol_paragraphs, selection_bias
from isotherm.sweep.results import StudyResults

HOLDS = Verdict(claim="Noise helps", holds=True, evidence="76.0 against 64.9")
FAILS = Verdict(claim="Curvature <b>rules</b>", holds=False, evidence="ε_eff < 1 & more")
OPEN = Verdict(claim="Who knows", holds=None, evidence="0 ± 1", remedy="run 9 seeds", command="isotherm run x")
NASTY = '<img src="x" onerror="alert(1)"></script>'


class Page(HTMLParser):
    """Tags with attributes, visible text, and scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._raw: dict[str, str | None] | None = None
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = dict(attrs) if tag == "script" else None
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw, self._hidden = None, False

    def handle_data(self, data: str) -> None:
        if self._raw is not None:
            self.scripts.append((self._raw, data))
        elif not self._hidden:
            self.text.append(data)

    @property
    def plots(self) -> dict[str, list[dict[str, Any]]]:
        content = "".join(data for attributes, data in self.scripts if attributes.get("id") == "plots")
        return json.loads(content)  # type: ignore[no-any-return]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def report(study: StudyResults, folder: Path, verdicts: Sequence[Verdict] = (), **more: Any) -> Page:
    analysis = dataclasses.replace(analyse(study), verdicts=tuple(verdicts))
    path = write_page(analysis, study_figures(analysis), folder / "new" / "report.html", **more)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("report")
    return report(embedded_study(), folder, [HOLDS, FAILS, OPEN], seconds=112.0, generated="today")


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img"), attributes
        for name in ("src", "href", "action"):
            assert name not in attributes
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_plotly_is_embedded_once_and_may_not_upload(page: Page) -> None:
    scripts = [data for _, data in page.scripts]
    assert sum(data.count("* plotly.js v") for data in scripts) == 1
    assert "showSendToCloud: false" in scripts[-1]


def test_sections_come_in_order(page: Page) -> None:
    words = page.words
    order = [
        "quickstart",
        "Does SGD have",
        "What to use",
        "optimizer = torch.optim.SGD(",
        "576 runs finished",
        "Verdicts",
    ]
    order += ["At the optimal learning rate", "Optima", "Every learning rate", "Protocol", "Reproduce"]
    places = [words.index(part) for part in order]
    assert places == sorted(places)


def test_summary_says_runs_tasks_seeds_tuning_and_time(page: Page) -> None:
    assert "576 runs finished, 144 diverged, 0 failed, 0 missing" in page.words
    for part in ("task mlp_mnist1d", "5 seeds per learning rate", "tuned on test accuracy", "1 min 52 s", "today"):
        assert part in page.words


def test_verdicts_are_told_in_words_not_by_colour_alone(page: Page) -> None:
    assert "✓ holds Noise helps 76.0 against 64.9" in page.words
    assert "✗ does not hold Curvature <b>rules</b>" in page.words
    assert "? not determined Who knows 0 ± 1. To decide it, run 9 seeds: isotherm run x" in page.words


def test_plots_are_valid_plotly_with_error_bars(page: Page) -> None:
    plots = page.plots
    assert [len(made) for made in plots.values()] == [3, 3, 2, 2, 2]
    for made in plots.values():
        for panel in made:
            graph_objects.Figure(data=panel["data"], layout=panel["layout"])  # raises on an unknown property
    epochs = plots["sweep-1"][0]["data"]
    assert [trace["meta"]["series"] for trace in epochs] == [0, 1]
    assert len(epochs[0]["error_y"]["array"]) == len(epochs[0]["x"]) == 8
    identifiers = {attributes.get("id") for _, attributes in page.tags}
    assert {f"{name}-{k}" for name, made in plots.items() for k in range(len(made))} <= identifiers


def test_regimes_are_told_under_the_figure(page: Page) -> None:
    _, figure = study_figures(analyse(embedded_study())).sweeps
    for finding in figure.findings:
        assert " ".join(finding.replace("ε_eff", "ε eff ").split()) in page.words
    assert "curvature allows up to 19" in page.words
    assert "other lines are broken lines fitted to the optima" in page.words
    assert "The law of the optima is a broken line" in page.words


@pytest.mark.parametrize("limit", [2.0, 1e9])
def test_kinks_stand_below_the_optima_or_are_said_not_to_be_seen(limit: float) -> None:
    study = landscape_study(optimum=lambda b, _m: min(b / 32, limit), peak=lambda _b, _m: 0.7)
    (record,) = study_figures(analyse(study)).sweeps
    data = panels(record)[2].data
    lowest = min(point.interval[0] for point in record.points)
    for place, series in enumerate(record.series):
        assert series.law is not None
        *_, law, kink, _ = [trace for trace in data if trace["meta"]["series"] == place]
        assert list(zip(law["x"], law["y"], strict=True)) == series.corners
        assert kink["y"][0] < lowest
        if limit == 2.0:
            assert series.law.kink is not None
            assert law["line"]["dash"] == "solid"
            assert kink["x"] == [series.law.kink.estimate]
            assert kink["error_x"]["array"] == [series.law.kink.high - series.law.kink.estimate]
            assert kink["error_x"]["arrayminus"] == [series.law.kink.estimate - series.law.kink.low]
            assert "kink at B ≈" in kink["hovertemplate"]
        else:
            assert law["line"]["dash"] == "dash"
            assert kink["text"] == ["kink not seen below B = 1024"]
    heights = [trace["y"][0] for trace in data if "kink" in trace.get("hovertemplate", "")]
    assert heights[1] < heights[0]
    graph_objects.Figure(data=data, layout=panels(record)[2].layout)


def test_every_series_has_a_button(page: Page) -> None:
    buttons = [attributes for tag, attributes in page.tags if tag == "button"]
    per_figure = {name: sum(b["data-figure"] == name for b in buttons) for name in page.plots}
    assert per_figure == {"sweep-0": 0, "sweep-1": 2, "rates-0": 8, "rates-1": 8, "rates-2": 8}


def test_tables_and_versions_are_there(page: Page) -> None:
    assert sum(tag == "table" for tag, _ in page.tags) == 3
    assert "1/8 (1/8–1/4)" in page.words
    for name in ("isotherm", "Python", "torch", "numpy"):
        assert name in page.words


@pytest.mark.parametrize("generated", [None, NASTY])
def test_what_a_user_wrote_stays_text(tmp_path: Path, generated: str | None) -> None:
    plan = make_plan(name=NASTY, task=NASTY, metric=NASTY)
    verdict = Verdict(claim=NASTY, holds=True, evidence=NASTY)
    page = report(make_study(plan, name=NASTY, question=NASTY), tmp_path, [verdict], generated=generated)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert NASTY in page.words
    titles = [panel["layout"]["yaxis"]["title"]["text"] for panel in page.plots["sweep-0"]]
    assert titles[0].startswith("test &lt;img")
    hover = page.plots["sweep-0"][0]["data"][0]["text"][0]
    assert "<img" not in hover


def test_a_study_without_results_renders_with_a_notice(tmp_path: Path) -> None:
    page = report(make_study(make_plan(), give=lambda *_: None), tmp_path)
    assert "This study is incomplete: of 75 runs 75 are missing and 0 failed." in page.words
    assert "there is nothing to draw" in page.words
    assert page.plots == {"sweep-0": [], "rates-0": []}
    assert "Verdicts" not in page.words


def test_an_incomplete_study_says_what_is_missing(tmp_path: Path) -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        if axes.batch_size == 8:
            return diverged()
        return None if axes.batch_size == 32 else peaked(axes, rate, place)

    page = report(make_study(make_plan(), give=give), tmp_path)
    assert "constant_steps, B=8, 2,000 steps, m=0.9: no stable learning rate" in page.words
    assert "constant_steps, B=32, 2,000 steps, m=0.9: incomplete" in page.words
    assert len(page.plots["sweep-0"]) == 3


def test_numbers_that_json_lacks_become_null() -> None:
    (record,) = study_figures(analyse(make_results(make_plan(batch_sizes=(8,))))).sweeps
    (series,), endless = (
        record.series,
        Spread(mean=math.inf, standard_deviation=math.nan, mean_all=math.inf, standard_deviation_all=math.nan),
    )
    points = tuple(dataclasses.replace(point, test=endless) for point in series.points)
    panel = panels(dataclasses.replace(record, series=(dataclasses.replace(series, points=points),)))[0]
    assert panel.data[0]["y"] == panel.data[0]["error_y"]["array"] == [None]


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    paths = []
    for name in ("a.html", "b.html"):
        analysis = analyse(make_study(make_plan()))
        paths.append(write_page(analysis, study_figures(analysis), tmp_path / name))
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("num_kept", "num_seeds", "shift", "deviation"), [(12, 15, 0.33, 0.76), (5, 7, 0.42, 0.70), (4, 5, 0.29, 0.75)]
)
def test_selection_bias(num_kept: int, num_seeds: int, shift: float, deviation: float) -> None:
    assert selection_bias(num_kept, num_seeds) == pytest.approx((shift, deviation), abs=0.005)


def test_shift_agrees_with_the_exact_mean_of_the_least_of_five() -> None:
    # The mean of the least of five standard normals is -1.16296; dropping it leaves a quarter of that on the others.
    assert selection_bias(4, 5)[0] == pytest.approx(1.16296 / 4, abs=0.003)


def test_protocol_says_what_was_done() -> None:
    text = " ".join(protocol_paragraphs([make_plan(max_extensions=3)]))
    assert "The best 4 of 5 runs by test accuracy" in text
    assert "every learning rate tried whose mean lies within one standard deviation" in text
    assert "up to 3 times" in text
    assert "Equal seeds share initialisation and data order across learning rates" in text
    assert "+0.29 standard deviations" in text
    assert "0.75 of the true one" in text
    assert "best 12 of 15: +0.33, 0.76; best 5 of 7: +0.42, 0.70" in text
    assert "on the same set that is reported" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tune_on": "validation"}, "The test set takes no part in choosing learning rates or runs"),
        ({"resolution": "paper"}, "Grids are not refined"),
        ({"resolution": "adaptive"}, "Around the optimum, learning rates halfway to the neighbours are added"),
        ({"resolution": "adaptive", "extend_for": "tuned_and_train"}, "around that of training loss + L2"),
        ({"num_confirm": 3}, "comes from 3 further seeds, which took no part in choosing it"),
        ({"num_confirm": 0}, "the best of several noisy means is optimistic"),
        ({"tune_on": "train"}, "chosen by what SGD minimises, the final training loss plus L2 penalty"),
        ({"num_confirm": 3}, "not what suits this test set by chance"),
        ({"num_kept": 5}, "All 5 runs are kept: the mean at a learning rate is unbiased"),
        ({"seeds": (0,), "num_kept": 1}, "says nothing about spread"),
        ({"l2": 0.0}, "no L2 penalty"),
        ({}, "is fitted as a peak with a height and an optimum of its own"),
    ],
)
def test_protocol_follows_the_plan(change: dict[str, object], words: str) -> None:
    assert words in " ".join(protocol_paragraphs([make_plan(**change)]))


def test_protocol_says_nothing_of_a_law_below_three_batch_sizes() -> None:
    assert "broken line" not in " ".join(protocol_paragraphs([make_plan(batch_sizes=(8, 32))]))


def test_what_sweeps_share_is_said_once() -> None:
    plans = [make_plan(), make_plan(momenta=(0.0,))]
    assert protocol_paragraphs(plans) == protocol_paragraphs(plans[:1])
