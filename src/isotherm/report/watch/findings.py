"""What only fits can tell: kinks, verdicts, recommendations. They take seconds, so they say when they were made."""

from __future__ import annotations

import math
import time
from typing import Any

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series
from isotherm.core.visible import visible
from isotherm.sweep.results import StudyResults

Plain = dict[str, Any]
MOST_HISTORY = 500


class Findings:
    """The fits of one study, and how its kinks came to be known."""

    def __init__(self) -> None:
        self.content: Plain = {"computed_at": None}
        self._history: dict[str, list[Plain]] = {}

    def compute(self, results: StudyResults) -> float:
        """Fit what there is, and return the seconds that it took."""
        start = time.perf_counter()
        num_runs = sum(number for name, number in results.counts().items() if name != "missing")
        analysis = analyse(results)
        laws = {}
        for index, sweep in enumerate(analysis.sweeps):
            for series in sweep.series:
                if series.law is not None:
                    name = f"{index}/{series.budget}/{series.grids[0].axes.method_name!r}"
                    laws[name] = law_content(series, series.law)
                    self._note(name, series.law, num_runs)
        seconds = time.perf_counter() - start
        self.content = {
            "computed_at": time.time(),
            "seconds": seconds,
            "num_runs": num_runs,
            "laws": laws,
            "history": {name: list(points) for name, points in self._history.items()},
            **_words(analysis),
        }
        return seconds

    def _note(self, name: str, law: Regimes, num_runs: int) -> None:
        """Add a point to the history of a kink; what was found with as many runs before is replaced."""
        kink = law.kink if law.shows_kink else None
        point = {
            "runs": num_runs,
            "kink": None if kink is None else kink.estimate,
            "low": None if kink is None else kink.low,
            "high": None if kink is None or math.isinf(kink.high) else kink.high,
        }
        history = self._history.setdefault(name, [])
        if history and history[-1]["runs"] == num_runs:
            history.pop()
        history.append(point)
        del history[:-MOST_HISTORY]


def law_content(series: Series, law: Regimes) -> Plain:
    """Return a broken line as the page draws it."""
    sizes, line = law.batch_sizes, law.line
    x = [math.log2(sizes[0]), *([] if line.kink is None else [line.kink]), math.log2(sizes[-1])]
    return {
        "corners": [[2.0**a, 2.0**b] for a, b in zip(x, line.at(x).tolist(), strict=True)],
        "shows_kink": law.shows_kink,
        "kink": None
        if law.kink is None or not law.shows_kink
        else _interval(law.kink.low, law.kink.estimate, law.kink.high),
        "words": [visible(text) for text in (law.slope_words, law.kink_words, *law.seed_words)],
        "label": visible(series.label),
    }


def _words(analysis: Analysis) -> Plain:
    return {
        "recommendations": [visible(advice.words) for advice in analysis.recommendations],
        "verdicts": [
            {
                "mark": verdict.mark,
                "state": verdict.state,
                "claim": visible(verdict.claim),
                "evidence": visible("; ".join(filter(None, (verdict.evidence, verdict.p_words)))),
                "remedy": visible(verdict.remedy_words),
            }
            for verdict in analysis.verdicts
        ],
    }


def _interval(low: float, estimate: float, high: float) -> Plain:
    return {"low": low, "estimate": estimate, "high": high if math.isfinite(high) else None}
