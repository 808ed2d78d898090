"""Runs into a store, and again: on a task that trains in milliseconds."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers_protocol import NUM_POINTS, Recorder, assert_same_results, blobs, blobs_task, rates_of, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import CurvePoint, Outcome, RunResult
from isotherm.data.augment import CropAndFlip
from isotherm.errors import StoreError, UserError
from isotherm.models.wide_resnet import wide_resnet
from isotherm.running.executors.fleet_times import work_of
from isotherm.running.runner import run, run_study
from isotherm.running.store import Store
from isotherm.sweep.plan import StudyPlan, TuneOn
from isotherm.sweep.protocol import Edge
from isotherm.sweep.results import Results
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

# float64; other fleets sum in another order.
TOLERANCE = 1e-12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def results_in(path: Path) -> dict[str, RunResult]:
    with Store.read(path) as store:
        return store.results()


def by_key(results: Results) -> dict[str, RunResult]:
    return dict(results.by_key)


# -- a run, and the same again ---------------------------------------------------------------------


def test_a_precision_of_gpus_is_refused_on_a_cpu_before_a_store_is_made(path: Path) -> None:
    with pytest.raises(UserError, match="precision='tf32' is a way in which GPUs multiply"):
        run(tiny_sweep(precision="tf32"), store=path)
    assert not list(path.parent.iterdir())


def test_run_returns_every_run_of_the_sweep() -> None:
    recorder = Recorder()
    results = run(tiny_sweep(), progress=recorder)
    assert results.counts() == {"finished": 6, "diverged": 0, "failed": 0, "missing": 0}
    assert results.by_key.keys() == results.runs().keys() == {spec.key for spec in recorder.specs}
    assert [round_ for round_, _ in recorder.rounds] == [0]
    assert len(recorder.done) == 6
    for result in results.by_key.values():
        assert [point.step for point in result.curve] == [5, 10]
        assert result.test_loss == result.curve[-1].test_loss
        assert result.validation_loss is None


def test_learning_happens() -> None:
    results = run(tiny_sweep(budget=Budget.steps(200), num_evaluations=0))
    best = results.grids()[0].optimum("test_metric")
    assert best is not None
    # Two unit Gaussians at ±(1, 1): the best line is right with probability Φ(√2) = 0.92.
    assert results.grids()[0].cells[0].estimate("train_loss", kept=[0, 1]).mean < 0.4


def test_progress_counts_every_update_once() -> None:
    recorder = Recorder()
    run(tiny_sweep(batch_sizes=[8, 16]), progress=recorder, fleet_size=4)
    assert recorder.work == sum(work_of(spec.batch_size, spec.num_steps) for spec in recorder.specs)


def test_second_run_into_a_file_trains_nothing(path: Path) -> None:
    first, second = Recorder(), Recorder()
    one = run(tiny_sweep(), store=str(path), progress=first)
    content = results_in(path)
    two = run(tiny_sweep(), store=path, progress=second)
    assert (len(first.done), len(second.done), second.rounds) == (6, 0, [])
    assert by_key(one) == by_key(two) == content == results_in(path)


def test_second_run_into_an_open_store_trains_nothing() -> None:
    recorder = Recorder()
    with Store.in_memory() as store:
        one = run(tiny_sweep(), store=store)
        two = run(tiny_sweep(), store=store, progress=recorder)
        assert recorder.rounds == []
        assert by_key(one) == by_key(two) == store.results()  # and the store is still open


def test_store_in_memory_gives_what_a_file_gives(path: Path) -> None:
    assert by_key(run(tiny_sweep())) == by_key(run(tiny_sweep(), store=str(path)))


def test_provenance_says_how_a_run_came_about(path: Path) -> None:
    run(tiny_sweep(), store=str(path), fleet_size=4)
    with Store.read(path) as store:
        provenances = [stored.provenance for stored in store.runs()]
    assert sorted(p["fleet_size"] for p in provenances) == [2, 2, 4, 4, 4, 4]
    assert all(p["torch"] == torch.__version__ and p["device"].startswith("cpu") for p in provenances)


def test_study_is_kept_with_its_runs(path: Path) -> None:
    sweep = tiny_sweep(name="mine")
    run(sweep, store=str(path))
    with Store.read(path) as store:
        definition = store.studies()["mine"]
    assert StudyPlan.from_json(definition) == Study.of(sweep).plan()


# -- one task object, changed between two runs -----------------------------------------------------


@pytest.mark.parametrize("tune_on", ["test", "validation"])
def test_data_changed_in_place_are_other_data(tune_on: TuneOn) -> None:
    task = blobs_task()
    sweep = tiny_sweep(task=task, tune_on=tune_on)
    with Store.in_memory() as store:
        before = by_key(run(sweep, store=store))
        task.train[0].mul_(-2.0)
        changed = run(sweep, store=store)
        assert changed.counts()["finished"] == 6
        assert len(store.results()) == 12
        task.train[0].div_(-2.0)
        recorder = Recorder()
        restored = run(sweep, store=store, progress=recorder)
        assert recorder.rounds == []
        assert {key: restored.by_key[key] for key in before} == before
    assert by_key(changed).keys().isdisjoint(before)  # of a store, what concerns a study is read
    fresh = run(tiny_sweep(task=blobs_task(train=(blobs()[0] * -2.0, blobs()[1])), tune_on=tune_on))
    assert {key: changed.by_key[key] for key in fresh.by_key} == by_key(fresh)  # nothing of the old data was used


SLOPE = {"negative": 0.0}


class Leaky(nn.Module):
    """A network with a global setting."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.layer(x), SLOPE["negative"])


