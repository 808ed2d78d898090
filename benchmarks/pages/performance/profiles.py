"""Results of benchmarks/profile_fleet.py: speed, memory and kernels of workloads on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.bench.workloads import WORKLOADS, Workload
from pages.performance.bench import bench_row
from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, percent, table

# Kinds of kernels, by parts of their names. Convolutions are cuDNN's or ours, matmuls are cuBLAS's; Inductor names its
# kernels after the operations in them, and only the optimiser's have an addcmul.
GROUPS: dict[str, tuple[str, ...]] = {
    "convolutions": ("xmma", "cutlass", "convolve", "implicit_gemm", "_sum_gradients", "sum_rows"),
    "matmuls": ("nvjet",),
    "optimiser": ("addcmul",),
    "softmax": ("softmax",),
    "other elementwise": ("triton_",),
    "reductions": ("reduce_kernel",),
}
GHOST_NORM = ("_moments", "_normalise", "_gradient_sums", "_input_gradient")
# Our own kernels, by their full names.
OWN: dict[str, tuple[str, ...]] = {
    "ghost batch norm": GHOST_NORM,
    "gradient and update": ("_update", "_update_stream"),
    "LSTM cell": ("_forward", "_backward"),
}
# In the autoencoder the same names, and one like that of a convolution kernel, mean other kernels.
OF_AUTOENCODER: dict[str, tuple[str, ...]] = {"activations": ("_forward", "_backward"), "reductions": ("_sum_rows",)}
# Notes of rows that were not measured with the current code.
BEFORE_BFLOAT16_WEIGHTS = "before matmuls on bfloat16 weights"
BEFORE_FACTORS = "before factored updates"
BEFORE_CELL = "before LSTM cell kernels"
OLD_BENCH = "by the benchmark at 2cabd47"
BEFORE_FUSED_ACTIVATIONS = "before fused activations for large batches"
BEFORE_PREFETCH = "before batches were prefetched"
PADDED_ROWS = "rows padded to multiples of 32 bytes, activations by whole rows"
BY_LT = "matmuls by cuBLASLt"
BY_DESCENT = "the same, with compiled kernels tuned by coordinate descent"
BY_INDUCTOR = "ghost batch norm by Inductor"
ON_STREAMS = "each run on its own stream"
APART = "convolutions of all runs at once, norms separate; another process used the GPU at times"
OF_AUTOENCODER_LARGE = (BEFORE_FUSED_ACTIVATIONS, BEFORE_PREFETCH, PADDED_ROWS, BY_LT, BY_DESCENT)
STREAMS = ("two fleets of 18 on two streams", "four fleets of 9 on four streams", "two fleets of 11 on two streams")
# Workloads used by other blocks.
AE, AE_LARGE, LSTM = "autoencoder_mnist:64", "autoencoder_mnist:4096", "lstm_ptb:64"
WRN = "wrn16x4_cifar10"
SKIP_INIT = "wrn16x4_skipinit_cifar10:64"


def group_of(kernel: str, label: str = "") -> str:
    """Return what a kernel of a workload does, in plain words.

    >>> group_of("nvjet_sm90_tst_128x128_64x6_1x2_h_bz_NTT"), group_of("_moments"), group_of("memset")
    ('matmuls', 'ghost batch norm', 'other')
    >>> group_of("_forward", "lstm_ptb:64"), group_of("_forward", "autoencoder_mnist:4096")
    ('LSTM cell', 'activations')
    """
    ours = {**OF_AUTOENCODER, **OWN} if label.startswith("autoencoder") else OWN
    own = next((name for name, kernels in ours.items() if kernel in kernels), None)
    return own or next((name for name, parts in GROUPS.items() if any(part in kernel for part in parts)), "other")


def shares(kernels: Sequence[Row], label: str = "") -> dict[str, float]:
    """Return the percentages of kernel time by group, largest first, with the unlisted remainder.

    >>> shares([{"name": "nvjet_a", "percent": 30.0}, {"name": "_moments", "percent": 50.0}])
    {'ghost batch norm': 50.0, 'matmuls': 30.0, 'not listed': 20.0}
    """
    found: dict[str, float] = {}
    for kernel in kernels:
        name = group_of(kernel["name"], label)
        found[name] = found.get(name, 0.0) + kernel["percent"]
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {**found, "not listed": 100.0 - sum(found.values())}


def profile(
    label: str, *, note: str | None = None, num_runs: int | None = None, with_kernels: bool = False
) -> Row | None:
    """Return a workload's last row measured with the current code, or with a given note; with `num_runs` if given."""
    others = (BEFORE_BFLOAT16_WEIGHTS, BEFORE_FACTORS, BEFORE_CELL, OLD_BENCH, BY_INDUCTOR, ON_STREAMS, APART, *STREAMS)
    others += OF_AUTOENCODER_LARGE
    found = [
        row
        for row in (load("profiles_h200") or {"rows": []})["rows"]
        if row["label"] == label
        and (row["note"] not in others if note is None else row["note"] == note)
        and num_runs in (None, row["num_runs"])
        and (row["kernels"] or not with_kernels)
    ]
    return found[-1] if found else None


