"""How far a study's numbers depend on how its runs were put together: fleets, threads, devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from isotherm.report.wording import count_text

# Final training losses of six runs in float32 on a CPU, trained alone, in pairs and all at once: the largest relative
# difference. Networks of tests/cases.py and tests/cases_paper.py after 200 updates, the last but one after 25, the last
# after 100. tests/contracts/test_same_rows.py holds the same after 8.
LARGEST_DIFFERENCE = {
    "an MLP": 0.0,
    "dropout": 1.1e-7,
    "batch norm": 2.3e-7,
    "convolutions": 5.8e-7,
    "an LSTM": 1.0e-7,
    "a Wide-ResNet with ghost batch norm": 2.6e-4,
}


def rounding_paragraphs(provenance: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the runs were put together and how much that changes their numbers; nothing where no run says so.

    Args:
        provenance: of every run, as it is stored.
    """
    distinct = dict(zip(map(id, provenance), provenance, strict=True))  # many runs share one
    sizes: Counter[int] = Counter()
    for name, num in Counter(map(id, provenance)).items():
        if "fleet_size" in distinct[name]:
            sizes[int(distinct[name]["fleet_size"])] += num
    if not sizes:
        return []
    ways = list(distinct.values())
    kinds = {str(way["device"]).partition(":")[0] for way in ways if "device" in way}
    return [" ".join([_together(sizes, ways), *([_on_cpu()] if "cpu" in kinds else []), *_on_gpu(kinds)])]


def _together(sizes: Counter[int], ways: Sequence[Mapping[str, Any]]) -> str:
    threads = sorted({int(way["num_threads"]) for way in ways if "num_threads" in way})
    with_threads = f", with {_range(threads)} {'thread' if threads == [1] else 'threads'}" if threads else ""
    num_runs, num_alone = sizes.total(), sizes[1]
    if num_alone == num_runs:
        return f"{_all(num_runs)} trained alone, not in a fleet{with_threads}."
    fleets = [size for size in sizes if size > 1]
    alone = "no run was trained alone" if num_alone == 0 else f"{count_text(num_alone, 'run')} of them alone"
    return f"{_all(num_runs)} trained in fleets of {_range(fleets)}{with_threads}; {alone}."


def _all(num: int) -> str:
    return "The one run was" if num == 1 else f"The {num:,} runs were"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _on_cpu() -> str:
    found = ", ".join(f"{what} {value:.0e}" if value else f"{what} 0" for what, value in LARGEST_DIFFERENCE.items())
    return (
        "A run's numbers do not depend on what else is in its fleet, but their rounding can depend on whether it is "
        "trained alone, and for some layers on the size of the fleet and on the number of threads. Small networks in "
        "float32, trained alone and in fleets, differed in their final training loss by this part of it at most: "
        f"{found}."
    )


def _on_gpu(kinds: set[str]) -> list[str]:
    if "cuda" not in kinds:
        return []
    return ["On a GPU it also depends on which kernels suit the fleet: docs/performance.md, 'Numbers do not change'."]
