import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from isotherm.core.records import Outcome, RunSpec
from isotherm.engine.placed_task import place_task
from isotherm.engine.reference import run_reference
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.seeding import DataOrder, initial_model
from isotherm.tasks.task import Task


def trained(task: Task, spec: RunSpec):
    """Return the result and the trained module."""
    kept: list[nn.Module] = []
    result = run_reference(place_task(task, precision="float64"), spec, on_trained=kept.append)
    return result, kept[0] if kept else None


def by_hand(task: Task, spec: RunSpec) -> tuple[np.ndarray, list[float]]:
    """Train the linear regression in NumPy; return slope and intercept, shape (4,), and the batch losses."""
    inputs, targets = (tensor.double().numpy() for tensor in task.train)
    design = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    start = initial_model(task.model, seed=spec.seed)
    w = np.concatenate([start.weight.detach().double().numpy()[0], start.bias.detach().double().numpy()])
    penalty = spec.l2 * np.array([1.0, 1.0, 1.0, 1.0 if spec.l2_scope == "all" else 0.0])
    velocity = np.zeros(4)
    rate = spec.effective_learning_rate * (1 - spec.momentum)
    order = DataOrder(seed=spec.seed, num_train=len(inputs), batch_size=spec.batch_size)
    losses = []
    for step, batch in enumerate(order.block(0, spec.num_steps)):
        if step >= spec.num_steps // 2 and (step - spec.num_steps // 2) % max(1, spec.num_steps // 20) == 0:
            drops = 1 + (step - spec.num_steps // 2) // max(1, spec.num_steps // 20)
            rate = rate / spec.gamma if drops <= 10 else rate
        residual = design[batch] @ w - targets[batch, 0]
        losses.append(float((residual**2).mean()))
        gradient = 2 / spec.batch_size * design[batch].T @ residual
        velocity = spec.momentum * velocity + gradient + penalty * w
        w = w - rate * velocity
    return w, losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.0},
        {"l2": 0.1, "l2_scope": "all"},
        {"l2": 0.0, "gamma": 1.0},
        {"num_steps": 45, "gamma": 1.3, "seed": 3},
        {"num_steps": 7, "batch_size": 33},
    ],
    ids=str,
)
def test_reference_is_heavy_ball_with_coupled_l2_and_the_schedule(changes):
    task = cases.regression_task()
    spec = cases.spec(task, **changes)
    result, module = trained(task, spec)
    w, losses = by_hand(task, spec)
    ours = torch.cat([module.weight.detach()[0], module.bias.detach()]).numpy()
    np.testing.assert_allclose(ours, w, rtol=1e-10)

    design = np.concatenate([task.train[0].numpy(), np.ones((cases.NUM_TRAIN, 1))], axis=1)
    window = min(spec.num_steps, math.ceil(cases.NUM_TRAIN / spec.batch_size))
    norm = (w**2).sum() if spec.l2_scope == "all" else (w[:3] ** 2).sum()
    expected = {
        "train_loss_running": np.mean(losses[-window:]),
        "last_batch_loss": losses[-1],
        "train_loss": ((design @ w - task.train[1].numpy()[:, 0]) ** 2).mean(),
        "weight_norm_squared": norm,
        "l2_penalty": spec.l2 / 2 * norm,
    }
    assert {name: getattr(result, name) for name in expected} == pytest.approx(expected, rel=1e-10)
    assert result.test_loss == result.test_metric
    assert (result.outcome, result.divergence_step, result.error) == (Outcome.FINISHED, None, None)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_full_batches_reach_the_least_squares_optimum(momentum):
    task = cases.regression_task()
    spec = cases.spec(
        task,
        batch_size=cases.NUM_TRAIN,
        num_steps=600,
        effective_learning_rate=0.5,
        momentum=momentum,
        gamma=1.0,
        l2=0.0,
    )
    result, module = trained(task, spec)
    ours = torch.cat([module.weight.detach()[0], module.bias.detach()])
    torch.testing.assert_close(ours, cases.least_squares(task), rtol=1e-9, atol=1e-9)
    assert result.train_loss == pytest.approx(result.last_batch_loss, rel=1e-9)