def test_a_global_changed_in_place_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny_sweep(task=blobs_task(model=Leaky))
    with Store.in_memory() as store:
        run(sweep, store=store)
        monkeypatch.setitem(SLOPE, "negative", 0.5)
        run(sweep, store=store)
        assert len(store.results()) == 12


# -- more of the same ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "num_new"),
    [
        ({"num_seeds": 4}, 3 * 2),
        ({"effective_learning_rates": [0.125, 0.25, 0.5, 0.75]}, 2),
        ({"batch_sizes": [8, 16]}, 3 * 2),
        ({"momentum": [0.9, 0.0]}, 3 * 2),
        ({"num_kept": 1, "name": "renamed", "tune_on": "train"}, 0),
    ],
    ids=str,
)
def test_asking_for_more_trains_only_what_is_new(path: Path, changes: dict[str, Any], num_new: int) -> None:
    run(tiny_sweep(), store=str(path))
    before = results_in(path)
    recorder = Recorder()
    more = run(tiny_sweep(**changes), store=str(path), progress=recorder)
    assert len(recorder.done) == num_new
    assert not before.keys() & {spec.key for spec in recorder.specs}
    assert before.items() <= results_in(path).items()
    fresh = run(tiny_sweep(**changes))
    assert_same_results({key: more.by_key[key] for key in fresh.by_key}, by_key(fresh), tolerance=TOLERANCE)


def test_other_data_under_the_same_name_is_another_run(path: Path) -> None:
    run(tiny_sweep(), store=str(path))
    recorder = Recorder()
    run(tiny_sweep(task=blobs_task(train=blobs(seed=5))), store=str(path), progress=recorder)
    assert len(recorder.done) == 6
    assert len(results_in(path)) == 12


