from __future__ import annotations

from typing import Any

import pytest

from optimizer_exponents import NETWORKS, OPTIMIZERS, PAGE, block, sweep_of, table
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


@pytest.mark.parametrize("network", NETWORKS)
def test_the_kink_of_the_table_is_the_verdict_of_the_file(network: str) -> None:
    content = load(NETWORKS[network].file.stem)
    assert content is not None
    lines = table(content["rows"], NETWORKS[network]).splitlines()[2:]
    for one, line in zip(content["rows"], lines, strict=True):
        (state,) = [v["state"] for v in one["verdicts"] if v["claim"].endswith(KINK)]
        assert line.split(" | ")[5].startswith(state)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sweeps_differ_in_the_optimiser_alone(name: str, network: str) -> None:
    sweep = sweep_of(name, NETWORKS[network])
    assert sweep.methods == (OPTIMIZERS[name],)
    assert tuple(sweep.batch_sizes) == NETWORKS[network].batch_sizes


@pytest.mark.parametrize("network", NETWORKS)
def test_the_page_is_that_of_the_result_file(network: str) -> None:
    content = load(NETWORKS[network].file.stem)
    assert content is not None
    assert [one["name"] for one in content["rows"]] == list(OPTIMIZERS)
    assert block(network) in PAGE.read_text()
