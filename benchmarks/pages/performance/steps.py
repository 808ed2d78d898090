"""What was tried on a GPU and what it gained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isotherm.bench.workloads import Workload
from pages.performance.bench import bench_row
from pages.performance.profiles import (
    AE,
    AE_LARGE,
    APART,
    BEFORE_BFLOAT16_WEIGHTS,
    BEFORE_CELL,
    BEFORE_FACTORS,
    BEFORE_FUSED_ACTIVATIONS,
    BEFORE_PREFETCH,
    BY_DESCENT,
    BY_INDUCTOR,
    BY_LT,
    LSTM,
    OLD_BENCH,
    ON_STREAMS,
    PADDED_ROWS,
    SKIP_INIT,
    STREAMS,
    WRN,
    gpu_workloads,
    profile,
    speed_of,
)
from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, signed, table


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something that was tried, with the rows before and after it."""

    label: str
    what: str
    before: Callable[[], Row | None]
    after: Callable[[], Row | None]


def _profile(label: str, note: str | None = None, num_runs: int | None = None) -> Callable[[], Row | None]:
    return lambda: profile(label, note=note, num_runs=num_runs)


def _bench(label: str, commit: str | None = None) -> Callable[[], Row | None]:
    return lambda: bench_row(label, commit=commit)


# Commits of earlier `isotherm bench` runs.
CELL_COMMIT, STREAM_COMMIT, TAP_COMMIT, CUDNN_COMMIT = "f52dc57", "edfb9de", "07054dd", "5ca7caa"
ROW_COMMIT, TILE_COMMIT = "db578d2", "7a26ac2"
WRN_28 = "wrn28x10_cifar100:128"
TOGETHER = "convolutions of all runs at once by kernels, instead of streams"
BFLOAT16_WEIGHTS = "matmuls on bfloat16 weights (below)"
STEPS = (
    Step(
        label=AE,
        what=BFLOAT16_WEIGHTS,
        before=_profile(AE, BEFORE_BFLOAT16_WEIGHTS),
        after=_profile(AE, BEFORE_FACTORS),
    ),
    Step(
        label=AE_LARGE,
        what=BFLOAT16_WEIGHTS,
        before=_profile(AE_LARGE, BEFORE_BFLOAT16_WEIGHTS),
        after=_profile(AE_LARGE, OLD_BENCH),
    ),
    Step(
        label=LSTM,
        what=BFLOAT16_WEIGHTS,
        before=_profile(LSTM, BEFORE_BFLOAT16_WEIGHTS),
        after=_profile(LSTM, BEFORE_CELL),
    ),
    Step(
        label=AE,
        what="fused kernel for gradients and updates of matrices",
        before=_profile(AE, OLD_BENCH),
        after=_bench(AE, CELL_COMMIT),
    ),
    Step(
        label=AE,
        what="four updates per CUDA graph",
        before=_bench(AE, STREAM_COMMIT),
        after=_bench(AE, TAP_COMMIT),
    ),
    Step(
        label=AE,
        what="streamed updates, one kernel for all bias gradients",
        before=_bench(AE, TAP_COMMIT),
        after=_bench(AE, TILE_COMMIT),
    ),
    *(
        Step(label=AE_LARGE, what=what, before=_profile(AE_LARGE, before), after=_profile(AE_LARGE, after))
        for what, before, after in (
            ("fused activations, with bias gradients", BEFORE_FUSED_ACTIVATIONS, BEFORE_PREFETCH),
            ("batches of the next update window prefetched", BEFORE_PREFETCH, None),
            ("rows padded to multiples of 32 bytes, activations by whole rows; not kept", None, PADDED_ROWS),
            ("the same, with compiled kernels tuned by coordinate descent; not kept", PADDED_ROWS, BY_DESCENT),
            ("matmuls by cuBLASLt; not kept", None, BY_LT),
        )
    ),
    Step(
        label=LSTM,
        what="LSTM cell kernels",
        before=_profile(LSTM, BEFORE_CELL),
        after=_bench(LSTM, CELL_COMMIT),
    ),
    Step(
        label=f"{WRN}:1024",
        what="Triton kernels for ghost batch norm instead of Inductor's",
        before=_profile(f"{WRN}:1024", BY_INDUCTOR),
        after=_profile(f"{WRN}:1024", ON_STREAMS),
    ),
    Step(
        label=f"{WRN}:64",
        what="12 streams instead of 4, one run on each",
        before=_profile(f"{WRN}:64", ON_STREAMS, num_runs=4),
        after=_profile(f"{WRN}:64", ON_STREAMS, num_runs=12),
    ),
    Step(
        label=f"{WRN}:64",
        what=f"{TOGETHER}; 12 runs",
        before=_profile(f"{WRN}:64", ON_STREAMS, num_runs=12),
        after=_profile(f"{WRN}:64", APART),
    ),
    Step(
        label=f"{WRN}:64",
        what="sums of ghost batch norm fused into convolutions; 12 runs",
        before=_profile(f"{WRN}:64", APART),
        after=_profile(f"{WRN}:64", num_runs=12),
    ),
    Step(
        label=f"{WRN}:64",
        what="24 runs instead of 12",
        before=_profile(f"{WRN}:64", num_runs=12),
        after=_bench(f"{WRN}:64", TAP_COMMIT),
    ),
    Step(
        label=SKIP_INIT,
        what=f"{TOGETHER}; 12 runs",
        before=_profile(SKIP_INIT, ON_STREAMS),
        after=_profile(SKIP_INIT, APART),
    ),
    Step(
        label=SKIP_INIT,
        what="sums over images in memory order; 12 runs",
        before=_profile(SKIP_INIT, APART),
        after=_profile(SKIP_INIT),
    ),
    Step(
        label=SKIP_INIT, what="24 runs instead of 12", before=_profile(SKIP_INIT), after=_bench(SKIP_INIT, TAP_COMMIT)
    ),
    Step(
        label=SKIP_INIT,
        what="rows of pixels read once for three taps, also with few channels",
        before=_bench(SKIP_INIT, TAP_COMMIT),
        after=_bench(SKIP_INIT),
    ),
    Step(
        label=f"{WRN}:1024",
        what="all of the above, 3 runs at once",
        before=_bench(f"{WRN}:1024", STREAM_COMMIT),
        after=_bench(f"{WRN}:1024", TAP_COMMIT),
    ),
    *(
        Step(label=label, what=what, before=_bench(label, before), after=_bench(label, after))
        for label in (f"{WRN}:64", f"{WRN}:1024")
        for what, before, after in (
            ("rows of pixels read once for three taps", TAP_COMMIT, ROW_COMMIT),
            ("also with few channels", ROW_COMMIT, None),
        )
    ),
    Step(
        label=WRN_28,
        what="our convolutions, also with 160 channels, instead of streams and cuDNN's",
        before=_bench(WRN_28, STREAM_COMMIT),
        after=_bench(WRN_28),
    ),
    Step(
        label=f"{WRN}:8192",
        what="our convolutions instead of cuDNN's, one run",
        before=_bench(f"{WRN}:8192", CUDNN_COMMIT),
        after=_bench(f"{WRN}:8192"),
    ),
    *(
        Step(label=label, what=f"{new} instead of one fleet", before=_profile(label, old), after=_profile(label, new))
        for label, old, new in zip((AE, AE, LSTM), (BEFORE_FACTORS, BEFORE_FACTORS, BEFORE_CELL), STREAMS, strict=True)
    ),
)