@pytest.mark.parametrize("fleet_size", [1, 2, 5, 100])
def test_results_do_not_depend_on_the_fleet(fleet_size: int) -> None:
    recorder = Recorder()
    sweep = tiny_sweep(momentum=[0.0, 0.9], l2=0.01)
    ours = run(sweep, fleet_size=fleet_size, progress=recorder)
    assert recorder.num_fleets == -(-12 // fleet_size)
    assert_same_results(by_key(ours), by_key(run(sweep)), tolerance=TOLERANCE)


@pytest.mark.parametrize("workers", [2, 3])
def test_results_do_not_depend_on_the_workers(path: Path, workers: int) -> None:
    recorder, again = Recorder(), Recorder()
    sweep = growing(batch_sizes=[8, 16])
    ours = run(sweep, store=path, workers=workers, fleet_size=2, progress=recorder)
    assert len(recorder.done) == len(ours.runs()) == 24
    assert recorder.work == sum(work_of(spec.batch_size, spec.num_steps) for spec in recorder.specs)
    run(sweep, store=path, workers=workers, progress=again)
    assert again.rounds == []
    assert_same_results(by_key(ours), by_key(run(sweep)), tolerance=TOLERANCE)
    assert multiprocessing.active_children() == []


def test_order_of_the_axes_does_not_matter() -> None:
    one = run(tiny_sweep(batch_sizes=[8, 16], effective_learning_rates=[0.125, 0.25]))
    two = run(tiny_sweep(batch_sizes=[16, 8], effective_learning_rates=[0.25, 0.125]), fleet_size=3)
    assert_same_results(by_key(one), by_key(two), tolerance=TOLERANCE)


def test_sweeps_of_a_study_share_their_runs() -> None:
    task, recorder = blobs_task(), Recorder()
    sweeps = (tiny_sweep(task=task), tiny_sweep(task=task, num_seeds=3), tiny_sweep(task=task, tune_on="validation"))
    results = run_study(Study(name="three", sweeps=sweeps), progress=recorder)
    assert len(recorder.done) == 9 + 6  # held-out data make other runs
    assert results.counts() == {"finished": 15, "diverged": 0, "failed": 0, "missing": 0}
    assert [r.counts()["finished"] for r in results.sweeps] == [6, 9, 6]
    validated = results.sweeps[2]
    assert all(validated.by_key[key].validation_loss is not None for key in validated.runs())


# -- extensions ------------------------------------------------------------------------------------


def growing(**changes: Any) -> Sweep:
    """Return a sweep whose best learning rate lies far above its grid."""
    fields = {"effective_learning_rates": [2**-9, 2**-8], "max_extensions": 2, "num_kept": 1}
    return tiny_sweep(**{**fields, **changes})


def test_grid_grows_towards_its_optimum() -> None:
    recorder = Recorder()
    results = run(growing(), progress=recorder)
    assert [(round_, rates_of(specs)) for round_, specs in recorder.rounds] == [
        (0, [2**-9, 2**-8]),
        (1, [2**-7, 2**-6]),
        (2, [2**-5, 2**-4]),
    ]
    (grid,) = results.grids()
    assert (len(grid.cells), grid.edge()) == (6, Edge.UPPER)
    assert results.counts() == {"finished": 12, "diverged": 0, "failed": 0, "missing": 0}


def test_grid_stops_growing_once_the_optimum_is_interior() -> None:
    sweep = tiny_sweep(effective_learning_rates=[0.25, 0.5], max_extensions=20, budget=Budget.steps(40), momentum=0.5)
    recorder = Recorder()
    results = run(sweep, progress=recorder)
    (grid,) = results.grids()
    assert grid.edge() is Edge.INTERIOR
    assert 1 < len(recorder.rounds) < 20


def test_resumed_extensions_are_those_of_an_uninterrupted_run(path: Path) -> None:
    run(growing(max_extensions=1), store=str(path))
    recorder = Recorder()
    resumed = run(growing(), store=str(path), progress=recorder)
    assert [rates_of(specs) for _, specs in recorder.rounds] == [[2**-5, 2**-4]]
    assert_same_results(by_key(resumed), by_key(run(growing())), tolerance=TOLERANCE)


def refining(**changes: Any) -> Sweep:
    """Return a sweep that refines its grid around an optimum inside it, and confirms it."""
    fields: dict[str, Any] = {
        "effective_learning_rates": powers_of_two(-8, 0),
        "budget": Budget.steps(40),
        "momentum": 0.5,
        "resolution": "adaptive",
        "num_seeds": 1,  # has no error of its mean: as fine as it goes
        "num_confirm": 2,
    }
    return tiny_sweep(**{**fields, **changes})


def test_grids_are_refined_and_their_optima_confirmed() -> None:
    recorder = Recorder()
    results = run(refining(), progress=recorder)
    (grid,) = results.grids()
    best = grid.optimum()
    assert best is not None
    assert best.is_resolved
    assert len(grid.cells) > 9
    assert grid.cells[best.index].is_confirmed
    assert {spec.seed for spec in recorder.rounds[-1][1]} == {1, 2}
    assert results.counts() == {"finished": len(grid.cells) + 2, "diverged": 0, "failed": 0, "missing": 0}


@pytest.mark.parametrize("num_fleets", [1, 2, 3])
def test_interrupted_refinement_goes_on_as_if_nothing_had_happened(path: Path, num_fleets: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(refining(), store=str(path), progress=Recorder(interrupt_after=num_fleets))
    assert_same_results(by_key(run(refining(), store=str(path))), by_key(run(refining())), tolerance=TOLERANCE)


def test_a_sweep_of_the_paper_is_refined_later_without_repeating_a_run(path: Path) -> None:
    first = run(refining(resolution="paper", num_confirm=0), store=str(path))
    recorder = Recorder()
    run(refining(), store=str(path), progress=recorder)
    assert not {spec.key for spec in recorder.specs} & set(first.by_key)
    assert recorder.rounds[0][0] == 1


def test_round_of_a_resumed_sweep_keeps_its_number(path: Path) -> None:
    """Round 0 are the base grids, says `Progress.round_started`; here they are done."""
    run(growing(max_extensions=0), store=str(path))
    recorder = Recorder()
    run(growing(max_extensions=1), store=str(path), progress=recorder)
    assert [(round_, rates_of(specs)) for round_, specs in recorder.rounds] == [(1, [2**-7, 2**-6])]


# -- refusals leave no trace -----------------------------------------------------------------------


def three_outputs_too_few() -> nn.Module:
    return nn.Linear(2, 1)


def wrong_width() -> nn.Module:
    return nn.Linear(3, 2)


def nothing_to_train() -> nn.Module:
    return nn.Flatten()


def broken_builder() -> nn.Module:
    raise RuntimeError("out of ideas")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too few outputs": (
        {"model": three_outputs_too_few},
        r"the model gives \(4, 1\) for labels \(4,\); for one logit per label use loss='bce'",
    ),
    "wrong inputs": ({"model": wrong_width}, r"cannot take inputs of shape \(4, 2\)"),
    "no parameters": ({"model": nothing_to_train}, r"no trainable parameters"),
    "broken builder": ({"model": broken_builder}, r"building the model raised RuntimeError: out of ideas"),
    "unlike targets": (
        {"loss": "mean_squared_error", "metric": "mean_squared_error"},
        r"mean_squared_error needs outputs shaped like the targets",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_model_that_does_not_fit_is_refused_before_anything_is_stored(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    sweep = tiny_sweep(task=blobs_task(**changes))
    with pytest.raises(UserError, match=message):
        run(sweep, store=str(path))
    assert list(path.parent.iterdir()) == []
    run(tiny_sweep(), store=str(path))
    content = path.read_bytes()
    with pytest.raises(UserError, match=message):
        run(sweep, store=str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "abacus"}, "device 'abacus' is not known"),
        ({"fleet_size": 0}, r"fleet_size=0 is not a positive whole number; leave it out"),
        ({"fleet_size": -1}, r"fleet_size=-1 is not a positive whole number"),
        ({"workers": 0}, r"workers=0 is not a positive whole number"),
        ({"workers": 2, "fleet_size": 0}, r"fleet_size=0 is not a positive whole number"),
    ],
    ids=str,
)
def test_bad_argument_is_refused_before_anything_is_stored(path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(tiny_sweep(), store=str(path), **arguments)
    assert list(path.parent.iterdir()) == []


def test_budget_of_no_whole_update_is_refused_before_anything_is_stored(path: Path) -> None:
    with pytest.raises(UserError, match="less than one update"):
        run(tiny_sweep(batch_sizes=[NUM_POINTS], budget=Budget.epochs(0.5)), store=str(path))
    assert list(path.parent.iterdir()) == []


def test_store_that_cannot_be_written_is_refused_before_training(path: Path) -> None:
    recorder = Recorder()
    with Store.write(path), pytest.raises(StoreError, match="being written by another process"):
        run(tiny_sweep(), store=str(path), progress=recorder)
    with Store.read(path) as reader, pytest.raises(StoreError, match="cannot be written"):
        run(tiny_sweep(), store=reader, progress=recorder)
    assert recorder.rounds == []


# -- interruptions and failures --------------------------------------------------------------------


@pytest.mark.parametrize(("num_fleets", "workers"), [(1, 1), (3, 1), (5, 1), (2, 2)])
def test_interrupted_sweep_resumes_where_it_was(path: Path, num_fleets: int, workers: int) -> None:
    sweep = growing()
    interrupted, resumed = Recorder(interrupt_after=num_fleets), Recorder()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, store=str(path), fleet_size=2, workers=workers, progress=interrupted)
    assert multiprocessing.active_children() == []
    assert len(results_in(path)) == len(interrupted.done) == 2 * num_fleets
    results = run(sweep, store=str(path), fleet_size=2, progress=resumed)
    assert len(interrupted.done) + len(resumed.done) == 12
    assert_same_results(by_key(results), by_key(run(sweep, fleet_size=2)), tolerance=0.0)


