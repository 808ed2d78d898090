"""Rows, CSV files and the terminal's table."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from helpers_protocol import make_grid
from helpers_report import diverged, embedded_study, failed, fill, finished, make_plan, make_results, make_study, peaked
from isotherm.analysis.analysis import SweepAnalysis, analyse
from isotherm.core.budget import Budget
from isotherm.core.rates import tidy
from isotherm.core.records import Outcome
from isotherm.report.study.runs_table import runs_rows
from isotherm.report.study.tables import optima_rows, optima_table, optima_text, write_csv
from isotherm.report.wording import end_sign
from isotherm.sweep.results import Results


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def first(results: Results) -> SweepAnalysis:
    return analyse(results).sweeps[0]


def printed(results: Results, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(optima_table(first(results)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_optima_rows_hold_raw_numbers() -> None:
    row = optima_rows(first(make_results()))[1]
    assert (row["sweep"], row["batch_size"], row["budget"], row["num_steps"]) == (
        "constant_steps",
        32,
        "2000 steps",
        2000,
    )
    assert row["optimal_effective_learning_rate"] == 1.0
    assert (row["interval_low"], row["interval_high"], row["at_edge"]) == (1.0, 1.0, False)
    assert row["temperature"] == 1 / 32
    assert row["learning_rate"] == pytest.approx(0.1)
    assert row["test_metric_mean"] == pytest.approx(0.715)
    assert row["test_metric_mean_all"] == pytest.approx(0.692)
    assert row["test_metric_t_interval_low"] < 0.692 < row["test_metric_t_interval_high"]
    assert (row["num_kept"], row["num_seeds"]) == (4, 5)
    assert row["train_loss_mean"] == pytest.approx(0.1)
    assert row["train_optimal_effective_learning_rate"] == 0.25
    assert (row["num_diverged"], row["num_runs"]) == (0, 25)


def test_a_grid_without_an_optimum_has_a_row_without_one() -> None:
    row = optima_rows(first(make_results(give=lambda *_: diverged())))[0]
    assert row["optimal_effective_learning_rate"] is row["test_metric_mean"] is row["temperature"] is None
    assert (row["edge"], row["num_diverged"]) == ("no stable learning rate", 25)


def test_csv_of_optima_and_runs(tmp_path: Path) -> None:
    study = embedded_study()
    optima_path, runs_path = write_csv(analyse(study), tmp_path / "new")
    assert (optima_path.name, runs_path.name) == ("optima.csv", "runs.csv")
    optima, runs = read(optima_path), read(runs_path)
    assert len(optima) == 24
    assert float(optima[0]["optimal_effective_learning_rate"]) == 0.125
    assert len(runs) == sum(study.counts().values())
    assert {row["outcome"] for row in runs} == {"finished", "diverged"}
    gone = next(row for row in runs if row["outcome"] == "diverged")
    assert (gone["divergence_step"], gone["test_metric"]) == ("12", "")
    assert {"seed", "batch_size", "momentum", "error", "learning_rate", "temperature"} <= set(gone)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["optima.csv", "runs.csv"]


def test_runs_leave_out_what_is_missing_and_keep_what_failed() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        if place == 0:
            return None
        return failed("boom, with a comma\nand a line") if place == 1 else peaked(axes, rate, place)

    rows = runs_rows(make_study(make_plan(batch_sizes=(8,)), give=give))
    assert len(rows) == 20
    errors = [row["error"] for row in rows if row["outcome"] == str(Outcome.FAILED)]
    assert errors == ["boom, with a comma\nand a line"] * 5


def test_a_shared_run_is_there_once_with_both_names() -> None:
    rows = runs_rows(make_study(make_plan(name="first"), make_plan(name="second")))
    assert len(rows) == 75
    assert {row["sweep"] for row in rows} == {"first; second"}


def test_csv_of_a_study_without_results_has_its_headers(tmp_path: Path) -> None:
    optima_path, runs_path = write_csv(analyse(make_study(make_plan(), give=lambda *_: None)), tmp_path)
    assert [row["edge"] for row in read(optima_path)] == ["incomplete"] * 3
    assert read(runs_path) == []
    assert runs_path.read_text().startswith("sweep,key,task")


def test_a_single_run_has_an_unbounded_interval_in_csv(tmp_path: Path) -> None:
    study = make_study(make_plan(seeds=(0,), num_kept=1))
    row = read(write_csv(analyse(study), tmp_path)[0])[0]
    assert float(row["test_metric_t_interval_high"]) == math.inf


@pytest.mark.parametrize("place", [0, 1, 2])
def test_table_fits_a_terminal_of_80_columns(place: int) -> None:
    results = embedded_study().sweeps[place]
    text = printed(results, width=80)
    assert "…" not in text
    assert "best 4 of 5" in text
    assert len(optima_text(first(results)).rows) == 8


def test_table_says_optimum_interval_temperature_and_spread() -> None:
    content = optima_text(first(embedded_study().sweeps[0]))
    row = dict(zip(content.columns, content.rows[0], strict=True))
    assert row["B"] == "8"
    assert row["ε_eff (interval)"] == "1/8 (1/8–1/4)"
    assert row["T"] == "2⁻⁶"
    assert row["train ε_eff"] == "1/8"
    assert row["div."] == "6"
    assert row["test accuracy\N{NO-BREAK SPACE}%"].startswith("57.6 ± ")


def test_budget_and_momentum_have_columns_where_they_vary() -> None:
    plan = make_plan(momenta=(0.0, 0.9), budgets=(Budget.epochs(10), Budget.epochs(20)))
    content = optima_text(first(make_results(plan)))
    assert content.columns[:3] == ("budget", "m", "B")
    assert content.rows[-1][:3] == ("20 epochs", "0.9", "128")
    assert "…" not in printed(make_results(plan), width=100)


def test_flags_are_explained() -> None:
    rising = make_results(give=lambda axes, rate, place: peaked(axes, min(rate, 4.0) / 4, place))
    assert "▸ the optimum or its interval touches the highest learning rate tried" in printed(rising)
    assert "! no learning rate is stable" in printed(make_results(give=lambda *_: diverged()))
    assert "… runs are missing" in printed(make_results(give=lambda *_: None))
    at_end = "≤: training loss + L2 is least at the lowest learning rate tried"
    assert optima_text(first(make_results())).notes == (at_end,)
    content = optima_text(first(make_results()))
    assert [row[content.columns.index("train ε_eff")] for row in content.rows] == ["≤ 1/4"] * 3


def test_names_in_brackets_are_not_markup() -> None:
    assert "[red]name[/]" in printed(make_results(make_plan(name="[red]name[/]")))


def test_results_may_hold_runs_of_other_sweeps() -> None:
    plan = make_plan(batch_sizes=(8,))
    everything = {**fill(plan), **fill(make_plan(l2=0.5))}
    assert len(optima_rows(first(Results(plan=plan, by_key=everything)))) == 1


def confirmed_results(**changes: object) -> Results:
    """Return a sweep whose five seeds all choose 1, and whose three confirming seeds are 0.03 worse."""
    plan = make_plan(**{"num_kept": 5, "num_confirm": 3, **changes})
    found = fill(plan)
    for axes in plan.grids():
        for place, seed in enumerate(plan.confirming_seeds):
            spec = plan.run_spec(axes, effective_learning_rate=1.0, seed=seed)
            found[spec.key] = finished(0.692 - 0.03 + 0.01 * (place - 1))
    return Results(plan=plan, by_key=found)


def test_confirmed_numbers_stand_in_the_table_with_the_selection_bias() -> None:
    content = optima_text(first(confirmed_results()))
    assert content.title.endswith(": 5 seeds, 3 confirm")
    row = dict(zip(content.columns, content.rows[0], strict=True))
    assert row["test accuracy\N{NO-BREAK SPACE}%"] == "66.2 ± 1.0"
    assert row["bias"] == "+3.0 ± 2.4"
    assert "all seeds" not in row
    assert content.notes[0].startswith("bias: mean of the seeds that chose less mean of those that confirm")
    assert "…" not in printed(confirmed_results())


def test_confirmed_numbers_in_csv() -> None:
    row = optima_rows(first(confirmed_results()))[0]
    assert row["is_confirmed"] is True
    assert (row["num_kept"], row["num_seeds"], row["num_diverged_seeds"]) == (3, 3, 0)
    assert row["test_metric_mean"] == row["test_metric_mean_all"] == pytest.approx(0.662)
    assert row["selection_bias"] == pytest.approx(0.03)
    assert row["selection_bias_standard_error"] == pytest.approx(0.0242, abs=1e-4)
    plain = optima_rows(first(make_results()))[0]
    assert (plain["is_confirmed"], plain["selection_bias"]) == (False, None)


def test_table_says_which_optima_are_not_confirmed() -> None:
    results = confirmed_results()
    spec = results.plan.run_spec(results.plan.grids()[1], effective_learning_rate=1.0, seed=6)
    found = dict(results.by_key)
    found[spec.key] = diverged()
    assert (
        "1 confirming seed diverged; means are over the others"
        in optima_text(first(Results(plan=results.plan, by_key=found))).notes
    )
    del found[spec.key]
    content = optima_text(first(Results(plan=results.plan, by_key=found)))
    assert "not confirmed yet: B = 32" in content.notes
    assert content.rows[1][4] == "–"
    gone = {
        results.plan.run_spec(results.plan.grids()[2], effective_learning_rate=1.0, seed=seed).key: diverged()
        for seed in results.plan.confirming_seeds
    }
    notes = optima_text(first(Results(plan=results.plan, by_key={**results.by_key, **gone}))).notes
    assert "every confirming seed diverged, numbers are of the seeds that chose: B = 128" in notes


def test_all_seeds_say_how_many_diverged() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        return diverged() if place == 4 and rate == 1.0 else peaked(axes, rate, place)

    content = optima_text(first(make_results(give=give)))
    assert dict(zip(content.columns, content.rows[0], strict=True))["all seeds"] == "71.5 ± 1.3, 1 div."


def test_what_a_grid_leaves_unresolved_is_flagged_and_in_csv() -> None:
    def rounded(axes, rate, place):  # type: ignore[no-untyped-def]
        return finished(0.7 - 0.1 * math.log2(rate) ** 2 + 0.001 * place)

    sweep = first(make_results(give=rounded))
    content = optima_text(sweep)
    assert content.rows[0][-1] == "~"
    assert content.notes == ("~ test accuracy may be better by up to 5.0 points between the learning rates tried",)
    row = optima_rows(sweep)[0]
    assert (row["ratio"], row["is_resolved"]) == (2.0, False)
    assert row["unresolved_gain"] == pytest.approx(0.05)
    assert row["error_of_mean"] < 0.001


def test_training_optimum_with_and_without_the_penalty() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        result = peaked(axes, rate, place)
        assert result is not None
        return dataclasses.replace(result, l2_penalty=0.4 / rate)  # loss 0.1 rate: together least at 2

    sweep = first(make_results(give=give))
    content = optima_text(sweep)
    assert dict(zip(content.columns, content.rows[0], strict=True))["train ε_eff"] == "2"
    places = ", ".join(f"1/4 at B = {size}" for size in (8, 32, 128))
    assert content.notes[-1] == f"train ε_eff is that of training loss + L2; of the loss alone: {places}"
    row = optima_rows(sweep)[0]
    assert row["train_optimal_effective_learning_rate"] == 2.0
    assert row["train_loss_optimal_effective_learning_rate"] == 0.25


def test_table_of_refined_grids_fits_a_terminal_of_80_columns() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        off = math.log2(rate) + 0.23
        return diverged() if off > 2 else finished(0.7 - 0.05 * off**2 + 0.0125 * (place - 2))

    plan = make_plan(
        batch_sizes=(8, 1024),
        learning_rates=(tuple(tidy(2.0 ** (k / 4)) for k in range(-9, 10)),) * 2,
        num_kept=5,
        num_confirm=5,
    )
    found = fill(plan, give)
    for axes in plan.grids():
        for seed in plan.confirming_seeds:
            found[plan.run_spec(axes, effective_learning_rate=0.840896415253715, seed=seed).key] = finished(0.68)
    text = printed(Results(plan=plan, by_key=found))
    assert "0.841 (0.59–1.2)" in text
    assert "1,024" in text
    assert "…" not in text


def test_column_of_diverged_runs_is_there_where_some_did() -> None:
    assert "div." not in optima_text(first(make_results())).columns
    assert "div." in optima_text(first(embedded_study().sweeps[0])).columns


def test_sign_is_that_of_the_end_of_what_was_tried() -> None:
    for rows, sign in (
        ({1.0: [0.1], 2.0: [0.9], 4.0: [0.1]}, ""),
        ({1.0: [0.1], 2.0: [0.9], 4.0: [None]}, "≥ "),
        ({1.0: [None], 2.0: [0.9], 4.0: [0.1]}, "≤ "),
    ):
        grid = make_grid(rows, num_kept=1)
        best = grid.optimum()
        assert best is not None
        assert end_sign(best, grid) == sign
