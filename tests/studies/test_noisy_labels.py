"""The study in which a fifth of the training labels are drawn at random."""

from __future__ import annotations

import dataclasses

import torch

import isotherm as it
from isotherm.core.budget import Budget
from isotherm.studies.load import load_study
from isotherm.studies.noisy_labels import SHARE, noisy_labels
from isotherm.tasks.builtin import get_task


def test_a_fifth_of_the_training_labels_is_drawn_and_no_test_label() -> None:
    (sweep,) = noisy_labels().sweeps
    clean = get_task("mlp_mnist1d")
    is_changed = sweep.task.train[1] != clean.train[1]
    # One label in ten that is drawn is right by chance: 0.18 of 4,000, give or take four standard deviations.
    assert abs(float(is_changed.double().mean()) - 0.9 * SHARE) < 4 * (0.18 * 0.82 / 4000) ** 0.5
    assert torch.equal(sweep.task.train[0], clean.train[0])
    assert torch.equal(sweep.task.test[1], clean.test[1])


def test_its_data_are_the_same_every_time_and_not_those_of_the_quickstart() -> None:
    first, second = (noisy_labels().sweeps[0].task.identify() for _ in range(2))
    clean = get_task("mlp_mnist1d").identify()
    assert first == second
    assert first.model_id == clean.model_id
    assert first.data_id != clean.data_id


def test_it_is_run_by_name() -> None:
    study = load_study("noisy_labels")
    (sweep,) = study.sweeps
    assert (study.name, str(sweep.budget), sweep.momenta) == ("noisy_labels", "600 steps", (0.9,))
    short = dataclasses.replace(
        sweep, batch_sizes=(64, 128, 256), budget=Budget.steps(8), num_seeds=1, max_extensions=0, resolution="paper"
    )
    results = it.run(short)
    assert len(results.optima()) == 3
