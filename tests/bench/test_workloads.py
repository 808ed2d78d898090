"""Which works there are and how they are chosen."""

from __future__ import annotations

import pytest

from helpers_protocol import make_spec
from isotherm.bench.workloads import WORKS, StudyWork, Target, Work, chosen_works, study_parts
from isotherm.errors import UserError
from isotherm.studies import STUDIES
from isotherm.tasks.builtin import TASKS


def test_every_work_is_of_a_known_task_or_study_and_has_a_name_of_its_own() -> None:
    assert len({work.label for work in WORKS}) == len(WORKS)
    for work in WORKS:
        assert work.task in TASKS
        assert work.target is not None
        assert isinstance(work, Work) or work.name in STUDIES


def test_the_targets() -> None:
    targets = {work.label: (work.target.of, work.target.value) for work in WORKS if work.target is not None}
    assert targets["mlp_mnist1d:8"] == ("ratio", 25.0)
    assert targets["quickstart"] == ("ratio", 12.0)
    assert targets["autoencoder_mnist:64"] == ("ours", 40_000)
    assert targets["wrn28x10_cifar100:128"] == ("fraction_of_ceiling", 0.45)
    assert Target(of="fraction_of_ceiling", value=0.45).text("images/s") == "45% of ceiling"


def test_runs_and_units() -> None:
    runs = {work.label: (work.num_runs, work.units_per_step) for work in WORKS if isinstance(work, Work)}
    assert runs["mlp_mnist1d:128"] == (55, 1)
    assert runs["autoencoder_mnist:64"] == (35, 1)
    assert runs["lstm_ptb:64"] == (21, 1)
    assert runs["wrn16x4_cifar10:1024"] == (3, 1024)


def test_choice_by_name_by_batch_size_and_of_all() -> None:
    assert [w.label for w in chosen_works(["mlp_mnist1d"], device="cpu")] == [
        "mlp_mnist1d:8",
        "mlp_mnist1d:32",
        "mlp_mnist1d:128",
    ]
    assert [w.label for w in chosen_works(["lstm_ptb:64"], device="cuda")] == ["lstm_ptb:64"]
    assert {w.device for w in chosen_works([], device="cuda")} == {"cuda"}


def test_unknown_names() -> None:
    with pytest.raises(UserError, match="unknown workload 'mlp_mnist' on cpu; did you mean 'mlp_mnist1d"):
        chosen_works(["mlp_mnist"], device="cpu")
    with pytest.raises(UserError, match="'lstm_ptb' is not timed on cpu; use --device cuda"):
        chosen_works(["lstm_ptb"], device="cpu")


def test_a_study_by_batch_size() -> None:
    grids = [(8, 1000, 3), (8, 200, 2), (32, 1000, 1)]  # batch size, updates, learning rates
    specs = [
        make_spec(batch_size=size, num_steps=num, effective_learning_rate=0.5**place, seed=seed, l2=5e-4)
        for size, num, num_rates in grids
        for place in range(num_rates)
        for seed in range(5)
    ]
    first, second = study_parts(StudyWork(name="quickstart", task="mlp_mnist1d"), specs)
    assert (first.work.batch_size, first.work.num_runs, first.run_steps) == (8, 15, 5 * (3 * 1000 + 2 * 200))
    assert (second.work.batch_size, second.work.num_runs, second.run_steps) == (32, 5, 5 * 1000)
    assert first.work.l2 == 5e-4
