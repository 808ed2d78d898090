"""The batching rules of PyTorch's attention kernels against one run at a time."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from isotherm.engine.layers import attention

M, B, H, T, D = 3, 2, 2, 5, 8


@pytest.fixture(autouse=True)
def no_run_by_run():
    """`vmap` may compute nothing run by run."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MASKS = {
    "none": (None, None),
    "of all": (torch.ones(T, T, dtype=torch.bool).tril(), None),
    "added": (drawn(T, T), None),
    "of every run": (drawn(M, T, T), 0),
    "of every example": (drawn(B, 1, T, T), None),
    "of every run, example and head": (drawn(M, B, H, T, T), 0),
    "of every run, for all examples": (drawn(M, 1, 1, T, T), 0),
    "runs last": (drawn(B, H, T, T, M), 4),
}


@pytest.mark.parametrize("name", MASKS)
def test_gradients_are_those_of_every_run_alone(name):
    mask, dim = MASKS[name]
    q, k, v = (drawn(M, B, H, T, D, seed=seed) for seed in range(3))

    def loss(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None).square().sum()

    gradient = grad(loss, argnums=(0, 1, 2))
    together = vmap(gradient, in_dims=(0, 0, 0, dim))(q, k, v, mask)
    for run in range(M):
        own = mask if dim is None else mask.select(dim, run)
        for ours, alone in zip(together, gradient(q[run], k[run], v[run], own), strict=True):
            torch.testing.assert_close(ours[run], alone)


def test_what_all_runs_share_is_shared():
    q, k, v = drawn(B, H, T, D), drawn(B, H, D, T, M, seed=1).transpose(2, 3), drawn(M, B, H, T, D, seed=2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    ours = vmap(attend, in_dims=(None, 4, 0))(q, k, v)
    torch.testing.assert_close(ours[1], attend(q, k[..., 1], v[1]))
    torch.testing.assert_close(vmap(lambda x: attend(q, q, q) + x)(drawn(M))[2], attend(q, q, q) + drawn(M)[2])


def test_one_kernel_call_for_all_runs():
    calls = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    x = drawn(M, B, H, T, D)
    with calls:
        vmap(grad(lambda x: functional.scaled_dot_product_attention(x, x, x).sum()))(x)
    numbers = {event.key: event.count for event in calls.key_averages()}
    assert numbers["aten::_scaled_dot_product_flash_attention_for_cpu"] <= 2  # the call, and that of its rule
    assert numbers["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] <= 2


GPU_KERNELS = {
    "flash": lambda q, k, v, _: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True),
    "efficient": lambda q, k, v, mask: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True),
    "cudnn": lambda q, k, v, _: torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True),
}


@pytest.mark.parametrize("name", GPU_KERNELS)
def test_shapes_of_the_kernels_of_a_gpu(name):
    q, k, v = (torch.empty(M, B, H, T, D, device="meta") for _ in range(3))
    mask = torch.empty(B, H, T, T, device="meta")
    gradient = grad(lambda *given: GPU_KERNELS[name](*given)[0].sum(), argnums=(0, 1, 2))
    for found in vmap(gradient, in_dims=(0, 0, 0, None))(q, k, v, mask):
        assert found.shape == q.shape


@pytest.mark.parametrize("name", attention.KERNELS)
def test_every_kernel_has_the_arguments_and_a_rule(name):
    schema = getattr(torch.ops.aten, name).default._schema
    assert {"query", "key", "value"} <= {argument.name for argument in schema.arguments}
    assert len(schema.returns) >= attention.KERNELS[name]
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "FuncTorchBatched")
