from __future__ import annotations

import json

import pytest
from PIL import Image

import data_parallel_overhead
import watch_scale
from data_parallel_overhead import RESULT as SHARED
from screenshots import FIGURES, SHOTS
from watch_scale import DOCUMENT, PAGE, RESULT, missing_runs, the_study


def test_the_document_shows_what_was_measured_last() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == list(PAGE.blocks)
    assert PAGE.filled(text) == text


def test_the_result_is_of_100_000_runs_and_every_missing_one_arrived() -> None:
    content = json.loads(RESULT.read_text())
    assert content["num_runs"] == 100_000
    assert content["num_cells"] == content["page"]["num_points"] == 4_000
    assert len(content["page"]["updates"]) == len(missing_runs(the_study()))
    for name in watch_scale._MOVEMENTS:
        assert content["page"][name]["share_within_50_ms"] > 0.95


@pytest.mark.parametrize("name", SHOTS)
def test_every_picture_of_the_page_is_there_in_its_size_and_shown(name: str) -> None:
    with Image.open(FIGURES / f"{name}.png") as image:
        assert image.size == tuple(SHOTS[name].size.values())
    assert f"(figures/{name}.png)" in DOCUMENT.read_text()


def test_no_picture_of_the_page_is_taken_by_hand() -> None:
    assert {path.stem for path in FIGURES.glob("watch_*.png")} == set(SHOTS)


def test_the_page_of_many_machines_shows_what_was_measured_last() -> None:
    text = data_parallel_overhead.DOCUMENT.read_text()
    page = data_parallel_overhead.PAGE
    assert page.names_in(text) == list(page.blocks)
    assert page.filled(text) == text


def test_shared_updates_end_where_those_of_one_process_do() -> None:
    for found in json.loads(SHARED.read_text())["tasks"].values():
        assert found["differences"]["shared_parameters"] < 1e-9
        assert found["differences"]["shared_buffers"] < 1e-9
