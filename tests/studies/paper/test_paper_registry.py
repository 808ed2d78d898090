"""The registry, walked: every object has what a reader needs, and its smoke run reaches its figure."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.cli.show.paper import cost
from isotherm.errors import UserError
from isotherm.report.paper.draw import figures, rendered
from isotherm.report.paper.finding import find as find_finding
from isotherm.report.paper.tables import results_table, tables
from isotherm.running.runner import run_study
from isotherm.running.store import Store
from isotherm.studies.paper.definition import Form, Scale
from isotherm.studies.paper.registry import find, find_scale, objects

NAMES = [*(f"figure{k}" for k in range(1, 11)), *(f"table{k}" for k in range(1, 8)), "x1"]

# B, test metric, training metric or loss, ε_eff and its interval; of table 2 the momentum first. From the paper.
PUBLISHED: dict[str, list[tuple[Any, ...]]] = {
    "table1": [
        (256, "93.5 ± 0.1", "0.232 ± 0.001", 4.0, (2.0, 4.0)),
        (512, "94.2 ± 0.1", "0.171 ± 0.001", 4.0, (4.0, 8.0)),
        (1024, "94.5 ± 0.1", "0.107 ± 0.001", 8.0, (8.0, 8.0)),
        (2048, "94.9 ± 0.1", "0.058 ± 0.000", 8.0, (8.0, 8.0)),
        (4096, "94.7 ± 0.1", "0.025 ± 0.000", 16.0, (16.0, 32.0)),
        (8192, "94.6 ± 0.1", "0.017 ± 0.000", 4.0, (4.0, 4.0)),
        (16384, "92.5 ± 0.6", "0.019 ± 0.004", 32.0, (16.0, 32.0)),
        (32768, "89.9 ± 0.7", "0.039 ± 0.011", 32.0, (1.0, 32.0)),
    ],
    "table2": [
        (0.0, 256, "77.0", "2.25", 1.0, (1.0, 1.0)),
        (0.0, 1024, "76.7", "2.25", 4.0, (4.0, 4.0)),
        (0.0, 4096, "76.1", "2.30", 8.0, (8.0, 8.0)),
        (0.9, 256, "77.0", "2.25", 1.0, (1.0, 1.0)),
        (0.9, 1024, "76.8", "2.25", 4.0, (4.0, 4.0)),
        (0.9, 4096, "76.8", "2.25", 16.0, (16.0, 16.0)),
    ],
    "table3": [
        (16, "92.6 ± 0.2", "0.349 ± 0.004", 0.0625, (0.0625, 0.25)),
        (32, "93.9 ± 0.1", "0.269 ± 0.004", 0.125, (0.125, 0.25)),
        (64, "94.4 ± 0.1", "0.192 ± 0.002", 0.25, (0.25, 0.5)),
        (128, "94.6 ± 0.1", "0.122 ± 0.000", 0.5, (0.5, 0.5)),
        (256, "94.4 ± 0.1", "0.071 ± 0.001", 0.5, (0.5, 1.0)),
        (512, "94.1 ± 0.1", "0.043 ± 0.000", 1.0, (0.5, 2.0)),
        (1024, "93.8 ± 0.1", "0.028 ± 0.000", 0.5, (0.5, 1.0)),
        (2048, "93.0 ± 0.6", "0.054 ± 0.050", 0.5, (0.5, 1.0)),
    ],
    "table4": [
        (256, "78.9 ± 0.1", "0.609 ± 0.004", 4.0, (4.0, 4.0)),
        (512, "79.9 ± 0.2", "0.462 ± 0.008", 8.0, (4.0, 8.0)),
        (1024, "80.1 ± 0.2", "0.274 ± 0.003", 16.0, (8.0, 16.0)),
        (2048, "80.2 ± 0.2", "0.132 ± 0.002", 16.0, (16.0, 16.0)),
        (4096, "79.6 ± 0.2", "0.073 ± 0.001", 32.0, (32.0, 32.0)),
        (8192, "78.1 ± 0.4", "0.045 ± 0.001", 32.0, (2.0, 32.0)),
        (16384, "72.2 ± 0.2", "0.156 ± 0.036", 2.0, (2.0, 4.0)),
    ],
    "table5": [
        (32, "77.9 ± 0.2", "0.0512 ± 0.0611", 0.025, (0.025, 0.05)),
        (64, "79.0 ± 0.2", "0.0141 ± 0.0281", 0.05, (0.05, 0.05)),
        (128, "79.4 ± 0.1", "0.0011 ± 0.0004", 0.1, (0.1, 0.1)),
        (256, "78.9 ± 0.1", "0.0191 ± 0.0221", 0.2, (0.2, 0.2)),
        (512, "77.7 ± 0.1", "0.0022 ± 0.0035", 0.2, (0.2, 0.2)),
        (1024, "76.0 ± 0.1", "0.0009 ± 0.0012", 0.2, (0.2, 0.2)),
        (2048, "74.2 ± 0.3", "0.0029 ± 0.0025", 0.2, (0.2, 0.2)),
    ],
    "table6": [
        (16, "88.06 ± 0.26", "35.85 ± 0.06", 1.4, (1.4, 1.4)),
        (32, "82.50 ± 0.13", "28.99 ± 0.03", 2.0, (2.0, 2.0)),
        (64, "81.67 ± 0.26", "23.25 ± 0.05", 2.8, (2.8, 2.8)),
        (128, "86.04 ± 0.49", "21.16 ± 0.06", 5.6, (5.6, 5.6)),
        (256, "92.19 ± 0.26", "15.74 ± 0.03", 5.6, (5.6, 5.6)),
    ],
    "table7": [
        (64, "2.91 ± 0.01", "2.017 ± 0.003", 0.08, (0.08, 0.08)),
        (256, "2.95 ± 0.01", "2.010 ± 0.005", 0.08, (0.08, 0.08)),
        (1024, "2.96 ± 0.01", "2.005 ± 0.011", 0.08, (0.08, 0.08)),
        (4096, "2.98 ± 0.01", "2.018 ± 0.008", 0.08, (0.08, 0.08)),
    ],
}
NUM_ROWS = {name: len(rows) for name, rows in PUBLISHED.items()}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """One store, so that objects share runs."""
    with Store.in_memory() as opened:
        yield opened


def test_all_eighteen_objects_are_there_in_the_papers_order() -> None:
    assert list(objects()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_object_has_published_values_claims_and_all_scales(name: str) -> None:
    wanted = objects()[name]
    assert len(wanted.published) == NUM_ROWS.get(name, 0)
    assert len(wanted.text_values) >= (1 if name == "x1" else 2)
    assert any(value.measured or value.computed for value in wanted.text_values) or name == "figure5"
    assert all(value.source for value in wanted.text_values)
    assert wanted.claims
    assert len({claim.text for claim in wanted.claims}) == len(wanted.claims)
    assert all((claim.test is None) != (claim.verdict is None) for claim in wanted.claims)
    assert set(wanted.scales) == set(Scale)
    assert all(scaled.note for scaled in wanted.scales.values())
    if wanted.form is not Form.SCHEDULE:
        assert all(scaled.settings for scaled in wanted.scales.values())


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_have_command_cost_and_expected_result(name: str) -> None:
    text = importlib.import_module(f"isotherm.studies.paper.{name}").__doc__ or ""
    assert f"Run:     isotherm reproduce {name}" in text
    assert "Expect:  " in text
    for scale in (Scale.LAPTOP, Scale.GPU, Scale.PAPER):
        known = "nothing is trained" if name == "figure4" else f"{scale} {cost(objects()[name], scale)}"
        assert known in text, f"{name}.py: the cost is {known}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_are_the_paper_s(name: str) -> None:
    found = [
        (row.momentum, row.batch_size, str(row.test), str(row.train), row.rate, row.interval)
        for row in objects()[name].published
    ]
    assert found == [(0.9, *row) if len(row) == 5 else row for row in PUBLISHED[name]]


@pytest.mark.parametrize("name", NAMES)
def test_smoke_and_laptop_need_no_data_and_gpu_takes_about_an_hour(name: str) -> None:
    scales = objects()[name].scales
    for scale in (Scale.SMOKE, Scale.LAPTOP):
        assert all(network.is_embedded for network in scales[scale].networks)
    assert not any(network.is_embedded for scale in (Scale.GPU, Scale.PAPER) for network in scales[scale].networks)
    # A fifth of the updates of table 1 is 68 minutes, and x1 shares them.
    assert scales[Scale.GPU].seconds <= (4100 if name in ("table1", "x1") else 3600)
    assert scales[Scale.LAPTOP].seconds < 150


@pytest.mark.parametrize("name", NAMES)
def test_smoke_runs_go_through_to_verdicts_tables_and_figure(name: str, store: Store) -> None:
    wanted = objects()[name]
    results = None
    if wanted.scales[Scale.SMOKE].settings:
        results = run_study(wanted.study(Scale.SMOKE), store=store)
        assert results.counts()["missing"] == results.counts()["failed"] == 0
    finding = find_finding(wanted, Scale.SMOKE, results)
    assert len(finding.verdicts) == len(wanted.claims)
    assert tables(wanted, finding)
    images = rendered(finding)
    assert images
    assert all(content.startswith(b"\x89PNG") for _, content in images)


@pytest.mark.parametrize("name", ["figure7", "figure9", "figure10", "table6", "table7"])
def test_a_stand_in_is_labelled_by_its_own_metric(name: str, store: Store) -> None:
    """The embedded MLP reports an accuracy, whatever the paper's network does."""
    wanted = objects()[name]
    finding = find_finding(wanted, Scale.SMOKE, run_study(wanted.study(Scale.SMOKE), store=store))
    table = results_table(wanted, finding)
    assert "test accuracy (%)" in table.columns
    assert not {"test perplexity", "test squared error"} & set(table.columns)
    if wanted.train_quantity == "train_metric":
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        assert all(float(row["training accuracy (%)"].split()[0]) > 5 for row in rows)
    labels = {axes.get_ylabel() for _, figure in figures(finding) for axes in figure.axes}
    assert "test accuracy (%)" in labels
    assert not any("perplexity" in label or "squared" in label for label in labels)


