from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isotherm as it
import optimizer_exponents
from optimizer_exponents import NETWORKS, ON_CPU, OPTIMIZERS, PAGE, Network, block, joined, row_of, study_of, table
from pages.results import load

KINK = "ends at a kink, above which the optimal learning rate no longer rises"


def row(**changes: Any) -> dict[str, Any]:
    grids = [
        {"batch_size": size, "learning_rate": 0.01, "test_metric": 0.5, "edge": "interior"}
        for size in NETWORKS["mlp"].batch_sizes
    ]
    claim = "made: at small batches the optimal learning rate is proportional to the {}"
    verdicts = [
        {"claim": claim.format("batch size"), "state": "does not hold"},
        {"claim": claim.format("square root of the batch size"), "state": "not determined"},
        {"claim": f"made: the rise {KINK}", "state": "holds"},
    ]
    found = {"name": "AdamW", "num_runs": 9, "exponent": 0.5, "interval": [0.4, 0.62], "kink": "", "shows_kink": False}
    return {**found, "verdicts": verdicts, "grids": grids, **changes}


def test_the_table_has_the_verdicts_on_both_rules_and_the_kink() -> None:
    kink = "kink at B ≈ 64 [40, 90], then ε ≈ 0.1 [0.05, 0.2]"
    line = table([row(kink=kink, shows_kink=True)], NETWORKS["mlp"]).splitlines()[-1]
    start = "| AdamW | 9 | 0.50 [0.40, 0.62] | does not hold | not determined |"
    assert line.startswith(f"{start} holds: {kink} | – | 0.01 (50.0 %) |")
    verdicts = [*row()["verdicts"][:2], {"claim": f"made: proportionality {KINK}", "state": "does not hold"}]
    unseen = row(kink="kink not seen below B = 512 (13% of the lines that fit have one)", verdicts=verdicts)
    line = table([unseen], NETWORKS["mlp"]).splitlines()[-1]
    assert line.startswith(f"{start} does not hold | 13 % | 0.01 (50.0 %) |")


@pytest.mark.parametrize("network", ON_CPU)
def test_the_kink_of_the_table_is_the_verdict_of_the_file(network: str) -> None:
    content = load(NETWORKS[network].file.stem)
    assert content is not None
    lines = table(content["rows"], NETWORKS[network]).splitlines()[2:]
    for one, line in zip(content["rows"], lines, strict=True):
        (state,) = [v["state"] for v in one["verdicts"] if v["claim"].endswith(KINK)]
        assert line.split(" | ")[5].startswith(state)


@pytest.mark.parametrize("network", ON_CPU)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sweeps_differ_in_the_optimiser_alone(name: str, network: str) -> None:
    (sweep,) = study_of(name, NETWORKS[network]).sweeps
    assert sweep.methods == (OPTIMIZERS[name],)
    assert tuple(sweep.batch_sizes) == NETWORKS[network].batch_sizes


@pytest.mark.parametrize("network", NETWORKS)
def test_the_page_is_that_of_the_result_file(network: str) -> None:
    content = load(NETWORKS[network].file.stem)
    assert content is not None
    has_few_matrices = network == "wrn"  # Muon's rows would be those of AdamW
    assert [one["name"] for one in content["rows"]] == [
        name for name in OPTIMIZERS if not (has_few_matrices and name.startswith("Muon"))
    ]
    assert block(network) in PAGE.read_text()


def small(**changes: Any) -> Network:
    """Return a network whose grids differ from batch size to batch size, as those of the residual network."""
    sizes, budget = (16, 64, 256), it.Budget.steps(30)
    return dataclasses.replace(NETWORKS["wrn"], task="mlp_mnist1d", batch_sizes=sizes, budget=budget, **changes)


@functools.cache
def small_results(name: str) -> it.Results:
    return joined(it.run_study(study_of(name, small(max_extensions=1)), progress=False))


def without(results: it.Results, *, batch_size: int, rates: list[float], seed: int | None = None) -> it.Results:
    """Return results without the runs of some learning rates, or without those of one seed."""
    lost = {
        key
        for key, spec in results.runs().items()
        if spec.batch_size == batch_size and spec.effective_learning_rate in rates and seed in (None, spec.seed)
    }
    assert lost
    return dataclasses.replace(results, by_key={k: r for k, r in results.by_key.items() if k not in lost})


