"""The runs in JAX take the updates of plain SGD."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from helpers_bench import MLP, hand_written_updates
from isotherm.bench.jax_vmap import JaxFleet, why_no_jax
from isotherm.bench.workloads import MOMENTUM
from isotherm.tasks.builtin import made_task
from isotherm.tasks.seeding import initial_model


def test_works_that_it_is_not_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.bench.jax_vmap.importlib.util.find_spec", lambda _: object())
    assert why_no_jax(MLP) is None
    assert "written for mlp_mnist1d" in str(why_no_jax(dataclasses.replace(MLP, task="lstm_ptb")))


@pytest.mark.parametrize("name", ["mlp_mnist1d", "autoencoder_mnist"])
def test_its_weights_are_those_of_sgd_written_out(name: str) -> None:
    pytest.importorskip("jax")
    task = made_task(name)
    small = dataclasses.replace(task, train=tuple(values[:64] for values in task.train))  # type: ignore[index, misc]
    workload = dataclasses.replace(MLP, task=name, rate=0.05, l2=0.01)
    fleet = JaxFleet(small, workload)
    indices = np.random.default_rng(0).integers(0, 64, (3, 2, 8))
    fleet.run_block(indices)
    x, y = small.train
    if small.transform is not None:
        x, y = small.transform.evaluate(x), small.transform.targets(y)  # type: ignore[arg-type]
    for run, (seed, rate) in enumerate([(0, 0.05), (0, 0.025), (1, 0.05), (1, 0.025)]):
        model = initial_model(task.model, seed=seed)
        chosen = [torch.from_numpy(index) for index in indices[:, seed]]
        batches = [(x[i], y[i]) for i in chosen]  # type: ignore[index]
        hand_written_updates(model, batches, task=task, rate=rate * (1 - MOMENTUM), momentum=MOMENTUM, l2=0.01)
        theirs = [torch.from_numpy(np.array(part[run])) for layer in fleet.parameters for part in layer]
        for ours, found in zip(model.parameters(), theirs, strict=True):
            torch.testing.assert_close(ours, found, rtol=1e-4, atol=1e-5)
    assert fleet.speed(0.01) > 0