def test_interruption_in_the_middle_of_a_fleet_loses_that_fleet_alone(path: Path) -> None:
    class Impatient(Recorder):
        def advanced(self, work: float) -> None:
            super().advanced(work)
            if self.num_fleets == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=str(path), fleet_size=2, progress=Impatient())
    assert {result.outcome for result in results_in(path).values()} == {Outcome.FINISHED}
    assert len(results_in(path)) == 2
    recorder = Recorder()
    run(tiny_sweep(), store=str(path), progress=recorder)
    assert len(recorder.done) == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_every_look_of_every_run_is_told_once(workers: int) -> None:
    recorder = Recorder()
    results = run(tiny_sweep(num_evaluations=3), workers=workers, fleet_size=2, progress=recorder)
    told: dict[str, list[CurvePoint]] = {}
    for spec, point in recorder.looks:
        told.setdefault(spec.key, []).append(point)
    assert told == {spec.key: list(results.by_key[spec.key].curve) for spec in recorder.specs}
    assert {len(points) for points in told.values()} == {3}


def test_interrupted_run_leaves_an_open_store_open() -> None:
    with Store.in_memory() as store:
        with pytest.raises(KeyboardInterrupt):
            run(tiny_sweep(), store=store, fleet_size=2, progress=Recorder(interrupt_after=2))
        assert len(store.results()) == 4


