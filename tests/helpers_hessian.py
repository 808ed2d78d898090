"""Small networks with their Hessians, by products and written out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import cases
from isotherm.core.statistics import Floats
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.losses import LossFunction, cross_entropy
from isotherm.theory.hessian import Differentiation, Hessian, Mode

WAYS: tuple[Differentiation, ...] = ("reverse_over_reverse", "forward_over_reverse", "finite_difference")


EXACT_WAYS = WAYS[:2]


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a module whose parameters and running statistics are none of the round numbers they start as."""
    torch.manual_seed(seed)
    module = build().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.3 * torch.rand_like(buffer))
    return module


def ghost_net() -> nn.Module:
    """A convolution with ghost batch norm and one without an activation in it, 57 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        GhostBatchNorm2d(3, ghost_size=4, activation="relu"),
        nn.Conv2d(3, 2, 3, stride=2, bias=False),
        GhostBatchNorm2d(2, ghost_size=8),
        nn.Flatten(),
        nn.Linear(8, 3, bias=False),
    )


def smooth_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


# name -> module, data, mode
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], Mode]] = {
    "tanh": (cases.build_mlp, cases.blobs(24, seed=0), "train"),
    "ghost batch norm": (ghost_net, cases.images(24, seed=0), "train"),
    "ghost batch norm, running": (ghost_net, cases.images(24, seed=0), "eval"),
    "batch norm": (smooth_norm_net, cases.blobs(24, seed=0), "train"),
    "batch norm, running": (smooth_norm_net, cases.blobs(24, seed=0), "eval"),
    "tied": (cases.TiedNet, cases.blobs(24, seed=0), "train"),
    "frozen": (cases.build_frozen, cases.blobs(24, seed=0), "train"),
}


def written_out(
    module: nn.Module, loss: LossFunction, x: Tensor, y: Tensor, *, mode: Mode, l2: float = 0.0, scope: str = "weights"
) -> Floats:
    """Return the full Hessian of the loss of all examples in one batch, row by row: the slow twin.

    Not by `torch.func.hessian`: in PyTorch 2.13 that of batch norm in training mode is not even symmetric.
    """
    twin = copy.deepcopy(module).double().train(mode == "train")
    trained = {name: p.detach() for name, p in twin.named_parameters() if p.requires_grad}
    twin.requires_grad_(False)
    x = x.double()

    def objective(flat: Tensor) -> Tensor:
        pieces = torch.split(flat, [p.numel() for p in trained.values()])
        own = {name: piece.view(p.shape) for (name, p), piece in zip(trained.items(), pieces, strict=True)}
        buffers = {name: buffer.clone() for name, buffer in twin.named_buffers()}
        penalised = [p for p in own.values() if scope == "all" or p.ndim >= 2]
        penalty = 0.5 * l2 * sum(p.square().sum() for p in penalised)
        return loss(functional_call(twin, (own, buffers), (x,)), y) + penalty

    point = torch.cat([p.reshape(-1) for p in trained.values()])
    return torch.autograd.functional.hessian(objective, point).numpy()


def matrix_of(hessian: Hessian) -> Floats:
    return np.stack([hessian.product(row) for row in np.eye(hessian.num_parameters)])


def hessian_of(name: str, **changes: Any) -> Hessian:
    build, (x, y), mode = NETS[name]
    return Hessian(built(build), cross_entropy, inputs=x, targets=y, **{"mode": mode, **changes})


class Wells(nn.Module):
    """Outputs its parameters times given factors, whatever the input."""

    factors: Tensor

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.ones(len(factors)))
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, x: Tensor) -> Tensor:
        return (0.5 * self.factors * self.point.square()).sum().expand(len(x))


def mean_output(output: Tensor, target: Tensor) -> Tensor:
    return output.mean()


def wells(factors: list[float], **changes: Any) -> Hessian:
    """Return the diagonal Hessian with these entries."""
    nothing = torch.zeros(4)
    return Hessian(Wells(factors), mean_output, inputs=nothing, targets=nothing, **{"mode": "train", **changes})


class Centred(nn.Module):
    """Takes the batch's mean off: a layer that mixes examples and is none we know."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)