def test_objects_share_runs_through_the_store(store: Store) -> None:
    run_study(objects()["figure1"].study(Scale.SMOKE), store=store)
    before = len(store.results())
    results = run_study(objects()["figure6"].study(Scale.SMOKE), store=store)
    assert results.counts()["finished"] > 0
    assert len(store.results()) == before


def test_other_spellings_are_understood() -> None:
    assert find("Fig 3").identifier == "figure3"
    assert find("T1").identifier == "table1"


@pytest.mark.parametrize(("given", "words"), [("figure11", "figure1"), ("tabel7", "table7"), ("", "known")])
def test_unknown_objects_name_the_nearest(given: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find(given)


def test_unknown_scales_name_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'laptop'"):
        find_scale("labtop")


def test_missing_data_are_named_with_the_scales_that_need_none(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        objects()["table1"].study(Scale.GPU, data=tmp_path)
    for words in ("cifar10", "isotherm data fetch", "smoke and laptop need no data"):
        assert words in str(caught.value)


def test_figure_5_and_x1_share_settings_with_figure_1_and_table_1() -> None:
    for scale in (Scale.GPU, Scale.PAPER):
        for wanted, other in (("figure5", "figure1"), ("x1", "table1")):
            own, others = (objects()[name].scales[scale].settings[-1] for name in (wanted, other))
            assert (own.num_seeds, own.num_evaluations) == (others.num_seeds, others.num_evaluations)
            assert set(own.batch_sizes) <= set(others.batch_sizes)


def test_published_temperatures_are_those_of_the_text() -> None:
    rows = objects()["table3"].published
    assert [row.temperature for row in rows[:4]] == [2.0**-8] * 4
    assert objects()["table5"].published[0].temperature == pytest.approx(7.8e-4, rel=0.01)
