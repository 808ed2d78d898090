"""What suits a device and a precision, and that a plan stays as it is."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch

import cases
from isotherm.core.records import RunSpec
from isotherm.engine import placed_task
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.plan import (
    SECONDS_WORTH_COMPILING,
    UPDATES_WORTH_COMPILING,
    StackPlan,
    updates_worth_compiling,
)

ENGINE = Path(placed_task.__file__).parent


def plan_of(num_runs: int, *, device: str = "cpu", precision: str = "mixed", convolves: bool = False) -> StackPlan:
    task = cases.conv_task()
    placed = dataclasses.replace(place_task(task, precision=precision), device=torch.device(device))
    specs = [cases.spec(task, seed=seed, precision=precision) for seed in range(num_runs)]
    return StackPlan.of(placed, specs, convolves=convolves)


def test_on_a_cpu_programs_are_bound_to_their_batch_and_never_compiled() -> None:
    plan = plan_of(2)
    assert plan.binds_batch
    assert plan.compiles_from is None
    assert [plan.reads_bfloat16, plan.channels_last, plan.is_single, plan.returns_factors] == [False] * 4


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_on_a_gpu_matrices_are_rounded_in_mixed_precision_only(precision: str) -> None:
    plan = plan_of(2, device="cuda", precision=precision)
    assert plan.reads_bfloat16 == (precision == "mixed")
    assert plan.compiles_from == UPDATES_WORTH_COMPILING
    assert not plan.binds_batch


@pytest.mark.parametrize("convolves", [True, False])
def test_one_run_is_single_unless_kernels_take_its_convolutions(convolves: bool) -> None:
    plan = plan_of(1, device="cuda", convolves=convolves)
    assert plan.is_single == plan.channels_last == (not convolves)
    assert plan.reads_bfloat16 == convolves


def test_runs_with_the_same_seed_share_a_position() -> None:
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed) for seed in (7, 3, 7, 5)]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False)
    assert plan.seeds == (3, 5, 7)
    assert plan.seed_positions().tolist() == [2, 0, 2, 1]


def test_what_all_runs_share_is_that_of_the_first() -> None:
    task = cases.blobs_task()
    spec: RunSpec = cases.spec(task, num_steps=20, batch_size=16, num_evaluations=2, clip_norm=1.0)
    plan = StackPlan.of(place_task(task, precision="float64"), [spec], convolves=False)
    assert (plan.num_steps, plan.batch_size, plan.clips) == (20, 16, True)
    assert plan.evaluation_steps == (10, 20)
    assert plan.running_window == 4  # 64 examples


def _frozen_classes(path: Path) -> list[ast.ClassDef]:
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return [c for c in classes if any("frozen=True" in ast.unparse(d) for d in c.decorator_list)]


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda p: str(p.relative_to(ENGINE)))
def test_frozen_classes_of_the_engine_hold_nothing_that_can_be_added_to(path: Path) -> None:
    for frozen in _frozen_classes(path):
        for field in frozen.body:
            if isinstance(field, ast.AnnAssign):
                kind = ast.unparse(field.annotation).split("[")[0]
                assert kind not in ("list", "dict", "set"), f"{frozen.name}.{ast.unparse(field)}"


# FLOP and parameters of an update of all runs, and seconds of one as measured on an H200 (docs/performance.md).
MEASURED = {
    "wrn16x4_cifar10, B = 64, 24 runs": (24 * 64 * 2.36e9, 24 * 2.75e6, 24 * 64 / 140_000),
    "wrn16x4_cifar10, B = 1,024, 3 runs": (3 * 1024 * 2.36e9, 3 * 2.75e6, 3 * 1024 / 151_000),
    "autoencoder_mnist, B = 64, 35 runs": (35 * 64 * 6 * 2.84e6, 35 * 2.84e6, 35 / 42_200),
    "lstm_ptb, B = 64, 21 runs": (21 * 64 * 35 * 6 * 13.3e6, 21 * 19.8e6, 21 / 1_280),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_worth_compiling_follows_from_the_time_that_it_takes(name: str) -> None:
    flop, num_parameters, seconds = MEASURED[name]
    found = updates_worth_compiling(flop=flop, num_parameters=num_parameters)
    assert found * seconds == pytest.approx(SECONDS_WORTH_COMPILING, rel=0.6)


def test_a_fixed_number_stands_for_work_that_is_not_known() -> None:
    task = cases.blobs_task()
    on_gpu = dataclasses.replace(place_task(task, precision="float32"), device=torch.device("cuda"))
    plans = [StackPlan.of(on_gpu, [cases.spec(task)], convolves=False, compiles_from=n) for n in (None, 70_000)]
    assert [plan.compiles_from for plan in plans] == [UPDATES_WORTH_COMPILING, 70_000]
