"""Models of several inputs: the same numbers as a module that takes them apart by hand, alone and in fleets."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import isotherm as it
from cases_paper import spec_of
from helpers_datasets import MASK, NAMED, NUM, TOKENS, MaskedText, Positional, X, Y
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.tasks.model_check import check_model
from isotherm.tasks.several_inputs import InputLayout
from isotherm.tasks.task import Task


def task(**changes: object) -> Task:
    fields = {"name": "several", "model": MaskedText, "train": (NAMED, Y), "test": (NAMED, Y)}
    return Task(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_model_gets_what_was_given() -> None:
    module = task().model()
    expected = module.module(**NAMED)
    assert torch.equal(module(task().train[0]), expected)


def test_by_position_and_by_name_train_alike() -> None:
    named = by_reference(place_task(task(), precision="float64"), spec_of(task(), batch_size=8))
    positional = task(model=Positional, train=((TOKENS, X, MASK), Y), test=((TOKENS, X, MASK), Y))
    other = by_reference(place_task(positional, precision="float64"), spec_of(task(), batch_size=8))
    assert other[0].test_loss == named[0].test_loss


def test_a_fleet_equals_the_reference() -> None:
    placed = place_task(task(), precision="float64")
    specs = [
        spec_of(task(), seed=seed, effective_learning_rate=rate, batch_size=8, num_steps=30)
        for seed in (0, 1)
        for rate in (0.1, 0.5)
    ]
    assert_same(by_fleet(placed, specs), [by_reference(placed, spec) for spec in specs])


def test_arguments_in_another_order_are_another_task_and_so_are_other_names() -> None:
    ours = task().identify()
    assert task().identify() == ours
    swapped = task(train=(dict(reversed(NAMED.items())), Y), test=(dict(reversed(NAMED.items())), Y)).identify()
    assert swapped.data_id != ours.data_id
    as_integers = {**NAMED, "mask": MASK.to(torch.int64)}
    assert task(train=(as_integers, Y), test=(as_integers, Y)).identify().model_id != ours.model_id


def test_a_task_can_be_changed() -> None:
    ours = task()
    again = dataclasses.replace(ours, name="again")
    assert again.identify() == ours.identify()
    assert again.input_layout == ours.input_layout
    held = ours.with_validation(0.25)
    assert held.num_train == 30
    check_model(held)
    other = dataclasses.replace(ours, model=Positional)
    assert isinstance(other.model().module, Positional)


def test_a_small_sweep_and_its_recommendation() -> None:
    sweep = it.Sweep(
        task=task(),
        batch_sizes=[4, 8],
        effective_learning_rates=[0.1, 0.2],
        budget=it.Budget.steps(4),
        num_seeds=2,
        num_kept=1,
        max_extensions=0,
        resolution="paper",
    )
    assert it.run(sweep, store=None).counts()["finished"] == 8


class Wrong(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": (X, Y)}, r"inputs differ between splits \(train: tokens \(5,\) int64.*; test: one tensor\)"),
        (
            {"train": ({**NAMED, "mask": MASK[:5]}, Y)},
            r"input 'mask' of shape \(5, 5\) and 40 targets differ in length",
        ),
        ({"train": ({**NAMED, "point": X / 0}, Y)}, r"input 'point': the value at index \[0, 0\] is"),
        (
            {"train": ({**NAMED, "tokens": TOKENS + 2**24}, Y)},
            r"tokens .* holds 16,777,220; beside floating-point inputs",
        ),
        ({"transform": it.CropAndFlip(mean=(0.0,), std=(1.0,))}, "transform= is for inputs of one tensor"),
        ({"unroll": 3}, "unroll= is for inputs of one tensor"),
    ],
)
def test_what_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task(**changes)


def test_one_tensor_for_a_task_of_several_inputs_is_refused() -> None:
    with pytest.raises(UserError, match=r"takes several inputs .* and this is one tensor of shape \(40, 2\)"):
        dataclasses.replace(task(), train=(X, Y))


def test_a_model_with_other_arguments_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot take inputs, for each example, of tokens .* by name: change the data"):
        check_model(task(model=Wrong))


def test_whole_numbers_alone_stay_whole_numbers() -> None:
    layout = InputLayout.of([TOKENS, MASK])
    large = TOKENS + 2**40
    packed = layout.pack([large, MASK])
    assert packed.dtype == torch.int64
    assert [torch.equal(a, b) for a, b in zip(layout.unpack(packed), [large, MASK], strict=True)] == [True, True]
    assert InputLayout.of([X.double(), MASK]).dtype == torch.float64
    assert packed.shape == (NUM, 10)
