"""What `contracts/test_engines.py` does not see: refusals, the fleet's size, and memory."""

import contextlib
import dataclasses
import functools
import logging
import re
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import cases
from cases_paper import lazy_task
from isotherm.core.optimizers import SGD
from isotherm.core.records import Outcome
from isotherm.engine import fleet
from isotherm.engine.deadline import Deadline
from isotherm.engine.fleet import run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import LARGEST_BATCH_TOGETHER, place_task
from isotherm.engine.reference import run_reference
from isotherm.engine.stack import updates, vmap_check
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import UPDATES_PER_WINDOW, StackPlan
from isotherm.engine.stack.run_stack import Listeners, RunStack
from isotherm.errors import UserError
from isotherm.kernels.layout import has_channels_last, of_all_runs
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.saved_checks import SavedChecks
from isotherm.tasks.seeding import DataOrder


def placed_of(task):
    return place_task(task, precision="float64")


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Return the list of fleet sizes that are traced."""
    seen: list[int] = []
    plain = updates.trace

    def watch(function, *arguments, **options):
        seen.append(len(arguments[0]))
        return plain(function, *arguments, **options)

    monkeypatch.setattr(updates, "trace", watch)
    return seen


def fleet_of(task, *, seeds=(0, 1), rate=0.1, batch_size=4):
    return [
        cases.spec(task, batch_size=batch_size, num_steps=6, effective_learning_rate=rate, seed=seed) for seed in seeds
    ]


@pytest.mark.parametrize("make", [cases.dropout_task, cases.batch_norm_task, cases.regression_task])
def test_a_later_fleet_of_the_same_shapes_takes_the_trace_and_has_the_same_bits(make, sizes):
    task = make()
    placed, precision = placed_of(task), {"precision": "float64"}
    fleets = [
        [dataclasses.replace(spec, **precision) for spec in fleet_of(task, seeds=seeds, rate=rate)]
        for seeds, rate in (((0, 1), 0.1), ((0, 1), 0.01), ((2, 3), 0.1))
    ]
    found = [run_fleet(placed, fleet) for fleet in fleets]
    assert sizes == [2]
    assert found == [run_fleet(placed_of(task), fleet) for fleet in fleets]
    assert sizes == [2] * 4  # a task that is placed anew is traced anew


def test_another_size_or_batch_size_is_traced(sizes):
    task = cases.blobs_task()
    placed = placed_of(task)
    for specs in (fleet_of(task), fleet_of(task, seeds=(0, 1, 2)), fleet_of(task, batch_size=8), fleet_of(task)):
        run_fleet(placed, [dataclasses.replace(spec, precision="float64") for spec in specs])
    assert sizes == [2, 3, 2]


def test_tasks_on_other_data_share_traces_where_they_compute_the_same(sizes):
    task = cases.blobs_task()
    x, y = task.train
    other = dataclasses.replace(task, train=(x.flip(0), y.flip(0)))
    fleet = [dataclasses.replace(spec, precision="float64") for spec in fleet_of(task)]
    first = place_task(task, precision="float64")
    beside = place_task(other, precision="float64", beside=[first])
    found = [run_fleet(placed, fleet) for placed in (first, beside)]
    assert sizes == [2]
    assert found[1] == run_fleet(place_task(other, precision="float64"), fleet)
    unlike = dataclasses.replace(task, loss=lambda output, target: 2 * nn.functional.cross_entropy(output, target))
    assert place_task(unlike, precision="float64", beside=[first]).traces is not first.traces


class SeedScaled(nn.Linear):
    """Multiplies its outputs by a number that the seed decides, which no tensor shows."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.factor = float(torch.rand(()))

    def forward(self, input: Tensor) -> Tensor:
        return self.factor * super().forward(input)