def steps_block() -> str:
    """Return what was tried on a GPU and what it gained."""
    if load("profiles_h200") is None:
        return NOT_MEASURED
    workloads = {workload.label: workload for workload in gpu_workloads()}
    lines = []
    for step in STEPS:
        workload, before, after = workloads[step.label], step.before(), step.after()
        if before is None or after is None:
            continue
        (first, first_text), (second, second_text) = (_windows(row, workload) for row in (before, after))
        lines.append(
            (
                f"{workload.task}, B = {workload.batch_size:,}",
                step.what,
                first_text,
                second_text,
                f"{signed(100 * (second / first - 1), 0)} %",
                f"{before['commit']}, {after['commit']}",
            )
        )
    header = ("workload", "change", "before", "after", "gain", "commits")
    remark = """Run-steps/s, images/s for Wide-ResNets: median, with lowest and highest window if recorded. Commits
        f52dc57, edfb9de, 07054dd, 5ca7caa and db578d2 are `isotherm bench`, and so are the autoencoder at 2cabd47
        except for the first row, that at B = 64 at 7a26ac2, and Wide-ResNets at 0ff90b3 and 6c3145f; all others are
        profiles. The last two commits include other changes too, the later one prefetched batches. At f27878c another
        process used the GPU at times, so that gain is underestimated and the next one overestimated."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _windows(row: Row, workload: Workload) -> tuple[float, str]:
    """Return a median in the workload's unit, and as text with the lowest and the highest window."""
    if "windows" not in row:  # of `isotherm bench`
        median, low, high = row["ours"], row["lowest"], row["highest"]
    else:
        median, factor = speed_of(row, workload), workload.units_per_step
        if not row["windows"]:
            return median, f"{median:,.0f}"
        low, high = factor * min(row["windows"]), factor * max(row["windows"])
    return median, f"{median:,.0f} [{low:,.0f}, {high:,.0f}]"
