"""A report as a folder: all files, one value for every quantity, from Python as from the command line."""

from __future__ import annotations

import html
import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import isotherm as it
from helpers_report import embedded_study, make_plan, make_results, make_study
from isotherm.analysis import family
from isotherm.core import processes
from isotherm.core.machine import can_fork
from isotherm.errors import UserError

needs_fork = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")

QUANTITIES = {
    "slope": r"B\^(-?[\d.]+)",
    "kink": r"kink (?:at|of)? ?(?:at )?B ≈ (\d+)",
    "plateau": r"then ε_eff\* ≈ ([\d.]+)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    it.write_report(embedded_study(), path / "new")
    return path / "new"


def words(folder: Path) -> str:
    """Return what a reader of the page and of its hover texts sees, and what the summary says."""
    page = (folder / "report.html").read_text()
    plots = page[page.index('id="plots"') :]
    visible = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    text = html.unescape(visible + plots.encode().decode("unicode_escape", errors="ignore"))
    text = re.sub(r"ε<sub>eff</sub>", "ε_eff", text)
    return text + (folder / "summary.json").read_text()


def test_all_files_are_there(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names >= {"report.html", "summary.json", "optima.csv", "runs.csv"}
    assert names >= {"constant_epochs.png", "constant_epochs.pdf", "constant_epochs_learning_rates_SGD.pdf"}


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_one_quantity_has_one_value(folder: Path, quantity: str) -> None:
    laws = it.analyse(embedded_study()).regimes
    expected = {
        "slope": {f"{law.slope.estimate:.2f}" for law in laws},
        "kink": {f"{law.kink.estimate:.0f}" for law in laws if law.kink is not None and law.shows_kink},
        "plateau": {f"{law.plateau.estimate:.3g}" for law in laws if law.shows_kink},
    }[quantity]
    assert len(expected) >= 2  # every series has a law of its own
    assert set(re.findall(QUANTITIES[quantity], words(folder))) == expected


def test_numbers_of_the_summary_are_those_of_the_analysis(folder: Path) -> None:
    content = json.loads((folder / "summary.json").read_text())
    laws = it.analyse(embedded_study()).regimes
    assert [entry["regimes"]["slope"] for entry in content["sweeps"]] == [law.slope.estimate for law in laws]
    assert [entry["regimes"]["words"] for entry in content["sweeps"]] == [str(law) for law in laws]


def test_results_of_a_sweep_and_an_analysis_will_do(tmp_path: Path) -> None:
    results = make_results(make_plan(batch_sizes=(8,)))
    one = it.write_report(results, tmp_path / "a")
    other = it.write_report(it.analyse(results), tmp_path / "b")
    files = [(f.page, *f.figures, *f.tables, f.summary) for f in (one, other)]
    for path, twin in zip(*files, strict=True):
        assert path.name == twin.name
        assert path.read_bytes() == twin.read_bytes()
    assert set((tmp_path / "a").iterdir()) == set(files[0])


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a report that was made in one process."""
    with pytest.MonkeyPatch.context() as patch:
        return made_by(1, patch, tmp_path_factory.mktemp("one"))


def made_by(num_processes: int, patch: pytest.MonkeyPatch, folder: Path) -> dict[str, bytes]:
    """Return the files of a report."""
    patch.setattr(processes, "_num_processes", lambda: num_processes)  # other tests may have left threads
    family._kept.clear()
    it.write_report(embedded_study(), folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@needs_fork
@pytest.mark.parametrize("num_processes", [2, 4])
def test_any_number_of_processes_writes_the_same(
    num_processes: int, of_one_process: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures were drawn here before, with formulas whose fonts are still open.
    assert made_by(num_processes, monkeypatch, tmp_path) == of_one_process


@needs_fork
def test_a_report_is_whole_where_its_processes_are_killed(
    of_one_process: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent, drawn_here = os.getpid(), Figure.savefig

    def killed(*args: Any, **kwargs: Any) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        drawn_here(*args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", killed)
    assert made_by(2, monkeypatch, tmp_path) == of_one_process
    assert [record.getMessage()[:36] for record in caplog.records] == ["1 of 2 processes ended before their "]


def test_a_disk_that_fills_up_leaves_no_half_written_file(tmp_path: Path) -> None:
    """Wherever it happens: files that are there are whole, and no new page stands beside older numbers."""
    analysis = it.analyse(make_results(make_plan(batch_sizes=(8, 32))))
    it.write_report(analysis, tmp_path / "whole")
    whole = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    page, largest, *_ = sorted(whole.values(), key=len, reverse=True)
    assert page == whole["report.html"]
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "report.html").write_text("an earlier page")
    for place, most in (("earlier", len(page) - 1), ("new", len(largest) - 1)):
        with files_up_to(most), pytest.raises(UserError, match=r"cannot be written: .*; choose a folder .* space left"):
            it.write_report(analysis, tmp_path / place)
        written = {file.name: file.read_bytes() for file in (tmp_path / place).iterdir()}
        before = written.pop("report.html", b"")
        assert before == (b"an earlier page" if place == "earlier" else b"")
        assert written.items() < whole.items(), "whole files alone, and no temporary ones"


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a full disk would; Python turns the signal into an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"the folder .*new cannot be created"):
        it.write_report(make_study(make_plan(batch_sizes=(8,))), tmp_path / "file" / "new")
