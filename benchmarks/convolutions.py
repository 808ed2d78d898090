"""Are the convolution kernels correct, and how fast are they compared with cuDNN?

Run:     python benchmarks/convolutions.py --json results/convolutions.json     (--tune tries other tiles)
Cost:    about a minute of GPU; --tune two minutes more on 16 cores
Expect:  errors of one rounding to bfloat16; several times cuDNN's speed run by run at B = 64

Every convolution of WRN-16-4, in bfloat16 and channels last, in three directions. Ours are those of all runs at once.
cuDNN is timed run by run, and on one batch of the same size with one set of filters, which does not train many runs but
shows what the GPU can do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isotherm.kernels.availability import HAS_TRITON, in_gluon
from isotherm.kernels.tiling.convolution import Launch, RowWeightLaunch, WeightLaunch
from kernels import milliseconds

WAYS = ("forward", "input gradient", "weight gradient")
# Relative to the largest value: one rounding to bfloat16 is at most 2^-8 of a value; weight gradients are not rounded.
LARGEST_ERRORS = {"forward": 2**-8, "input gradient": 2**-8, "weight gradient": 1e-4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Equal convolutions of the network."""

    num_in: int
    num_out: int
    size: int
    taps: int
    stride: int
    num_layers: int

    @property
    def name(self) -> str:
        """The name in the tables."""
        return f"{self.num_in} to {self.num_out}, {self.taps} x {self.taps}, {self.size}² / {self.stride}"

    def flop(self, num_images: int) -> float:
        """Return the FLOP of one direction."""
        return 2.0 * num_images * (self.size // self.stride) ** 2 * self.taps**2 * self.num_in * self.num_out


def cases() -> list[Case]:
    """Return the 16 convolutions of WRN-16-4; the first one's three channels are padded to 16."""
    found = [Case(num_in=16, num_out=16, size=32, taps=3, stride=1, num_layers=1)]
    num_in, size = 16, 32
    for num_out, stride in ((64, 1), (128, 2), (256, 2)):
        for taps in (3, 1):
            found.append(Case(num_in=num_in, num_out=num_out, size=size, taps=taps, stride=stride, num_layers=1))
        num_in, size = num_out, size // stride
        found.append(Case(num_in=num_in, num_out=num_in, size=size, taps=3, stride=1, num_layers=3))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Images, filters and gradients of all runs."""

    x: Tensor
    weight: Tensor
    dy: Tensor
    stride: int
    padding: int

    def runs(self) -> Iterator[Inputs]:
        """Return the tensors of each run, without the first dimension."""
        for x, weight, dy in zip(self.x, self.weight, self.dy, strict=True):
            yield Inputs(x=x, weight=weight, dy=dy, stride=self.stride, padding=self.padding)

    def as_one_batch(self) -> Inputs:
        """Return all images with the first run's filters."""
        x, dy = self.x.flatten(0, 1), self.dy.flatten(0, 1)
        return Inputs(x=x, weight=self.weight[0], dy=dy, stride=self.stride, padding=self.padding)


def make_inputs(case: Case, num_runs: int, batch_size: int) -> Inputs:
    """Return random inputs."""
    generator = torch.Generator("cuda").manual_seed(0)

    def images(number: int, channels: int, size: int) -> Tensor:
        values = torch.randn(num_runs, number, size, size, channels, generator=generator, device="cuda")
        return values.bfloat16().permute(0, 1, 4, 2, 3)

    return Inputs(
        x=images(batch_size, case.num_in, case.size),
        weight=images(case.num_out, case.num_in, case.taps),
        dy=images(batch_size, case.num_out, case.size // case.stride),
        stride=case.stride,
        padding=case.taps // 2,
    )


def ours(way: str, given: Inputs, launch: Any = None) -> Tensor:
    """Return the results of our kernels for all runs."""
    from isotherm.kernels.triton import convolution, filter_gradient

    settings: dict[str, Any] = {"stride": given.stride, "padding": given.padding, "launch": launch}
    if way == "forward":
        return convolution.forward(given.x, given.weight, **settings)[0]
    if way == "input gradient":
        height, width = given.x.shape[3:]
        return convolution.input_gradient(given.dy, given.weight, size=(height, width), **settings)[0]
    if isinstance(launch, RowWeightLaunch):
        return in_gluon("row_convolution").weight_gradient(given.dy, given.x, launch=launch)  # type: ignore[union-attr]
    rows, columns = given.weight.shape[3:]
    return filter_gradient.weight_gradient(given.dy, given.x, taps=(rows, columns), **settings)


def library(way: str, given: Inputs) -> Tensor:
    """Return the result of PyTorch for one run."""
    if way == "forward":
        return torch.nn.functional.conv2d(given.x, given.weight, stride=given.stride, padding=given.padding)
    stride, padding = [given.stride] * 2, [given.padding] * 2
    wanted = [way == "input gradient", way == "weight gradient", False]
    found = torch.ops.aten.convolution_backward(
        given.dy, given.x, given.weight, None, stride, padding, [1, 1], False, [0, 0], 1, wanted
    )
    result: Tensor = found[0] if wanted[0] else found[1]
    return result


def error(way: str, given: Inputs) -> float:
    """Return the largest difference from float64, relative to the largest value, of the first and the last run."""
    found = ours(way, given)
    each = list(given.runs())
    worst = 0.0
    for place in (0, -1):
        one = each[place]
        wide = Inputs(
            x=one.x.double(), weight=one.weight.double(), dy=one.dy.double(), stride=one.stride, padding=one.padding
        )
        expected = library(way, wide)
        worst = max(worst, float((found[place].double() - expected).abs().max() / expected.abs().max()))
    return worst


def launches(way: str, given: Inputs) -> Iterator[Any]:
    """Return other launch parameters to try."""
    if way != "weight gradient":
        for pixels, channels, warps, stages in itertools.product((128, 256), (64, 128), (4, 8), (2, 3, 4)):
            if pixels * channels >= 64 * 128 and pixels * channels <= warps * 8192:
                yield Launch(pixels=pixels, channels=channels, num_warps=warps, num_stages=stages)
        return
    tiles = [(64, 64, True, 4), (64, 64, False, 4), (128, 64, True, 8), (128, 64, False, 4), (128, 128, False, 8)]
    tiles += [(128, 128, True, 8), (128, 256, False, 8), (64, 128, True, 4), (64, 128, True, 8)]
    for (outputs, inputs, row, warps), pixels, stages, programs in itertools.product(
        tiles, (64, 128), (3, 4), (16, 48)
    ):
        taps = 3 if row else 1
        if 2 * pixels * stages * (outputs + taps * inputs) <= 220 * 1024:
            yield WeightLaunch(
                pixels=pixels,
                outputs=outputs,
                inputs=inputs,
                takes_row=row,
                num_warps=warps,
                num_stages=stages,
                num_programs=programs,
            )
    by_rows = in_gluon("row_convolution")
    sizes = {"stride": given.stride, "padding": given.padding}
    if by_rows is not None and by_rows.fit(given.x, given.weight.shape[1], given.weight.shape[3:], **sizes):
        for outputs, stages, programs in itertools.product((64, 128), (3, 4), (16, 22, 32, 44)):
            if given.weight.shape[1] % outputs == 0:
                yield RowWeightLaunch(outputs=outputs, num_stages=stages, num_programs=programs)


def compile_for(case: Case, way: str) -> None:
    """Compile all kernels that tuning will time; Triton caches them on disk."""
    given = make_inputs(case, 1, 16)
    for launch in launches(way, given):
        try_launch(way, given, launch)


def try_launch(way: str, given: Inputs, launch: Any) -> bool:
    """Tell whether the launch parameters are possible at all."""
    try:
        ours(way, given, launch)
    except Exception as reason:  # too much shared memory, too many registers
        print(f"not possible: {way}, {launch}: {type(reason).__name__}")
        return False
    return True


def tune(num_runs: int, batch_size: int) -> list[dict[str, Any]]:
    """Return times of other launch parameters, fastest first for each case and direction."""
    jobs = [(case, way) for case in cases() if case.num_out > 16 and case.taps > 1 for way in WAYS]
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_for, *zip(*jobs, strict=True)))
    found = []
    for case, way in jobs:
        given = make_inputs(case, num_runs, batch_size)
        tried = []
        for launch in launches(way, given):
            if try_launch(way, given, launch):
                call = _bound(ours, way, given, launch)
                tried.append({"launch": asdict(launch), "ms": milliseconds([call], repeats=7)})
        tried.sort(key=lambda t: t["ms"])
        found.append({"case": case.name, "way": way, "tried": tried})
        speed = case.flop(num_runs * batch_size) / 1e9
        print(f"\n{case.name}, {way}")
        for t in tried[:5]:
            print(f"  {1e3 * t['ms']:7.1f} µs {speed / t['ms']:5.0f} TFLOP/s  {t['launch']}")
    return found


