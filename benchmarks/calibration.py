"""Train the paper's networks at its settings and full length, and record the results next to the paper's.

    python benchmarks/calibration.py autoencoder --data DATA --output results/calibration --commit HASH

Every cell is a sweep like any other: the runs go through the runner, the fleet and a store of their own. With
`--steps` the cell is cut short, which only tests the script.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

import isotherm as it
from isotherm.core.records import CurvePoint, Precision, RunSpec
from isotherm.running.store import StoredRun
from isotherm.sweep.rounds import Round


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One calibration: a task, a batch size, some learning rates, and the paper's numbers."""

    task: str
    batch_size: int
    rates: tuple[float, ...]
    num_steps: int
    paper: dict[str, Any]
    options: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # for `Task.with_options`
    num_seeds: int = 3
    sweep: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_evaluations: int = 10


_TABLE_1 = {
    256: {"test": "93.5 ± 0.1 %", "train": "0.232 ± 0.001", "table": 1},
    1024: {"test": "94.5 ± 0.1 %", "train": "0.107 ± 0.001", "table": 1},
}
_WRN = partial(Setting, task="wrn16x4_cifar10", num_steps=9_765, num_evaluations=8)
_LSTM = partial(Setting, task="lstm_ptb", num_steps=16_560, num_evaluations=6)

SETTINGS: dict[str, Setting] = {
    "autoencoder": Setting(
        task="autoencoder_mnist",
        batch_size=64,
        rates=(0.04, 0.08, 0.16),
        num_steps=156_250,
        paper={"test": "2.91 ± 0.01", "train": "2.017 ± 0.003", "rate": 0.08, "table": 7},
    ),
    "lstm_b64": _LSTM(
        batch_size=64,
        rates=(2.0, 2.8, 4.0),
        paper={"test": "81.67 ± 0.26", "train": "23.25 ± 0.05", "rate": 2.8, "table": 6},
    ),
    "lstm_b16": _LSTM(
        batch_size=16, rates=(1.4,), paper={"test": "88.06 ± 0.26", "train": "35.85 ± 0.06", "rate": 1.4, "table": 6}
    ),
    "lstm_b16_less_dropout": _LSTM(
        batch_size=16,
        rates=(1.4,),
        paper={"test": "88.06 ± 0.26", "train": "35.85 ± 0.06", "rate": 1.4, "table": 6},
        options={"model": {"drop_probability": 0.35}},
    ),
    "lstm_b16_little_dropout": _LSTM(
        batch_size=16,
        rates=(1.4,),
        paper={"test": "88.06 ± 0.26", "train": "35.85 ± 0.06", "rate": 1.4, "table": 6},
        options={"model": {"drop_probability": 0.2}},
    ),
    "lstm_b16_dropout_0.3": _LSTM(
        batch_size=16,
        rates=(1.4,),
        paper={"test": "88.06 ± 0.26", "train": "35.85 ± 0.06", "rate": 1.4, "table": 6},
        options={"model": {"drop_probability": 0.3}},
        num_seeds=1,
    ),
    "lstm_b64_dropout_0.3": _LSTM(
        batch_size=64,
        rates=(2.8,),
        paper={"test": "81.67 ± 0.26", "train": "23.25 ± 0.05", "rate": 2.8, "table": 6},
        options={"model": {"drop_probability": 0.3}},
        num_seeds=1,
    ),
    "wrn_b256": _WRN(batch_size=256, rates=(4.0,), paper=_TABLE_1[256]),
    "wrn_b256_zero": _WRN(
        batch_size=256, rates=(4.0,), paper=_TABLE_1[256], options={"transform": {"padding": "zero"}}
    ),
    "wrn_b1024": _WRN(batch_size=1024, rates=(8.0,), paper=_TABLE_1[1024]),
    "skipinit_b64": Setting(
        task="wrn16x4_skipinit_cifar10",
        batch_size=64,
        rates=(0.25,),
        num_steps=156_250,
        num_evaluations=8,
        paper={"test": "94.4 ± 0.1 %", "train": "0.192 ± 0.002", "rate": 0.25, "table": 3},
    ),
}


