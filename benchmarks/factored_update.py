"""Is the factored update correct on a GPU, how fast is it, and up to which batch size does it pay?

Run:     python benchmarks/factored_update.py --json results/factored_update.json
Cost:    about two minutes of GPU, most of it compilation
Expect:  at B = 64 three quarters of copy speed; at large B cuBLAS matmuls and a compiled update are faster

All matrices of the autoencoder in 35 runs, as a fleet updates them: matmuls in bfloat16, weights and velocities in
float32, bfloat16 copies of the weights. The alternative is cuBLAS for the gradients and one update compiled by
Inductor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isotherm.engine.graph.step_graph import aligned
from isotherm.engine.parameters import gradient_of_factors
from isotherm.engine.update_rules import heavy_ball
from isotherm.kernels import availability

WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
NUM_RUNS = 35
BATCH_SIZES = (64, 128, 256, 512, 1024)
# Old and new weights and velocities in float32, and the bfloat16 weights.
BYTES_PER_WEIGHT = 18


class Layer(NamedTuple):
    """A matrix of all runs, and the factors of its gradient as a program passes them on."""

    value: Tensor
    velocity: Tensor
    half: Tensor
    left: Tensor
    right: Tensor


def layers(batch_size: int, *, num_runs: int = NUM_RUNS, widths: tuple[int, ...] = WIDTHS) -> list[Layer]:
    """Return the network's matrices with random values."""
    made = []
    for num_in, num_out in pairwise(map(aligned, widths)):
        value, velocity = (torch.randn(num_runs, num_out * num_in, device="cuda") for _ in range(2))
        outer = torch.randn(num_runs, batch_size, num_out, device="cuda", dtype=torch.bfloat16)
        inner = torch.randn(num_runs, batch_size, num_in, device="cuda", dtype=torch.bfloat16)
        made.append(Layer(value, velocity, value.bfloat16(), outer.transpose(1, 2), inner))
    return made


def by_kernel(layer: Layer, rate_M1: Tensor, momentum_M1: Tensor, tile: Any) -> None:
    """Update with the Triton kernel."""
    from isotherm.kernels.triton.factored_update import update

    shape = len(layer.value), layer.left.shape[1], layer.right.shape[2]
    states = [t.view(shape) for t in layer[:3]]
    update(*states, layer.left, layer.right, rate_M1, momentum_M1, None, tile=tile)


def by_stream(layer: Layer, rate_M1: Tensor, momentum_M1: Tensor, **options: int) -> None:
    """Update with the streamed kernel where it supports the matrix, else with the Triton kernel."""
    streamed = availability.in_gluon("streamed_update")
    shape = len(layer.value), layer.left.shape[1], layer.right.shape[2]
    states = [t.view(shape) for t in layer[:3]]
    if streamed is None or not streamed.fits(states[0], layer.left, layer.right):
        by_kernel(layer, rate_M1, momentum_M1, None)
        return
    streamed.update(*states, layer.left, layer.right, rate_M1, momentum_M1, None, **options)


def by_torch(layer: Layer, rate_M1: Tensor, momentum_M1: Tensor) -> None:
    """Update as a program without the kernel does."""
    gradient = gradient_of_factors(layer.left, layer.right).to(layer.velocity.dtype)
    heavy_ball(layer.value, layer.velocity, gradient, rate_M1, momentum_M1, None)
    layer.half.copy_(layer.value)


def microseconds(work: Callable[[], object], *, repeats: int = 7, num: int = 10) -> float:
    """Return the time of a call captured as a CUDA graph: the median of several measurements."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(num):
            work()
    times = []
    for _ in range(repeats + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / num)
    return statistics.median(times[1:])


def copy_bytes_per_second() -> float:
    """Return how fast a simple kernel reads and writes together; a captured copy takes a slower path."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2e6 * source.numel() * source.element_size() / microseconds(lambda: torch.neg(source, out=target))


