"""Attention of many runs as attention of one larger batch, forward and backward, by PyTorch's own kernels.

PyTorch has no batching rules for its attention kernels, so `vmap` calls them run by run. The rules here fold the runs
into the batch: (M, B, heads, T, width) becomes (M B, heads, T, width). Which kernel is called remains PyTorch's choice.

Shape suffixes: M runs, B batch, N = M B.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call_vmap_helper
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.utils._pytree import tree_flatten, tree_unflatten

# The kernels, with how many of their results begin with the batch; the others are the same for all examples.
KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_scaled_dot_product_flash_attention": 2,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention": 2,
    "_scaled_dot_product_efficient_attention_backward": 4,
    "_scaled_dot_product_cudnn_attention": 2,
    "_scaled_dot_product_cudnn_attention_backward": 3,
}
# Arguments that begin with the batch, by their names in the schemas, and those that may.
_OF_BATCH = frozenset({"query", "key", "value", "grad_out", "grad_out_", "out", "logsumexp"})
_MASKS = frozenset({"attn_mask", "attn_bias"})

# Rules hold for as long as their library exists.
_RULES = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _add_rule(name: str, num_of_batch: int) -> None:
    """Give a kernel its batching rule."""
    kernel = getattr(torch.ops.aten, name).default
    names = [argument.name for argument in kernel._schema.arguments]

    def rule(_keys: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        values, layout = tree_flatten(given)

        def call(*values: Any) -> Any:
            by_name = tree_unflatten(values, layout)
            return kernel(*[by_name.pop(name) for name in names[: len(args)]], **by_name)

        def fold(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
            folded = _folded(tree_unflatten(values, layout), tree_unflatten(in_dims, layout), info.batch_size)
            results = call(*tree_flatten(folded)[0])
            return _unfolded(results, num_of_batch, info.batch_size)

        interpreter: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(interpreter, fold, call, *values)

    _RULES.impl(name, rule, "FuncTorchBatched", with_keyset=True)  # type: ignore[no-untyped-call]


def _folded(given: dict[str, Any], dims: dict[str, Any], num_runs: int) -> dict[str, Any]:
    """Return arguments with the runs folded into the batch."""
    folded = dict(given)
    for name in _OF_BATCH & given.keys():
        folded[name] = _runs_first(given[name], dims[name], num_runs).flatten(0, 1)
    num_examples = len(folded["query"]) // num_runs
    for name in _MASKS & given.keys():
        mask, dim = given[name], dims[name]
        if isinstance(mask, Tensor) and (dim is not None or mask.ndim == 4):
            folded[name] = _folded_mask(_runs_first(mask, dim, num_runs), num_examples)
    return folded


def _runs_first(tensor: Tensor, dim: int | None, num_runs: int) -> Tensor:
    return tensor.expand(num_runs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded_mask(mask_M: Tensor, num_examples: int) -> Tensor:
    """Return masks (M, T, T) or (M, B or 1, heads or 1, T, T) as one for every run and example."""
    if mask_M.ndim == 3:
        mask_M = mask_M[:, None, None]
    return mask_M.expand(-1, num_examples, -1, -1, -1).flatten(0, 1)


def _unfolded(results: tuple[Any, ...], num_of_batch: int, num_runs: int) -> tuple[Any, Any]:
    """Return results with the runs as their first dimension where they begin with the batch, and which do."""
    has_runs = [index < num_of_batch and isinstance(result, Tensor) for index, result in enumerate(results)]
    unfolded = [
        result.unflatten(0, (num_runs, -1)) if has else result for has, result in zip(has_runs, results, strict=True)
    ]
    return tuple(unfolded), tuple(0 if has else None for has in has_runs)


for _name, _num_of_batch in KERNELS.items():
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "FuncTorchBatched"):
        _add_rule(_name, _num_of_batch)
