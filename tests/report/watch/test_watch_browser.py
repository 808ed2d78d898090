"""The live page in a real browser: figures appear and follow the store, nothing in the console, no request elsewhere.

Skipped where there is no Chromium or Chrome of the system (`apt-get install chromium`, which `.ci/run` tries).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers_watch import HOSTILE, failing, make_store, put, small_plan
from isotherm.core.optimizers import AdamW
from isotherm.core.records import RunSpec
from isotherm.report.watch.access import Access
from isotherm.report.watch.live import Live
from isotherm.report.watch.page import write_frozen

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need Chromium: apt-get install chromium")
api = pytest.importorskip("playwright.sync_api", reason="the browser tests need pip install playwright")
uvicorn = pytest.importorskip("uvicorn", reason='the live page needs pip install "isotherm[watch]"')

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass(kw_only=True)
class Site:
    """A served store, and the runs that it lacks."""

    live: Live
    address: str
    left: list[RunSpec] = field(default_factory=list)


@dataclass(kw_only=True)
class Visit:
    """An open page, with what its console said and what it asked for."""

    page: Any
    said: list[str]
    asked: list[str]

    def assert_quiet(self, address: str) -> None:
        assert self.said == []
        assert all(url.startswith((address, "data:", "blob:")) for url in self.asked)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    path = tmp_path / "a.sqlite"
    left = make_store(path, small_plan(name=HOSTILE, task=HOSTILE), name="small", question=HOSTILE, num=20)
    from isotherm.report.watch.server import application
    from isotherm.report.watch.serving import _listening

    live, is_over = Live(path=path, seconds=0.1, fit_seconds=0.5), threading.Event()
    with _listening("127.0.0.1", 0) as listener:
        app = application([live], Access.bound_to("127.0.0.1"), is_over=is_over.is_set)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        live.start()
        thread.start()
        yield Site(live=live, address=f"http://127.0.0.1:{listener.getsockname()[1]}/", left=left)
        live.close()
        is_over.set()
        server.should_exit = True
        thread.join(timeout=10)


def visit(browser: Any, address: str, size: dict[str, int]) -> Visit:
    page = browser.new_page(viewport=size)
    found = Visit(page=page, said=[], asked=[])
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
    page.on("request", lambda request: found.asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("#map .main-svg", timeout=60_000)
    return found


def until(page: Any, script: str, argument: Any = None, *, seconds: float = 60.0) -> None:
    """Wait for a condition; Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(script, argument):
        assert time.monotonic() < deadline, script
        page.wait_for_timeout(50)


def choose(page: Any, name: str, value: str) -> None:
    page.locator(f"input[name={name}][value={value}]").check(force=True)


def num_points(page: Any, name: str) -> int:
    script = (
        "name => document.getElementById('map').data.filter(t => t.name === name).reduce((n, t) => n + t.x.length, 0)"
    )
    return int(page.evaluate(script, name))


def test_figures_appear_and_follow_the_store_without_a_new_page(browser: Any, site: Site) -> None:
    found = visit(browser, site.address, DESK)
    page = found.page
    page.evaluate("window.same = true")
    assert page.title() == "small · Isotherm"
    assert (num_points(page, "finished"), num_points(page, "not run yet")) == (5, 8)
    put(site.live.path, site.left[:2], failing)
    put(site.live.path, site.left[2:])
    until(page, "document.getElementById('counts').textContent.includes('2 failed')")
    until(page, "document.getElementById('map').data.some(t => t.name === 'failed' && t.x.length === 2)")
    assert page.locator("#failures code").inner_text().startswith("RuntimeError: <img src=x onerror=alert(1)>␛[31m")
    put(site.live.path, site.left[:2])
    page.wait_for_selector("#failures-card", state="hidden", timeout=30_000)
    until(page, "document.getElementById('laws').textContent.includes('small B')")
    assert page.evaluate("window.same") is True
    found.assert_quiet(site.address)


def test_names_that_mean_harm_stay_text(browser: Any, site: Site) -> None:
    found = visit(browser, site.address, DESK)
    assert found.page.locator("#question").inner_text().startswith("<img src=x onerror=alert(1)>")
    assert found.page.locator("main img").count() == 0
    assert found.page.evaluate("[...document.querySelectorAll('script')].every(s => !s.textContent.includes('alert'))")
    found.assert_quiet(site.address)