def test_what_a_seed_decides_besides_tensors_is_traced_anew(sizes):
    task = dataclasses.replace(cases.blobs_task(), model=SeedScaled)
    placed = placed_of(task)
    for seed in (0, 1, 0):
        (spec,) = (dataclasses.replace(spec, precision="float64") for spec in fleet_of(task, seeds=(seed,)))
        (found,) = run_fleet(placed, [spec])
        assert found.test_loss == pytest.approx(run_reference(placed, spec).test_loss, rel=1e-9)
    assert sizes == [1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 11},
        {"num_steps": 6},
        {"l2_scope": "all"},
        {"num_evaluations": 1},
        {"precision": "float32"},
        {"clip_norm": 1.0},
        {"optimizer": SGD(momentum=0.9, nesterov=True)},
    ],
    ids=str,
)
def test_runs_that_are_not_alike_are_refused(change):
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=5), cases.spec(task, **{"num_steps": 5, **change})]
    with pytest.raises(UserError, match="share batch size, updates, precision, evaluations, the kind of optimiser and"):
        run_fleet(placed_of(task), specs)


def test_a_fleet_of_nobody_is_refused():
    with pytest.raises(UserError, match="the runs of a fleet must share"):
        run_fleet(placed_of(cases.blobs_task()), [])


def test_a_teacher_that_is_no_part_of_the_model_may_require_gradients(caplog):
    """As a network in a closure does, unless its user says otherwise; nothing trains it."""
    plain = cases.blobs_task()
    teacher = nn.Linear(plain.train[0].shape[1], 3).double()

    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = plain.model()

        def forward(self, x: Tensor) -> Tensor:
            return self.own(x) + nn.functional.linear(x, teacher.weight.to(x.dtype), teacher.bias.to(x.dtype))

    task = dataclasses.replace(plain, model=Taught)
    placed = placed_of(task)
    specs = [cases.spec(task, num_steps=5, seed=seed) for seed in range(3)]
    results = run_fleet(placed, specs)
    assert not caplog.text  # as a fleet, not one at a time
    for result, spec in zip(results, specs, strict=True):
        assert result.train_loss == pytest.approx(run_reference(placed, spec).train_loss, rel=1e-9)


def test_results_come_in_the_order_given():
    task = cases.blobs_task()
    rates = (0.2, 0.01, 0.1)
    specs = [cases.spec(task, num_steps=3, effective_learning_rate=rate) for rate in rates]
    seen: list[int] = []
    results = run_fleet(placed_of(task), specs, on_trained=lambda index, _: seen.append(index))
    assert seen == [0, 1, 2]
    alone = [run_fleet(placed_of(task), [spec])[0].train_loss for spec in specs]
    assert [result.train_loss for result in results] == pytest.approx(alone, rel=1e-12)


def diverging_fleet(num_diverging: int, num_others: int):
    task = cases.regression_task()
    rates = [1e3] * num_diverging + [0.1] * num_others
    specs = [cases.spec(task, seed=seed, effective_learning_rate=rate, momentum=0.0) for seed, rate in enumerate(rates)]
    return run_fleet(placed_of(task), specs)


def test_a_fleet_shrinks_when_an_eighth_has_diverged(sizes):
    results = diverging_fleet(1, 7)
    assert [result.outcome for result in results] == [Outcome.DIVERGED] + [Outcome.FINISHED] * 7
    assert sizes == [8, 7]


def test_a_fleet_keeps_its_size_when_fewer_have(sizes):
    results = diverging_fleet(1, 8)
    assert results[0].outcome is Outcome.DIVERGED
    assert results[0].divergence_step < UPDATES_PER_WINDOW
    assert sizes == [9]


def test_a_fleet_of_diverged_runs_stops(sizes):
    counted: list[int] = []
    task = cases.regression_task()
    specs = [cases.spec(task, seed=s, effective_learning_rate=1e3, momentum=0.0) for s in range(3)]
    run_fleet(placed_of(task), specs, on_steps=counted.append)
    assert sum(counted) == 3 * UPDATES_PER_WINDOW
    assert sizes == [3]