def _bound(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def row(case: Case, way: str, num_runs: int, batch_size: int) -> dict[str, Any]:
    """Return a direction's error and times."""
    given = make_inputs(case, num_runs, batch_size)
    found = error(way, given)
    each, together = list(given.runs()), given.as_one_batch()
    return {
        "case": case.name,
        "way": way,
        "num_layers": case.num_layers,
        "num_runs": num_runs,
        "batch_size": batch_size,
        "flop": case.flop(num_runs * batch_size),
        "error": found,
        "is_wrong": not found <= LARGEST_ERRORS[way],
        "ms": milliseconds([_bound(ours, way, given)]),
        "library_by_run_ms": num_runs * milliseconds([_bound(library, way, one) for one in each]),
        "library_as_one_ms": milliseconds([_bound(library, way, together)]),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print times and speeds, and the totals over the network."""
    sides = ("ms", "library_by_run_ms", "library_as_one_ms")
    for num_runs, batch_size in sorted({(r["num_runs"], r["batch_size"]) for r in rows}):
        print(f"\n{num_runs} runs, B = {batch_size}: microseconds (TFLOP/s)")
        print(f"{'layers, case':34}{'':17}{'ours':>13}{'cuDNN by run':>15}{'as one':>13}   error")
        chosen = [r for r in rows if (r["num_runs"], r["batch_size"]) == (num_runs, batch_size)]
        for r in chosen:
            times = "".join(f"{1e3 * r[side]:8.1f} ({r['flop'] / 1e9 / r[side]:3.0f})" for side in sides)
            verdict = "  WRONG" if r["is_wrong"] else ""
            print(f"{r['num_layers']} of {r['case']:30}{r['way']:16}{times}   {r['error']:.0e}{verdict}")
        in_all = [sum(r["num_layers"] * r[side] for r in chosen) for side in sides]
        flop = sum(r["num_layers"] * r["flop"] for r in chosen)
        print("all: " + ", ".join(f"{total:.3f} ms ({flop / 1e9 / total:.0f} TFLOP/s)" for total in in_all))


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--tune", action="store_true", help="also try other launch parameters")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=[64], nargs="+")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not HAS_TRITON:
        sys.exit("the kernels need a CUDA device and Triton")
    torch.backends.cudnn.benchmark = True
    report: dict[str, Any] = {
        "command": "python benchmarks/convolutions.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": options.commit,
        "rows": [],
        "tuning": [],
    }

    def write() -> None:  # early, so that no measurement is lost
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    for batch_size, case, way in itertools.product(options.batch_size, cases(), WAYS):
        report["rows"].append(row(case, way, options.runs, batch_size))
        write()
    show(report["rows"])
    if options.tune:
        report["tuning"] = tune(options.runs, options.batch_size[0])
        write()
    if any(r["is_wrong"] for r in report["rows"]):
        sys.exit("some results are wrong")


if __name__ == "__main__":
    main()
