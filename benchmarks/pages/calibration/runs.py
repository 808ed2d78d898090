"""The runs of results/calibration, and the paper's values for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pages.results import CALIBRATION
from pages.values import Value

# Result files: the LSTM at B = 16 with the task's dropout first; Wide-ResNets with batch size and learning rate.
LSTM_B16 = ("lstm_b16", "lstm_b16_less_dropout", "lstm_b16_little_dropout")
WIDE_RESNETS = (("wrn_b256", 256, 4.0), ("wrn_b1024", 1024, 8.0))
ZERO_PADDED = ("wrn_b256_zero", 256, 4.0)
SKIP_INIT = "skipinit_b64"

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of the paper, with its number of decimals."""

    mean: float
    sd: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse the text of a result file.

        >>> Reference.parse("93.5 ± 0.1 %").mean
        93.5
        """
        mean, sd = (float(part) for part in text.removesuffix("%").split("±"))
        return cls(mean=mean, sd=sd, text=text.removesuffix(" %"))


def load(name: str) -> dict[str, Any]:
    """Return the content of one result file."""
    content: dict[str, Any] = json.loads((CALIBRATION / f"{name}.json").read_text())
    return content


def rates(name: str) -> list[float]:
    """Return the effective learning rates of a setting, rising."""
    return sorted({run["spec"]["effective_learning_rate"] for run in load(name)["runs"]})


def runs_at(name: str, rate: float) -> list[Run]:
    """Return the results at one learning rate, by seed."""
    found = [run for run in load(name)["runs"] if run["spec"]["effective_learning_rate"] == rate]
    return [run["result"] for run in sorted(found, key=lambda run: run["spec"]["seed"])]


def value(runs: Sequence[Run], quantity: str | Callable[[Run], float], *, scale: float = 1.0) -> Value:
    """Return mean and standard deviation of a quantity over runs."""
    function = quantity if callable(quantity) else lambda run: run[quantity]
    return Value.of([scale * function(run) for run in runs])


def reference(name: str, quantity: str) -> Reference:
    """Return the paper's "test" or "train" value of a setting."""
    return Reference.parse(load(name)["paper"][quantity])


def running_perplexity(run: Run) -> float:
    """Return the perplexity with dropout on, over the last epoch."""
    return math.exp(run["train_loss_running"])


def running_objective(run: Run) -> float:
    """Return the training cross entropy averaged over the last epoch, plus the L2 penalty."""
    return float(run["train_loss_running"] + run["l2_penalty"])


def evaluated_objective(run: Run) -> float:
    """Return the cross entropy of the final weights in evaluation mode, plus the L2 penalty."""
    return float(run["train_loss"] + run["l2_penalty"])


def best_rate(name: str) -> float:
    """Return the learning rate with the lowest mean test metric."""
    return min(rates(name), key=lambda rate: value(runs_at(name, rate), "test_metric").mean)


def rate_texts(name: str) -> dict[float, str]:
    """Return the learning rates of a setting as text, all with the same number of decimals."""
    found = rates(name)
    decimals = max(len(f"{rate:g}".partition(".")[2]) for rate in found)
    return {rate: f"{rate:.{decimals}f}" for rate in found}


def option(name: str, option_name: str, default: str) -> str:
    """Return an option of a setting's task, read from the task name of its runs, or the default."""
    task = load(name)["runs"][0]["spec"]["task"]
    found = re.search(rf"\b{option_name}=([^,)]+)", task)
    return found[1] if found else default


def dropout(name: str) -> str:
    """Return the dropout of a language model's setting."""
    return option(name, "drop_probability", "0.5")


def commits_of(names: Sequence[str]) -> str:
    """Return a sentence that names the commit of each setting."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(load(name)["commit"], []).append(f"`{name}`")
    return "Runs: " + ", ".join(f"{' and '.join(files)} of commit {commit}" for commit, files in found.items()) + "."
