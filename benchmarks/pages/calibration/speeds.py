"""Speed and memory on a GPU, and differences between fleet and reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.tasks.builtin import TASKS
from pages.calibration.runs import SKIP_INIT, load
from pages.text import paragraph, table

# Calibration runs of the same workload as a row of the speeds: task, batch size, number of runs.
_SAME_WORK = {
    ("autoencoder_mnist", 64, 9): "autoencoder",
    ("lstm_ptb", 64, 9): "lstm_b64",
    ("lstm_ptb", 16, 3): "lstm_b16",
    ("wrn16x4_cifar10", 256, 3): "wrn_b256",
    ("wrn16x4_cifar10", 1024, 3): "wrn_b1024",
    ("wrn16x4_skipinit_cifar10", 64, 3): SKIP_INIT,
}
_QUANTITIES = {
    "train_loss_running": "running training loss",
    "last_batch_loss": "last batch's loss",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "weight_norm_squared": "squared norm of weights",
}


def throughput_block() -> str:
    """Return speed and memory."""
    return speeds(load("throughput"))


def equality_block() -> str:
    """Return the differences between fleet and reference on the GPU."""
    return differences(load("throughput"))


def speeds(content: dict[str, Any]) -> str:
    """Return speed and memory as `throughput.py` wrote them, and what is missing."""
    found = [row for row in content["rows"] if "error" not in row]
    lines = []
    for row in _in_order(found):
        same = _SAME_WORK.get((row["task"], row["batch_size"], row["num_runs"]))
        lines.append(
            (
                f"`{row['task']}`",
                f"{row['batch_size']:,}",
                str(row["num_runs"]),
                row["precision"],
                _speed(row["run_updates_per_second"]),
                f"{_speed(row['lowest'])} to {_speed(row['highest'])}",
                f"{row['examples_per_second']:,.0f}",
                f"{row['peak_memory_gib']:.2f}",
                "–" if same is None else f"{load(same)['peak_memory_bytes'] / 2**30:.2f}",
            )
        )
    header = (
        "task",
        "B",
        "runs",
        "precision",
        "run-updates/s",
        "lowest to highest",
        "examples/s",
        "peak GiB",
        "peak GiB, calibration run",
    )
    windows = _listed(sorted({str(row["num_windows"]) for row in found}))
    remarks = [f"{_where(found)}. Median, lowest and highest of {windows} windows."]
    if all(row["task"] != "resnet50_imagenet" for row in content["rows"]):
        remarks.append("`resnet50_imagenet`: not measured yet with this script.")
    remarks += [
        f"`{row['task']}`, B = {row['batch_size']:,}: failed ({' '.join(row['error'].split())})."
        for row in _in_order([row for row in content["rows"] if "error" in row])
    ]
    return f"{table(header, lines)}\n\n{paragraph(' '.join(remarks))}"


def differences(content: dict[str, Any]) -> str:
    """Return the largest relative differences between fleet and reference, if they were measured."""
    found = _in_order(content["equality"])
    if not found:
        return "The same in the precisions of the calibration runs: not measured yet with this script."
    names = list(found[0]["largest_relative_difference"])
    lines = [
        (
            f"`{row['task']}`",
            f"{row['batch_size']:,}",
            row["precision"],
            *(_difference(row["largest_relative_difference"].get(name)) for name in names),
        )
        for row in found
    ]
    runs, updates = (_listed(sorted({str(row[key]) for row in found})) for key in ("num_runs", "num_updates"))
    remark = f"""
        Largest relative difference between fleet and reference over {runs} runs after {updates} updates; training loss
        and test loss are of the final weights. {_where(found)}."""
    header = ("task", "B", "precision", *(_QUANTITIES.get(name, name) for name in names))
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _in_order(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of the tasks, whichever was measured last."""
    order = {name: index for index, name in enumerate(TASKS)}
    return sorted(found, key=lambda row: (order[row["task"]], row["batch_size"], row.get("precision", "")))


def _where(found: Sequence[dict[str, Any]]) -> str:
    """Return the device, versions and commits of some rows."""
    devices, versions, commits = (sorted({row[key] for row in found}) for key in ("device", "torch", "commit"))
    return f"{_listed(devices)}, torch {_listed(versions)}, commit {_listed(commits)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _difference(number: float | None) -> str:
    if number is None:
        return "–"
    return "0" if number == 0 else f"{number:.1e}"


def _speed(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"
