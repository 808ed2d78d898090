"""Within the context `vmap` takes layers that it does not take without it."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from isotherm.engine.layers.many_runs import ExactWeightNorm, for_many_runs


def normed(dim: int | None) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 4), dim=dim)


BUILDERS = {
    "LSTM": lambda: nn.LSTM(3, 4),
    "GRU cell": lambda: nn.GRUCell(3, 4),
    "weight norm of rows": lambda: normed(0),
    "weight norm of columns": lambda: normed(1),
    "weight norm, one in all": lambda: normed(None),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_many_runs_are_every_run_alone(name):
    modules = [BUILDERS[name]().double() for _ in range(3)]
    states = [dict(module.named_parameters()) for module in modules]
    held = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def call(parameters: dict[str, Tensor]) -> list[Tensor]:
        return torch.utils._pytree.tree_leaves(functional_call(modules[0], parameters, (x,)))

    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        with pytest.raises(RuntimeError):
            vmap(call)(held)
        together = for_many_runs(vmap(call))(held)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    for run, module in enumerate(modules):
        for ours, alone in zip(together, torch.utils._pytree.tree_leaves(module(x)), strict=True):
            torch.testing.assert_close(ours[run], alone)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_with_all_digits_is_pytorchs(dim):
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4), dim=dim).double()
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = module(x)
    [wanted] = torch.autograd.grad(expected.square().sum(), module.parametrizations.weight.original1)
    with ExactWeightNorm():
        found = module(x)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    [gradient] = torch.autograd.grad(found.square().sum(), module.parametrizations.weight.original1)
    torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=1e-14)
