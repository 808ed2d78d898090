"""The live page of 100,000 runs: until its first figure, from a stored run to its cell, and how fluid it stays.

Run:     python benchmarks/watch_scale.py --folder FOLDER   # makes a store, measures, writes the result
         python benchmarks/watch_scale.py                   # writes the block of docs/watch.md from the result
Cost:    three to five minutes on two cores; 400 MB of disk; needs isotherm[watch], Playwright and Chromium
Expect:  first figure within a few seconds of reading the store; most frames under 50 ms while the mouse moves

The runs are made up as in benchmarks/store_scale.py: 16 batch sizes, 250 learning rates, 25 seeds, of which seven runs
are missing at first and are stored one by one while the page is open. Frames are counted by requestAnimationFrame in
headless Chromium without a GPU. `--bundle FILE` times other builds of plotly's script, which are no part of Isotherm.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly
from plotly.offline import get_plotlyjs

from browser import Served, chromium, served, until
from isotherm.bench.machine import commit, machine
from isotherm.core.records import RunSpec
from isotherm.running.store import Store
from isotherm.sweep.study import Study
from pages.blocks import Page
from pages.results import ROOT
from pages.text import paragraph, table
from store_scale import LEFT_OUT, made_up, make_store, study

RESULT = ROOT / "benchmarks" / "results" / "watch_scale.json"
DOCUMENT = ROOT / "docs" / "watch.md"
BATCH_SIZES = tuple(2**k for k in range(16))
RATES = tuple(2.0 ** (k / 10 - 12.5) for k in range(250))
NUM_SEEDS = 25
DESK = {"width": 1280, "height": 900}
FLUID_MS = 50.0  # between frames: slower than this, a movement is seen to stutter
NUM_OPENED, NUM_TURNS = 5, 10

_FIGURE = "document.querySelector('#map .main-svg') && document.getElementById('map').data"
# Notes every redraw of the map, with the number of cells that have some of their seeds.
_NOTE_REDRAWS = """() => {
  const map = document.getElementById("map");
  const partial = () => map.data.filter((t) => t.name === "some seeds done").reduce((n, t) => n + t.x.length, 0);
  window.redraws = [];
  map.on("plotly_afterplot", () => window.redraws.push([performance.timeOrigin + performance.now(), partial()]));
  return partial();
}"""
_NOTE_FRAMES = """() => {
  window.frames_ms = [];
  window.counting = true;
  let last = performance.now();
  const tick = (now) => {
    window.frames_ms.push(now - last);
    last = now;
    if (window.counting) requestAnimationFrame(tick);
  };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(tick); });
}"""
_TAKE_FRAMES = "() => { window.counting = false; return window.frames_ms; }"


# -- measuring ------------------------------------------------------------------------------------------------------


def the_study() -> Study:
    """Return the study of 100,000 runs."""
    return study(NUM_SEEDS, batch_sizes=BATCH_SIZES, rates=RATES, momenta=(0.9,))


def missing_runs(made: Study) -> list[RunSpec]:
    """Return the runs that the store lacks."""
    plan = made.plan().sweeps[0]
    (axes, *_) = plan.grids()
    rates = plan.base_learning_rates(axes)[:LEFT_OUT]
    return [plan.run_spec(axes, effective_learning_rate=rate, seed=plan.seeds[-1]) for rate in rates]


def measured(path: Path, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return what the page of a store takes."""
    with served(path) as site, chromium() as browser:
        first = opened(browser, site, since=time.perf_counter() - site.seconds)
        warm = [opened(browser, site) for _ in range(NUM_OPENED)]
        page = browser.new_page(viewport=DESK)
        page.goto(site.address)
        until(page, _FIGURE)
        until(page, "document.documentElement.dataset.version > 0")
        found = {
            "start": {"seconds_until_served": round(site.seconds, 2), "seconds_until_first_figure": first["seconds"]},
            "open": {"seconds": [one["seconds"] for one in warm], "bytes": first["bytes"]},
            "updates": updates(page, path, runs),
            "hovering": frames(page, lambda: _hover(page)),
            "arrow_keys": frames(page, lambda: _arrows(page)),
            "scrolling": frames(page, lambda: _scroll(page)),
            "toggle_seconds": [_toggle(page, value) for _ in range(NUM_TURNS // 2) for value in ("train", "test")],
            "cell_seconds": [_open_cell(page) for _ in range(NUM_TURNS)],
            "num_points": page.evaluate(
                "document.getElementById('map').data.reduce((n, t) => n + (t.customdata || []).length, 0)"
            ),
            "server_memory_mib": site.memory_mib(),
        }
    return found


def opened(browser: Any, site: Served, *, since: float | None = None) -> dict[str, Any]:
    """Open the page with an empty cache; return the seconds until its map is there, and the bytes on the wire."""
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    client = context.new_cdp_session(page)
    client.send("Network.enable")
    names: dict[str, str] = {}
    num_bytes: dict[str, int] = {}
    client.on("Network.responseReceived", lambda e: names.update({e["requestId"]: e["response"]["url"]}))
    client.on("Network.loadingFinished", lambda e: num_bytes.update({e["requestId"]: int(e["encodedDataLength"])}))
    start = time.perf_counter() if since is None else since
    page.goto(site.address)
    until(page, _FIGURE)
    seconds = time.perf_counter() - start
    context.close()
    by_name: dict[str, int] = {}
    for request, num in num_bytes.items():
        name = names.get(request, "").removeprefix(site.address).partition("?")[0].split(".")[0] or "page"
        by_name[name] = max(num, by_name.get(name, 0))  # the state is asked for again with every version
    return {"seconds": round(seconds, 2), "bytes": by_name}


def updates(page: Any, path: Path, runs: Sequence[RunSpec]) -> list[dict[str, float]]:
    """Store the missing runs one by one; return the seconds until the map shows each, and of these in the browser."""
    found, left = [], page.evaluate(_NOTE_REDRAWS)
    for spec in runs:
        with Store.write(path) as store:
            store.put([made_up(spec, (0.0, 0.0))])
        stored, left = time.time(), left - 1
        until(page, "n => window.redraws.some((r) => r[1] === n)", left)
        drawn = page.evaluate("n => window.redraws.find((r) => r[1] === n)[0]", left) / 1e3
        asked = page.evaluate(
            """drawn => { const zero = performance.timeOrigin;
            const asked = performance.getEntriesByType("resource").filter((e) => e.name.includes("/state"));
            const last = asked.filter((e) => zero + e.responseEnd <= drawn).pop();
            return [zero + last.startTime, zero + last.responseEnd]; }""",
            drawn * 1e3,
        )
        found.append(
            {
                "seconds": round(drawn - stored, 3),
                "fetch_seconds": round((asked[1] - asked[0]) / 1e3, 3),
                "redraw_seconds": round(drawn - asked[1] / 1e3, 3),
            }
        )
    return found


def frames(page: Any, work: Any) -> dict[str, float]:
    """Return the milliseconds between frames while something goes on."""
    page.evaluate(_NOTE_FRAMES)
    work()
    taken = sorted(page.evaluate(_TAKE_FRAMES))
    return {
        "num_frames": len(taken),
        "median_ms": round(statistics.median(taken), 1),
        "p95_ms": round(taken[int(0.95 * (len(taken) - 1))], 1),
        "max_ms": round(taken[-1], 1),
        "share_within_50_ms": round(sum(one <= FLUID_MS for one in taken) / len(taken), 4),
    }


def _hover(page: Any) -> None:
    """Move the mouse over the whole map, and up and down its columns."""
    box = page.locator("#map").bounding_box()
    for k, (x, y) in enumerate(itertools.product(range(12), range(2))):
        at = box["x"] + 70 + x * (box["width"] - 90) / 12, box["y"] + (0.15 + 0.65 * ((y + k) % 2)) * box["height"]
        page.mouse.move(*at, steps=15)


def _arrows(page: Any) -> None:
    page.locator("#map").focus()
    for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"):
        for _ in range(15):
            page.keyboard.press(key)


def _scroll(page: Any) -> None:
    for step in (120, -120):
        for _ in range(15):
            page.mouse.wheel(0, step)
            page.wait_for_timeout(16)


def _toggle(page: Any, value: str) -> float:
    """Show another quantity; return the seconds until the map is drawn."""
    return float(
        page.evaluate(
            """value => new Promise((done) => { const map = document.getElementById("map"), start = performance.now();
            map.once("plotly_afterplot", () => requestAnimationFrame(() => done((performance.now() - start) / 1e3)));
            document.querySelector("input[name=data][value=" + value + "]").click(); })""",
            value,
        )
    )


def _open_cell(page: Any) -> float:
    """Open a cell by keyboard; return the seconds until its curves are there."""
    page.locator("#map").focus()
    page.keyboard.press("ArrowUp")
    start = time.perf_counter()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('dialog[open] #curves .main-svg') !== null")
    seconds = time.perf_counter() - start
    page.keyboard.press("Escape")
    until(page, "document.querySelector('dialog[open]') === null")
    return round(seconds, 3)


def bundle_times(paths: Sequence[Path], *, repeats: int = 7) -> list[dict[str, Any]]:
    """Return the bytes of builds of plotly's script, and the seconds that Chromium takes to run each."""
    texts = {f"installed package, plotly {plotly.__version__}": get_plotlyjs()}
    texts |= {path.name: path.read_text() for path in paths}
    seconds: dict[str, list[float]] = {name: [] for name in texts}
    with chromium() as browser:
        for _, (name, text) in itertools.product(range(repeats), texts.items()):
            page = browser.new_page()
            start = "<script>window.start = performance.now()</script>"
            end = "<script>window.seconds = (performance.now() - window.start) / 1e3</script>"
            page.set_content(f"{start}<script>{text.replace('</script', '<' + chr(92) + '/script')}</script>{end}")
            assert page.evaluate("typeof Plotly.react") == "function"
            seconds[name].append(round(page.evaluate("window.seconds"), 3))
            page.close()
    return [
        {
            "name": name,
            "bytes": len(text.encode()),
            "compressed_bytes": len(gzip.compress(text.encode(), 6, mtime=0)),
            "seconds": seconds[name],
        }
        for name, text in texts.items()
    ]


def measure(folder: Path, bundles: Sequence[Path]) -> dict[str, Any]:
    """Make the store where it is not there, and measure."""
    path, made = folder / "watch_scale.sqlite", the_study()
    path.unlink(missing_ok=True)
    seconds, num_runs = make_store(path, made)
    return {
        "command": "python benchmarks/watch_scale.py --folder FOLDER --bundle FILE ...",
        "commit": commit(),
        "machine": machine("cpu"),
        "load": [round(value, 1) for value in os.getloadavg()],
        "num_runs": num_runs + len(missing_runs(made)),
        "num_cells": len(BATCH_SIZES) * len(RATES),
        "make_seconds": round(seconds, 1),
        "file_mib": round(path.stat().st_size / 2**20),
        "page": measured(path, missing_runs(made)),
        "bundles": bundle_times(bundles),
    }


# -- the page -------------------------------------------------------------------------------------------------------


def _range(values: Sequence[float], digits: int = 1, unit: str = "s") -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f}, n = {len(values)})"


