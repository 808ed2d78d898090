"""One thread per worker, as pytest-xdist runs two of them; no time limit on examples that share the cores.

The one `conftest.py`: a second of that name cannot be collected beside it.
"""

import math
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from helpers_cli import STUDY_CODE, STUDY_FILE, TASK_CODE
from isotherm.analysis import family

hypothesis.settings.register_profile("isotherm", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("isotherm")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """Undo that a shell without job control has its background jobs, and their children, ignore Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _quick_fits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fit curve families with short chains, but in files that are about the fits themselves."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in ABOUT_FITS:
            patch.setattr(family, "NUM_PROPOSALS", 4)
            patch.setattr(family, "MOST_BLOCKS", 2)
            patch.setattr(family, "NUM_ROUNDS", 40)
            patch.setattr(family, "LEAST_APART", math.inf)
        family._fit.cache_clear()  # fits of another kind, perhaps
        yield


ABOUT_FITS = {
    "test_two_rate_claims.py",
    "test_family.py",
    "test_regimes.py",
    "test_simulations.py",
    "test_quickstart_report.py",
    "test_results_report.py",
}


# -- folders in which commands are run --------------------------------------------------------------------------


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a module of sweeps and a study file."""
    _enter(tmp_path, monkeypatch, module="mycode", code=STUDY_CODE)
    Path("study.toml").write_text(STUDY_FILE)


@pytest.fixture
def task_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a module of tasks, and with no data anywhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ISOTHERM_DATA", raising=False)
    _enter(tmp_path, monkeypatch, module="taskcode", code=TASK_CODE)


def _enter(folder: Path, monkeypatch: pytest.MonkeyPatch, *, module: str, code: str) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop(module, None)
    Path(f"{module}.py").write_text(code)
