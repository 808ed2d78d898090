"""Write the measured speeds into docs/performance.md and draw the growth of cost.

    python benchmarks/performance_report.py

Reads from benchmarks/results: bench_*.json (`isotherm bench --json`), growth_*.json (benchmarks/growth.py),
profiles_*.json (benchmarks/profile_fleet.py) and kernels_*.json (benchmarks/kernels.py); and the calibration runs of
results/calibration with those made again in its folder rerun. Writes every block between the markers
`<!-- performance: NAME -->` and `<!-- end -->`, and docs/figures/growth.png. Nobody types those numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

import growth
from calibration_report import running_objective
from isotherm.bench.ceilings import BYTES_PER_VALUE, TRANSFERS
from isotherm.bench.works import WORKS, Work
from isotherm.engine.products import aligned
from isotherm.statistics import Interval, t_interval, welch_interval
from pages.blocks import Page
from pages.results import CALIBRATION, NOT_MEASURED, ROOT, Row, load
from pages.text import number, paragraph, percent, signed, signed_interval, table
from pages.values import Value

DOCUMENT = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "figures" / "growth.png"


# -- isotherm bench -------------------------------------------------------------------------------------------------


def bench_block(name: str) -> str:
    """Return ours, peers, goal and floor of every work of a machine; peers that were nowhere timed are told below."""
    content = load(name)
    if content is None:
        return NOT_MEASURED
    peers = [peer for peer in content["rows"][0]["peers"] if any(row["peers"].get(peer) for row in content["rows"])]
    header = ("work", "B", "runs", "unit", "Isotherm", *peers, "ratio", "goal", "reached", "floor", "of the floor")
    rows = []
    for row in content["rows"]:
        target = row.get("target") or {}
        fraction = row["fraction_of_floor"]
        rows.append(
            (
                row["work"],
                "–" if row["batch_size"] is None else f"{row['batch_size']:,}",
                f"{row['num_runs']:,}",
                row["unit"],
                _with_range(row),
                *(number(row["peers"].get(peer)) for peer in peers),
                "–" if row["ratio"] is None else f"{row['ratio']:.1f}",
                target.get("text", "–"),
                {True: "yes", False: "**no**", None: "–"}[target.get("reached")],
                number(row["floor"]),
                "–" if fraction is None else percent(fraction),
            )
        )
    machine = content["machine"]
    where = ", ".join(str(machine[key]) for key in ("gpu", "cpu") if machine.get(key))
    remark = (
        f"{where}, {machine['cores']} cores, torch {machine['torch']}, commit {content['commit']}. Median of the "
        f"windows, lowest and highest in brackets; ratio to the plain loop. {_untimed(content['rows'], peers)}"
    )
    extrapolated = [
        f"{row['work']}: {row['remark']}." for row in content["rows"] if "extrapolated" in (row.get("remark") or "")
    ]
    return f"{table(header, rows)}\n\n{paragraph(' '.join([remark, *extrapolated]))}"


def _untimed(rows: list[Row], timed: list[str]) -> str:
    """Return which peers have no number anywhere, and why."""
    reasons: dict[str, str] = {}
    for row in rows:
        for peer, why in (row.get("reasons") or {}).items():
            if peer not in timed:
                reasons.setdefault(peer, why)
    listed = "; ".join(f"{peer} ({why})" for peer, why in reasons.items())
    return f"Not timed: {listed}." if listed else ""


def _with_range(row: Row) -> str:
    if row["ours"] is None:
        return "–"
    return f"**{number(row['ours'])}** [{number(row.get('lowest'))}, {number(row.get('highest'))}]"


# -- benchmarks/growth.py -------------------------------------------------------------------------------------------


def shrink_block() -> str:
    """Return what a fleet gains that loses half of its runs."""
    content = load("growth_cpu")
    if content is None:
        return NOT_MEASURED
    found = content["shrink"]
    whole, half = found["seconds_whole"], found["seconds_half_diverged"]
    reached = "met" if found["ratio"] <= found["goal"] else "missed"
    return paragraph(
        f"{found['num_runs']} runs at B = {found['batch_size']}, {found['num_updates']:,} updates on one core: whole "
        f"{min(whole):.1f} to {max(whole):.1f} s, with every second run diverging at once {min(half):.1f} to "
        f"{max(half):.1f} s; median ratio {found['ratio']:.2f} (n = {len(whole)} pairs in turn; goal at most "
        f"{found['goal']}: **{reached}**)."
    )


def growth_block() -> str:
    """Return the speed of fleets by size."""
    content = load("growth_cpu")
    if content is None:
        return NOT_MEASURED
    rows = content["growth"]
    sizes = sorted({row["num_runs"] for row in rows})
    batch_sizes = sorted({row["batch_size"] for row in rows})
    by_place = {(row["batch_size"], row["num_runs"]): row for row in rows}
    lines = []
    for size in sizes:
        cells = []
        for batch_size in batch_sizes:
            row = by_place.get((batch_size, size))
            text = number(None if row is None else row["run_updates_per_second"])
            cells.append(f"**{text}**" if row is not None and row["is_chosen"] else text)
        lines.append((f"{size:,}", *cells))
    header = ("runs in one fleet", *(f"B = {b}" for b in batch_sizes))
    machine = content["machine"]
    remark = (
        f"Run-updates per second, {content['where']} of {machine['cpu']}, torch {machine['torch']}, commit "
        f"{content['commit']}, median of {rows[0]['repeats']} windows, the highest of them up to "
        f"{max(row['highest'] / row['lowest'] for row in rows):.1f} times the lowest; in bold the size that Isotherm "
        "chooses."
    )
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


# -- benchmarks/profile_fleet.py ------------------------------------------------------------------------------------

# Which kernels are what, by a piece of their names. Convolutions are cuDNN's, products are cuBLAS's; Inductor names its
# kernels after the operations in them, and only the optimiser's have an addcmul.
GROUPS: dict[str, tuple[str, ...]] = {
    "convolutions": ("xmma", "cutlass", "convolve", "implicit_gemm"),
    "products": ("nvjet",),
    "optimiser": ("addcmul",),
    "softmax": ("softmax",),
    "other elementwise": ("triton_",),
}
GHOST_NORM = ("_moments", "_normalise", "_gradient_sums", "_input_gradient")
# Ways to train that were tried and are not the present ones, as the rows' notes call them.
BEFORE_COPIES = "before products on rounded copies"
BY_INDUCTOR = "ghost batch norm by Inductor"
STREAMS = ("two fleets of 18 on two streams", "four fleets of 9 on four streams", "two fleets of 11 on two streams")
# Bytes that the update of a weight in mixed precision moves: it reads the gradient (2), reads and writes velocity and
# weight (4 each), and writes the rounded copy (2).
BYTES_OF_UPDATE = 2 + 4 * 4 + 2
# The same with what the products do: they read the copy in both directions and write the gradient, 2 each.
BYTES_IN_MIXED = BYTES_OF_UPDATE + 3 * 2
# What the floor of `isotherm bench` counts.
BYTES_IN_FLOAT32 = TRANSFERS * BYTES_PER_VALUE
# The autoencoder's largest matrices; the LSTM's units.
HEIGHT, WIDTH = 784, 1000
LSTM_WIDTH = 650


def group_of(kernel: str) -> str:
    """Return what a kernel does, in plain words.

    >>> group_of("nvjet_sm90_tst_128x128_64x6_1x2_h_bz_NTT"), group_of("_moments"), group_of("memset")
    ('products', 'ghost batch norm', 'other')
    """
    if kernel in GHOST_NORM:
        return "ghost batch norm"
    return next((name for name, pieces in GROUPS.items() if any(piece in kernel for piece in pieces)), "other")


def shares(kernels: Sequence[Row]) -> dict[str, float]:
    """Return the percentages of kernel time by group, largest first, with what the list leaves out.

    >>> shares([{"name": "nvjet_a", "percent": 30.0}, {"name": "_moments", "percent": 50.0}])
    {'ghost batch norm': 50.0, 'products': 30.0, 'not listed': 20.0}
    """
    found: dict[str, float] = {}
    for kernel in kernels:
        name = group_of(kernel["name"])
        found[name] = found.get(name, 0.0) + kernel["percent"]
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {**found, "not listed": 100.0 - sum(found.values())}


def profile(
    label: str, *, note: str | None = None, num_runs: int | None = None, with_kernels: bool = False
) -> Row | None:
    """Return the last row of a work, in the present way unless a note says another; with so many runs if given."""
    others = (BEFORE_COPIES, BY_INDUCTOR, *STREAMS)
    found = [
        row
        for row in (load("profiles_h200") or {"rows": []})["rows"]
        if row["label"] == label
        and (row["note"] not in others if note is None else row["note"] == note)
        and num_runs in (None, row["num_runs"])
        and (row["kernels"] or not with_kernels)
    ]
    return found[-1] if found else None


def bench_row(label: str) -> Row | None:
    """Return the row of a work in the benchmark of the H200."""
    rows = (load("bench_h200") or {"rows": []})["rows"]
    return next((row for row in rows if row["label"] == label), None)


def speed_of(row: Row, work: Work) -> float:
    """Return a profile's speed in the unit of the work."""
    return float(row["images_per_second" if work.unit == "images/s" else "run_steps_per_second"])