def scale_block() -> str:
    """Return what the page of 100,000 runs takes."""
    content = json.loads(RESULT.read_text())
    page = content["page"]
    updates, num_bytes = page["updates"], page["open"]["bytes"]
    rows = [
        ("from the command to the first map", f"{page['start']['seconds_until_first_figure']:.1f} s (n = 1)"),
        ("from opening the page to its map, nothing cached", _range(page["open"]["seconds"])),
        ("from a stored run to its cell", _range([one["seconds"] for one in updates])),
        ("of it: to fetch the state, and to draw", _both(updates)),
        ("another toggle", _range(page["toggle_seconds"], 2)),
        ("a cell opened, until its curves are there", _range(page["cell_seconds"], 2)),
        *((words, _frames_text(page[name])) for name, words in _MOVEMENTS.items()),
        ("on the wire: plotly, the rest of the page, the map", _bytes_text(num_bytes)),
        ("memory of the server", f"{page['server_memory_mib']:,} MiB"),
    ]
    sizes = f"{len(BATCH_SIZES)} batch sizes, {len(RATES)} learning rates, {NUM_SEEDS} seeds"
    head = (
        f"{content['num_runs']:,} runs ({sizes}: {content['num_cells']:,} cells) on {content['machine']['cores']} CPU "
        f"cores (load {content['load'][0]:g} before), median and extremes. Chromium has no window and no GPU. "
        "Of frames, the time between two of them is given; above 50 ms a movement is seen to stutter."
    )
    command = "```\npython benchmarks/watch_scale.py --folder FOLDER\n```"
    return "\n\n".join((paragraph(head), table(("what", "takes"), rows), command))


