"""`isotherm run STUDY`: what is trained and kept, and what every kind of bad input gets."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from helpers_cli import (
    STUDY_CODE,
    STUDY_FILE,
    interrupted,
    invoke,
    output_of,
    rows,
    run_tiny,
)
from isotherm.running.store import Store

pytestmark = pytest.mark.usefixtures("study_folder")


def test_run_again_trains_nothing_and_says_the_same() -> None:
    run_tiny()
    before = rows("tiny.sqlite")
    run_tiny()
    assert rows("tiny.sqlite") == before


def test_run_from_a_toml_file_and_status_by_its_path() -> None:
    code, _ = invoke("run", "study.toml", "--workers", "1")
    assert code == 0
    assert Path("file.sqlite").exists()
    code, text = invoke("status", "study.toml")
    assert code == 0
    assert "12" in text


def test_resolution_of_the_command_line_refines_and_confirms() -> None:
    code, text = invoke("run", "study.toml", "--workers", "1", "--resolution", "adaptive", "--json", "run.json")
    assert code == 0, text
    assert "best 1 of 2 seeds, 2 confirm" in " ".join(text.split())
    content = json.loads(Path("run.json").read_text())
    (sweep,) = content["sweeps"]
    assert (sweep["resolution"], sweep["num_confirm"]) == ("adaptive", 2)
    for grid in sweep["grids"]:
        assert grid["confirmed"]["num_seeds"] == 2
        assert grid["test_accuracy"]["mean"] == grid["confirmed"]["mean"]
        assert grid["selected"]["num_seeds"] == 2
        assert set(grid["resolution"]) == {"ratio", "unresolved_gain", "error_of_mean", "is_resolved"}
    assert content["counts"]["finished"] >= 12 + 2 * 2
    code, text = invoke("plan", "study.toml", "--resolution", "adaptive", "--json", "plan.json")
    assert code == 0
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["num_runs"], plan["num_confirming"], plan["num_refining"]) == (0, 0, 0)
    assert plan["num_stored"] == content["counts"]["finished"] + content["counts"]["diverged"]


def test_resolution_is_of_a_study_and_one_of_two() -> None:
    code, text = invoke("run", "study.toml", "--resolution", "fine")
    assert code == 2
    assert "resolution" in text
    code, text = invoke("run", "--task", "mycode:task", "--resolution", "paper")
    assert code == 2
    assert "--resolution applies to a study" in text


def test_json_to_standard_output_is_pure_json() -> None:
    output, told = output_of("run", "mycode:sweep", "--workers", "1", "--json", "-")
    assert json.loads(output)["study"] == "tiny"
    assert "Verdicts" in told


def test_seeds_and_extensions_change_every_sweep_of_a_study() -> None:
    run_tiny("tiny.sqlite")
    before = rows("tiny.sqlite")
    code, text = invoke("run", "mycode:sweep", "--workers", "1", "--seeds", "3", "--json", "run.json")
    assert code == 0, text
    assert json.loads(Path("run.json").read_text())["counts"]["finished"] == 27
    assert all(row in rows("tiny.sqlite") for row in before)
    code, text = invoke("run", "mycode:sweep", "--workers", "1", "--max-extensions", "1", "--json", "run.json")
    assert code == 0, text
    assert json.loads(Path("run.json").read_text())["counts"]["finished"] > 18  # optima lie at ends of their grids


def test_another_number_of_seeds_keeps_them_all_and_says_so() -> None:
    """The study keeps the better of 2 seeds."""
    code, text = invoke("run", "study.toml", "--workers", "1", "--seeds", "3", "--json", "run.json")
    assert code == 0, text
    note = "--seeds 3 keeps all 3 seeds where the study keeps the best 1 of 2"
    assert " ".join(text.split()).count(note) == 1
    (sweep,) = json.loads(Path("run.json").read_text())["sweeps"]
    assert (sweep["num_seeds"], sweep["num_kept"]) == (3, 3)
    code, text = invoke("run", "study.toml", "--workers", "1", "--seeds", "2", "--json", "run.json")
    assert code == 0, text
    assert "keeps all" not in " ".join(text.split())
    (sweep,) = json.loads(Path("run.json").read_text())["sweeps"]
    assert (sweep["num_seeds"], sweep["num_kept"]) == (2, 1)


def test_the_command_of_an_open_verdict_uses_the_same_store() -> None:
    invoke("run", "mycode:sweep", "--store", "other.sqlite", "--workers", "1", "--json", "run.json")
    verdicts = json.loads(Path("run.json").read_text())["verdicts"]
    assert {v["command"] for v in verdicts} == {"isotherm run mycode:sweep --store other.sqlite --seeds 5"}


def test_several_workers_give_the_numbers_of_one() -> None:
    run_tiny("one.sqlite")
    code, text = invoke("run", "mycode:sweep", "--store", "two.sqlite", "--workers", "2")
    assert code == 0, text
    assert rows("one.sqlite") == rows("two.sqlite")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('steps = 10', 'stepz = 10'), ["stepz", "did you mean 'steps'"]),
        (('name = "file"', 'name = "file"\nquestoin = "?"'), ["questoin", "did you mean 'question'"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = ["8"]'), ["sweep.1.batch_sizes.1", "'8'", "whole number"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = []'), ["batch_sizes is empty"]),
        (('[0.125, 0.5, 2.0]', '[]'), ["effective_learning_rates is empty"]),
        (('[0.125, 0.5, 2.0]', '[0.125, -0.5]'), ["-0.5", "must be a positive number"]),
        (('[0.125, 0.5, 2.0]', '[0.0]'), ["0.0", "must be a positive number"]),
        (('[0.125, 0.5, 2.0]', '[nan]'), ["nan", "must be a positive number"]),
        (('steps = 10', 'steps = 10\nmomentum = 1.0'), ["momentum=1.0", "[0, 1)"]),
        (('batch_sizes = [8, 16]', 'batch_sizes = [65]'), ["65", "training set of 64"]),
        (('num_kept = 1', 'num_kept = 3'), ["num_kept=3", "num_seeds=2"]),
        (('steps = 10', 'steps = 10\nepochs = 1'), ["steps, epochs or until", "steps and epochs are given"]),
        (('steps = 10', ''), ["steps, epochs or until", "none is given"]),
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
    text = STUDY_FILE.replace(*change)
    assert text != STUDY_FILE
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
        ("mycode:misfit", ["needs logits of shape (batch, classes)", "loss='bce'"]),
    ],
)
def test_a_bad_study_is_refused_and_no_store_is_made(reference: str, expected: list[str]) -> None:
    code, output = invoke("run", reference)
    assert code == 2
    for part in expected:
        assert part in output
    assert not list(Path().glob("*.sqlite"))


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
    command = ["run", "mycode:slow", "--workers", workers, "--fleet-size", "1"]
    code, output = interrupted(*command, after="runs", seconds=1.0)
    assert code == 130, output
    assert "the same command resumes" in output
    with Store.write("slow.sqlite") as store:  # opens, and nobody holds the lock
        assert store.studies().keys() == {"slow"}


def test_no_space_left_keeps_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tiny()
    before = rows("tiny.sqlite")
    opened = Store.write

    def tight(path: str) -> Store:
        store = opened(path)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        return store

    Path("mycode.py").write_text(STUDY_CODE.replace("num_seeds=2, num_kept=1", "num_seeds=40, num_kept=1"))
    sys.modules.pop("mycode", None)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", tight)
        code, output = invoke("run", "mycode:sweep", "--workers", "1")
    assert code == 2
    assert "no space is left" in output
    with Store.read("tiny.sqlite") as store:
        stored = {run.spec.key: run.result for run in store.runs()}
    assert {key: result for key, _, result in before}.items() <= stored.items()


def test_a_closed_store_is_one_file() -> None:
    """A store is one file once it is closed: a plain copy of it is whole."""
    run_tiny()
    shutil.copy("tiny.sqlite", "copy.sqlite")
    assert rows("copy.sqlite") == rows("tiny.sqlite")


def test_budgets_that_double_and_what_an_estimate_saved_are_told() -> None:
    later = "until = { first = 2, at_most = 4 }\nestimate_at = { epochs = 1 }"
    Path("later.toml").write_text(Path("study.toml").read_text().replace("steps = 10", later))
    code, shown = invoke("run", "later.toml", "--workers", "1")
    assert code == 0, shown
    assert "ends at 4 epochs: " in " ".join(shown.split())
    assert "Grids were estimated at 1 epoch:" in " ".join(shown.split())
