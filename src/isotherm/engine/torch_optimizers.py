"""PyTorch's optimisers of one run, by which `reference` defines what an update is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.core.l2 import is_penalised
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.core.records import RunSpec
from isotherm.engine.update_rules import LEAST_NORM, NEWTON_SCHULZ, NUM_ITERATIONS, adjusted
from isotherm.tasks.matrices import muon_matrices


def torch_optimizers(model: nn.Module, spec: RunSpec, *, is_mixed: bool) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a run, which are to be stepped together.

    Every parameter group holds under "ratio" its learning rate over that of the run.

    Args:
        model: the run's own.
        spec: the run.
        is_mixed: Muon orthogonalises in bfloat16.
    """
    method, named = spec.method, {name: p for name, p in model.named_parameters() if p.requires_grad}
    if isinstance(method, SGD):
        groups = _groups(named, list(named), spec, decay=spec.l2)
        return [torch.optim.SGD(groups, lr=spec.learning_rate, momentum=method.momentum, nesterov=method.nesterov)]
    if isinstance(method, Adam):
        return [_adam(torch.optim.Adam, _groups(named, list(named), spec, decay=spec.l2), method)]
    if isinstance(method, AdamW):
        groups = _groups(named, list(named), spec, decay=method.weight_decay)
        return [_adam(torch.optim.AdamW, groups, method)]
    matrices = muon_matrices(model)
    others = [name for name in named if name not in matrices]
    groups = _groups(named, matrices, spec, decay=method.weight_decay)
    made: list[torch.optim.Optimizer] = [
        PreciseMuon(
            groups,
            momentum=method.momentum,
            nesterov=method.nesterov,
            adjust_lr_fn=method.adjustment,
            dtype=torch.bfloat16 if is_mixed else None,
        )
    ]
    if others:
        groups = _groups(named, others, spec, decay=method.weight_decay, ratio=method.adamw_ratio)
        made.append(_adam(torch.optim.AdamW, groups, method))
    return made


def _groups(
    named: dict[str, nn.Parameter], names: Sequence[str], spec: RunSpec, *, decay: float, ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Return some parameters as those that L2 or weight decay moves, and the others."""
    chosen = [named[name] for name in names]
    return [
        {
            "params": [p for p in chosen if is_penalised(p, scope=spec.l2_scope) == decays],
            "weight_decay": decay if decays else 0.0,
            "ratio": ratio,
        }
        for decays in (True, False)
    ]


def _adam(
    kind: type[torch.optim.Adam] | type[torch.optim.AdamW], groups: list[dict[str, Any]], method: Adam | AdamW | Muon
) -> torch.optim.Optimizer:
    return kind(groups, betas=(method.beta1, method.beta2), eps=method.epsilon)


class PreciseMuon(torch.optim.Muon):
    """`torch.optim.Muon` with its iterations in the precision of the parameters, or in another.

    Args:
        params: parameter groups.
        dtype: of the iterations; with `torch.bfloat16` it is `torch.optim.Muon`.
        options: those of `torch.optim.Muon`.
    """

    def __init__(self, params: Any, *, dtype: torch.dtype | None = None, **options: Any) -> None:
        super().__init__(params, **options)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make an update."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, rate = self.state[parameter], group["lr"]
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        momentum.lerp_(gradient, 1 - group["momentum"])
        wanted = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        direction = _orthogonalised(wanted.to(self._dtype or wanted.dtype))
        parameter.mul_(1 - rate * group["weight_decay"])
        rows, columns = parameter.shape
        parameter.add_(direction, alpha=-rate * adjusted(rows, columns, group["adjust_lr_fn"]))


def _orthogonalised(matrix: Tensor) -> Tensor:
    """Return a matrix with singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