_MOVEMENTS = {
    "hovering": "frames while the mouse moves over the map",
    "arrow_keys": "frames while arrow keys move through it",
    "scrolling": "frames while the page scrolls",
}


def _both(updates: Sequence[dict[str, float]]) -> str:
    fetch, draw = (statistics.median(one[name] for one in updates) for name in ("fetch_seconds", "redraw_seconds"))
    return f"{fetch:.2f} s and {draw:.2f} s"


def _frames_text(found: dict[str, float]) -> str:
    return (
        f"{found['median_ms']:.0f} ms, 95 % within {found['p95_ms']:.0f} ms, longest {found['max_ms']:.0f} ms "
        f"(n = {found['num_frames']:,.0f})"
    )


def _bytes_text(num_bytes: dict[str, int]) -> str:
    plotly_js, state = num_bytes["assets/plotly"], num_bytes["state"]
    rest = sum(num for name, num in num_bytes.items() if name not in ("assets/plotly", "state", "events"))
    return f"{plotly_js / 1e6:.2f} MB once, {rest / 1e3:.0f} kB, {state / 1e3:.0f} kB"


def bundles_block() -> str:
    """Return what smaller builds of plotly's script would save."""
    found = json.loads(RESULT.read_text())["bundles"]
    rows = [
        (
            f"`{one['name']}`" if one["name"].endswith(".js") else one["name"],
            f"{one['bytes'] / 1e6:.2f} MB",
            f"{one['compressed_bytes'] / 1e6:.2f} MB",
            _range([1e3 * value for value in one["seconds"]], 0, "ms"),
        )
        for one in found
    ]
    return table(("build", "bytes", "compressed", "Chromium reads and runs it in"), rows)


PAGE = Page(name="watch", blocks={"scale": scale_block, "bundles": bundles_block})


def main() -> None:
    """Measure if a folder is given; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where the store is made; without it nothing is measured.")
    parser.add_argument("--bundle", type=Path, nargs="*", default=[], help="Other builds of plotly's script.")
    given = parser.parse_args()
    if given.folder is not None:
        content = measure(given.folder, given.bundle)
        RESULT.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    PAGE.write(DOCUMENT)
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