def test_a_finished_fleet_is_traced_once(sizes):
    task = cases.blobs_task()
    run_fleet(placed_of(task), [cases.spec(task, num_steps=2 * UPDATES_PER_WINDOW + 5, num_evaluations=3)])
    assert sizes == [1]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_is_no_reason_to_train_one_at_a_time(monkeypatch, error, caplog):
    """The executor halves the fleet when it hears of it; the first forward pass is where it happens."""

    def trace(*_, **__):
        raise error

    monkeypatch.setattr(updates, "trace", trace)
    task = cases.blobs_task()
    with pytest.raises(type(error)):
        run_fleet(placed_of(task), [cases.spec(task, num_steps=3, seed=seed) for seed in range(4)])
    assert "one run at a time" not in caplog.text


def test_a_module_that_refuses_without_a_word_falls_back_too(monkeypatch, caplog):
    def trace(*_, **__):
        raise AssertionError  # as a bare assert in somebody's forward does

    monkeypatch.setattr(updates, "trace", trace)
    task = cases.blobs_task()
    [result] = run_fleet(placed_of(task), [cases.spec(task, num_steps=3)])
    assert result.outcome is Outcome.FINISHED
    assert "one run at a time" in caplog.text
    assert "AssertionError" in caplog.text


class Remembering(torch.nn.Linear):
    """Refused as a fleet: it counts its calls."""

    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(input) * self.calls


def test_a_placed_task_in_mixed_precision_is_checked_once_at_every_batch_size(monkeypatch, caplog):
    tried: list[int] = []
    plain = vmap_check.check_gradients

    def watch(parts):
        tried.append(parts.plan.batch_size)
        plain(parts)

    monkeypatch.setattr(vmap_check, "check_gradients", watch)
    task, checks = cases.blobs_task(), FleetChecks()
    placed = place_task(task, precision="mixed")
    for batch_size, seed in ((4, 0), (4, 1), (8, 0), (4, 2), (8, 1)):
        spec = cases.spec(task, batch_size=batch_size, num_steps=2, seed=seed, precision="mixed")
        other = cases.spec(task, batch_size=batch_size, num_steps=2, seed=9, precision="mixed")
        run_fleet(placed, [spec, other], checks=checks)
    assert tried == [4, 8]
    run_fleet(placed, [cases.spec(task, batch_size=4, num_steps=2, precision="mixed")], checks=checks)
    assert tried == [4, 8, 4]  # one run alone is another matter
    # One that fails is tried again, and again refused.
    refused = place_task(dataclasses.replace(task, model=functools.partial(Remembering, 2, 3)), precision="mixed")
    specs = [cases.spec(task, batch_size=4, num_steps=2, seed=s, precision="mixed") for s in (0, 1)]
    checks = FleetChecks()
    caplog.clear()
    for _ in range(2):
        run_fleet(refused, specs, checks=checks)
    assert checks.are_one_by_one(4)
    assert caplog.text.count("one run at a time") == 1
    assert tried == [4, 8, 4, 4, 4]


def test_gradients_that_an_earlier_process_found_right_are_not_checked_again(monkeypatch, tmp_path):
    tried: list[int] = []
    plain = vmap_check.check_gradients

    def watch(parts):
        tried.append(parts.plan.batch_size)
        plain(parts)

    monkeypatch.setattr(vmap_check, "check_gradients", watch)
    task = cases.blobs_task()
    placed = place_task(task, precision="mixed")

    def in_new_process(batch_size):
        specs = [cases.spec(task, batch_size=batch_size, num_steps=2, seed=s, precision="mixed") for s in (0, 1)]
        checks = FleetChecks(saved=SavedChecks(folder=tmp_path), name="blobs")
        return run_fleet(placed, specs, checks=checks)

    assert in_new_process(4) == in_new_process(4)
    in_new_process(8)
    assert tried == [4, 8]


