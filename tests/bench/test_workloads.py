"""Which workloads there are and how they are chosen."""

from __future__ import annotations

import pytest

from helpers_protocol import make_spec
from isotherm.bench.tasks import OWN
from isotherm.bench.workloads import WORKLOADS, StudyWorkload, Target, Workload, chosen_workloads, study_parts
from isotherm.errors import UserError
from isotherm.studies import STUDIES
from isotherm.tasks.builtin import TASKS


def test_every_work_is_of_a_known_task_or_study_and_has_a_name_of_its_own() -> None:
    assert len({workload.label for workload in WORKLOADS}) == len(WORKLOADS)
    for workload in WORKLOADS:
        assert workload.task in TASKS or workload.task in OWN
        assert workload.target is not None
        assert isinstance(workload, Workload) or workload.name in STUDIES


def test_the_targets() -> None:
    targets = {
        workload.label: (workload.target.of, workload.target.value)
        for workload in WORKLOADS
        if workload.target is not None
    }
    assert targets["mlp_mnist1d:8"] == ("ratio", 25.0)
    assert targets["quickstart"] == ("ratio", 12.0)
    assert targets["autoencoder_mnist:64"] == ("ours", 40_000)
    assert targets["gpt:64"] == ("ours", 4_000)
    assert targets["cnn:64"] == ("ours", 10_000)
    assert targets["cnn:64:float32"] == targets["cnn:64:tf32"] == ("ours", 4_000)
    assert targets["gpt_text:16"] == ("ratio", 1.0)
    assert targets["wrn28x10_cifar100:128"] == ("fraction_of_ceiling", 0.45)
    assert Target(of="fraction_of_ceiling", value=0.45).text("images/s") == "45% of ceiling"


def test_runs_and_units() -> None:
    runs = {
        workload.label: (workload.num_runs, workload.units_per_step)
        for workload in WORKLOADS
        if isinstance(workload, Workload)
    }
    assert runs["mlp_mnist1d:128"] == (55, 1)
    assert runs["autoencoder_mnist:64"] == (35, 1)
    assert runs["lstm_ptb:64"] == (21, 1)
    assert runs["wrn16x4_cifar10:1024"] == (3, 1024)


def test_choice_by_name_by_batch_size_and_of_all() -> None:
    assert [w.label for w in chosen_workloads(["mlp_mnist1d"], device="cpu")] == [
        "mlp_mnist1d:8",
        "mlp_mnist1d:32",
        "mlp_mnist1d:128",
    ]
    assert [w.label for w in chosen_workloads(["lstm_ptb:64"], device="cuda")] == ["lstm_ptb:64"]
    assert {w.device for w in chosen_workloads([], device="cuda")} == {"cuda"}


def test_unknown_names() -> None:
    with pytest.raises(UserError, match="unknown workload 'mlp_mnist' on cpu; did you mean 'mlp_mnist1d"):
        chosen_workloads(["mlp_mnist"], device="cpu")
    with pytest.raises(UserError, match="'lstm_ptb' is not timed on cpu; use --device cuda"):
        chosen_workloads(["lstm_ptb"], device="cpu")


def test_a_study_by_batch_size() -> None:
    grids = [(8, 1000, 3), (8, 200, 2), (32, 1000, 1)]  # batch size, updates, learning rates
    specs = [
        make_spec(batch_size=size, num_steps=num, effective_learning_rate=0.5**place, seed=seed, l2=5e-4)
        for size, num, num_rates in grids
        for place in range(num_rates)
        for seed in range(5)
    ]
    first, second = study_parts(StudyWorkload(name="quickstart", task="mlp_mnist1d"), specs)
    assert (first.workload.batch_size, first.workload.num_runs, first.run_steps) == (8, 15, 5 * (3 * 1000 + 2 * 200))
    assert (second.workload.batch_size, second.workload.num_runs, second.run_steps) == (32, 5, 5 * 1000)
    assert first.workload.l2 == 5e-4