def part_of_goal(speed: float, work: Work) -> float | None:
    """Return how much of its goal a speed reaches; None where the floor was not measured that the goal refers to."""
    assert work.target is not None
    if work.target.of == "ours":
        return speed / work.target.value
    measured, content = bench_row(work.label), load("bench_h200")
    if measured is None or content is None:
        return None
    ceiling = content["ceilings"]["matmul_flop_per_second"][work.precision]
    return float(speed * measured["flop_per_unit"] / ceiling / work.target.value)


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
        row = profile(work.label, num_runs=work.num_runs)
        if row is None:
            lines.append((name, str(work.num_runs), "not measured", goal, "–", "–", "–", "–"))
            continue
        seen = row if row["kernels"] else profile(work.label, with_kernels=True)
        if seen is not None and seen["num_runs"] != row["num_runs"]:
            notes.append(f"{name}: kernel time of {seen['num_runs']} runs.")
        if row["note"]:
            notes.append(f"{name}: {row['note']}.")
        speed = speed_of(row, work)
        part = part_of_goal(speed, work)
        parts += [] if part is None else [part]
        lines.append(
            (
                name,
                str(row["num_runs"]),
                f"**{speed:,.0f}** {work.unit}",
                goal,
                "–" if part is None else percent(part),
                f"{row['memory_gib']:.1f} GiB",
                "–" if seen is None else _heaviest(seen["kernels"]),
                row["commit"],
            )
        )
    header = ("work", "runs", "speed", "goal", "of the goal", "memory", "kernel time", "commit")
    machine = content["machine"]
    remark = f"""{machine["gpu"]}, torch {machine["torch"]}, mixed precision. Windows: {content["windows"]}. Kernel
        time: percent of all kernels' time, streams added up; only the 15 heaviest kernels are recorded, so a group may
        take more than its number, up to what is not listed. {" ".join(notes)} Goals reached:
        {sum(part >= 1 for part in parts)} of {len(parts)}."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _heaviest(kernels: Sequence[Row]) -> str:
    found = shares(kernels)
    rest = found.pop("not listed")
    listed = [f"{name} {share:.0f}" for name, share in list(found.items())[:4]]
    return ", ".join([*listed, f"not listed {rest:.0f}"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something that was tried, with the rows before and after it."""

    label: str
    what: str
    before: Callable[[], Row | None]
    after: Callable[[], Row | None]


