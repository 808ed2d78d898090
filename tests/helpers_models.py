"""What every model is asked: right gradients, the same under `vmap`, and the same training as a fleet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import cases
from isotherm.core.records import Outcome
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.engine.reference import run_reference
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

Loss = Callable[[Tensor], Tensor]


def colour_images(num: int, *, size: int, seed: int = 0) -> Split:
    """Return random images (num, 3, size, size) in float64, and labels of three classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 3, size, size, generator=generator, dtype=torch.float64), torch.arange(num) % 3


def shaken(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return the module in float64 and away from its start, where scales and biases are exactly zero or one."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def assert_differentiates_rightly(module: nn.Module, x: Tensor, loss: Loss, *, h: float = 1e-6) -> None:
    """Compare autograd with central differences, along one random direction in each parameter."""
    generator = torch.Generator().manual_seed(7)
    named = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss(module(x)), list(named.values()))
    with torch.no_grad():
        for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
            assert float(gradient.norm()) > 1e-8, f"{name} does not matter"
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            start = parameter.clone()
            values = []
            for sign in (1, -1):
                parameter.copy_(start + sign * h * direction)
                values.append(float(loss(module(x))))
            parameter.copy_(start)
            expected = float((gradient * direction).sum())
            scale = float(gradient.norm() * direction.norm())
            assert (values[0] - values[1]) / (2 * h) == pytest.approx(expected, abs=1e-6 * scale + 1e-8), name


def assert_same_under_vmap(modules: list[nn.Module], x: Tensor, loss: Loss) -> None:
    """Compare vmap(grad) over several modules with plain autograd on each, gradients and buffers."""
    base = modules[0]
    parameters = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in modules]) for n in _names(base)}
    buffers = {n: torch.stack([dict(m.named_buffers())[n].clone() for m in modules]) for n, _ in base.named_buffers()}

    def of_run(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        return loss(functional_call(base, (parameters, after), (x,))), after

    gradients, after = vmap(grad(of_run, has_aux=True))(parameters, buffers)
    for place, module in enumerate(modules):
        named = dict(module.named_parameters())
        expected = torch.autograd.grad(loss(module(x)), list(named.values()))
        for name, plain in zip(named, expected, strict=True):
            torch.testing.assert_close(gradients[name][place], plain, rtol=1e-9, atol=1e-12, msg=name)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(after[name][place], buffer, rtol=1e-12, atol=1e-12, msg=name)


def _names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def assert_trains_as_a_fleet(task: Task, **changes) -> None:
    """Compare two updates of two seeds as a fleet with the reference: every parameter and every score."""
    placed = place_task(task, precision="float64")
    settings = {"batch_size": 8, "num_steps": 2, "l2": 0.01, **changes}
    specs = [cases.spec(task, seed=seed, **settings) for seed in (0, 1)]
    trained: list[dict[str, Tensor]] = [{}, {}]
    results = run_fleet(
        placed, specs, on_trained=lambda index, named: trained[index].update({n: p.clone() for n, p in named.items()})
    )
    for spec, ours, parameters in zip(specs, results, trained, strict=True):
        expected: dict[str, Tensor] = {}
        theirs = run_reference(placed, spec, on_trained=lambda m, e=expected: e.update(m.named_parameters()))
        assert ours.outcome is theirs.outcome is Outcome.FINISHED
        for field in ("train_loss", "test_loss", "train_loss_running", "weight_norm_squared"):
            assert getattr(ours, field) == pytest.approx(getattr(theirs, field), rel=1e-9), field
        assert parameters.keys() == expected.keys()
        for name, parameter in expected.items():
            difference = float((parameters[name] - parameter.detach()).norm())
            assert difference <= 1e-9 * max(float(parameter.detach().norm()), 1e-3), name
