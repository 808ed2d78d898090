"""`isotherm run --task`: what one cell prints and keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers_cli import (
    SETTING,
    interrupted,
    invoke,
    output_of,
    run_blobs,
    stored,
)
from isotherm.running.store import Store

pytestmark = pytest.mark.usefixtures("task_folder")


def test_the_setting_in_one_line_then_looks_then_a_table() -> None:
    text = run_blobs("--seeds", "2", "--evaluations", "2", "--l2", "0.01", "--momentum", "0.5")
    setting, _, rest = text.partition(" training: 0/2 runs")
    assert setting == (
        "blobs: B = 8, ε_eff = 0.5, ε = 0.25, m = 0.5, T = 0.0625, 10 updates, 1.25 epochs, float32, cpu, 8 parameters"
    )
    for seed in (0, 1):
        for update in (" 5", "10"):
            assert f"seed {seed}, update {update.strip()}: test loss 0." in rest
    assert rest.count("test accuracy") >= 4
    for header in ("L2", "penalty", "running", "mean", "sd ±"):
        assert header in rest
    assert "clipped" not in rest
    assert "averages" not in rest
    assert "Store: blobs.sqlite. Report: isotherm report blobs.sqlite" in rest
    assert stored() == ["finished"] * 2


def test_json_has_spec_and_result_of_every_run() -> None:
    run_blobs("--seeds", "3", "--first-seed", "4", "--clip-norm", "0.1", "--evaluations", "5", "--json", "cell.json")
    content = json.loads(Path("cell.json").read_text())
    assert (content["task"], content["batch_size"], content["num_steps"], content["num_epochs"]) == (
        "blobs",
        8,
        10,
        1.25,
    )
    assert content["learning_rate"] == 0.05
    assert content["temperature"] == 0.5 / 8
    assert content["counts"] == {"finished": 3, "diverged": 0, "failed": 0}
    assert [run["spec"]["seed"] for run in content["runs"]] == [4, 5, 6]
    with Store.read("blobs.sqlite") as store:
        runs = {run.spec.key: run for run in store.runs()}
    for run in content["runs"]:
        assert not run["was_stored"]
        assert run["spec"] == runs[run["key"]].spec.to_json()
        assert run["result"] == json.loads(json.dumps(runs[run["key"]].result.to_json()))
        assert len(run["result"]["curve"]) == 5
        assert run["spec"]["clip_norm"] == 0.1
    losses = [run["result"]["test_loss"] for run in content["runs"]]
    assert content["summary"]["test_loss"]["mean"] == pytest.approx(sum(losses) / 3)
    assert content["summary"]["test_loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
    assert content["summary"]["clipped_fraction"]["num_runs"] == 3


def test_json_to_standard_output_is_pure_json() -> None:
    output, told = output_of("run", "--task", "taskcode:blobs", *SETTING, "--json", "-")
    assert json.loads(output)["task"] == "blobs"
    assert "ε_eff" in told


def test_stored_runs_are_said_to_be_stored_and_only_new_seeds_are_run() -> None:
    run_blobs("--seeds", "2")
    text = run_blobs("--seeds", "3", "--json", "cell.json")
    assert "seeds 0, 1: stored in blobs.sqlite, not run again" in text
    assert "training: 0/1 runs" in text
    assert [run["was_stored"] for run in json.loads(Path("cell.json").read_text())["runs"]] == [True, True, False]
    text = run_blobs("--seeds", "3")
    assert "seeds 0, 1, 2: stored" in text
    assert "training" not in text
    assert "mean" in text
    assert stored() == ["finished"] * 3


def test_the_numbers_are_those_of_the_same_cell_in_a_study() -> None:
    run_blobs("--seeds", "2", "--l2", "0.01", "--store", "cell.sqlite")
    Path("study.toml").write_text(
        'name = "same"\ntask = "taskcode:blobs"\n[[sweep]]\nname = "one"\nbatch_sizes = [8]\n'
        'effective_learning_rates = [0.5]\nsteps = 10\nl2 = 0.01\nnum_seeds = 2\ntune_on = "test"\nmax_extensions = 0\n'
        'resolution = "paper"\n'
    )
    assert invoke("run", "study.toml", "--workers", "1")[0] == 0
    with Store.read("cell.sqlite") as cell, Store.read("same.sqlite") as study:
        assert cell.results() == study.results()


def test_cells_of_a_task_share_a_store_and_each_is_reported() -> None:
    run_blobs()
    run_blobs("--momentum", "0", "--precision", "float64", "--l2", "1e-7", "--clip-norm", "5", "--first-seed", "3")
    code, text = invoke("status", "blobs.sqlite", "--json", "status.json")
    assert code == 0
    names = [sweep["study"] for sweep in json.loads(Path("status.json").read_text())["sweeps"]]
    assert names == ["blobs-B8-lr0.5-m0.9-10steps", "blobs-B8-lr0.5-m0.0-10steps-l2_1e-07-clip_5.0-float64-seed3"]
    code, text = invoke("report", "blobs.sqlite", "--output", "out")
    assert code == 0, text
    assert {path.name for path in Path("out").iterdir()} == set(names)


def test_a_diverged_run_is_said_plainly_with_its_step() -> None:
    text = run_blobs("--effective-learning-rate", "1e30", "--l2", "1", "--json", "cell.json", "--seeds", "2")
    (first, second) = json.loads(Path("cell.json").read_text())["runs"]
    for run in (first, second):
        step, seed = run["result"]["divergence_step"], run["spec"]["seed"]
        assert run["result"]["outcome"] == "diverged"
        assert f"seed {seed} diverged: its loss was not finite after {step} update" in text
    assert "mean" not in text
    assert stored() == ["diverged"] * 2


def test_a_failed_run_has_its_own_exit_code_and_is_tried_again() -> None:
    command = ["run", "--task", "taskcode:fragile", *SETTING, "--effective-learning-rate", "1000"]
    for _ in range(2):
        code, text = invoke(*command)
        assert code == 3
        assert "seed 0 failed: RuntimeError: weights [too] large" in text
        assert "1 run failed; it is tried again next time" in text
        assert "not run again" not in text
        assert stored() == ["failed"]


def test_a_task_that_says_mixed_is_trained_in_float32_on_a_cpu_and_says_so() -> None:
    code, text = invoke("run", "--task", "taskcode:mixed", *SETTING, "--json", "cell.json")
    assert code == 0
    assert "float32, cpu" in text
    assert "note: made for tests" in text
    assert "note: the task asks for mixed precision, which pays on a GPU; on this CPU it is trained in float32" in text
    assert json.loads(Path("cell.json").read_text())["runs"][0]["spec"]["precision"] == "float32"
    code, text = invoke("run", "--task", "taskcode:mixed", *SETTING, "--precision", "mixed")
    assert code == 0
    assert "mixed, cpu" in text
    assert "trained in float32" not in text


def test_a_name_that_is_no_file_name() -> None:
    code, text = invoke("run", "--task", "taskcode:odd_name", *SETTING)
    assert code == 0, text
    assert "my task: 1/2: B = 8" in text
    assert Path("my_task_1_2.sqlite").exists()


def test_a_built_in_task_that_needs_no_data() -> None:
    code, text = invoke("run", "--task", "mlp_mnist1d", *SETTING, "--evaluations", "0")
    assert code == 0, text
    assert "mlp_mnist1d: B = 8" in text
    assert "15,210 parameters" in text
    assert "accuracy" in text
    assert "seed 0, update" not in text


def test_out_of_memory_keeps_what_was_stored_and_runs_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    run_blobs("--seeds", "2")
    with monkeypatch.context() as patch:
        patch.setattr(
            "isotherm.running.executors.local.run_fleet", lambda *_a, **_k: (_ for _ in ()).throw(MemoryError())
        )
        assert invoke("run", "--task", "taskcode:blobs", *SETTING, "--seeds", "4")[0] == 3
    assert sorted(stored()) == ["failed"] * 2 + ["finished"] * 2
    assert "seeds 0, 1: stored" in run_blobs("--seeds", "4")
    assert stored() == ["finished"] * 4


def test_ctrl_c_stops_with_130_and_keeps_nothing_unfinished() -> None:
    setting = ["--batch-size", "1", "--effective-learning-rate", "0.1", "--steps", "200000", "--evaluations", "1000"]
    code, output = interrupted("run", "--task", "taskcode:blobs", *setting, after="seed 0, update", seconds=0.3)
    assert code == 130, output
    assert "the same command resumes" in output
    assert not stored()
    with Store.write("blobs.sqlite"):  # nobody holds the lock
        pass


def test_a_schedule_is_named_in_the_line_and_kept_in_the_run() -> None:
    text = run_blobs("--schedule", "cosine", "--warmup-steps", "3", "--json", "cell.json")
    assert "8 parameters, linear warm-up over 3 updates, then cosine decay to 0 training" in text
    (run,) = json.loads(Path("cell.json").read_text())["runs"]
    assert run["spec"]["schedule"] == {"shape": "cosine", "warmup_steps": 3, "final_fraction": 0.0}
    assert "linear warm-up over 3 updates, then cosine" in output_of("status", "blobs.sqlite")[0].replace("\n", " ")