def _profile(label: str, note: str | None = None, num_runs: int | None = None) -> Callable[[], Row | None]:
    return lambda: profile(label, note=note, num_runs=num_runs)


COPIES = "products on rounded copies of the weights (below)"
AE, AE_LARGE, LSTM = "autoencoder_mnist:64", "autoencoder_mnist:4096", "lstm_ptb:64"
WRN = "wrn16x4_cifar10"
STEPS = (
    Step(label=AE, what=COPIES, before=_profile(AE, BEFORE_COPIES), after=_profile(AE)),
    Step(label=AE_LARGE, what=COPIES, before=_profile(AE_LARGE, BEFORE_COPIES), after=lambda: bench_row(AE_LARGE)),
    Step(label=LSTM, what=COPIES, before=_profile(LSTM, BEFORE_COPIES), after=_profile(LSTM)),
    Step(
        label=f"{WRN}:1024",
        what="Triton kernels for ghost batch norm instead of Inductor's",
        before=_profile(f"{WRN}:1024", BY_INDUCTOR),
        after=_profile(f"{WRN}:1024"),
    ),
    Step(
        label=f"{WRN}:64",
        what="12 streams instead of 4, a run on each",
        before=_profile(f"{WRN}:64", num_runs=4),
        after=_profile(f"{WRN}:64", num_runs=12),
    ),
    *(
        Step(label=label, what=f"{note} instead of one fleet", before=_profile(label), after=_profile(label, note))
        for label, note in zip((AE, AE, LSTM), STREAMS, strict=True)
    ),
)


