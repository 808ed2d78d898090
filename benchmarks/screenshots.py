"""The pictures of the live page in docs/figures, taken in Chromium from runs that are in this repository.

Run:     python benchmarks/screenshots.py [--only NAME ...]
Cost:    about a minute on two cores; needs isotherm[watch], Playwright and Chromium
Expect:  five PNG files, docs/figures/watch_*.png

Stores are made anew from the exported runs of results/laptop and results/table7. A sweep "in training" is one whose
last runs are left out, with the file beside its store that a training process writes: its speed is made up, its runs
are not. The page shows no time of day, and pictures are taken once nothing moves any more; fonts are those of the
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from browser import chromium, served, until
from isotherm.core.records import Outcome, RunSpec
from isotherm.core.run_keys import cell_id
from isotherm.running.heartbeat import heartbeat_path
from isotherm.running.store import Store, StoredRun
from isotherm.studies.paper.shipped import Record, read_export
from isotherm.sweep.rounds import all_runs
from pages.results import ROOT

FIGURES = ROOT / "docs" / "figures"
LAPTOP, TABLE7 = (ROOT / "results" / name for name in ("laptop/laptop.json.gz", "table7/table7.json"))
DESK, TALL, PHONE = {"width": 1280, "height": 900}, {"width": 1280, "height": 1180}, {"width": 390, "height": 1100}
SHARE_DONE = 0.6  # of the sweep that is in training
NUM_IN_TRAINING = 10


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: of which stores, at which size, and what is done to the page first."""

    stores: tuple[str, ...]
    size: Mapping[str, int]
    prepare: Callable[[Any], None] = lambda page: None


def _open_best_cell(page: Any) -> None:
    page.locator("#map").focus()
    page.keyboard.press("o")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('dialog[open] #curves .main-svg') !== null")


SHOTS = {
    "watch_finished": Shot(stores=("figure1",), size=TALL),
    "watch_running": Shot(stores=("figure1_in_training",), size=TALL),
    "watch_cell": Shot(stores=("table7",), size=DESK, prepare=_open_best_cell),
    "watch_compared": Shot(stores=("table1", "table6"), size=TALL),
    "watch_phone": Shot(stores=("figure1",), size=PHONE),
}


# -- stores -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[dict[str, Path]]:
    """Write every store that a picture needs; yield their paths by name."""
    records = {record.wanted.identifier: record for record in read_export(LAPTOP)}
    (table7,) = read_export(TABLE7)
    names = ("figure1", "table1", "table6")
    found = {name: _store(folder / f"{name}.sqlite", records[name])[0] for name in names}
    found["table7"], _ = _store(folder / "table7.sqlite", table7)
    path, left = _store(folder / "figure1_in_training.sqlite", records["figure1"], share=SHARE_DONE)
    with _training(path, left):
        yield {**found, "figure1_in_training": path}


def _store(path: Path, record: Record, *, share: float = 1.0) -> tuple[Path, list[RunSpec]]:
    """Write the first runs of a record; return the path, and the specifications of the others."""
    results = record.results
    specs = [spec for key, spec in all_runs(results.plan.sweeps, results.by_key).items() if key in results.by_key]
    num = round(share * len(specs))
    with Store.write(path) as store:
        store.put_study(results.plan.name, results.plan.to_json())
        store.put(
            [
                StoredRun(spec=spec, result=results.by_key[spec.key], provenance=results.provenance[spec.key])
                for spec in specs[:num]
                if results.by_key[spec.key].outcome is not Outcome.FAILED
            ]
        )
    return path, specs[num:]


@contextlib.contextmanager
def _training(path: Path, left: list[RunSpec]) -> Iterator[None]:
    """Write, again and again, the file of a training process, this one: 72 s of two minutes are over."""
    running = {spec.key: [cell_id(spec).hex(), []] for spec in left[:NUM_IN_TRAINING]}
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.is_set():
            now = time.time()
            content = {
                **{"process": os.getpid(), "host": socket.gethostname(), "num_workers": 2, "round": "base grid"},
                **{"started_at": now - 72.0, "told_at": now, "num_runs": 2 * len(left), "num_done": len(left)},
                **{"work": 60.0, "total_work": 100.0, "running": running},
            }
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(content))
            os.replace(temporary, heartbeat_path(path))
            is_over.wait(1.0)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# -- pictures ---------------------------------------------------------------------------------------------------------


def take(browser: Any, shot: Shot, paths: Mapping[str, Path], target: Path) -> None:
    """Take one picture."""
    first, *others = (paths[name] for name in shot.stores)
    compared = [word for other in others for word in ("--compare", str(other))]
    with served(first, *compared) as site:
        page = browser.new_page(viewport=dict(shot.size), device_scale_factor=1, reduced_motion="reduce")
        page.goto(site.address)
        until(page, "document.querySelector('#map .main-svg') !== null")
        until(page, "document.getElementById('laws').textContent.trim() !== ''")  # fitted, too
        if others:
            until(page, "document.querySelector('#other-map .main-svg') !== null")
        shot.prepare(page)
        _wait_until_still(page)
        page.screenshot(path=target)
        page.close()


def _wait_until_still(page: Any) -> None:
    """Wait until three pictures in a row are the same."""
    seen: list[bytes] = []
    for _ in range(100):
        seen.append(page.screenshot())
        if len(seen) >= 3 and seen[-1] == seen[-2] == seen[-3]:
            return
        page.wait_for_timeout(400)
    raise TimeoutError("the page does not come to rest")


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SHOTS), default=list(SHOTS))
    parser.add_argument("--output", type=Path, default=FIGURES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as paths, chromium() as browser:
        for name in given.only:
            take(browser, SHOTS[name], paths, given.output / f"{name}.png")
            print(f"wrote {name}.png", flush=True)


if __name__ == "__main__":
    main()
