import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.core.records import QUANTITIES, CurvePoint, Direction, Outcome, RunResult, RunSpec, content_hash
from isotherm.core.run_schedule import RunSchedule

SPEC = RunSpec(
    task="blobs",
    data_id="d" * 64,
    model_id="m" * 64,
    batch_size=32,
    num_steps=100,
    effective_learning_rate=0.5,
    momentum=0.9,
    gamma=2.0,
    l2=5e-4,
    l2_scope="weights",
    precision="float32",
    num_evaluations=3,
    seed=7,
)
OTHER = {
    "data_id": "e" * 64,
    "model_id": "n" * 64,
    "batch_size": 33,
    "num_steps": 101,
    "effective_learning_rate": math.nextafter(0.5, 1.0),
    "momentum": 0.0,
    "gamma": 1.0,
    "l2": 0.0,
    "l2_scope": "all",
    "precision": "float64",
    "num_evaluations": 4,
    "seed": 8,
    "clip_norm": 5.0,
    "optimizer": SGD(momentum=0.9, nesterov=True),
    "schedule": RunSchedule(shape="cosine", final_fraction=0.0),
}
# Keys of runs as they were stored before there were other optimisers.
KEYS_OF_OLD = {
    "170250df9f07b8fc643eb7dd7f628c3f88b224ae01d293c1507f0fcc87a3f3d2": {},
    "ad728c3e9738e663cbba294a5d2b7073e2557acf6da324f97636c2b65a0ed112": {"momentum": 0.0},
    "1b546663f86f0ab446347560d673ba842e71bbb1cd41ffb79fc03b292b81a98d": {"clip_norm": 5.0},
}
OPTIMIZERS = (Adam(), Adam(beta1=0.5), AdamW(), AdamW(weight_decay=0.1), Muon(), Muon(nesterov=False))

names = st.text('abé "{', max_size=5)  # a small alphabet: reading all of Unicode takes seconds
numbers = st.floats(allow_nan=False, allow_infinity=False)
schedules = st.builds(
    RunSchedule,
    shape=st.sampled_from(["paper", "constant", "linear", "cosine", "wsd"]),
    warmup_steps=st.integers(0, 100),
    decay_steps=st.none() | st.integers(0, 100),
    final_fraction=st.none() | st.floats(0.0, 1.0),
) | st.just(RunSchedule(shape="piecewise", points=((0.0, 1.0), (0.5, 0.25), (1.0, 0.0))))
specs = st.builds(
    RunSpec,
    task=names,
    data_id=names,
    model_id=names,
    batch_size=st.integers(1, 2**20),
    num_steps=st.integers(1, 2**40),
    effective_learning_rate=st.floats(1e-9, 1e9),
    momentum=st.floats(0.0, 0.999),
    gamma=st.floats(1e-3, 1e3),
    l2=st.floats(0.0, 1e3),
    l2_scope=st.sampled_from(["weights", "all"]),
    precision=st.sampled_from(["float32", "float64", "mixed"]),
    num_evaluations=st.integers(0, 1000),
    seed=st.integers(0, 2**63),
    clip_norm=st.none() | st.floats(1e-9, 1e9),
    schedule=st.none() | schedules,
)
points = st.builds(CurvePoint, step=st.integers(1, 10**6), test_loss=numbers, test_metric=numbers)
results = st.builds(
    RunResult,
    outcome=st.sampled_from(Outcome),
    train_loss_running=st.none() | numbers,
    last_batch_loss=st.none() | numbers,
    train_loss=st.none() | numbers,
    train_metric=st.none() | numbers,
    l2_penalty=st.none() | numbers,
    weight_norm_squared=st.none() | numbers,
    validation_loss=st.none() | numbers,
    validation_metric=st.none() | numbers,
    test_loss=st.none() | numbers,
    test_metric=st.none() | numbers,
    test_metric_running=st.none() | numbers,
    clipped_fraction=st.none() | numbers,
    divergence_step=st.none() | st.integers(0, 10**6),
    curve=st.lists(points, max_size=3).map(tuple),
    error=st.none() | names,
)


@given(specs)
def test_equal_specs_have_equal_keys(spec):
    assert dataclasses.replace(spec).key == spec.key


@given(specs)
def test_a_key_is_64_hexadecimal_digits(spec):
    assert len(spec.key) == 64
    assert set(spec.key) <= set("0123456789abcdef")


def test_the_key_of_a_spec_stays_what_it_is():
    # Every stored run is found by its key: when this changes, raise RUN_VERSION on purpose, or change it back.
    assert SPEC.key == "3985a30f15bf3b0be8953ed114d2f6605412ad77862e0dcfba73ed35f753a0af"


@pytest.mark.parametrize(
    ("schedule", "key"),
    [
        (
            RunSchedule(shape="cosine", warmup_steps=5, final_fraction=0.1),
            "77ed29f2114e2400bfff763a6023eb6994306cf1c3fc156171e26f4d78e7881a",
        ),
        (
            RunSchedule(shape="wsd", decay_steps=20, final_fraction=0.0),
            "79237f77f644b652509b78a0ad477a32df9296634d6eb7c03b9fe9b1ebea4e1c",
        ),
        (
            RunSchedule(shape="piecewise", points=((0.0, 1.0), (1.0, 0.5))),
            "320aea00d9b5b95584b8dc9f0bca07d315eb59c1678f216a40428f8cdee1f95f",
        ),
    ],
)
def test_the_key_of_a_schedule_stays_what_it_is(schedule, key):
    assert dataclasses.replace(SPEC, schedule=schedule).key == key


