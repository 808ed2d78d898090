"""All contenders in one run, in alternating windows, and their speeds as rows."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isotherm.bench.ceilings import (
    Floor,
    bytes_per_step,
    copy_bytes_per_second,
    matmul_flop_per_second,
)
from isotherm.bench.contenders import OURS, PEERS, PLAIN, PROCESSES, Contender, ContenderError, mps_is_running, why_not
from isotherm.bench.machine import commit, machine
from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import STUDY_PEERS, AnyWorkload, StudyWorkload, Target, Workload, study_parts
from isotherm.core.records import Precision, RunSpec
from isotherm.engine.memory import state_bytes
from isotherm.running.executors.choice import default_workers
from isotherm.running.flop import flop_per_example
from isotherm.tasks.seeding import initial_model

Row = dict[str, Any]
NOT_ASKED = "not asked for"  # the reason why a contender that the user left out has no speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """The speeds measured on a workload.

    Args:
        by_contender: run-steps per second in every window, of the contenders that could be timed.
        reasons: why the others could not be timed.
        floor: limits of the machine.
    """

    by_contender: Mapping[str, Sequence[float]]
    reasons: Mapping[str, str]
    floor: Floor


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How to measure.

    Args:
        device: "cpu" or "cuda".
        peers: contenders to compare with.
        repeats: windows per contender.
        seconds: approximate length of a window.
    """

    device: str
    peers: Sequence[str]
    repeats: int
    seconds: float


