"""The registry, walked: every object has what a reader needs, and its smoke run reaches its figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.errors import UserError
from isotherm.report.paper.draw import figures, rendered
from isotherm.report.paper.finding import find as find_finding
from isotherm.report.paper.tables import results_table, tables
from isotherm.running.runner import run_study
from isotherm.running.store import Store
from isotherm.studies.paper.definition import Form, Scale
from isotherm.studies.paper.registry import find, find_scale, objects

NAMES = [*(f"figure{k}" for k in range(1, 11)), *(f"table{k}" for k in range(1, 8)), "x1"]


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
    assert wanted.published or wanted.text_values
    assert all(value.source for value in wanted.text_values)
    assert wanted.claims
    assert len({claim.text for claim in wanted.claims}) == len(wanted.claims)
    assert all((claim.test is None) != (claim.verdict is None) for claim in wanted.claims)
    assert set(wanted.scales) == set(Scale)
    assert all(scaled.note for scaled in wanted.scales.values())
    if wanted.form is not Form.SCHEDULE:
        assert all(scaled.settings for scaled in wanted.scales.values())


@pytest.mark.parametrize("name", NAMES)
def test_smoke_and_laptop_need_no_data_and_gpu_takes_about_an_hour(name: str) -> None:
    scales = objects()[name].scales
    for scale in (Scale.SMOKE, Scale.LAPTOP):
        assert all(network.is_embedded for network in scales[scale].networks)
    assert not any(network.is_embedded for scale in (Scale.GPU, Scale.PAPER) for network in scales[scale].networks)
    assert scales[Scale.GPU].seconds < 1.2 * 3600
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
