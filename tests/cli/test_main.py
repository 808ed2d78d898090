"""The command line: what a user sees, and what every kind of bad input gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.running.store import Store

TASK = '''
import torch
from torch import nn
import isotherm as it

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    return torch.randn(n, 3, generator=g) + 1.5 * y[:, None], y

def model():
    return nn.Linear(3, 2)

def task():
    return it.Task(name="blobs", model=model, train=data(64, 0), test=data(32, 1))

def sweep():
    return it.Sweep(name="tiny", task=task(), batch_sizes=[8, 16, 32], effective_learning_rates=[0.125, 0.5, 2.0],
                    budget=it.Budget.steps(10), num_seeds=2, num_kept=1, tune_on="test", max_extensions=0)

def broken_function():
    raise KeyError("no such thing")

def wrong_return():
    return 7

def misfit():
    bad = it.Task(name="misfit", model=lambda: nn.Linear(3, 1), train=data(64, 0), test=data(32, 1))
    return it.Sweep(name="misfit", task=bad, batch_sizes=[8], effective_learning_rates=[0.1], budget=it.Budget.steps(3))

class Fragile(nn.Module):
    """Raises in training as soon as its weights have grown."""
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        if self.training and float(self.layer.weight.detach().norm()) > 3.0:
            raise RuntimeError("weights too large")
        return self.layer(x)

def fragile():
    made = it.Task(name="fragile", model=Fragile, train=data(64, 0), test=data(32, 1))
    return it.Sweep(name="fragile", task=made, batch_sizes=[8], effective_learning_rates=[0.01, 1000.0],
                    budget=it.Budget.steps(10), num_seeds=2, tune_on="test", max_extensions=0)

def slow():
    return it.Sweep(name="slow", task=task(), batch_sizes=[1], effective_learning_rates=[0.125, 0.5, 2.0],
                    budget=it.Budget.steps(20000), num_seeds=2, tune_on="test", max_extensions=0)
'''

STUDY = """
name = "file"
task = "mycode:task"
[[sweep]]
name = "steps"
batch_sizes = [8, 16]
effective_learning_rates = [0.125, 0.5, 2.0]
steps = 10
num_seeds = 2
num_kept = 1
tune_on = "test"
max_extensions = 0
"""

runner = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "mycode" not in p])
    sys.modules.pop("mycode", None)
    Path("mycode.py").write_text(TASK)
    Path("study.toml").write_text(STUDY)


def invoke(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def run_tiny(store: str = "tiny.sqlite") -> None:
    code, text = invoke("run", "mycode:sweep", "--store", store, "--workers", "1")
    assert code == 0, text


def test_plan_counts_runs_estimates_time_and_writes_nothing() -> None:
    code, text = invoke("plan", "mycode:sweep", "--json", "plan.json")
    assert code == 0
    assert "18 runs to do" in text
    content = json.loads(Path("plan.json").read_text())
    assert content["num_runs"] == 18
    assert content["num_examples"] == 6 * 10 * (8 + 16 + 32)
    assert content["flop"] == pytest.approx(content["num_examples"] * 4 * 3 * 2)  # no gradient of the inputs
    assert content["seconds"] > 0
    assert not list(Path().glob("*.sqlite*"))


def test_plan_counts_what_is_stored() -> None:
    run_tiny()
    code, text = invoke("plan", "mycode:sweep")
    assert code == 0
    assert "0 runs to do, 18 stored" in text


def test_run_status_report_by_function() -> None:
    code, text = invoke("run", "mycode:sweep", "--workers", "1", "--json", "run.json")
    assert code == 0
    content = json.loads(Path("run.json").read_text())
    assert content["counts"] == {"finished": 18, "diverged": 0, "failed": 0, "missing": 0}
    assert [g["batch_size"] for g in content["sweeps"][0]["grids"]] == [8, 16, 32]
    assert content["verdicts"]
    assert all(set(v) == {"claim", "holds", "evidence", "remedy"} for v in content["verdicts"])
    assert "Verdicts" in text

    code, text = invoke("status", "tiny.sqlite", "--json", "status.json")
    assert code == 0
    assert json.loads(Path("status.json").read_text())["sweeps"][0]["finished"] == 18

    code, text = invoke("report", "tiny.sqlite", "--output", "out", "--json", "report.json")
    assert code == 0
    names = {p.name for p in Path("out").iterdir()}
    assert {"report.html", "optima.csv", "runs.csv"} <= names
    assert any(n.endswith(".png") for n in names)
    assert any(n.endswith(".pdf") for n in names)
    assert json.loads(Path("report.json").read_text())["counts"]["finished"] == 18


def test_run_again_trains_nothing_and_says_the_same() -> None:
    run_tiny()
    before = _rows("tiny.sqlite")
    run_tiny()
    assert _rows("tiny.sqlite") == before


def test_run_from_a_toml_file_and_status_by_its_path() -> None:
    code, _ = invoke("run", "study.toml", "--workers", "1")
    assert code == 0
    assert Path("file.sqlite").exists()
    code, text = invoke("status", "study.toml")
    assert code == 0
    assert "12" in text


def test_json_to_standard_output_is_pure_json() -> None:
    command = [sys.executable, "-m", "isotherm", "run", "mycode:sweep", "--workers", "1", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    assert json.loads(done.stdout)["study"] == "tiny"
    assert "Verdicts" in done.stderr


def test_several_workers_give_the_numbers_of_one() -> None:
    run_tiny("one.sqlite")
    code, text = invoke("run", "mycode:sweep", "--store", "two.sqlite", "--workers", "2")
    assert code == 0, text
    assert _rows("one.sqlite") == _rows("two.sqlite")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('steps = 10', 'stepz = 10'), ["stepz", "did you mean 'steps'"]),
        (('name = "file"', 'name = "file"\nquestoin = "?"'), ["questoin", "did you mean 'question'"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = ["8"]'), ["sweep.1.batch_sizes.1", "'8'", "integer"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = []'), ["batch_sizes is empty"]),
        (('[0.125, 0.5, 2.0]', '[]'), ["effective_learning_rates is empty"]),
        (('[0.125, 0.5, 2.0]', '[0.125, -0.5]'), ["-0.5", "not a positive number"]),
        (('[0.125, 0.5, 2.0]', '[0.0]'), ["0.0", "not a positive number"]),
        (('[0.125, 0.5, 2.0]', '[nan]'), ["nan", "not a positive number"]),
        (('steps = 10', 'steps = 10\nmomentum = 1.0'), ["momentum=1.0", "[0, 1)"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = [65]'), ["65", "training set of 64"]),
        (('num_kept = 1', 'num_kept = 3'), ["num_kept=3", "num_seeds=2"]),
        (('steps = 10', 'steps = 10\nepochs = 1'), ["steps or epochs", "both"]),
        (('steps = 10', ''), ["steps or epochs", "neither"]),
        (('tune_on = "test"', 'tune_on = "tset"'), ["tset"]),
        (('mycode:task', 'mlp_mnist2d'), ["mlp_mnist2d", "did you mean 'mlp_mnist1d'"]),
        (('mycode:task', 'mycode:tusk'), ["no function 'tusk'", "did you mean 'task'"]),
        (('mycode:task', 'mycode:broken_function'), ["KeyError", "no such thing"]),
        (('mycode:task', 'nomodule:task'), ["nomodule", "cannot be imported"]),
        (('mycode:task', 'mycode:wrong_return'), ["int", "isotherm.Task"]),
        (('[[sweep]]', '[[sweep'), ["not valid TOML"]),
        (('steps = 10', 'steps = -1'), ["-1 steps", "not positive"]),
        (('steps = 10', 'steps = 10\nclip_norm = 0.0'), ["clip_norm=0.0", "not above 0"]),
        (('steps = 10', 'steps = 10\nclip_norm = "5"'), ["sweep.1.clip_norm", "'5'", "number"]),
        (('steps = 10', 'steps = 10\nprecision = "half"'), ["sweep.1.precision", "'half'", "'mixed'"]),
    ],
)  # fmt: skip
def test_a_bad_study_file_is_refused_with_place_reason_and_remedy(change: tuple[str, str], expected: list[str]) -> None:
    run_tiny("file.sqlite")
    before = Path("file.sqlite").read_bytes()
    text = STUDY.replace(*change)
    assert text != STUDY
    Path("study.toml").write_text(text)
    code, output = invoke("run", "study.toml", "--workers", "1")
    assert code == 2
    for part in ["error:", *expected]:
        assert part in output
    assert Path("file.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("quickstrat", ["quickstrat", "did you mean 'quickstart'"]),
        ("absent.toml", ["absent.toml", "no file"]),
        ("mycode:swoop", ["no function 'swoop'"]),
        ("mycode:broken_function", ["KeyError"]),
        ("mycode:wrong_return", ["returned int"]),
        ("mycode:misfit", ["label 1 is out of range", "1 outputs"]),
    ],
)
def test_a_bad_study_is_refused_and_no_store_is_made(reference: str, expected: list[str]) -> None:
    code, output = invoke("run", reference)
    assert code == 2
    for part in expected:
        assert part in output
    assert not list(Path().glob("*.sqlite"))


def test_a_store_that_is_no_store() -> None:
    Path("tiny.sqlite").write_text("not a database at all, only text")
    for command in (["run", "mycode:sweep", "--workers", "1"], ["status", "tiny.sqlite"], ["report", "tiny.sqlite"]):
        code, output = invoke(*command)
        assert code == 2
        assert "not a store" in output
    assert Path("tiny.sqlite").read_text() == "not a database at all, only text"


def test_a_damaged_store_is_named() -> None:
    run_tiny()
    content = bytearray(Path("tiny.sqlite").read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    Path("tiny.sqlite").write_bytes(content)
    code, output = invoke("status", "tiny.sqlite")
    assert code == 2
    assert "tiny.sqlite" in output
    assert "damaged" in output


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_missing_store(command: str) -> None:
    code, output = invoke(command, "nowhere.sqlite")
    assert code == 2
    assert "there is no store at nowhere.sqlite" in output


def test_a_folder_that_cannot_be_written() -> None:
    # /proc takes no new files, not even from root
    code, output = invoke("run", "mycode:sweep", "--workers", "1", "--store", "/proc/tiny.sqlite")
    assert code == 2
    assert "cannot be written" in output


def test_json_into_a_folder_that_is_not_there_is_refused_before_any_run() -> None:
    code, output = invoke("run", "mycode:sweep", "--json", "no/such/folder.json")
    assert code == 2
    assert "existing folder" in output
    assert not Path("tiny.sqlite").exists()


def test_report_into_a_place_that_is_a_file() -> None:
    run_tiny()
    Path("taken").write_text("here already")
    code, output = invoke("report", "tiny.sqlite", "--output", "taken")
    assert code == 2
    assert "taken" in output


def test_a_gpu_where_none_is() -> None:
    code, output = invoke("run", "mycode:sweep", "--device", "cuda")
    assert code == 2
    assert "sees no GPU" in output


def test_failed_runs_are_told_and_give_their_own_exit_code() -> None:
    code, output = invoke("run", "mycode:fragile", "--workers", "1")
    assert code == 3
    assert "weights too large" in output
    with Store.read("fragile.sqlite") as store:
        counts = {str(outcome): number for outcome, number in store.counts().items()}
    assert counts == {"finished": 2, "diverged": 0, "failed": 2}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_stops_with_130_and_a_store_that_goes_on(workers: str) -> None:
    command = [sys.executable, "-m", "isotherm", "run", "mycode:slow", "--workers", workers, "--fleet-size", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment(), start_new_session=True
    )
    assert process.stdout is not None
    while "runs" not in process.stdout.readline():  # the first line of progress
        pass
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "the same command resumes" in output
    with Store.write("slow.sqlite") as store:  # opens, and nobody holds the lock
        assert store.studies().keys() == {"slow"}


def test_no_space_left_keeps_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tiny()
    before = _rows("tiny.sqlite")
    opened = Store.write

    def tight(path: str) -> Store:
        store = opened(path)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        return store

    Path("mycode.py").write_text(TASK.replace("num_seeds=2, num_kept=1", "num_seeds=40, num_kept=1"))
    sys.modules.pop("mycode", None)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", tight)
        code, output = invoke("run", "mycode:sweep", "--workers", "1")
    assert code == 2
    assert "no space is left" in output
    with Store.read("tiny.sqlite") as store:
        stored = {run.spec.key: run.result for run in store.runs()}
    assert {key: result for key, _, result in before}.items() <= stored.items()


def test_a_full_disk_while_reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tiny()

    def full(*_arguments: object, **_keywords: object) -> None:
        raise OSError(28, "No space left on device", "out/report.html")

    monkeypatch.setattr("isotherm.cli.show.study.write_report", full)
    code, output = invoke("report", "tiny.sqlite", "--output", "out")
    assert code == 2
    assert "No space left" in output


def test_version_and_help() -> None:
    code, text = invoke("--version")
    assert code == 0
    assert text.startswith("isotherm 0.")
    code, text = invoke("--help")
    for command in ("quickstart", "plan", "run", "status", "report", "data"):
        assert command in text


def _rows(path: str) -> list[tuple[str, object, object]]:
    with Store.read(path) as store:
        return [(run.spec.key, run.spec, run.result) for run in store.runs()]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_a_closed_store_is_one_file() -> None:
    """A store is one file once it is closed: a plain copy of it is whole."""
    run_tiny()
    shutil.copy("tiny.sqlite", "copy.sqlite")
    assert _rows("copy.sqlite") == _rows("tiny.sqlite")
