"""The lines to paste: what they say, run by run."""

import dataclasses

import pytest

from isotherm.core.optimizers import AdamW, Muon
from isotherm.core.records import RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.torch_code import torch_code

SPEC = RunSpec(
    task="blobs",
    data_id="d",
    model_id="m",
    batch_size=64,
    num_steps=2000,
    effective_learning_rate=0.5,
    momentum=0.9,
    gamma=2.0,
    l2=0.0,
    l2_scope="weights",
    precision="float32",
    num_evaluations=0,
    seed=0,
)


def code_with(schedule: Schedule, **changes) -> list[str]:
    gamma, rest = schedule.of_run(num_steps=2000, initial=0.5)
    return list(torch_code(dataclasses.replace(SPEC, gamma=gamma, schedule=rest, **changes)))


def test_the_papers_schedule_with_sgd():
    assert code_with(Schedule()) == [
        "# batch size 64, 2,000 updates",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
        "scheduler = torch.optim.lr_scheduler.LambdaLR(",
        "    optimizer, lambda step: 2.0 ** -max(0, min(10, 1 + (step - 1000) // 100))",
        ")",
        "# scheduler.step() after every update",
    ]


@pytest.mark.parametrize(
    ("schedule", "scheduler"),
    [
        (
            Schedule.linear(final_fraction=0.1),
            "LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=2000)",
        ),
        (Schedule.cosine(), "CosineAnnealingLR(optimizer, T_max=2000)"),
        (Schedule.cosine(final_fraction=0.1), "CosineAnnealingLR(optimizer, T_max=2000, eta_min=0.005)"),
        (
            Schedule.wsd(warmup_steps=100),
            "LambdaLR(    optimizer, lambda step: (step + 1) / 100 if step < 100 else 1 - max(0, step - 1600) / 400)",
        ),
        (
            Schedule.constant(warmup_steps=50),
            "LambdaLR(    optimizer, lambda step: (step + 1) / 50 if step < 50 else 1.0)",
        ),
        (Schedule.of(lambda done: 0.1**done), "LambdaLR(    optimizer, lambda step: function(step / 2000))"),
    ],
)
def test_the_lines_of_a_schedule(schedule, scheduler):
    lines = code_with(schedule)
    start = next(k for k, line in enumerate(lines) if line.startswith("scheduler = "))
    assert "".join(lines[start:-1]) == f"scheduler = torch.optim.lr_scheduler.{scheduler}"
    assert lines[-1] == "# scheduler.step() after every update"


def test_a_constant_rate_needs_no_scheduler():
    assert code_with(Schedule.constant()) == [
        "# batch size 64, 2,000 updates at a constant learning rate",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
    ]


def test_weight_decay_is_that_of_the_weights_or_of_all():
    assert code_with(Schedule(), l2=5e-4)[1:5] == [
        "weights = [p for p in model.parameters() if p.ndim > 1]",
        "others = [p for p in model.parameters() if p.ndim < 2]",
        'groups = [{"params": weights, "weight_decay": 0.0005}, {"params": others, "weight_decay": 0.0}]',
        "optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)",
    ]
    whole = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.0005)"
    assert code_with(Schedule(), l2=5e-4, l2_scope="all")[1] == whole


def test_other_optimisers():
    adamw = {"optimizer": AdamW(weight_decay=0.0), "momentum": 0.0, "effective_learning_rate": 1e-3}
    assert code_with(Schedule.linear(), **adamw)[1] == (
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)"
    )
    muon = code_with(Schedule.linear(), **{**adamw, "optimizer": Muon(adamw_ratio=0.1)})
    assert muon[6].startswith("adamw = torch.optim.AdamW(groups, lr=0.0001, ")
    assert muon[7:] == [
        "optimizers = [muon, adamw]",
        "schedulers = [",
        "    torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 - step / 2000)",
        "    for one in optimizers",
        "]",
        "# scheduler.step() of both after every update",
    ]


def test_what_is_needed_besides_is_a_comment():
    lines = torch_code(dataclasses.replace(SPEC, clip_norm=5.0), unroll=35)
    assert lines[-2:] == (
        "# the loss of an update: summed over the 35 tokens of a window, averaged over the streams",
        "# before optimizer.step(): torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)",
    )
    assert code_with(Schedule.cosine(warmup_steps=5))[0] == "import math"
