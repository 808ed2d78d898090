"""How fast does a GPU multiply large matrices, briefly and sustained, with equal numbers and with random ones?

Run:     python benchmarks/ceilings.py --json ceilings.json
Cost:    half a minute of GPU
Expect:  ones faster than any real data, and every matmul slower after some tenths of a second

A GPU that reaches its power limit lowers its clock. How soon depends on how many bits flip from one number to the next,
and on how long it has been busy. `isotherm bench` takes the fastest time of a matmul of normal numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isotherm.bench.ceilings import Repeated
from isotherm.bench.machine import commit, machine

SIZES = (4096, 8192, 16384)
NUMBERS: dict[str, Callable[..., Tensor]] = {"ones": torch.ones, "normal": torch.randn, "uniform": torch.rand}
SECONDS = 2.0


def measured(size: int, numbers: str, *, device: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the FLOP per second of bfloat16 matmuls: of the fastest window, and sustained over some seconds."""
    left, right = (NUMBERS[numbers](size, size, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    product = Repeated(lambda: torch.mm(left, right, out=out), device)
    flop = 2.0 * size**3
    least = product.least_seconds()
    num = max(1, int(seconds / least))
    return {
        "size": size,
        "numbers": numbers,
        "shortest_flop_per_second": flop / least,
        "sustained_flop_per_second": flop * num / product.time(num),
    }


def main() -> None:
    """Measure and print all matmuls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default=None, help="of the code, if it is not a checkout")
    arguments = parser.parse_args()
    start = time.perf_counter()
    rows = [measured(size, numbers, device="cuda") for size in SIZES for numbers in NUMBERS]
    for row in rows:
        shortest, sustained = (row[f"{kind}_flop_per_second"] / 1e12 for kind in ("shortest", "sustained"))
        print(f"{row['size']:6} {row['numbers']:8} {shortest:5.0f} TFLOP/s, {sustained:5.0f} over {SECONDS:g} s")
    print(f"{time.perf_counter() - start:.0f} s")
    if arguments.json is not None:
        content = {
            "machine": machine("cuda"),
            "commit": arguments.commit or commit(),
            "command": "python benchmarks/ceilings.py",
            "seconds": SECONDS,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
