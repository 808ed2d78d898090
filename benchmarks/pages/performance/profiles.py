"""What benchmarks/profile_fleet.py measured: speed, memory and kernels of works on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.bench.workloads import WORKS, Work
from pages.performance.bench import bench_row
from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, percent, table

# Which kernels are what, by a piece of their names. Convolutions are cuDNN's or ours, products are cuBLAS's; Inductor
# names its kernels after the operations in them, and only the optimiser's have an addcmul.
GROUPS: dict[str, tuple[str, ...]] = {
    "convolutions": ("xmma", "cutlass", "convolve", "implicit_gemm", "_sum_gradients", "sum_rows"),
    "products": ("nvjet",),
    "optimiser": ("addcmul",),
    "softmax": ("softmax",),
    "other elementwise": ("triton_",),
    "sums": ("reduce_kernel",),
}
GHOST_NORM = ("_moments", "_normalise", "_gradient_sums", "_input_gradient")
# Kernels of our own, by their whole names.
OWN: dict[str, tuple[str, ...]] = {
    "ghost batch norm": GHOST_NORM,
    "gradient and update": ("_update", "_update_stream"),
    "LSTM cell": ("_forward", "_backward"),
}
# The same names, and one like that of a convolution's kernel, mean others in the autoencoder.
OF_AUTOENCODER: dict[str, tuple[str, ...]] = {"units": ("_forward", "_backward"), "sums": ("_sum_rows",)}
# Ways to train that were tried and are not the present ones, as the rows' notes call them.
BEFORE_COPIES = "before products on rounded copies"
BEFORE_FACTORS = "before updates by factors"
BEFORE_CELL = "before kernels of the cell"
OLD_BENCH = "by the benchmark at 2cabd47"
BEFORE_UNITS = "before units of many rows"
BEFORE_DRAWN = "before examples were drawn ahead"
IN_PIECES = "long sides in pieces of 32 bytes, units by whole rows"
BY_LT = "products by cuBLASLt"
BY_DESCENT = "so, and compiled kernels tuned by coordinate descent"
BY_INDUCTOR = "ghost batch norm by Inductor"
ON_STREAMS = "each run on a stream of its own"
APART = "convolutions of all runs at once, norms apart; another process used the GPU at times"
OF_AUTOENCODER_LARGE = (BEFORE_UNITS, BEFORE_DRAWN, IN_PIECES, BY_LT, BY_DESCENT)
STREAMS = ("two fleets of 18 on two streams", "four fleets of 9 on four streams", "two fleets of 11 on two streams")
# Works that other blocks ask for.
AE, AE_LARGE, LSTM = "autoencoder_mnist:64", "autoencoder_mnist:4096", "lstm_ptb:64"
WRN = "wrn16x4_cifar10"
SKIP_INIT = "wrn16x4_skipinit_cifar10:64"


def group_of(kernel: str, label: str = "") -> str:
    """Return what a kernel of a work does, in plain words.

    >>> group_of("nvjet_sm90_tst_128x128_64x6_1x2_h_bz_NTT"), group_of("_moments"), group_of("memset")
    ('products', 'ghost batch norm', 'other')
    >>> group_of("_forward", "lstm_ptb:64"), group_of("_forward", "autoencoder_mnist:4096")
    ('LSTM cell', 'units')
    """
    ours = {**OF_AUTOENCODER, **OWN} if label.startswith("autoencoder") else OWN
    own = next((name for name, kernels in ours.items() if kernel in kernels), None)
    return own or next((name for name, pieces in GROUPS.items() if any(piece in kernel for piece in pieces)), "other")


def shares(kernels: Sequence[Row], label: str = "") -> dict[str, float]:
    """Return the percentages of kernel time by group, largest first, with what the list leaves out.

    >>> shares([{"name": "nvjet_a", "percent": 30.0}, {"name": "_moments", "percent": 50.0}])
    {'ghost batch norm': 50.0, 'products': 30.0, 'not listed': 20.0}
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
    """Return the last row of a work, in the present way unless a note says another; with so many runs if given."""
    others = (BEFORE_COPIES, BEFORE_FACTORS, BEFORE_CELL, OLD_BENCH, BY_INDUCTOR, ON_STREAMS, APART, *STREAMS)
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


def speed_of(row: Row, work: Work) -> float:
    """Return a profile's speed in the unit of the work."""
    return float(row["images_per_second" if work.unit == "images/s" else "run_steps_per_second"])


def part_of_goal(speed: float, work: Work) -> float | None:
    """Return how much of its goal a speed reaches; None where the floor was not measured that the goal refers to."""
    assert work.target is not None
    if work.target.of == "ours":
        return speed / work.target.value
    measured = bench_row(work.label)
    if measured is None:
        return None
    return float(measured["fraction_of_ceiling"] * speed / measured["ours"] / work.target.value)


def gpu_works() -> list[Work]:
    """Return what is timed on a GPU."""
    return [work for work in WORKS if isinstance(work, Work) and work.device == "cuda"]


def profiles_block() -> str:
    """Return speed, part of the goal, memory and the heaviest kernels of every work."""
    content = load("profiles_h200")
    if content is None:
        return NOT_MEASURED
    lines, notes, parts = [], [], []
    for work in gpu_works():
        assert work.target is not None
        name, goal = f"{work.task}, B = {work.batch_size:,}", work.target.text(work.unit)
        row, measured = profile(work.label, num_runs=work.num_runs), bench_row(work.label)
        seen = row if row is not None and row["kernels"] else profile(work.label, with_kernels=True)
        if measured is not None:
            speed, commit = float(measured["ours"]), measured["commit"]
        elif row is not None:
            speed, commit = speed_of(row, work), row["commit"]
        else:
            lines.append((name, str(work.num_runs), "not measured", goal, "–", "–", "–", "–"))
            continue
        if seen is not None and seen["num_runs"] != work.num_runs:
            notes.append(f"{name}: kernel time of {seen['num_runs']} runs.")
        if row is not None and row["note"]:
            notes.append(f"{name}: {row['note']}.")
        if seen is not None and seen["commit"] != commit:
            commit = f"{commit}, kernels {seen['commit']}"
        memory = None if row is None else row["memory_gib"]
        part = part_of_goal(speed, work)
        parts += [] if part is None else [part]
        lines.append(
            (
                name,
                str(work.num_runs),
                f"**{speed:,.0f}** {work.unit}",
                goal,
                _of_goal(part),
                "–" if memory is None else f"{memory:.1f} GiB",
                "–" if seen is None else _heaviest(seen["kernels"], work.label),
                commit,
            )
        )
    header = ("work", "runs", "speed", "goal", "of the goal", "memory", "kernel time", "commit")
    machine = content["machine"]
    remark = f"""{machine["gpu"]}, torch {machine["torch"]}, mixed precision. Speeds are those of `isotherm bench`
        where it was run, else of the profile, windows: {content["windows"]}. Kernel time: percent of all kernels' time,
        streams added up; only the heaviest 12 to 24 kernels are recorded, so a group may take more than its number, up
        to what is not listed. {" ".join(notes)} Goals reached:
        {sum(part >= 1 for part in parts)} of {len(parts)}."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _of_goal(part: float | None) -> str:
    """Return a part of a goal; one that is nearly reached is not called whole.

    >>> _of_goal(0.9955), _of_goal(0.443), _of_goal(1.04)
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