def test_the_grids_of_the_residual_network_have_three_rates_around_a_rising_centre() -> None:
    network = NETWORKS["wrn"]
    assert [network.isotherm.at(size) for size in (64, 256, 1024)] == [(0.25, 1, 4), (1, 4, 16), (2, 8, 32)]
    assert [network.rates(size)[1] for size in (64, 256, 1024)] == [0.001, 0.002, 0.004]
    assert network.rates(256) == (0.0005, 0.002, 0.008)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_grids_of_their_own_are_one_sweep_for_the_analysis(name: str) -> None:
    network = small()
    study = study_of(name, network)
    plan = joined(it.StudyResults(plan=study.plan(), by_key={})).plan
    assert plan.batch_sizes == network.batch_sizes
    rates = network.isotherm.at if name.startswith("SGD") else network.rates
    assert plan.learning_rates == tuple(rates(size) for size in network.batch_sizes)
    assert {spec.key for one in study.plan().sweeps for spec in it.Results(plan=one, by_key={}).runs().values()} == {
        spec.key for spec in it.Results(plan=plan, by_key={}).runs().values()
    }


def test_an_exponent_needs_optima_inside_what_was_tried_at_three_batch_sizes() -> None:
    results = small_results("AdamW fixed betas")
    full = row_of("AdamW", results)
    assert full["exponent"] is not None
    assert full["interval"][0] < full["exponent"] < full["interval"][1]
    (best,) = [grid["rate"] for grid in full["grids"] if grid["batch_size"] == 64]
    (grid,) = [grid for grid in results.grids() if grid.axes.batch_size == 64]
    rates = [cell.effective_learning_rate for cell in grid.cells]

    at_end = row_of("AdamW", without(results, batch_size=64, rates=[rate for rate in rates if rate > best], seed=1))
    assert at_end["exponent"] is None
    assert "the lowest or highest one tried at B = 64" in at_end["words"]

    missing = row_of("AdamW", without(results, batch_size=64, rates=rates))
    assert missing["exponent"] is None
    assert "fewer than three batch sizes have an optimum" in missing["words"]
    last = table([missing], small()).splitlines()[-1]
    assert "| not determined (fewer than three batch sizes have an optimum) |" in last
    assert "| incomplete |" in last


def test_rows_are_run_apart_and_exported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = small(max_extensions=0, num_seeds=1)
    monkeypatch.setitem(NETWORKS, "wrn", dataclasses.replace(network, budget=it.Budget.epochs(20)))
    monkeypatch.setattr(optimizer_exponents, "RESULTS", tmp_path)

    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["optimizer_exponents.py", "--network", "wrn", *arguments])
        optimizer_exponents.main()
        return capsys.readouterr().out

    stores = []
    for name in ("SGD momentum 0.9", "Muon scaled betas"):
        stores.append(str(tmp_path / f"{len(stores)}.sqlite"))
        arguments = ("--optimizer", name, "--store", stores[-1], "--steps", "5", "--workers", "1", "--fleet-size", "2")
        assert "finished" in command(*arguments)
        assert not network.file.exists()
        with it.Store.read(stores[-1]) as store:
            assert {run.provenance["fleet_size"] for run in store.runs()} <= {1, 2}
    assert "0 missing" not in command("--show", *stores)
    command("--export", *stores, "--commit", "1a2b3c4")
    content = json.loads(network.file.read_text())
    assert [one["name"] for one in content["rows"]] == ["SGD momentum 0.9", "Muon scaled betas"]
    assert (content["num_steps"], content["num_seeds"], content["commit"]) == (5, 1, "1a2b3c4")
    assert all(math.isfinite(grid["test_metric"]) for one in content["rows"] for grid in one["grids"])
    with pytest.raises(SystemExit, match="which an earlier store holds too"):
        command("--export", stores[0], stores[0], "--commit", "1a2b3c4")


def test_a_run_without_a_terminal_needs_neither_plots_nor_its_tools(tmp_path: Path) -> None:
    code = """
import dataclasses, sys
import isotherm as it
import optimizer_exponents
from optimizer_exponents import NETWORKS
small = {"task": "mlp_mnist1d", "batch_sizes": (16,), "budget": it.Budget.steps(2), "max_extensions": 0}
NETWORKS["wrn"] = dataclasses.replace(NETWORKS["wrn"], **small)
optimizer_exponents.main()
print("imported:", {"plotly", "rich", "typer"} & sys.modules.keys())
"""
    arguments = ["--network", "wrn", "--optimizer", "AdamW fixed betas", "--store", str(tmp_path / "a.sqlite")]
    command = [sys.executable, "-c", code, *arguments, "--workers", "1", "--minutes", "5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "base grids: 6 runs" in found.stdout
    assert "training 6 runs at B = 16, learning rate 0.000125, 0.0005, 0.002" in found.stdout
    assert found.stdout.endswith("imported: set()\n")
