"""Calibration cells that were trained again with the current kernels."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from isotherm.core.statistics import Interval, t_interval, welch_interval
from pages.calibration.runs import running_objective
from pages.results import CALIBRATION, NOT_MEASURED, Row, load
from pages.text import paragraph, percent, signed_interval, table
from pages.values import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One quantity of a cell that was trained twice; values by seed."""

    name: str
    short: str
    quantity: str
    paper: str
    before: tuple[float, ...]
    now: tuple[float, ...]
    decimals: int

    @property
    def difference(self) -> Interval:
        """The mean now minus the mean before, with Welch's interval."""
        return welch_interval(self.now, self.before)

    @property
    def paired(self) -> Interval:
        """The mean difference of runs with the same seed, with Student's interval."""
        return t_interval([now - before for now, before in zip(self.now, self.before, strict=True)])

    @property
    def is_outside(self) -> bool:
        """Whether the new mean is more than one (earlier) standard deviation from the earlier mean."""
        return abs(self.difference.estimate) > statistics.stdev(self.before)

    @property
    def spread_ratio(self) -> float:
        """Standard deviation now over before."""
        return statistics.stdev(self.now) / statistics.stdev(self.before)

    @property
    def spread_p(self) -> float:
        """The two-sided p of the F test for equal spreads."""
        ratio = max(self.spread_ratio, 1 / self.spread_ratio)
        return float(2 * stats.f.sf(ratio**2, len(self.now) - 1, len(self.before) - 1))


def cells() -> list[Cell]:
    """Return the cells trained again, from the result files; empty if these are missing."""
    rerun = CALIBRATION / "rerun"
    old = {name: load(name, CALIBRATION) for name in ("autoencoder", "lstm_b64", *_WIDE)}
    new = {name: load(name, rerun) for name in ("autoencoder_mixed", "lstm_b64", *_WIDE)}
    if None in (*old.values(), *new.values()):
        return []
    return [
        *_on_both_sets(
            "autoencoder, B = 64, ε_eff = 0.08: float32, now mixed",
            ("the autoencoder's {} error", "{} squared error"),
            (old["autoencoder"], new["autoencoder_mixed"]),
            rate=0.08,
            decimals=4,
        ),
        *(cell for name in _WIDE for cell in _of_wide_resnet(name, (old[name], new[name]))),
        *_on_both_sets(
            "LSTM, B = 64, ε_eff = 2.8: mixed, now with LSTM cell kernels",
            ("the LSTM's {} perplexity", "{} perplexity"),
            (old["lstm_b64"], new["lstm_b64"]),
            rate=2.8,
            decimals=2,
        ),
    ]


# Names of the Wide-ResNets in the table and in the text, and their learning rates.
_WIDE = {
    "wrn_b256": ("WRN-16-4, B = 256, ε_eff = 4: mixed, now with our convolution and norm kernels", "WRN-16-4", 4.0),
    "skipinit_b64": ("SkipInit, B = 64, ε_eff = 0.25: mixed, now with our convolution kernels", "SkipInit", 0.25),
}


def _of_wide_resnet(name: str, contents: tuple[Any, Any]) -> list[Cell]:
    """Return accuracy and training loss of a cell."""
    what, short, rate = _WIDE[name]
    accuracy, loss = (what, f"the accuracy of {short}"), (what, f"the loss of {short}")
    return [
        _cell(accuracy, "test accuracy, %", contents, lambda run: 100 * run["test_metric"], rate=rate, decimals=2),
        _cell(loss, "training loss with L2", contents, running_objective, rate=rate, decimals=4),
    ]


def _on_both_sets(
    name: str, words: tuple[str, str], contents: tuple[Any, Any], *, rate: float, decimals: int
) -> list[Cell]:
    """Return the metric of a cell on the test set and on the training set, whose name fills the words' placeholder."""
    short, quantity = words
    return [
        _cell(
            (name, short.format(which)),
            quantity.format(which),
            contents,
            operator.itemgetter(key),
            rate=rate,
            decimals=decimals,
        )
        for which, key in (("test", "test_metric"), ("training", "train_metric"))
    ]


def _by_seed(content: Any, quantity: Callable[[Row], float], rate: float) -> tuple[float, ...]:
    runs = sorted(content["runs"], key=lambda run: run["spec"]["seed"])
    return tuple(quantity(run["result"]) for run in runs if run["spec"]["effective_learning_rate"] == rate)


def _cell(
    names: tuple[str, str],
    quantity: str,
    contents: tuple[Any, Any],
    function: Callable[[Row], float],
    *,
    rate: float,
    decimals: int,
) -> Cell:
    before, now = (_by_seed(content, function, rate) for content in contents)
    paper = contents[0]["paper"]["test" if quantity.startswith("test") else "train"].removesuffix(" %")
    return Cell(
        name=names[0], short=names[1], quantity=quantity, paper=paper, before=before, now=now, decimals=decimals
    )


def numerics_block() -> str:
    """Return the cells trained again next to the earlier values and the paper's."""
    found = cells()
    if not found:
        return NOT_MEASURED
    lines = [
        (
            cell.name,
            cell.quantity,
            cell.paper,
            Value.of(cell.before).text(cell.decimals),
            Value.of(cell.now).text(cell.decimals),
            _with_limits(cell.difference, decimals=cell.decimals),
            _with_limits(cell.paired, decimals=cell.decimals),
            "**outside**" if cell.is_outside else "inside",
        )
        for cell in found
    ]
    header = (
        "cell",
        "quantity",
        "paper",
        "before: mean ± sd (n)",
        "now: mean ± sd (n)",
        "now − before (Welch, 95 %)",
        "paired by seed (95 %)",
        "new mean within the earlier sd",
    )
    return f"{table(header, lines)}\n\n{paragraph(_reading(found))}"


def _with_limits(interval: Interval, *, decimals: int) -> str:
    return signed_interval(interval.estimate, (interval.low, interval.high), decimals=decimals)


def _reading(found: Sequence[Cell]) -> str:
    """Return the table's findings in words."""
    num = len(found)
    outside = [cell.short for cell in found if cell.is_outside]
    by_welch = [cell.short for cell in found if not cell.difference.contains(0.0)]
    by_pairs = [cell.short for cell in found if not cell.paired.contains(0.0)]
    wider = [
        f"{cell.short}, {cell.spread_ratio:.1f} times (F test, p = {cell.spread_p:.2f})"
        for cell in found
        if cell.spread_ratio > 3
    ]
    old = load("autoencoder", CALIBRATION)
    old_skip = load("skipinit_b64", CALIBRATION)
    new, lstm, wide, skip = (load(name, CALIBRATION / "rerun") for name in ("autoencoder_mixed", "lstm_b64", *_WIDE))
    assert old is not None
    assert old_skip is not None
    assert new is not None
    assert lstm is not None
    assert wide is not None
    assert skip is not None
    return f"""Before: commit {old["commit"]}, SkipInit {old_skip["commit"]}; now: autoencoder {new["commit"]}, WRN-16-4
        {wide["commit"]}, SkipInit {skip["commit"]}, LSTM {lstm["commit"]}; {new["device"]}.
        Outside the earlier error bars (one sd): {_listed(outside)}. Welch's interval excludes zero for:
        {_listed(by_welch)}; paired by seed for: {_listed(by_pairs)}. If nothing changed, at least one of {num}
        independent 95 % intervals excludes zero in {percent(1 - 0.95**num)} of all cases. The spread grew more than
        threefold for: {_listed(wider)}. Three runs reveal only large changes, and the commits differ in other ways
        too."""


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"
