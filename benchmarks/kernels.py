"""Are the ghost batch norm kernels correct, and how fast are they compared with Inductor and with memory bandwidth?

Run:     python benchmarks/kernels.py --json results/kernels.json     (--tune tries other launch parameters)
Cost:    about two minutes of GPU, most of it Inductor's compilation (--no-inductor); --tune a few minutes more
Expect:  float32 errors in the sums and errors of one rounding to bfloat16 elsewhere; times near the floor at B = 1024

Every normalisation of WRN-16-4 at two batch sizes, in bfloat16, with ReLU and channels last. Inputs alternate among
sets larger than the cache. Inductor compiles the plain layer with the residual adds around it, forward and backward
separately, as in a network. The floor is our kernels' memory traffic at copy speed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.kernels import availability
from isotherm.kernels.tiling.ghost_norm import LAUNCH, Launch, Split
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

GHOST = 64
EPS = 1e-5
BATCH_SIZES = (64, 1024)
# Larger than the L2 cache of any GPU we know of.
BYTES_OF_SETS = 512 * 2**20
# Relative to the largest value: one rounding to bfloat16 is at most 2^-8 of a value.
LARGEST_ERRORS = {"x": 0.0, "y": 2**-8, "dx": 2**-8, "mean": 1e-5, "var": 1e-5, "dweight": 1e-4, "dbias": 1e-4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Equal normalisations of the network: `adds_before` a residual, `adds_after` the gradient of a shortcut."""

    num_channels: int
    size: int
    num_layers: int
    adds_before: bool
    adds_after: bool

    @property
    def name(self) -> str:
        """The name in the tables."""
        sums = "a + b" if self.adds_before else "x"
        return f"{self.num_channels} x {self.size}², {sums}{', dx + g' if self.adds_after else ''}"

    def shape(self, batch_size: int) -> tuple[int, int, int, int]:
        """Return the shape of a batch."""
        return batch_size, self.num_channels, self.size, self.size

    def num_bytes(self, batch_size: int) -> int:
        """Return the size of a batch in bfloat16."""
        return 2 * math.prod(self.shape(batch_size))

    @property
    def passes(self) -> tuple[int, int]:
        """The number of reads and writes of a whole batch, forward and backward."""
        return 5 if self.adds_before else 3, 6 if self.adds_after else 5