def steps_block() -> str:
    """Return what was tried on a GPU and what it gained."""
    if load("profiles_h200") is None:
        return NOT_MEASURED
    works = {work.label: work for work in gpu_works()}
    lines = []
    for step in STEPS:
        work, before, after = works[step.label], step.before(), step.after()
        if before is None or after is None:
            continue
        (first, first_text), (second, second_text) = (_windows(row, work) for row in (before, after))
        lines.append(
            (
                f"{work.task}, B = {work.batch_size:,}",
                step.what,
                first_text,
                second_text,
                f"{signed(100 * (second / first - 1), 0)} %",
                f"{before['commit']}, {after.get('commit') or (load('bench_h200') or {})['commit']}",
            )
        )
    header = ("work", "what", "before", "after", "gain", "commits")
    remark = """Run-steps/s, Wide-ResNets images/s: median, lowest and highest window. The speed after of the
        autoencoder at B = 4,096 is that of `isotherm bench`, since another process disturbed the profile."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _windows(row: Row, work: Work) -> tuple[float, str]:
    """Return a median in the work's unit, and as text with the lowest and the highest window."""
    if "windows" not in row:  # of `isotherm bench`
        median, low, high = row["ours"], row["lowest"], row["highest"]
    else:
        median, factor = speed_of(row, work), work.units_per_step
        low, high = factor * min(row["windows"]), factor * max(row["windows"])
    return median, f"{median:,.0f} [{low:,.0f}, {high:,.0f}]"


def limits_block() -> str:
    """Return how fast the heaviest kernels move their bytes."""
    found = [text for text in (_autoencoder_limit(), _lstm_limit(), _norm_limit()) if text]
    return "\n".join(paragraph(text, bullet=True) for text in found) or NOT_MEASURED


def _autoencoder_limit() -> str | None:
    row, measured = profile(AE, with_kernels=True), bench_row(AE)
    if row is None or measured is None:
        return None
    kernel = max((k for k in row["kernels"] if group_of(k["name"]) == "optimiser"), key=lambda k: float(k["percent"]))
    rate = BYTES_OF_UPDATE * row["num_runs"] * HEIGHT * WIDTH / (1e-6 * kernel["microseconds"])
    copy = measured["copy_bytes_per_second"]
    in_mixed = BYTES_IN_MIXED / BYTES_IN_FLOAT32 * measured["bytes_per_unit"] * measured["ours"] / copy
    return f"""**Autoencoder, B = 64**: {percent(measured["fraction_of_floor"])} of the floor, which counts
        {BYTES_IN_FLOAT32} bytes per parameter and update, all in float32. With gradients and copies in bfloat16 it has
        to move {BYTES_IN_MIXED}, counted from the program; by that it reaches {percent(in_mixed)}. The update of the
        largest matrices, {HEIGHT} × {WIDTH:,} in {row["num_runs"]} runs at {BYTES_OF_UPDATE} bytes a weight, takes
        {kernel["microseconds"]:.0f} µs: {rate / 1e12:.1f} TB/s, where a copy moves {copy / 1e12:.1f}."""


