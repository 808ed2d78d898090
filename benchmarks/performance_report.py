"""Write the measured speeds into docs/performance.md and draw the growth of cost.

    python benchmarks/performance_report.py

Reads from benchmarks/results: bench_*.json (`isotherm bench --json`), growth_*.json (benchmarks/growth.py),
cpu_fleets.json (benchmarks/cpu_fleets.py), profiles_*.json (benchmarks/profile_fleet.py), convolutions_*.json
(benchmarks/convolutions.py), kernels_*.json (benchmarks/kernels.py), factored_update_*.json
(benchmarks/factored_update.py), ceilings_*.json (benchmarks/ceilings.py), start_*.json (`isotherm bench` of starts) and
gpu_tests_*.json (pytest's results); and
the calibration runs of results/calibration, with their repetitions in its folder rerun.
Writes every block between the markers `<!-- performance: NAME -->` and `<!-- end -->`, and docs/figures/growth.png. No
number there is typed by hand, but for those of cpu_fleets.json, which says so until it is measured again.
"""

from __future__ import annotations

from growth import draw
from pages.blocks import Page
from pages.performance.bench import bench_block
from pages.performance.ceilings import ceilings_block
from pages.performance.convolutions import convolutions_block
from pages.performance.cpu_fleets import cpu_fleets_block
from pages.performance.factored import factored_block
from pages.performance.gpu_tests import gpu_tests_block
from pages.performance.growth import growth_block, shrink_block
from pages.performance.kernels import kernels_block
from pages.performance.limits import limits_block
from pages.performance.numerics import numerics_block
from pages.performance.profiles import profiles_block
from pages.performance.start import start_block
from pages.performance.steps import steps_block
from pages.results import ROOT, load

DOCUMENT = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "figures" / "growth.png"
PAGE = Page(
    name="performance",
    blocks={
        "cpu": lambda: bench_block("bench_cpu"),
        "h200": lambda: bench_block("bench_h200"),
        "cpu_fleets": cpu_fleets_block,
        "shrink": shrink_block,
        "growth": growth_block,
        "profiles": profiles_block,
        "start": start_block,
        "steps": steps_block,
        "limits": limits_block,
        "ceilings": ceilings_block,
        "convolutions": convolutions_block,
        "kernels": kernels_block,
        "factored": factored_block,
        "gpu_tests": gpu_tests_block,
        "numerics": numerics_block,
    },
)


def main() -> None:
    """Write the blocks and the figure."""
    PAGE.write(DOCUMENT)
    content = load("growth_cpu")
    if content is not None:
        draw(content, FIGURE)


if __name__ == "__main__":
    main()