# A fault of the world, not of the model, and part of no hash: it sits in a module of the standard library.
TROUBLE = types.SimpleNamespace(error=None, batch_size=8)
sys.trouble_of_tests = TROUBLE  # type: ignore[attr-defined]


class Troubled(nn.Module):
    """Raises while training at one batch size, as long as there is trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        trouble = sys.trouble_of_tests  # type: ignore[attr-defined]
        if self.training and trouble.error is not None and len(x) == trouble.batch_size:
            raise trouble.error("the tape is torn")
        return self.linear(x)  # type: ignore[no-any-return]


def troubled() -> nn.Module:
    return Troubled()


@pytest.fixture
def trouble() -> Iterator[types.SimpleNamespace]:
    TROUBLE.error = RuntimeError
    yield TROUBLE
    TROUBLE.error = None


def two_grids() -> Sweep:
    return growing(task=blobs_task(model=troubled), batch_sizes=[8, 16], max_extensions=1)


def test_failed_runs_spoil_no_others_and_are_tried_again(path: Path, trouble: types.SimpleNamespace) -> None:
    recorder = Recorder()
    results = run(two_grids(), store=str(path), progress=recorder)
    assert results.counts() == {"finished": 8, "diverged": 0, "failed": 4, "missing": 0}
    small, large = results.grids()
    assert (small.axes.batch_size, small.edge(), len(small.cells)) == (8, Edge.INCOMPLETE, 2)
    assert (large.axes.batch_size, large.edge(), len(large.cells)) == (16, Edge.UPPER, 4)  # it has grown
    assert {r.error for r in recorder.done if r.outcome is Outcome.FAILED} == {"RuntimeError: the tape is torn"}
    assert len(recorder.done) == 12  # once each, failed or not

    again = Recorder()
    run(two_grids(), store=str(path), progress=again)
    assert [spec.batch_size for spec in again.specs] == [8] * 4  # tried again, with no better luck

    trouble.error = None
    last = Recorder()
    results = run(two_grids(), store=str(path), progress=last)
    assert [spec.batch_size for spec in last.specs] == [8] * 8  # the base grid, then its extension
    assert results.counts() == {"finished": 16, "diverged": 0, "failed": 0, "missing": 0}
    assert_same_results(by_key(results), by_key(run(two_grids())), tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("error", "workers"), [(ValueError, 1), (ZeroDivisionError, 1), (RuntimeError, 2), (ValueError, 2)]
)
def test_whatever_a_module_raises_is_recorded_with_its_run(
    path: Path, trouble: types.SimpleNamespace, error: type[Exception], workers: int
) -> None:
    trouble.error = error
    results = run(two_grids(), store=str(path), workers=workers)
    assert results.counts() == {"finished": 8, "diverged": 0, "failed": 4, "missing": 0}
    assert {r.error for r in results_in(path).values()} == {None, f"{error.__name__}: the tape is torn"}


def test_divergence_is_a_result(path: Path) -> None:
    sweep = tiny_sweep(
        task=blobs_task(
            loss="mean_squared_error", metric="mean_squared_error", train=_regression(), test=_regression()
        ),
        effective_learning_rates=[0.125, 1e6, 1e9],
        budget=Budget.steps(120),
        momentum=0.0,
        max_extensions=3,
    )
    results = run(sweep, store=str(path))
    (grid,) = results.grids()
    assert [cell.is_unstable for cell in grid.cells if cell.effective_learning_rate >= 1e6] == [True, True]
    best = grid.optimum()
    assert best is not None
    assert best.effective_learning_rate < 1e6
    counts = results.counts()
    assert counts["diverged"] >= 4
    assert counts["failed"] == counts["missing"] == 0
    recorder = Recorder()
    run(sweep, store=str(path), progress=recorder)
    assert recorder.rounds == []  # not tried again


def _regression() -> tuple[Tensor, Tensor]:
    inputs, labels = blobs()
    return inputs, torch.stack([labels, 1 - labels], dim=1).double()


def test_a_batch_size_that_ghost_batch_norm_refuses_is_found_before_the_first_run(path: Path) -> None:
    x = torch.randint(0, 256, (200, 3, 8, 8), dtype=torch.uint8)
    task = Task(
        name="images",
        model=functools.partial(wide_resnet, depth=10, width=1),
        train=(x, torch.arange(200) % 10),
        test=(x[:20], torch.arange(20) % 10),
        transform=CropAndFlip(mean=(120.0,) * 3, std=(60.0,) * 3),
    )
    sizes = {"batch_sizes": [64, 100], "effective_learning_rates": [0.1], "budget": Budget.steps(1)}
    with pytest.raises(UserError, match="use a batch size of 64 or 128"):
        run(Sweep(task=task, tune_on="test", **sizes), store=path)
    assert not path.exists()