def _lstm_limit() -> str | None:
    row, measured = profile(LSTM, with_kernels=True), bench_row(AE)
    if row is None or measured is None:
        return None
    products = [kernel for kernel in row["kernels"] if group_of(kernel["name"]) == "products"]
    forward, backward = sorted(products, key=lambda kernel: -kernel["calls"])[:2]
    num_bytes = 2 * aligned(LSTM_WIDTH) * aligned(4 * LSTM_WIDTH) * row["num_runs"]
    rate = num_bytes / (1e-6 * forward["microseconds"])
    share = forward["percent"] + backward["percent"]
    return f"""**LSTM, B = 64**: the recurrent products, one for each of 35 places in the text, two layers and both
        directions, take {share:.0f} % of the kernel time. Forward, one reads the rounded weights of {row["num_runs"]}
        runs, {num_bytes / 1e6:.0f} MB, in {forward["microseconds"]:.0f} µs: {rate / 1e12:.1f} TB/s, where a copy moves
        {measured["copy_bytes_per_second"] / 1e12:.1f}. Softmax and its gradient take
        {shares(row["kernels"])["softmax"]:.0f} %."""


def _norm_limit() -> str | None:
    kernels, measured = load("kernels_h200"), bench_row(AE)
    if kernels is None or measured is None:
        return None
    parts = []
    for batch_size in (64, 1024, 8192):
        row = profile(f"{WRN}:{batch_size}", with_kernels=True)
        if row is None:
            continue
        seconds = 1e-6 * sum(kernel["microseconds"] for kernel in row["kernels"] if kernel["name"] in GHOST_NORM)
        num_layers = sum(r["num_layers"] for r in kernels["rows"] if r["batch_size"] == 1024)
        rate = moved_bytes(kernels, 1024) * batch_size / 1024 / (num_layers * seconds)
        parts.append(f"{rate / 1e12:.1f} TB/s at B = {batch_size:,} (runs at once: {row['num_runs']})")
    return f"""**WRN-16-4, ghost batch norm**: inside the network its kernels move {", ".join(parts)}, where a copy
        moves {measured["copy_bytes_per_second"] / 1e12:.1f}. Runs on other streams share the memory meanwhile."""


# -- benchmarks/kernels.py ------------------------------------------------------------------------------------------


def moved_bytes(content: dict[str, Any], batch_size: int) -> float:
    """Return the bytes that the kernels of a network's layers move in one update: what its floor was made from."""
    rows = [row for row in content["rows"] if row["batch_size"] == batch_size]
    milliseconds = sum(row["num_layers"] * (row["floor_forward_ms"] + row["floor_backward_ms"]) for row in rows)
    return float(milliseconds / 1e3 * content["copy_bytes_per_second"])