def interleaved(
    windows: Mapping[str, Callable[[float], float]],
    *,
    repeats: int,
    seconds: float,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Time all contenders in turn, repeatedly; return their speeds, and why one dropped out.

    Args:
        windows: for each contender, a function that times a window of given length.
        repeats: number of rounds.
        seconds: length of a window.
        before_each: called before every round.

    >>> interleaved({"ours": lambda s: 2 * s, "plain loop": lambda s: s}, repeats=2, seconds=3.0)
    ({'ours': [6.0, 6.0], 'plain loop': [3.0, 3.0]}, {})
    """
    found: dict[str, list[float]] = {name: [] for name in windows}
    reasons: dict[str, str] = {}
    for _ in range(repeats):
        before_each()
        for name in list(found):
            try:
                found[name].append(windows[name](seconds))
            except ContenderError as error:
                reasons[name] = str(error)
                del found[name]
    return found, reasons


@dataclass(kw_only=True)
class Bench:
    """Contenders and ceilings shared by all workloads of a run; a context manager.

    Args:
        settings: how to measure.
    """

    settings: Settings
    contenders: dict[str, Contender] = field(default_factory=dict)
    matmul: dict[Precision, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stack = contextlib.ExitStack()
        for name in (OURS, *self.settings.peers):
            self.contenders[name] = self._stack.enter_context(Contender.on(name, self.settings.device))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def speeds(self, workload: Workload, *, peers: Sequence[str]) -> Speeds:
        """Time a workload against some of the peers."""
        reasons = {peer: reason for peer in peers if (reason := why_not(peer, workload))}
        used = {name: self.contenders[name] for name in (OURS, *peers) if name not in reasons}
        for contender in used.values():
            contender.start()
        ready: dict[str, Contender] = {}
        for name, contender in used.items():  # one after another: cuDNN times its convolutions meanwhile
            try:
                contender.open(workload)
                ready[name] = contender
            except ContenderError as error:
                reasons[name] = str(error)
        task = timed_task(workload.task)
        num_parameters = sum(p.numel() for p in initial_model(task.model, seed=0).parameters())
        size, copies = workload.num_runs * state_bytes(num_parameters), [0.0]

        def measure_ceilings() -> None:  # while all contenders are idle
            copies.append(copy_bytes_per_second(workload.device, size))
            product = matmul_flop_per_second(workload.device, workload.precision)
            self.matmul[workload.precision] = max(product, self.matmul.get(workload.precision, 0.0))

        found, dropped = interleaved(
            {name: contender.window for name, contender in ready.items()},
            repeats=self.settings.repeats,
            seconds=self.settings.seconds,
            before_each=measure_ceilings,
        )
        for contender in used.values():
            contender.finish()
        floor = Floor(
            flop=workload.batch_size * flop_per_example(task),
            num_bytes=bytes_per_step(num_parameters, workload.precision),
            flop_per_second=self.matmul[workload.precision],
            bytes_per_second=max(copies),
        )
        return Speeds(by_contender=found, reasons={**reasons, **dropped}, floor=floor)


def measure(
    workloads: Sequence[AnyWorkload],
    settings: Settings,
    *,
    planned: Callable[[str], Sequence[RunSpec]],
    on_workload: Callable[[AnyWorkload], None] = lambda _: None,
    on_row: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Time workloads one after another and return everything as JSON values.

    Args:
        workloads: what to time.
        settings: how to measure.
        planned: returns the runs of a study, by its name.
        on_workload: receives each workload before it is timed.
        on_row: receives all results so far after each workload.
    """
    content: dict[str, Any] = {"rows": [], "machine": machine(settings.device), "commit": commit(), "ceilings": {}}
    with Bench(settings=settings) as bench:
        for workload in workloads:
            on_workload(workload)
            if isinstance(workload, StudyWorkload):
                row = _study_row(bench, workload, planned(workload.name))
            else:
                row = _row_of(workload, bench.speeds(workload, peers=settings.peers))
            content["rows"].append(_completed(row, workload.target))
            content["ceilings"] = {
                "matmul_flop_per_second": dict(bench.matmul),
                "copy_bytes_per_second": {r["label"]: r["copy_bytes_per_second"] for r in content["rows"]},
            }
            on_row(content)
    return content


def _row_of(workload: Workload, speeds: Speeds) -> Row:
    units, floor = workload.units_per_step, speeds.floor
    in_units = {name: [units * speed for speed in found] for name, found in speeds.by_contender.items()}
    fraction = None
    if OURS in speeds.by_contender:
        fraction = statistics.median(speeds.by_contender[OURS]) * floor.flop / floor.flop_per_second
    return {
        "workload": workload.name,
        "label": workload.label,
        "device": workload.device,
        "batch_size": workload.batch_size,
        "num_runs": workload.num_runs,
        **_summary(in_units, floor=floor.run_steps_per_second * units, unit=workload.unit),
        "fraction_of_ceiling": fraction,
        "flop_per_unit": floor.flop / units,
        "bytes_per_unit": floor.num_bytes / units,
        "copy_bytes_per_second": floor.bytes_per_second,
        "remark": _remark(workload),
        "reasons": speeds.reasons,
    }


def _remark(workload: Workload) -> str:
    workers = default_workers(workload.device)
    if workload.device == "cpu":
        return f"ours: {workload.num_runs} runs split evenly over {workers} worker{'s' * (workers > 1)}, one per core"
    return f"{PROCESSES}: processes share the GPU, MPS is {'' if mps_is_running() else 'not '}running"


def _study_row(bench: Bench, workload: StudyWorkload, specs: Sequence[RunSpec]) -> Row:
    """Return all updates of a study as one row, extrapolated batch size by batch size."""
    parts = study_parts(workload, specs)
    peers = [peer for peer in bench.settings.peers if peer in STUDY_PEERS]
    speeds = [bench.speeds(part.workload, peers=peers) for part in parts]
    steps = [part.run_steps for part in parts]
    reasons = {name: reason for found in speeds for name, reason in found.reasons.items()}
    others = {peer: "not extrapolated to a study" for peer in bench.settings.peers if peer not in peers}
    names = [name for name in (OURS, *peers) if name not in reasons]
    together = {
        name: [
            overall(steps, [found.by_contender[name][window] for found in speeds])
            for window in range(bench.settings.repeats)
        ]
        for name in names
    }
    summary = _summary(
        together, floor=overall(steps, [found.floor.run_steps_per_second for found in speeds]), unit="run-steps/s"
    )
    flop = [found.floor.flop for found in speeds]
    return {
        "workload": workload.name,
        "label": workload.label,
        "device": workload.device,
        "batch_size": None,
        "num_runs": len(specs),
        **summary,
        "fraction_of_ceiling": None,
        "flop_per_unit": sum(n * f for n, f in zip(steps, flop, strict=True)) / sum(steps),
        "bytes_per_unit": speeds[0].floor.num_bytes,
        "copy_bytes_per_second": min(found.floor.bytes_per_second for found in speeds),
        "remark": _study_remark(sum(steps), [part.workload.batch_size for part in parts], summary, bench.settings),
        "reasons": {**others, **reasons},
    }


def _study_remark(run_steps: int, batch_sizes: Sequence[int], summary: Row, settings: Settings) -> str:
    def told(name: str, speed: float | None) -> str:
        return f"{name} {'not timed' if speed is None else f'{run_steps / speed:,.0f} s'}"

    times = ", ".join(told(name, speed) for name, speed in ((OURS, summary["ours"]), *summary["peers"].items()))
    return (
        f"extrapolated: {run_steps:,} run-steps of the planned runs at the speeds of {settings.repeats} "
        f"window{'s' * (settings.repeats > 1)} of {settings.seconds:g} s at each of B = "
        f"{', '.join(map(str, batch_sizes))}; no evaluation, no start-up; {times}"
    )


def overall(amounts: Sequence[float], speeds: Sequence[float]) -> float:
    """Return the speed of several amounts done one after another, each at its own speed.

    >>> overall([30, 10], [3, 1])
    2.0
    """
    return sum(amounts) / sum(amount / speed for amount, speed in zip(amounts, speeds, strict=True))


def _summary(in_units: Mapping[str, Sequence[float]], *, floor: float, unit: str) -> Row:
    """Return medians and extremes of every contender, and their ratios."""
    medians = {name: statistics.median(found) for name, found in in_units.items()}
    ours, plain = medians.get(OURS), medians.get(PLAIN)
    peers = {name: found for name, found in in_units.items() if name != OURS}
    return {
        "ours": ours,
        "unit": unit,
        "peers": {name: medians[name] for name in peers},
        "ratio": None if ours is None or plain is None else ours / plain,
        "floor": floor,
        "fraction_of_floor": None if ours is None else ours / floor,
        "lowest": None if ours is None else min(in_units[OURS]),
        "highest": None if ours is None else max(in_units[OURS]),
        "peers_lowest": {name: min(found) for name, found in peers.items()},
        "peers_highest": {name: max(found) for name, found in peers.items()},
        "repeats": max((len(found) for found in in_units.values()), default=0),
    }


def _completed(row: Row, target: Target | None) -> Row:
    """Return a row with every peer, None and a reason for those without a speed, and the target."""
    missing = [peer for peer in PEERS if peer not in row["peers"]]
    reached = None if target is None else row[target.of]
    return {
        **row,
        "peers": {peer: row["peers"].get(peer) for peer in PEERS},
        "reasons": {**row["reasons"], **{peer: row["reasons"].get(peer, NOT_ASKED) for peer in missing}},
        "target": None
        if target is None
        else {
            "of": target.of,
            "value": target.value,
            "text": target.text(row["unit"]),
            "reached": None if reached is None else reached >= target.value,
        },
    }