def test_gradients_that_are_wrong_are_never_saved(tmp_path):
    task = dataclasses.replace(cases.blobs_task(), model=functools.partial(Remembering, 2, 3))
    specs = [cases.spec(task, batch_size=4, num_steps=2, seed=s, precision="mixed") for s in (0, 1)]
    run_fleet(place_task(task, precision="mixed"), specs, checks=FleetChecks(saved=SavedChecks(folder=tmp_path)))
    assert not list(tmp_path.iterdir())


class Unbatched(torch.autograd.Function):
    """Cannot be vectorised: it has no rule for `vmap`."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Doubling(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return Unbatched.apply(super().forward(input))


def test_a_run_alone_says_nothing_of_several_at_once(caplog):
    task = dataclasses.replace(cases.blobs_task(), model=functools.partial(Doubling, 2, 3))
    placed = place_task(task, precision="mixed")
    specs = [cases.spec(task, batch_size=4, num_steps=2, seed=seed, precision="mixed") for seed in range(3)]
    checks = FleetChecks()
    run_fleet(placed, specs[:1], checks=checks)
    assert caplog.text == ""
    results = run_fleet(placed, specs[1:], checks=checks)
    assert "one run at a time" in caplog.text
    assert [result.outcome for result in results] == [Outcome.FINISHED] * 2


class Stub:
    """A stack that is over after so many windows."""

    def __init__(self, windows: int) -> None:
        self.windows, self.shared = windows, None
        self.wants_evaluation = self.is_asynchronous = False

    @property
    def is_done(self) -> bool:
        return self.windows == 0

    def share_program(self, other) -> None:
        self.shared = other

    def start_window(self) -> None:
        assert self.shared is None or self.shared.has_started
        self.has_started = True

    def finish_window(self) -> None:
        self.windows -= 1

    def shrink(self) -> None:
        pass


@pytest.mark.parametrize("windows", [(2, 3, 1), (0, 2, 3), (0, 0, 1), (0, 0, 0), (3,)], ids=str)
def test_stacks_share_the_program_of_one_that_still_trains(windows):
    """After a restart the first may be done: it makes no program."""
    stacks = [Stub(num) for num in windows]
    fleet.train_stacks(stacks, None, Deadline())
    assert all(stack.is_done for stack in stacks)
    active = [stack for stack, num in zip(stacks, windows, strict=True) if num]
    assert all(stack.shared is (None if stack is active[0] else active[0]) for stack in active)


class Timed(Stub):
    """Writes down what it is asked to do."""

    def __init__(self, windows: int, log: list[str], *, is_asynchronous: bool) -> None:
        super().__init__(windows)
        self.log, self.is_asynchronous, self.num = log, is_asynchronous, 0

    def start_window(self) -> None:
        super().start_window()
        self.log.append("start")

    def draw_ahead(self) -> None:
        self.log.append("draw")

    def finish_window(self) -> None:
        super().finish_window()
        self.log.append("finish")


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_the_speed_of_several_stacks_is_measured_once_in_the_second_window(is_asynchronous):
    log: list[str] = []
    told: list[tuple[int, float]] = []
    seconds = iter([0.0, 2.0, 10.0, 13.0])  # the first by itself 2, the other three 3: 2 times 3 / 3
    stacks = [Timed(4, log, is_asynchronous=is_asynchronous) for _ in range(4)]
    fleet.train_stacks(stacks, None, Deadline(), on_speed=lambda *gain: told.append(gain), clock=lambda: next(seconds))
    assert told == [(3, 2.0)]
    with pytest.raises(StopIteration):
        next(seconds)
    assert [stack.windows for stack in stacks] == [0] * 4

    def window(num: int) -> list[str]:
        return ["start"] * num + ["draw"] * num * is_asynchronous + ["finish"] * num

    assert log == [*window(4), *window(1), *window(3), *window(4), *window(4)]


@pytest.mark.parametrize("windows", [(1, 1, 1), (3, 3), (3, 1, 3)], ids=str)
def test_too_few_windows_or_stacks_are_not_timed(windows):
    """One window may compile, and two stacks are no company for one of them."""
    stacks = [Timed(num, [], is_asynchronous=True) for num in windows]
    fleet.train_stacks(stacks, None, Deadline(), on_speed=lambda *_: pytest.fail("told"))
    assert all(stack.is_done for stack in stacks)


def test_timing_a_window_changes_no_number():
    """Every run a stack of its own, with evaluations between and at the ends of windows."""
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=23, num_evaluations=4, seed=seed) for seed in range(4)]
    found = []
    for on_speed in (None, lambda *_: None):
        stacks = [
            RunStack.of(StackPlan.of(placed_of(task), [spec], convolves=False, updates_per_window=5), Listeners())
            for spec in specs
        ]
        fleet.train_stacks(stacks, None, Deadline(), on_speed=on_speed)
        found.append([result for stack in stacks for result in stack.results()])
    assert found[0] == found[1]


def test_runs_with_streams_of_their_own_say_their_speed_once(monkeypatch, caplog):
    """Kernels do not take this module, so each run is a program of its own, as on a GPU."""
    task = dataclasses.replace(cases.conv_task(), model=Flattened)
    specs = [cases.spec(task, batch_size=4, num_steps=12, seed=seed, precision="mixed") for seed in range(4)]
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    monkeypatch.setattr(
        FleetChecks, "wants_own_streams", lambda self, placed, size: not self.convolves_together(placed, size)
    )
    placed, checks = place_task(task, precision="mixed"), FleetChecks()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        first = run_fleet(placed, specs, checks=checks, updates_per_window=4)
        monkeypatch.setattr(fleet, "_seconds_of_window", lambda *_: pytest.fail("timed again"))
        assert run_fleet(placed, specs, checks=checks, updates_per_window=4) == first
    reason, speed = [record.getMessage() for record in caplog.records]
    assert reason.startswith("convolutions are not computed for all runs at once, but run by run: ")
    number = r"[\d.e+-]+"
    assert re.fullmatch(
        rf"3 runs at the same time, each a program of its own, make {number} times as many updates a second as one run "
        r"\(measured, B = 4\)",
        speed,
    )


class OnGpu(RunStack):
    """A stack that is told to draw ahead, as on a GPU."""

    is_asynchronous = True


def test_stacks_on_a_gpu_train_with_examples_drawn_ahead(monkeypatch):
    """Windows end where the test set is evaluated; half of the runs diverge and leave."""
    task = cases.blobs_task()
    specs = [
        cases.spec(task, num_steps=23, num_evaluations=3, seed=seed, effective_learning_rate=rate)
        for seed in (0, 1)
        for rate in (0.1, 1e200)
    ]
    plan = StackPlan.of(placed_of(task), specs, convolves=False, updates_per_window=5)
    ours, plain = StackParts.of(plan), StackParts.of(plan)
    draws = []  # where a window begins, and what was done when it was drawn
    draw = DataOrder.block

    def watch(order, start, size):
        if size > 1:
            draws.append((start, ours.state.num_done))
        return draw(order, start, size)

    with monkeypatch.context() as patch:
        patch.setattr(DataOrder, "block", watch)
        fleet.train_stacks([OnGpu(ours, Listeners())], None, Deadline())
    fleet.train_stacks([RunStack(plain, Listeners())], None, Deadline())
    assert draws[::2] == draws[1::2]  # of both seeds
    starts = [start for start, _ in draws[::2]]
    assert [done for _, done in draws[::2]] == [0, *starts[:-1]]  # each during the one before
    assert starts[-1] < 23 <= starts[-1] + 5
    assert ours.divergence.index_M == plain.divergence.index_M == (0, 2)
    assert torch.equal(ours.state.last_M, plain.state.last_M)
    for value, other in zip(ours.state.weights.values, plain.state.weights.values, strict=True):
        assert torch.equal(value, other)


# -- one program, or one for each run -------------------------------------------------------------------------------

SMALL_BATCH, LARGE_BATCH = LARGEST_BATCH_TOGETHER, LARGEST_BATCH_TOGETHER + 1


@pytest.mark.parametrize("are_usable", [True, False], ids=["with kernels", "without"])
@pytest.mark.parametrize(
    ("make", "precision", "device", "expected"),
    [
        (cases.conv_task, "mixed", "cpu", [False, False]),
        (cases.conv_task, "mixed", "cuda", [False, True]),
        (cases.conv_task, "float32", "cuda", [True, True]),
        (cases.conv_task, "float64", "cuda", [True, True]),
        (cases.blobs_task, "mixed", "cuda", [False, False]),
        (cases.blobs_task, "float32", "cuda", [False, False]),
    ],
)
def test_which_runs_are_programs_of_their_own(make, precision, device, expected, are_usable, monkeypatch):
    """On a GPU those with convolutions, except in small batches where there are kernels for many runs."""
    asked: list[torch.device] = []

    def usable(place: torch.device) -> bool:
        asked.append(place)
        return are_usable

    monkeypatch.setattr(convolution_ops, "are_usable", usable)
    monkeypatch.setattr("isotherm.engine.placed_task.MOST_FLOP_UNFOLDED", 0.0)
    placed = dataclasses.replace(place_task(make(), precision=precision), device=torch.device(device))
    found = [FleetChecks().wants_own_streams(placed, batch_size) for batch_size in (SMALL_BATCH, LARGE_BATCH)]
    if placed.has_convolutions and device == "cuda" and not are_usable:
        expected = [True, True]
    assert found == expected
    is_possible = make is cases.conv_task and precision == "mixed" and are_usable
    assert placed.convolves_together(SMALL_BATCH) == is_possible
    assert not placed.convolves_together(LARGE_BATCH)
    assert {place.type for place in asked} <= {device}


def test_modules_that_do_not_suit_and_inputs_from_disk_are_programs_of_their_own(monkeypatch):
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    on_gpu = {"device": torch.device("cuda")}
    placed = dataclasses.replace(place_task(cases.conv_task(), precision="mixed"), **on_gpu)
    assert placed.convolutions_suit_kernels
    assert not FleetChecks().wants_own_streams(placed, 4)
    assert FleetChecks().wants_own_streams(dataclasses.replace(placed, convolutions_suit_kernels=False), 4)
    circular = functools.partial(torch.nn.Conv2d, 1, 3, 8, padding_mode="circular")
    other = place_task(dataclasses.replace(cases.conv_task(), model=circular), precision="mixed")
    assert not other.convolutions_suit_kernels
    lazy = place_task(lazy_task(), precision="mixed")
    assert lazy.convolutions_suit_kernels
    assert FleetChecks().wants_own_streams(dataclasses.replace(lazy, **on_gpu), 4)


class FakeStack:
    """Trains nothing and counts runs."""

    compared: ClassVar[list[int]] = []
    tried: ClassVar[list[int]] = []
    is_done, device = True, torch.device("cpu")

    def __init__(self, plan):
        self.specs = list(plan.specs)

    @classmethod
    def of(cls, plan, _listeners):
        return cls(plan)

    def check_gradients(self):
        self.compared.append(len(self.specs))

    def slow_path(self):
        return None

    def check_program(self):
        self.tried.append(len(self.specs))

    def share_program(self, other):
        assert len(other.specs) == len(self.specs) == 1

    def results(self):
        return [(spec, len(self.specs)) for spec in self.specs]


@pytest.mark.parametrize("are_usable", [True, False], ids=["with kernels", "without"])
def test_several_runs_are_checked_where_they_train_together(are_usable, monkeypatch):
    """Else one run by itself is, as it will be trained. With kernels the program of all runs is checked too."""
    monkeypatch.setattr(FakeStack, "compared", [])
    monkeypatch.setattr(FakeStack, "tried", [])
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: are_usable)
    monkeypatch.setattr(fleet, "RunStack", FakeStack)
    monkeypatch.setattr(fleet, "seeded", lambda *_: contextlib.nullcontext())
    task, checks = cases.conv_task(), FleetChecks()
    placed = dataclasses.replace(place_task(task, precision="mixed"), device=torch.device("cuda"))
    for batch_size, num_runs in ((4, 3), (LARGE_BATCH, 3), (8, 1), (4, 3)):
        specs = [cases.spec(task, batch_size=batch_size, seed=seed, precision="mixed") for seed in range(num_runs)]
        run_fleet(placed, specs, checks=checks)
    assert FakeStack.compared == ([2, 1, 1] if are_usable else [1, 1, 1])
    assert FakeStack.tried == ([3, 1] if are_usable else [])


class Flattened(nn.Module):
    """Its view needs channels that do not come last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.conv(x)).view(len(x), -1))


