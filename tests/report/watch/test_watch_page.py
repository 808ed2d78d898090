"""The page frozen into one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers_watch import HOSTILE, failing, make_store, put, small_plan
from isotherm.report.watch.live import Live
from isotherm.report.watch.page import assets, look, write_frozen


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Live]:
    folder = tmp_path_factory.mktemp("frozen")
    plan = small_plan(name=HOSTILE)
    left = make_store(folder / "a.sqlite", plan, question=HOSTILE, num=20)
    put(folder / "a.sqlite", left[:2], failing)
    live = Live(path=folder / "a.sqlite")
    live.read()
    return write_frozen([live], folder / "page.html").read_text(), live


def content_of(text: str) -> dict[str, Any]:
    (packed,) = re.findall(r'<script type="application/json" id="frozen">"([^"]*)"</script>', text)
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return content


def test_it_holds_the_same_view_and_every_cell(frozen: tuple[str, Live]) -> None:
    text, live = frozen
    content, state = content_of(text), live.state()
    name = state["map"]["id"]
    shown = content["states"][name]
    assert shown["map"]["grids"] == json.loads(json.dumps(state["map"]["grids"]))
    assert shown["counts"] == state["counts"]
    assert len(content["cells"][0]) == 15
    assert content["cells"][0][f"{name}|0|2"] == json.loads(json.dumps(live.cell(name, 0, 2)))


def test_it_asks_for_nothing_and_runs_its_own_scripts_alone(frozen: tuple[str, Live]) -> None:
    text, _ = frozen
    head = text[: text.index("<style>")]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', head)
    assert policy is not None
    allowed = policy[1].replace("&#39;", "'")
    assert "default-src 'none'" in allowed
    assert "unsafe" not in allowed
    assert "connect-src" not in allowed
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed
    without = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', without)


def test_names_that_mean_harm_are_in_it_packed_alone(frozen: tuple[str, Live]) -> None:
    text, _ = frozen
    assert "onerror=alert" not in text
    assert "\x1b" not in text
    assert "onerror=alert" in json.dumps(content_of(text))


def test_plotly_is_in_it_once(frozen: tuple[str, Live]) -> None:
    text, _ = frozen
    assert text.count("* plotly.js v") == 1


def test_a_store_without_runs_can_be_frozen(tmp_path: Path) -> None:
    make_store(tmp_path / "a.sqlite", num=0)
    live = Live(path=tmp_path / "a.sqlite")
    live.read()
    content = content_of(write_frozen([live], tmp_path / "page.html").read_text())
    (state,) = content["states"].values()
    assert state["counts"]["missing"] == 45


def test_two_stores_can_be_frozen(tmp_path: Path) -> None:
    lives = []
    for name in ("a", "b"):
        make_store(tmp_path / f"{name}.sqlite", num=20)
        lives.append(Live(path=tmp_path / f"{name}.sqlite"))
        lives[-1].read()
    content = content_of(write_frozen(lives, tmp_path / "page.html").read_text())
    (state,) = content["states"].values()
    assert state["is_compared"]
    assert len(content["cells"]) == 2


def test_files_are_named_by_their_content() -> None:
    names = [asset.name for asset in assets().values()]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"(watch|plotly)\.[0-9a-f]{12}\.(js|css)", name) for name in names)


def test_figures_look_like_those_of_reports() -> None:
    shown = look()
    assert shown["colours"][0] == "#440154"  # viridis
    assert (shown["rates"]["-3"], shown["powers"]["-7"]) == ("1/8", "2⁻⁷")


def test_the_script_puts_text_into_the_page_as_text_alone() -> None:
    script = assets()["script"].content.decode()
    assert script.count("innerHTML") == 1  # of signs that are constants of the script
    for danger in ("insertAdjacentHTML", "outerHTML", "document.write", "eval(", "new Function", "http:", "https:"):
        assert danger not in script.replace("http://www.w3.org/2000/svg", "")
