"""The main table: every setting next to the paper, judged against its goal."""

from __future__ import annotations

from dataclasses import dataclass

from pages.calibration.runs import (
    LSTM_B16,
    SKIP_INIT,
    WIDE_RESNETS,
    Reference,
    best_rate,
    load,
    rate_texts,
    reference,
    running_objective,
    runs_at,
    value,
)
from pages.text import signed, table
from pages.values import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the main table."""

    setting: str
    quantity: str
    paper: str
    ours: str
    difference: str = "–"
    goal: str
    in_readme: bool = True


def rows() -> list[Row]:
    """Return the main table."""
    return [*_autoencoder_rows(), *_lstm_rows(), *_wide_resnet_rows(), *_skip_init_rows()]


def results_block() -> str:
    """Return the main table."""
    header = ("setting", "quantity", "paper", "ours: mean ± sd (n)", "difference", "goal")
    return table(header, [(r.setting, r.quantity, r.paper, r.ours, r.difference, r.goal) for r in rows()])


def readme_block() -> str:
    """Return the test metrics at the paper's settings, for the front page."""
    header = ("setting", "quantity", "paper", "ours: mean ± sd (n)", "goal")
    shown = [row for row in rows() if row.in_readme and row.quantity.startswith("test")]
    return table(header, [(row.setting, row.quantity, row.paper, row.ours, row.goal) for row in shown])


def compared(
    setting: str,
    quantity: str,
    ours: Value,
    paper: Reference,
    *,
    decimals: int,
    unit: str = "%",
    tolerance: float | None = None,
    lowest: float | None = None,
    otherwise: str = "–",
    in_readme: bool = True,
) -> Row:
    """Return a line that compares two means, in the unit of the tolerance: percent or points."""
    points = ours.mean - paper.mean
    amount = 100 * points / paper.mean if unit == "%" else points
    difference = f"{signed(amount, 1)} %" if unit == "%" else signed(amount, 2)
    goal = otherwise
    if lowest is not None:
        goal = f"at most {-lowest:g} below: {'**met**' if amount >= lowest else '**missed**'}"
    if tolerance is not None:
        verdict = "**met**" if abs(amount) <= tolerance else "**missed**"
        goal = f"within {tolerance:g} %: {verdict}" if unit == "%" else f"within {tolerance:.1f}: {verdict}"
    return Row(
        setting=setting,
        quantity=quantity,
        paper=paper.text,
        ours=ours.text(decimals),
        difference=difference,
        goal=goal,
        in_readme=in_readme,
    )


def _autoencoder_rows() -> list[Row]:
    name, rate = "autoencoder", 0.08
    setting = "autoencoder, B = 64, ε_eff = 0.08"
    runs = runs_at(name, rate)
    best = best_rate(name)
    tried = ", ".join(rate_texts(name).values())
    return [
        compared(
            setting,
            "test squared error",
            value(runs, "test_metric"),
            reference(name, "test"),
            decimals=3,
            tolerance=2,
        ),
        compared(
            setting,
            "training squared error",
            value(runs, "train_metric"),
            reference(name, "train"),
            decimals=4,
            tolerance=2,
        ),
        Row(
            setting="autoencoder, B = 64",
            quantity="best ε_eff",
            paper="0.08",
            ours=f"{best:g} of {tried} (3 each)",
            goal=f"0.08: {'**met**' if best == 0.08 else '**missed**'}",
            in_readme=False,
        ),
    ]


def _lstm_rows() -> list[Row]:
    test, train = reference("lstm_b64", "test"), reference("lstm_b64", "train")
    found = []
    for rate in (2.8, 2.0):
        setting = f"LSTM, B = 64, ε_eff = {rate_texts('lstm_b64')[rate]}"
        runs = runs_at("lstm_b64", rate)
        is_papers = rate == load("lstm_b64")["paper"]["rate"]
        found += [
            compared(
                setting,
                "test perplexity",
                value(runs, "test_metric"),
                test,
                decimals=2,
                unit="points",
                tolerance=1.0 if is_papers else None,
                in_readme=is_papers,
                otherwise="–, not the paper's ε_eff",
            ),
            compared(
                setting,
                "training perplexity",
                value(runs, "train_metric"),
                train,
                decimals=2,
                in_readme=is_papers,
                otherwise="open" if is_papers else "–, not the paper's ε_eff",
            ),
        ]
    texts = rate_texts("lstm_b64")
    best = best_rate("lstm_b64")
    where = ", at the grid's edge" if best in (min(texts), max(texts)) else ""
    found.append(
        Row(
            setting="LSTM, B = 64",
            quantity="best ε_eff",
            paper=f"{load('lstm_b64')['paper']['rate']:g}",
            ours=f"{texts[best]} of {', '.join(texts.values())} (3 each){where}",
            goal="open",
            in_readme=False,
        )
    )
    runs = runs_at(LSTM_B16[0], 1.4)
    setting = "LSTM, B = 16, ε_eff = 1.4"
    found += [
        compared(
            setting,
            "test perplexity",
            value(runs, "test_metric"),
            reference("lstm_b16", "test"),
            decimals=2,
            unit="points",
            otherwise="open",
        ),
        compared(
            setting,
            "training perplexity",
            value(runs, "train_metric"),
            reference("lstm_b16", "train"),
            decimals=2,
            otherwise="open",
        ),
    ]
    return found


def _wide_resnet_rows() -> list[Row]:
    rows = [
        _image_rows(f"WRN-16-4, ghost batch norm, B = {batch_size:,}, ε_eff = {rate:g}", name, rate)
        for name, batch_size, rate in WIDE_RESNETS
    ]
    return [row for pair in rows for row in pair]


def _skip_init_rows() -> list[Row]:
    return _image_rows("WRN-16-4, SkipInit, B = 64, ε_eff = 0.25", SKIP_INIT, 0.25)


def _image_rows(setting: str, name: str, rate: float) -> list[Row]:
    runs = runs_at(name, rate)
    return [
        compared(
            setting,
            "test accuracy, %",
            value(runs, "test_metric", scale=100),
            reference(name, "test"),
            decimals=2,
            unit="points",
            lowest=-0.2,
        ),
        compared(
            setting,
            "training loss with L2",
            value(runs, running_objective),
            reference(name, "train"),
            decimals=4,
            tolerance=10,
        ),
    ]