class Odd(nn.Module):
    """Its images have sides that the stride does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 2), nn.Conv2d(16, 16, 3, stride=2)
        self.linear = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.second(torch.relu(self.first(x))).mean(dim=(2, 3)))


@pytest.mark.parametrize(("model", "reason"), [(Flattened, "view size is not"), (Odd, "images of this size")])
def test_modules_that_kernels_do_not_take_are_trained_without_them(model, reason, monkeypatch, caplog):
    task = dataclasses.replace(cases.conv_task(), model=model)
    specs = [cases.spec(task, batch_size=4, seed=seed, precision="mixed") for seed in range(2)]
    expected = run_fleet(place_task(task, precision="mixed"), specs)
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    placed, checks = place_task(task, precision="mixed"), FleetChecks()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert run_fleet(placed, specs, checks=checks) == expected
        assert run_fleet(placed, specs, checks=checks) == expected
    (message,) = [record.getMessage() for record in caplog.records]  # once for a batch size
    assert message.startswith("convolutions are not computed for all runs at once, but run by run: ")
    assert reason in message
    assert not checks.convolves_together(placed, 4)


class Normed(nn.Module):
    """As users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.linear = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.body(x).mean(dim=(2, 3)))


def test_a_user_s_batch_norms_are_computed_by_kernels_too(monkeypatch, caplog):
    """On a CPU, by the operations' plain way; PyTorch's own batch norm in half precision fails there under `vmap`."""
    task = dataclasses.replace(cases.conv_task(), model=Normed)
    specs = [cases.spec(task, batch_size=8, num_steps=20, seed=seed, precision="mixed") for seed in range(2)]
    placed = place_task(task, precision="mixed")
    expected = [run_reference(placed, spec) for spec in specs]

    def fits(x):
        images = of_all_runs(x)
        return x.dtype == torch.bfloat16 and images is not None and images.ndim == 5 and has_channels_last(images)

    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    monkeypatch.setattr(ghost_norm_ops, "fits", fits)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        found = run_fleet(placed, specs)
    assert not caplog.records
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=0.05)
        assert ours.train_loss_running == pytest.approx(theirs.train_loss_running, rel=0.05)


@pytest.mark.parametrize("are_usable", [True, False], ids=["with kernels", "without"])
def test_a_fleet_of_convolutions_is_one_stack_or_one_for_each_run(are_usable, monkeypatch):
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: are_usable)
    monkeypatch.setattr(fleet, "RunStack", FakeStack)
    monkeypatch.setattr(fleet, "seeded", lambda *_: contextlib.nullcontext())
    task = cases.conv_task()
    placed = dataclasses.replace(place_task(task, precision="mixed"), device=torch.device("cuda"))
    for batch_size, is_together in ((4, are_usable), (LARGE_BATCH, False)):
        specs = [cases.spec(task, batch_size=batch_size, seed=seed, precision="mixed") for seed in range(3)]
        assert run_fleet(placed, specs) == [(spec, 3 if is_together else 1) for spec in specs]
