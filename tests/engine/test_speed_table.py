"""The factors that are said are those of the tables they come from."""

import re

from isotherm.engine.fleet_speed import SPEED_OF_FLEETS, one_by_one, run_by_run
from pages.results import ROOT

TABLES = (ROOT / "docs" / "performance.md").read_text()


def test_the_factors_fall_with_the_batch_size() -> None:
    factors = list(SPEED_OF_FLEETS.values())
    assert factors == sorted(factors, reverse=True)
    assert list(SPEED_OF_FLEETS) == sorted(SPEED_OF_FLEETS)


def test_all_of_them_are_said() -> None:
    assert all(f"{times} times" in one_by_one() for times in SPEED_OF_FLEETS.values())


def test_on_a_gpu_they_are_those_of_its_table() -> None:
    said = one_by_one("cuda")
    rows = [[cell.strip() for cell in line.split("|")] for line in TABLES.partition("## GPU")[2].splitlines()]
    column = next(row.index("ratio") for row in rows if "ratio" in row)
    ratios = {(row[1], row[2]): float(row[column]) for row in rows if len(row) == 15 and "**" in row[5]}
    for network, name, sizes in (
        ("an autoencoder", "autoencoder_mnist", ("64", "4,096")),
        ("a WRN-16-4", "wrn16x4_cifar10", ("64", "1,024")),
    ):
        own = next(part for part in said.split("; ") if part.startswith(network))
        factors = [float(factor) for factor in re.findall(r"([\d.]+) times", own)]
        assert [round(f) for f in factors] == [round(ratios[name, size]) for size in sizes]
    assert said.endswith("(on an H200)")


def test_kernels_instead_of_streams_have_a_row_of_their_own() -> None:
    [row] = [
        line for line in TABLES.splitlines() if "instead of streams; 12 runs" in line and "wrn16x4_cifar10," in line
    ]
    before, after = (float(cell.split()[0].replace(",", "")) for cell in row.split(" | ")[2:4])
    assert f"{after / before:.1f}".rstrip("0").rstrip(".") + " times" in run_by_run()