def speed_of(row: Row, workload: Workload) -> float:
    """Return a profile's speed in the unit of the workload."""
    return float(row["images_per_second" if workload.unit == "images/s" else "run_steps_per_second"])


def fraction_of_target(speed: float, workload: Workload) -> float | None:
    """Return the fraction of its target that a speed reaches; None if the target's ceiling was not measured."""
    assert workload.target is not None
    if workload.target.of == "ours":
        return speed / workload.target.value
    measured = bench_row(workload.label)
    if measured is None:
        return None
    return float(measured["fraction_of_ceiling"] * speed / measured["ours"] / workload.target.value)


def gpu_workloads() -> list[Workload]:
    """Return the workloads of a GPU."""
    return [workload for workload in WORKLOADS if isinstance(workload, Workload) and workload.device == "cuda"]


def profiles_block() -> str:
    """Return speed, fraction of the target, memory and the heaviest kernels of every workload."""
    content = load("profiles_h200")
    if content is None:
        return NOT_MEASURED
    lines, notes, parts = [], [], []
    for workload in gpu_workloads():
        assert workload.target is not None
        precision = "" if workload.precision == "mixed" else f", {workload.precision}"
        name = f"{workload.task}, B = {workload.batch_size:,}{precision}"
        target = workload.target.text(workload.unit)
        row, measured = profile(workload.label, num_runs=workload.num_runs), bench_row(workload.label)
        seen = row if row is not None and row["kernels"] else profile(workload.label, with_kernels=True)
        if measured is not None:
            speed, commit = float(measured["ours"]), measured["commit"]
        elif row is not None:
            speed, commit = speed_of(row, workload), row["commit"]
        else:
            lines.append((name, str(workload.num_runs), "not measured", target, "–", "–", "–", "–"))
            continue
        if seen is not None and seen["num_runs"] != workload.num_runs:
            notes.append(f"{name}: kernel time of {seen['num_runs']} runs.")
        if row is not None and row["note"]:
            notes.append(f"{name}: {row['note']}.")
        if seen is not None and seen["commit"] != commit:
            commit = f"{commit}, kernels {seen['commit']}"
        memory = None if row is None else row["memory_gib"]
        part = fraction_of_target(speed, workload)
        parts += [] if part is None else [part]
        lines.append(
            (
                name,
                str(workload.num_runs),
                f"**{speed:,.0f}** {workload.unit}",
                target,
                _of_target(part),
                "–" if memory is None else f"{memory:.1f} GiB",
                "–" if seen is None else _heaviest(seen["kernels"], workload.label),
                commit,
            )
        )
    header = ("workload", "runs", "speed", "target", "of the target", "memory", "kernel time", "commit")
    machine = content["machine"]
    remark = f"""{machine["gpu"]}, torch {machine["torch"]}, mixed precision unless another is named. Speeds are
        those of `isotherm bench` if it was run, else of the profile, with windows: {content["windows"]}. Kernel time:
        percent of the time of all kernels, summed over streams; only the heaviest 12 to 24 kernels are recorded, so a
        group may take more than its number, by up to the share that is not listed. {" ".join(notes)} Targets met:
        {sum(part >= 1 for part in parts)} of {len(parts)}."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _of_target(part: float | None) -> str:
    """Return a fraction of a target; one that is nearly met is not rounded up to 100 %.

    >>> _of_target(0.9955), _of_target(0.443), _of_target(1.04)
    ('99.6 %', '44 %', '104 %')
    """
    if part is None:
        return "–"
    return f"{100 * part:.1f} %" if 0.99 <= part < 1 else percent(part)


def _heaviest(kernels: Sequence[Row], label: str) -> str:
    found = shares(kernels, label)
    rest = found.pop("not listed")
    listed = [f"{name} {share:.0f}" for name, share in list(found.items())[:4]]
    return ", ".join([*listed, f"not listed {rest:.0f}"])