def cases() -> list[Case]:
    """Return the 13 normalisations of WRN-16-4."""
    first = Case(num_channels=16, size=32, num_layers=1, adds_before=False, adds_after=False)
    kinds = [(2, False, False), (1, True, False), (1, True, True)]
    return [first] + [
        Case(num_channels=c, size=s, num_layers=n, adds_before=before, adds_after=after)
        for c, s in ((64, 32), (128, 16), (256, 8))
        for n, before, after in kinds
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The inputs of a layer in both directions."""

    a: Tensor
    b: Tensor | None
    dy: Tensor
    other: Tensor | None
    weight: Tensor
    bias: Tensor

    @property
    def x(self) -> Tensor:
        """The tensor to normalise."""
        return self.a if self.b is None else self.a + self.b


def make_inputs(case: Case, batch_size: int, *, seed: int, device: str) -> Inputs:
    """Return random inputs."""
    generator = torch.Generator(device).manual_seed(seed)

    def batch(mean: float = 0.0) -> Tensor:
        values = torch.randn(case.shape(batch_size), generator=generator, device=device).add_(mean)
        return values.bfloat16().contiguous(memory_format=torch.channels_last)

    def vector(mean: float) -> Tensor:
        return mean + 0.2 * torch.randn(case.num_channels, generator=generator, device=device)

    return Inputs(
        a=batch(0.5),
        b=batch() if case.adds_before else None,
        dy=batch(),
        other=batch() if case.adds_after else None,
        weight=vector(1.0),
        bias=vector(0.0),
    )


# -- correctness ------------------------------------------------------------------------------------------------------


def errors(case: Case, batch_size: int, *, device: str) -> dict[str, float]:
    """Return the largest differences from float64, relative to the largest value."""
    from isotherm.kernels.triton import ghost_norm as kernels

    given = make_inputs(case, batch_size, seed=0, device=device)
    x = given.x.double().requires_grad_()
    norm = plain_layer(case, given).double()
    pre_activation = norm(x)
    # Where rounding decides the sign before the ReLU, the gradient is ignored.
    dy = torch.where(pre_activation.abs() < 1e-4, 0, given.dy)
    expected_y = torch.relu(pre_activation)
    dx, dweight, dbias = torch.autograd.grad(expected_y, [x, norm.weight, norm.bias], dy.double())
    ghosts = x.detach().view(-1, min(GHOST, batch_size), *x.shape[1:])
    expected = {
        "x": x.detach(),
        "y": expected_y.detach(),
        "mean": ghosts.mean(dim=(1, 3, 4)),
        "var": ghosts.var(dim=(1, 3, 4), correction=0),
        "dx": dx if given.other is None else dx + given.other.double(),
        "dweight": dweight,
        "dbias": dbias,
    }
    total, y, mean, var = kernels.forward(
        given.a, given.weight, given.bias, num_ghosts=len(ghosts), eps=EPS, relu=True, other=given.b
    )
    ours_dx, weight_GC, bias_GC = kernels.backward(
        dy, total, mean, var, given.weight, given.bias, eps=EPS, relu=True, other=given.other
    )
    ours = {
        "x": total,
        "y": y,
        "mean": mean,
        "var": var,
        "dx": ours_dx,
        "dweight": weight_GC.sum(0),
        "dbias": bias_GC.sum(0),
    }
    return {
        name: float((ours[name].double() - value).abs().max() / value.abs().max()) for name, value in expected.items()
    }


def plain_layer(case: Case, given: Inputs, *, activation: Any = None) -> GhostBatchNorm2d:
    """Return the layer with the parameters of some inputs."""
    norm = GhostBatchNorm2d(case.num_channels, ghost_size=GHOST, eps=EPS, activation=activation).to(given.a.device)
    with torch.no_grad():
        norm.weight.copy_(given.weight)
        norm.bias.copy_(given.bias)
    return norm


# -- speed ------------------------------------------------------------------------------------------------------------


class PlainSide(nn.Module):
    """The layer and the residual add before it, for Inductor."""

    def __init__(self, norm: GhostBatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the normalised tensor and the result."""
        x = a if b is None else a + b
        return x, self.norm(x)


def milliseconds(functions: Sequence[Callable[[], Any]], *, repeats: int = 15) -> float:
    """Return the median time of one call; the functions, one per set of inputs, are captured and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for function in functions:
                function()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for function in functions:
            function()
    times = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(functions))
    return statistics.median(times[3:])


def num_sets(case: Case, batch_size: int) -> int:
    """Return how many sets of inputs exceed the cache."""
    return max(2, min(24, -(-BYTES_OF_SETS // (4 * case.num_bytes(batch_size)))))


def time_kernels(case: Case, batch_size: int, *, device: str, launch: Launch = LAUNCH) -> tuple[float, float]:
    """Return milliseconds forward and backward."""
    from isotherm.kernels.triton import ghost_norm as kernels

    sets = [make_inputs(case, batch_size, seed=s, device=device) for s in range(num_sets(case, batch_size))]
    num_ghosts = max(1, batch_size // GHOST)

    def forward(given: Inputs) -> tuple[Tensor, ...]:
        return kernels.forward(
            given.a,
            given.weight,
            given.bias,
            num_ghosts=num_ghosts,
            eps=EPS,
            relu=True,
            other=given.b,
            launch=launch,
        )

    saved = [forward(given) for given in sets]

    def backward(given: Inputs, kept: tuple[Tensor, ...]) -> None:
        x, _, mean, var = kept
        kernels.backward(
            given.dy,
            x,
            mean,
            var,
            given.weight,
            given.bias,
            eps=EPS,
            relu=True,
            other=given.other,
            launch=launch,
        )

    return (
        milliseconds([lambda given=given: forward(given) for given in sets]),
        milliseconds(
            [lambda given=given, kept=kept: backward(given, kept) for given, kept in zip(sets, saved, strict=True)]
        ),
    )


def time_inductor(case: Case, batch_size: int, *, device: str) -> tuple[float, float]:
    """Return milliseconds forward and backward of the compiled plain layer."""
    sets = [make_inputs(case, batch_size, seed=s, device=device) for s in range(num_sets(case, batch_size))]
    module = PlainSide(plain_layer(case, sets[0], activation="relu")).train()
    torch._dynamo.reset()
    compiled = torch.compile(module, dynamic=False, fullgraph=True)
    for given in sets:
        given.a.requires_grad_()
    parameters = [module.norm.weight, module.norm.bias]

    def forward(given: Inputs) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = compiled(given.a, given.b)
        return result

    def both(given: Inputs) -> None:
        x, y = forward(given)
        if given.other is None:
            torch.autograd.grad(y, [given.a, *parameters], given.dy)
        else:
            torch.autograd.grad([x, y], [given.a, *parameters], [given.other, given.dy])

    had, availability.HAS_TRITON = availability.HAS_TRITON, False
    try:
        in_all = milliseconds([lambda given=given: both(given) for given in sets])
        forwards = milliseconds([lambda given=given: forward(given) for given in sets])
    finally:
        availability.HAS_TRITON = had
    return forwards, in_all - forwards


def bytes_per_millisecond(*, device: str, num_bytes: int = 2**30) -> float:
    """Return how fast a simple kernel reads and writes; a captured copy takes a slower path."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / milliseconds([lambda: torch.neg(source, out=target)])


def row(case: Case, batch_size: int, speed: float, *, device: str, inductor: bool) -> dict[str, Any]:
    """Return a case's errors and times."""
    found = errors(case, batch_size, device=device)
    split = Split.of(
        num_ghosts=max(1, batch_size // GHOST),
        num_rows=min(GHOST, batch_size) * case.size**2,
        num_channels=case.num_channels,
    )
    times = {
        "": time_kernels(case, batch_size, device=device),
        "floor_": tuple(n * case.num_bytes(batch_size) / speed for n in case.passes),
        "inductor_": time_inductor(case, batch_size, device=device) if inductor else (math.nan, math.nan),
    }
    return {
        "case": case.name,
        "batch_size": batch_size,
        "num_layers": case.num_layers,
        "errors": found,
        "wrong": [name for name, most in LARGEST_ERRORS.items() if not found[name] <= most],
        **{f"{side}forward_ms": forward for side, (forward, _) in times.items()},
        **{f"{side}backward_ms": backward for side, (_, backward) in times.items()},
        "split": asdict(split),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table for every batch size, and the totals over the network."""
    sides = ("", "floor_", "inductor_")
    for batch_size in sorted({r["batch_size"] for r in rows}):
        print(f"\nB = {batch_size}: microseconds, and errors relative to the largest value")
        columns = ["forward", "floor", "Induct.", " backw.", "floor", "Induct."]
        print(f"{'layers, case':30}{''.join(f'{c:>8}' for c in columns)}   errors")
        ours = [r for r in rows if r["batch_size"] == batch_size]
        for r in ours:
            times = [1e3 * r[f"{side}{way}_ms"] for way in ("forward", "backward") for side in sides]
            numbers = "".join(f"{t:8.1f}" + (" " if place == 2 else "") for place, t in enumerate(times))
            found = " ".join(f"{name} {value:.0e}" for name, value in r["errors"].items())
            verdict = f"  WRONG: {', '.join(r['wrong'])}" if r["wrong"] else ""
            print(f"{r['num_layers']} of {r['case']:25}{numbers}  {found}{verdict}")
        totals = {
            side: sum(r["num_layers"] * (r[f"{side}forward_ms"] + r[f"{side}backward_ms"]) for r in ours)
            for side in sides
        }
        print(
            f"all {sum(r['num_layers'] for r in ours)} layers of an update: {totals['']:.3f} ms, "
            f"floor {totals['floor_']:.3f} ms, Inductor {totals['inductor_']:.3f} ms"
        )


def tune(*, device: str) -> list[dict[str, Any]]:
    """Return times of other launch parameters, fastest first for each shape."""
    found = []
    for case, batch_size in itertools.product((c for c in cases() if not c.adds_before), BATCH_SIZES):
        tried = []
        for values, warps, programs in itertools.product((512, 1024), (4, 8), (512, 1024, 2048)):
            launch = Launch(values_per_warp=values, num_warps=warps, num_programs=programs)
            forward, backward = time_kernels(case, batch_size, device=device, launch=launch)
            tried.append({"launch": asdict(launch), "forward_ms": forward, "backward_ms": backward})
        tried.sort(key=lambda t: t["forward_ms"] + t["backward_ms"])
        found.append({"case": case.name, "batch_size": batch_size, "tried": tried})
        print(f"\n{case.name}, B = {batch_size}")
        for t in tried:
            marked = "  <- in use" if t["launch"] == asdict(LAUNCH) else ""
            print(f"  {1e3 * t['forward_ms']:7.1f} {1e3 * t['backward_ms']:7.1f} µs  {t['launch']}{marked}")
    return found


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--tune", action="store_true", help="also try other launch parameters")
    parser.add_argument("--no-inductor", action="store_true", help="time the kernels only, without compiling")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not availability.HAS_TRITON:
        sys.exit("the kernels need a CUDA device and Triton")
    device = "cuda"
    speed = bytes_per_millisecond(device=device)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; a copy moves {speed / 1e9:.2f} TB/s")
    report: dict[str, Any] = {
        "command": "python benchmarks/kernels.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": options.commit,
        "copy_bytes_per_second": 1e3 * speed,
        "rows": [],
        "tuning": [],
    }

    def write() -> None:  # early, so that no measurement is lost
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    for batch_size, case in itertools.product(BATCH_SIZES, cases()):
        report["rows"].append(row(case, batch_size, speed, device=device, inductor=not options.no_inductor))
        write()
    show(report["rows"])
    if options.tune:
        report["tuning"] = tune(device=device)
        write()
    if any(r["wrong"] for r in report["rows"]):
        sys.exit("some results are wrong")


if __name__ == "__main__":
    main()