class Printed:
    """Prints the progress of a cell, line by line."""

    def __init__(self, name: str) -> None:
        self._name, self._start, self._work, self._told = name, time.perf_counter(), 0.0, 0.0

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.perf_counter() - self._start:6.0f} s] {self._name}: {text}", flush=True)

    def round_started(self, round_: Round) -> None:
        """Print the number of runs."""
        self.say(f"{len(round_.specs)} runs ({round_})")

    def advanced(self, work: float) -> None:
        """Print the progress now and then."""
        self._work += work
        if time.perf_counter() - self._told > 20:
            self._told = time.perf_counter()
            self.say(f"{self._work:.3g} units of work")

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Print an evaluation on the test set."""
        self.say(
            f"ε_eff {spec.effective_learning_rate:g} seed {spec.seed} update {point.step}: "
            f"test loss {point.test_loss:.4f}, metric {point.test_metric:.4f}"
        )

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Say nothing."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Print how runs ended."""
        for r in (run.result for run in runs):
            self.say(f"{r.outcome}: test {r.test_metric}, train loss {r.train_loss}, L2 {r.l2_penalty}, {r.error}")

    def noted(self, sentence: str) -> None:
        """Print what there is to know about the store."""
        self.say(sentence)


def run_setting(
    name: str,
    *,
    data: Path,
    output: Path,
    device: str,
    steps: int | None,
    seeds: int | None,
    rates: Sequence[float],
    precision: Precision | None,
    commit: str,
) -> dict[str, Any]:
    """Train a setting's runs and return everything worth keeping."""
    setting = SETTINGS[name]
    if rates:
        setting = dataclasses.replace(setting, rates=tuple(rates))
    task = it.get_task(setting.task, data=data).with_options(**setting.options)
    sweep = it.Sweep(
        task=task,
        batch_sizes=[setting.batch_size],
        effective_learning_rates=setting.rates,
        budget=it.Budget.steps(steps or setting.num_steps),
        num_seeds=seeds or setting.num_seeds,
        tune_on="test",
        num_evaluations=setting.num_evaluations,
        max_extensions=0,
        resolution="paper",
        precision=precision,
        name=name,
        **setting.sweep,
    )
    output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    results = it.run(sweep, store=output / f"{name}.sqlite", device=device, progress=Printed(name))
    seconds = time.perf_counter() - start
    plan = sweep.plan()
    (grid,) = plan.grids()
    runs = []
    for rate in setting.rates:
        for seed in plan.seeds:
            spec = plan.run_spec(grid, effective_learning_rate=rate, seed=seed)
            runs.append({"spec": spec.to_json(), "result": results.by_key[spec.key].to_json()})
    return {
        "name": name,
        "paper": setting.paper,
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "seconds": seconds,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "is_full_length": steps is None,
        "runs": runs,
    }


def summary(content: dict[str, Any]) -> str:
    """Return one line per learning rate: mean and standard deviation over seeds."""
    lines = []
    rates = sorted({run["spec"]["effective_learning_rate"] for run in content["runs"]})
    for rate in rates:
        found = [r["result"] for r in content["runs"] if r["spec"]["effective_learning_rate"] == rate]
        lines.append(
            f"{content['name']} ε_eff={rate:g} n={len(found)}: " + ", ".join(_column(found, q) for q in _SHOWN)
        )
    return "\n".join(lines) + f"\n  paper: {content['paper']}, {content['seconds']:.0f} s"


_SHOWN = (
    "test_metric",
    "test_metric_running",
    "train_metric",
    "train_loss",
    "train_loss_running",
    "l2_penalty",
    "clipped_fraction",
)


def _column(found: Sequence[dict[str, Any]], quantity: str) -> str:
    values = [r[quantity] for r in found if r[quantity] is not None]
    if not values:
        return f"{quantity} -"
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{quantity} {statistics.mean(values):.5g} ± {spread:.2g}"


def main() -> None:
    """Run the settings named on the command line, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=SETTINGS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("results/calibration"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--rates", type=float, nargs="+", default=(), help="only these learning rates")
    parser.add_argument("--precision", choices=get_args(Precision), help="instead of the task's")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    for name in options.names:
        content = run_setting(
            name,
            data=options.data,
            output=options.output,
            device=options.device,
            steps=options.steps,
            seeds=options.seeds,
            rates=options.rates,
            precision=options.precision,
            commit=options.commit,
        )
        (options.output / f"{name}.json").write_text(json.dumps(content, indent=1))
        print(summary(content), flush=True)


if __name__ == "__main__":
    main()