def kernels_block() -> str:
    """Return times of the kernels of ghost batch norm over a network's layers, and their errors."""
    content = load("kernels_h200")
    if content is None:
        return NOT_MEASURED
    measured = bench_row(AE)
    lines = []
    for batch_size in sorted({row["batch_size"] for row in content["rows"]}):
        rows = [row for row in content["rows"] if row["batch_size"] == batch_size]
        times = {
            key: sum(row["num_layers"] * row[f"{key}_ms"] for row in rows)
            for key in ("forward", "backward", "floor_forward", "floor_backward")
        }
        ours, floor = times["forward"] + times["backward"], times["floor_forward"] + times["floor_backward"]
        rate = moved_bytes(content, batch_size) / (1e-3 * ours)
        lines.append(
            (
                f"{batch_size:,}",
                str(sum(row["num_layers"] for row in rows)),
                *(f"{times[key]:.2f}" for key in ("forward", "floor_forward", "backward", "floor_backward")),
                percent(floor / ours),
                f"{rate / 1e12:.1f}",
                "–" if measured is None else percent(rate / measured["copy_bytes_per_second"]),
            )
        )
    header = ("B", "layers", "forward, ms", "floor", "backward, ms", "floor", "of the floor", "TB/s", "of bench's copy")
    largest = {name: max(row["errors"][name] for row in content["rows"]) for name in content["rows"][0]["errors"]}
    num_wrong = sum(bool(row["wrong"]) for row in content["rows"])
    halves = max(largest["y"], largest["dx"])
    sums = max(value for name, value in largest.items() if name not in ("y", "dx"))
    slow_copy = f"{content['copy_bytes_per_second'] / 1e12:.2f} TB/s"
    caution = (
        ""
        if measured is None
        else f""" The copy of this script moves {slow_copy}, that of `isotherm bench`
        {measured["copy_bytes_per_second"] / 1e12:.2f} on the same kind of GPU, so this floor is too easy, and the last
        column is the one to go by. Why the copies differ is open."""
    )
    remark = f"""All normalisations of WRN-16-4 in one update of one run, {content["device"]}, torch {content["torch"]},
        commit {content["commit"]}. The floor is the bytes that the kernels move at the speed of a copy.{caution}
        Inductor's own kernels were not timed alone."""
    errors = f"""Largest errors against float64, relative to the largest value: {halves:.1e} in what is rounded to
        bfloat16 (one rounding is at most {2**-8:.1e} of a value), {sums:.1e} in means, variances and gradients of scale
        and shift. {num_wrong} of {len(content["rows"])} cases exceed their tolerance."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}\n\n{paragraph(errors)}"


# -- calibration cells trained again --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One quantity of a cell that was trained twice; values by seed."""

    name: str
    short: str
    quantity: str
    paper: str
    before: tuple[float, ...]
    now: tuple[float, ...]
    decimals: int

    @property
    def difference(self) -> Interval:
        """The mean now minus the mean before, with Welch's interval."""
        return welch_interval(self.now, self.before)

    @property
    def paired(self) -> Interval:
        """The mean difference of runs with one seed, with Student's interval."""
        return t_interval([now - before for now, before in zip(self.now, self.before, strict=True)])

    @property
    def is_outside(self) -> bool:
        """Whether the mean lies more than the standard deviation before from the mean before."""
        return abs(self.difference.estimate) > statistics.stdev(self.before)

    @property
    def spread_ratio(self) -> float:
        """Standard deviation now over before."""
        return statistics.stdev(self.now) / statistics.stdev(self.before)

    @property
    def spread_p(self) -> float:
        """How likely a ratio of spreads as far from one is by chance: the F test, two-sided."""
        ratio = max(self.spread_ratio, 1 / self.spread_ratio)
        return float(2 * stats.f.sf(ratio**2, len(self.now) - 1, len(self.before) - 1))


def cells() -> list[Cell]:
    """Return what was trained again, from the result files; empty where they are missing."""
    rerun = CALIBRATION / "rerun"
    old = {name: load(name, CALIBRATION) for name in ("autoencoder", "lstm_b64", "wrn_b256")}
    new = {name: load(name, rerun) for name in ("autoencoder_mixed", "lstm_b64_looks", "wrn_b256")}
    if None in (*old.values(), *new.values()):
        return []
    found = [
        _cell(
            ("autoencoder, B = 64, ε_eff = 0.08: float32, now mixed", f"the autoencoder's {name} error"),
            f"{name} squared error",
            (old["autoencoder"], new["autoencoder_mixed"]),
            lambda run, key=key: run[key],  # type: ignore[misc]
            rate=0.08,
            decimals=4,
        )
        for name, key in (("test", "test_metric"), ("training", "train_metric"))
    ]
    ghost = "WRN-16-4, B = 256, ε_eff = 4: mixed, now Triton kernels"
    wide = (old["wrn_b256"], new["wrn_b256"])
    found += [
        _cell(
            (ghost, "the accuracy of WRN-16-4"),
            "test accuracy, %",
            wide,
            lambda run: 100 * run["test_metric"],
            rate=4.0,
            decimals=2,
        ),
        _cell((ghost, "the loss of WRN-16-4"), "training loss with L2", wide, running_objective, rate=4.0, decimals=4),
        _looks_cell(old["lstm_b64"], new["lstm_b64_looks"]),
    ]
    return found


def _by_seed(content: Any, quantity: Callable[[Row], float], rate: float) -> tuple[float, ...]:
    runs = sorted(content["runs"], key=lambda run: run["spec"]["seed"])
    return tuple(quantity(run["result"]) for run in runs if run["spec"]["effective_learning_rate"] == rate)