def largest_error(batch_size: int) -> float:
    """Return the largest difference of the velocities, in bfloat16 roundings of the gradient."""
    rate_M1, momentum_M1 = (torch.full((NUM_RUNS, 1), x, device="cuda") for x in (0.01, 0.9))
    worst = 0.0
    for ours in layers(batch_size):
        theirs = Layer(*(t.clone() for t in ours))
        gradient = gradient_of_factors(ours.left, ours.right).float()
        by_kernel(ours, rate_M1, momentum_M1, None)  # as it is used
        by_torch(theirs, rate_M1, momentum_M1)
        rounding = 2**-8 * gradient.abs() + 1e-5
        worst = max(worst, float(((ours.velocity - theirs.velocity).abs() / rounding).max()))
        # A value may be computed once for each of its two dtypes, and then differ in the last bit.
        if float((ours.half != ours.value.bfloat16()).double().mean()) > 1e-3:
            sys.exit("the bfloat16 weights do not match the weights")
    return worst


def row(batch_size: int, tiles: list[Any], compiled: Callable[..., None], copy: float) -> dict[str, Any]:
    """Return the times at a batch size, for every tile and for the compiled update."""
    rate_M1, momentum_M1 = (torch.full((NUM_RUNS, 1), x, device="cuda") for x in (0.0, 0.9))
    made = layers(batch_size)
    num_bytes = BYTES_PER_WEIGHT * sum(layer.value.numel() for layer in made)

    def all_by(tile: Any) -> Callable[[], object]:
        return lambda: [by_kernel(layer, rate_M1, momentum_M1, tile) for layer in made]

    def all_by_stream(options: dict[str, int]) -> Callable[[], object]:
        return lambda: [by_stream(layer, rate_M1, momentum_M1, **options) for layer in made]

    tried = [{"tile": asdict(tile), "microseconds": microseconds(all_by(tile))} for tile in tiles]
    streamed = []
    if batch_size == BATCH_SIZES[0]:
        for num_stages, programs in ((2, 2), (2, 1), (3, 1)):
            options = {"num_stages": num_stages, "programs_at_once": programs}
            streamed.append(options | {"microseconds": microseconds(all_by_stream(options))})
    other = microseconds(lambda: [compiled(layer, rate_M1, momentum_M1) for layer in made])
    return {
        "batch_size": batch_size,
        "error_in_roundings": largest_error(batch_size),
        "floor_microseconds": 1e6 * num_bytes / copy,
        "products_and_compiled_update_microseconds": other,
        "kernel": tried,
        "streamed": streamed,
    }


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--tune", action="store_true", help="also try other tiles")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not availability.HAS_TRITON:
        sys.exit("the kernel needs a CUDA device and Triton")
    from isotherm.kernels.triton.factored_update import TILE, Tile

    tiles = [TILE]
    if options.tune:
        shapes = itertools.product((16, 32, 64), (64, 128), (4, 8))
        tiles += [Tile(rows=r, columns=c, num_warps=w) for r, c, w in shapes if 8 <= r * c // (32 * w) <= 32]
    tiles = list(dict.fromkeys(tiles))
    copy = copy_bytes_per_second()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; a copy moves {copy / 1e12:.2f} TB/s")
    compiled = torch.compile(by_torch, dynamic=True)
    report: dict[str, Any] = {
        "command": "python benchmarks/factored_update.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": options.commit,
        "copy_bytes_per_second": copy,
        "num_runs": NUM_RUNS,
        "rows": [],
    }
    for batch_size in BATCH_SIZES:
        found = row(batch_size, tiles if batch_size == BATCH_SIZES[0] else tiles[:1], compiled, copy)
        report["rows"].append(found)
        print(
            f"B = {batch_size}: floor {found['floor_microseconds']:.0f} µs, products and compiled update "
            f"{found['products_and_compiled_update_microseconds']:.0f} µs, error {found['error_in_roundings']:.2f}"
        )
        for tried in found["kernel"]:
            print(f"  kernel {tried['microseconds']:7.1f} µs  {tried['tile']}")
        for tried in found["streamed"]:
            print(f"  streamed {tried['microseconds']:5.1f} µs  {tried['num_stages']}, {tried['programs_at_once']}")
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