def test_full_batches_with_l2_reach_the_ridge_optimum():
    task = cases.regression_task()
    spec = cases.spec(
        task,
        batch_size=cases.NUM_TRAIN,
        num_steps=600,
        effective_learning_rate=0.5,
        gamma=1.0,
        l2=0.3,
        l2_scope="all",
    )
    _, module = trained(task, spec)
    x, y = task.train
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    # Gradient of the mean squared error plus (λ/2)‖w‖²: (2/N) Xᵀ(Xw - y) + λw = 0.
    ridge = torch.linalg.solve(
        2 / len(x) * design.T @ design + 0.3 * torch.eye(4, dtype=x.dtype), 2 / len(x) * design.T @ y
    )
    ours = torch.cat([module.weight.detach()[0], module.bias.detach()])
    torch.testing.assert_close(ours, ridge[:, 0], rtol=1e-9, atol=1e-9)


def test_gradient_descent_on_a_quadratic_contracts_by_one_minus_rate_times_curvature():
    task = cases.quadratic_task()
    spec = cases.spec(task, num_steps=19, effective_learning_rate=0.3, momentum=0.0, gamma=1.0, l2=0.0, batch_size=2)
    _, module = trained(task, spec)
    expected = [(1 - 0.3 * curvature) ** 19 for curvature in cases.CURVATURES]
    np.testing.assert_allclose(module.point.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("rate", "stable"), [(0.49, True), (0.51, False)])
def test_the_stability_limit_is_two_over_the_largest_curvature(rate, stable):
    task = cases.quadratic_task()
    spec = cases.spec(task, num_steps=200, effective_learning_rate=rate, momentum=0.0, gamma=1.0, l2=0.0, batch_size=2)
    result, _ = trained(task, spec)
    assert (result.outcome is Outcome.FINISHED) == stable
    assert not stable or result.train_loss < 0.5 * sum(cases.CURVATURES)


def target_mean(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss that shows which examples are in the batch, and nothing else."""
    return target.mean() + 0.0 * output.sum()


@pytest.mark.parametrize(
    ("batch_size", "num_steps", "window"), [(10, 50, 7), (64, 5, 1), (16, 9, 4), (10, 3, 3), (1, 100, 64), (100, 4, 1)]
)
def test_the_running_loss_averages_the_last_epochs_worth_of_updates(batch_size, num_steps, window):
    numbers = torch.arange(64, dtype=torch.float64).unsqueeze(1)
    task = Task(
        name="numbers",
        model=lambda: nn.Linear(1, 1),
        train=(numbers, numbers**2),
        test=(numbers, numbers),
        loss=target_mean,
        metric="mean_squared_error",
    )
    spec = cases.spec(task, batch_size=batch_size, num_steps=num_steps, effective_learning_rate=1e-3, seed=4)
    result, _ = trained(task, spec)
    batches = DataOrder(seed=4, num_train=64, batch_size=batch_size).block(0, num_steps)
    losses = (batches.astype(float) ** 2).mean(axis=1)
    assert result.train_loss_running == pytest.approx(losses[-window:].mean(), rel=1e-13)
    assert result.last_batch_loss == pytest.approx(losses[-1], rel=1e-13)
    assert result.train_loss == pytest.approx(float((numbers**2).mean()), rel=1e-13)


def test_final_scores_are_those_of_the_module_in_evaluation_mode():
    task = cases.dropout_task().with_validation(0.25)
    result, module = trained(task, cases.spec(task, num_steps=20))
    assert not module.training
    with torch.no_grad():
        for name, (x, y) in task.splits.items():
            output = module(x.double())
            assert getattr(result, f"{name}_loss") == pytest.approx(float(cross_entropy(output, y)), rel=1e-12)
            if name != "train":
                hits = float((output.argmax(dim=1) == y).double().mean())
                assert getattr(result, f"{name}_metric") == pytest.approx(hits)


def test_the_loss_in_training_mode_has_dropout():
    task = cases.dropout_task()
    result, _ = trained(task, cases.spec(task, num_steps=1, batch_size=64, effective_learning_rate=1e-12))
    assert abs(result.last_batch_loss - result.train_loss) > 1e-3


def test_divergence_ends_the_run_at_once():
    task = cases.regression_task()
    counted: list[int] = []
    spec = cases.spec(task, effective_learning_rate=1e3, momentum=0.0)
    result = run_reference(place_task(task, precision="float64"), spec, on_steps=counted.append)
    assert result.outcome is Outcome.DIVERGED
    assert sum(counted) == result.divergence_step < spec.num_steps