def _cell(
    names: tuple[str, str],
    quantity: str,
    contents: tuple[Any, Any],
    function: Callable[[Row], float],
    *,
    rate: float,
    decimals: int,
) -> Cell:
    before, now = (_by_seed(content, function, rate) for content in contents)
    paper = contents[0]["paper"]["test" if quantity.startswith("test") else "train"].removesuffix(" %")
    return Cell(
        name=names[0], short=names[1], quantity=quantity, paper=paper, before=before, now=now, decimals=decimals
    )


def _looks_cell(before: Any, now: Any) -> Cell:
    """Return the language model at the look after the last update, which both times saw the same."""
    rate = now["paper"]["rate"]
    last = max(look["step"] for look in now["looks"])
    looks = sorted((look for look in now["looks"] if look["step"] == last), key=lambda look: look["seed"])
    return Cell(
        name=f"LSTM, B = 64, ε_eff = {rate}: mixed, now on rounded copies",
        short="the LSTM",
        quantity=f"test perplexity at update {last:,}",
        paper=now["paper"]["test"],
        before=_by_seed(before, lambda run: _look_at(run, last), rate),
        now=tuple(look["test_perplexity"] for look in looks),
        decimals=2,
    )


def _look_at(run: Row, step: int) -> float:
    return float(next(point["test_metric"] for point in run["curve"] if point["step"] == step))


def numerics_block() -> str:
    """Return the cells trained again beside those before and the paper's."""
    found = cells()
    if not found:
        return NOT_MEASURED
    lines = [
        (
            cell.name,
            cell.quantity,
            cell.paper,
            Value.of(cell.before).text(cell.decimals),
            Value.of(cell.now).text(cell.decimals),
            _with_limits(cell.difference, decimals=cell.decimals),
            _with_limits(cell.paired, decimals=cell.decimals),
            "**outside**" if cell.is_outside else "inside",
        )
        for cell in found
    ]
    header = (
        "cell",
        "quantity",
        "paper",
        "before: mean ± sd (n)",
        "now: mean ± sd (n)",
        "now − before (Welch, 95 %)",
        "paired by seed (95 %)",
        "now's mean within before's sd",
    )
    return f"{table(header, lines)}\n\n{paragraph(_reading(found))}"


def _with_limits(interval: Interval, *, decimals: int) -> str:
    return signed_interval(interval.estimate, (interval.low, interval.high), decimals=decimals)


def _reading(found: Sequence[Cell]) -> str:
    """Return what the table says in words."""
    num = len(found)
    outside = [cell.short for cell in found if cell.is_outside]
    by_welch = [cell.short for cell in found if not cell.difference.contains(0.0)]
    by_pairs = [cell.short for cell in found if not cell.paired.contains(0.0)]
    wider = [
        f"{cell.short}, {cell.spread_ratio:.0f} times (F test, p = {cell.spread_p:.2f})"
        for cell in found
        if cell.spread_ratio > 3
    ]
    old, new = load("autoencoder", CALIBRATION), load("autoencoder_mixed", CALIBRATION / "rerun")
    assert old is not None
    assert new is not None
    return f"""Before: commit {old["commit"]}; now: {new["commit"]}; {new["device"]}. Outside the earlier error bars
        (one sd): {_listed(outside)}. Welch's interval leaves out zero for: {_listed(by_welch)}; paired by seed for:
        {_listed(by_pairs)}. Of {num} independent 95 % intervals at least one leaves out zero in
        {percent(1 - 0.95**num)} of all cases if nothing changed. The spread grew more than threefold for:
        {_listed(wider)}. Three runs see only large changes, and the two commits differ in more than these paths."""


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"


# -- the document ---------------------------------------------------------------------------------------------------

PAGE = Page(
    name="performance",
    blocks={
        "cpu": lambda: bench_block("bench_cpu"),
        "h200": lambda: bench_block("bench_h200"),
        "shrink": shrink_block,
        "growth": growth_block,
        "profiles": profiles_block,
        "steps": steps_block,
        "limits": limits_block,
        "kernels": kernels_block,
        "numerics": numerics_block,
    },
)


def main() -> None:
    """Write the blocks and the figure."""
    PAGE.write(DOCUMENT)
    content = load("growth_cpu")
    if content is not None:
        growth.draw(content, FIGURE)


if __name__ == "__main__":
    main()