def test_the_map_can_be_used_by_keyboard(browser: Any, site: Site) -> None:
    found = visit(browser, site.address, DESK)
    page = found.page
    until(page, "document.documentElement.dataset.version > 0")
    order = []
    for _ in range(14):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.className"
            )
        )
        if order[-1] == "map":
            break
    assert order[0] == "skip"
    assert [name for name in ("data", "runs", "rate", "map") if name in order] == ["data", "runs", "rate", "map"]
    outline = page.evaluate("getComputedStyle(document.getElementById('map')).outlineStyle")
    assert outline == "solid"  # who uses a keyboard sees where they are
    assert "Map of batch size by learning rate" in (page.locator("#map").get_attribute("aria-label") or "")
    page.keyboard.press("o")
    first = page.locator("#here").inner_text()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#here").inner_text() != first
    assert page.locator("#here").inner_text().startswith("B = 8, ")
    assert page.locator("#map .ring").is_visible()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] #curves .main-svg")
    assert "n = " in page.locator("#curves-note").inner_text()
    assert page.locator("#seeds tbody tr").count() == 3
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")
    assert page.evaluate("document.activeElement.id") == "map"
    found.assert_quiet(site.address)


def test_toggles_change_what_is_drawn(browser: Any, site: Site) -> None:
    found = visit(browser, site.address, DESK)
    page = found.page
    until(page, "document.documentElement.dataset.version > 0")
    heights = "document.getElementById('map').data.find(t => t.name === 'finished').y.slice(0, 4)"
    effective = page.evaluate(heights)
    choose(page, "rate", "temperature")
    until(page, "document.getElementById('map').layout.yaxis.title.text.startsWith('temperature')")
    assert page.evaluate(heights) == pytest.approx([y - 3 for y in effective])  # B = 8
    choose(page, "rate", "bare")
    until(page, "document.getElementById('map').layout.yaxis.title.text === 'learning rate ε'")
    assert page.evaluate(heights) == pytest.approx([y - 3.321928 for y in effective])  # m = 0.9
    low = page.locator("#scale-low").inner_text()
    choose(page, "data", "train")
    until(page, "t => document.getElementById('scale-low').textContent !== t", low)
    assert "training loss + L2" in page.locator("#scale-low").inner_text()
    found.assert_quiet(site.address)


def test_isotherms_rise_at_45_degrees(browser: Any, site: Site) -> None:
    page = visit(browser, site.address, DESK).page
    script = """() => { const l = document.getElementById('map')._fullLayout;
        const per = (axis) => axis._length / (axis.range[1] - axis.range[0]); return [per(l.xaxis), per(l.yaxis)]; }"""
    x, y = page.evaluate(script)
    assert x == pytest.approx(y, rel=0.02)


def test_it_can_be_read_on_a_phone(browser: Any, site: Site) -> None:
    found = visit(browser, site.address, PHONE)
    page = found.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('#map .main-svg').getBoundingClientRect().right") <= 390
    sizes = page.evaluate("[...document.querySelectorAll('fieldset span')].map(e => e.getBoundingClientRect().height)")
    assert min(size for size in sizes if size) >= 30  # for a thumb
    page.locator("#map").click(position={"x": 150, "y": 120})
    found.assert_quiet(site.address)


def test_a_frozen_page_works_from_a_file(browser: Any, site: Site, tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    while site.live.shown is None and time.monotonic() < deadline:
        time.sleep(0.05)
    path = write_frozen([site.live], tmp_path / "page.html")
    found = visit(browser, path.as_uri(), DESK)
    page = found.page
    assert num_points(page, "finished") == 5
    page.focus("#map")
    page.keyboard.press("o")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] #seeds tbody tr")
    found.assert_quiet(path.as_uri())


def test_an_optimiser_without_temperature_has_its_own_sign_everywhere(browser: Any, tmp_path: Path) -> None:
    lives = []
    for name in ("a.sqlite", "b.sqlite"):
        make_store(tmp_path / name, small_plan(momenta=(), optimizers=(AdamW(),)), num=40)
        lives.append(Live(path=tmp_path / name))
        lives[-1].read()
    page = visit(browser, write_frozen(lives, tmp_path / "page.html").as_uri(), DESK).page
    assert " at ε = 2, 4" in page.locator("#next").inner_text()
    assert page.locator("#difference th").all_inner_texts()[1:3] == ["ε, first", "ε, second"]
    assert "eff" not in page.locator("#difference").inner_text() + page.locator("#next").inner_text()