def test_every_field_but_the_task_is_listed_below():
    assert {field.name for field in dataclasses.fields(RunSpec)} == {*OTHER, "task"}


@pytest.mark.parametrize("field", OTHER)
def test_every_field_changes_the_key(field):
    assert dataclasses.replace(SPEC, **{field: OTHER[field]}).key != SPEC.key


def test_the_tasks_name_does_not_change_the_key():
    assert dataclasses.replace(SPEC, task="renamed").key == SPEC.key


@pytest.mark.parametrize("field", ["effective_learning_rate", "momentum", "gamma", "l2", "clip_norm"])
def test_whole_numbers_and_floats_are_one_setting(field):
    as_int, as_float = (dataclasses.replace(SPEC, **{field: value}) for value in (1, 1.0))
    assert as_int.key == as_float.key
    assert as_int == as_float


@given(specs, st.randoms(use_true_random=False))
def test_the_order_of_json_fields_does_not_matter(spec, random):
    content = list(spec.to_json().items())
    random.shuffle(content)
    assert RunSpec.from_json(dict(content)).key == spec.key


@given(specs)
def test_a_spec_survives_json(spec):
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@given(results)
def test_a_result_survives_json(result):
    again = RunResult.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert again == result
    assert isinstance(again.outcome, Outcome)


def test_what_a_run_does_not_have_is_none_in_json_and_nan_as_a_quantity():
    diverged = RunResult(outcome=Outcome.DIVERGED, divergence_step=3)
    assert json.loads(json.dumps(diverged.to_json(), allow_nan=False))["test_loss"] is None
    assert all(math.isnan(diverged.quantity(name)) for name in QUANTITIES)


def test_quantities_are_read_by_name():
    result = RunResult(
        outcome=Outcome.FINISHED,
        test_metric=0.9,
        test_loss=0.4,
        validation_metric=0.8,
        validation_loss=0.5,
        train_loss=0.25,
        train_metric=0.95,
        train_loss_running=0.3,
        l2_penalty=0.5,
    )
    assert {name: result.quantity(name) for name in QUANTITIES} == {
        "test_metric": 0.9,
        "test_loss": 0.4,
        "validation_metric": 0.8,
        "validation_loss": 0.5,
        "train_loss": 0.25,
        "train_metric": 0.95,
        "train_loss_running": 0.3,
        "train_objective": 0.75,
    }


@pytest.mark.parametrize("missing", ["train_loss", "l2_penalty"])
def test_the_objective_needs_loss_and_penalty(missing):
    fields = {"train_loss": 0.25, "l2_penalty": 0.5, missing: None}
    assert RunResult(outcome=Outcome.FINISHED, **fields).train_objective is None


def test_the_bare_learning_rate_is_derived():
    assert dataclasses.replace(SPEC, effective_learning_rate=1.0, momentum=0.75).learning_rate == 0.25


def test_directions_have_signs():
    assert (Direction.MAXIMISE.sign, Direction.MINIMISE.sign) == (1, -1)


@given(st.dictionaries(names, st.none() | st.booleans() | st.integers() | numbers | names))
def test_content_hash_ignores_the_order_of_fields(content):
    assert content_hash(dict(reversed(content.items()))) == content_hash(content)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_content_hash_refuses_what_is_not_a_number(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        content_hash({"l2": value})


def test_the_objective_of_a_sequence_counts_the_penalty_per_token():
    result = RunResult(outcome=Outcome.FINISHED, train_loss=3.0, l2_penalty=0.7, loss_scale=7.0)
    assert result.train_objective == pytest.approx(3.1)
    assert RunResult(outcome=Outcome.FINISHED, train_loss=3.0, l2_penalty=0.7).train_objective == pytest.approx(3.7)


@pytest.mark.parametrize(("key", "changes"), KEYS_OF_OLD.items())
def test_keys_are_those_of_stores_that_knew_no_other_optimiser(key, changes):
    fields = {"batch_size": 64, "num_steps": 1000, "num_evaluations": 10, "seed": 0, **changes}
    spec = dataclasses.replace(SPEC, task="t", **fields)
    assert spec.key == key
    same = dataclasses.replace(spec, optimizer=SGD(momentum=spec.momentum))
    assert (same, same.key) == (spec, key)
    assert "optimizer" not in spec.to_json()


def test_every_optimiser_has_a_key_of_its_own_and_comes_back_from_json():
    specs_of = [dataclasses.replace(SPEC, momentum=0.0, optimizer=optimizer) for optimizer in OPTIMIZERS]
    assert len({spec.key for spec in [*specs_of, dataclasses.replace(SPEC, momentum=0.0)]}) == len(OPTIMIZERS) + 1
    for spec in specs_of:
        again = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
        assert (again, again.key, again.method) == (spec, spec.key, spec.optimizer)
        assert again.learning_rate == again.effective_learning_rate


def test_the_method_of_a_run_is_heavy_ball_unless_it_says_otherwise():
    assert SPEC.method == SGD(momentum=0.9)
