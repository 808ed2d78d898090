"""Every random stream of a run derives from (seed, purpose), never from its position in a grid or a fleet.

Runs of one seed share initialisation, data order and dropout masks across learning rates (common random numbers);
different seeds share nothing, but for the order of a text, which is read from its beginning in every run.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.weight_norm import WeightNorm

from isotherm.core.budget import updates_per_pass
from isotherm.errors import UserError
from isotherm.tasks.torch_warnings import without_torch_warnings

# In a PyTorch for CPUs alone there is one generator; `torch.manual_seed` notes a stack trace for every absent device.
_HAS_ACCELERATORS = bool(torch.version.cuda or torch.version.hip or torch.version.xpu or torch.backends.mps.is_built())


def derive(seed: int, purpose: str) -> int:
    """Return 64 bits for one purpose of one seed.

    >>> derive(0, "initialisation") == derive(0, "initialisation")
    True
    >>> len({derive(seed, purpose) for seed in range(100) for purpose in ("initialisation", "noise")})
    200
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{purpose}".encode()).digest()[:8], "little")


def cuda_is_in_use() -> bool:
    """Tell whether this process has started CUDA; asking does not start it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore their states afterwards."""
    bits = derive(seed, purpose)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 (user code may use it)
    # Only where CUDA is in use already: to start it here would forbid the forking of workers.
    devices = list(range(torch.cuda.device_count())) if cuda_is_in_use() else []
    with torch.random.fork_rng(devices=devices):
        (torch.manual_seed if _HAS_ACCELERATORS else torch.default_generator.manual_seed)(bits % 2**63)
        np.random.seed(bits % 2**32)  # noqa: NPY002
        random.seed(bits)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def generator_states() -> dict[str, Any]:
    """Return the states of the generators that `seeded` seeds, as tensors, numbers and lists."""
    kind, numpy_keys, *numpy_others = np.random.get_state()  # noqa: NPY002
    version, python_keys, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda_is_in_use() else [],
        "numpy": [str(kind), np.asarray(numpy_keys).tolist(), *numpy_others],
        "python": [version, list(python_keys), gauss],
    }


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Go on from what `generator_states` returned; GPUs only where there are as many."""
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and cuda_is_in_use() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    kind, numpy_keys, *numpy_others = states["numpy"]
    np.random.set_state((kind, np.array(numpy_keys, dtype=np.uint32), *numpy_others))  # noqa: NPY002
    version, python_keys, gauss = states["python"]
    random.setstate((version, tuple(python_keys), gauss))


@without_torch_warnings()
def initial_model(build: Callable[[], nn.Module], *, seed: int) -> nn.Module:
    """Return the module as it stands before the first update of every run of this seed, on the CPU.

    A deep copy: a builder that hands out one module again and again cannot couple runs through it.
    """
    with seeded(seed, "initialisation"):
        module = build()
    if not isinstance(module, nn.Module):
        raise UserError(
            f"the model builder returned {type(module).__name__}; end it with `return module`, a torch.nn.Module"
        )
    _refuse_hooked_weight_norm(module)
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:  # whatever the class of an attribute raises
        raise UserError(
            f"copying the model raised {type(error).__name__}: {error}; copy.deepcopy must be able to copy the module "
            "and all its attributes (a __getattr__ must raise AttributeError for what it does not know)"
        ) from error


def _refuse_hooked_weight_norm(module: nn.Module) -> None:
    """Refuse the old `weight_norm`, whose weight is the output of a hook, which nothing can copy."""
    for name, layer in module.named_modules():
        hooks = layer._forward_pre_hooks.values()  # the modules cannot be asked in a public way
        if any(isinstance(hook, WeightNorm) for hook in hooks):
            where = f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__
            raise UserError(
                f"{where} has torch.nn.utils.weight_norm, which PyTorch has deprecated and which cannot be copied; use "
                "torch.nn.utils.parametrizations.weight_norm, which computes the same"
            )


class DataOrder:
    """The examples of one seed in training order: fresh permutations one after another, cut into batches.

    Batches run across epoch boundaries and any block of steps can be asked for, which is what a resumed run needs.

    >>> order = DataOrder(seed=0, num_train=5, batch_size=2)
    >>> [sorted(epoch) for epoch in order.block(0, 5).reshape(2, 5).tolist()]
    [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    >>> bool((order.block(2, 3) == order.block(0, 5)[2:]).all())
    True
    """

    def __init__(self, *, seed: int, num_train: int, batch_size: int) -> None:
        self._key = derive(seed, "data order")
        self._num_train = num_train
        self._batch_size = batch_size
        self._cached: tuple[int, NDArray[np.int64]] | None = None

    def block(self, start: int, num_steps: int) -> NDArray[np.int64]:
        """Return the indices of updates start .. start + num_steps - 1, shape (num_steps, batch_size)."""
        first, last = start * self._batch_size, (start + num_steps) * self._batch_size
        pieces = []
        for epoch in range(first // self._num_train, (last - 1) // self._num_train + 1):
            offset = epoch * self._num_train
            pieces.append(self._permutation(epoch)[max(0, first - offset) : last - offset])
        return np.concatenate(pieces).reshape(num_steps, self._batch_size)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        cached = self._cached  # once: batches may be read ahead in another thread
        if cached is None or cached[0] != epoch:
            generator = np.random.default_rng([self._key, epoch])
            cached = self._cached = epoch, generator.permutation(self._num_train)
        return cached[1]


class StreamOrder:
    """Positions of a token sequence in training order: parallel streams, read window by window.

    The sequence is cut into `batch_size` streams of equal length; update i reads the next `unroll` tokens of each.
    After the last whole window a new pass begins. The order is the same for every seed.

    >>> order = StreamOrder(num_tokens=14, batch_size=2, unroll=3)
    >>> order.updates_per_pass
    2
    >>> order.block(1, 2).tolist()
    [[[3, 4, 5], [10, 11, 12]], [[0, 1, 2], [7, 8, 9]]]
    """

    def __init__(self, *, num_tokens: int, batch_size: int, unroll: int) -> None:
        self._length = num_tokens // batch_size
        self.updates_per_pass = updates_per_pass(num_tokens=num_tokens, batch_size=batch_size, unroll=unroll)
        starts = np.arange(batch_size, dtype=np.int64) * self._length
        self._first = starts[:, None] + np.arange(unroll, dtype=np.int64)
        self._unroll = unroll

    def block(self, start: int, num_steps: int) -> NDArray[np.int64]:
        """Return the positions of updates start .. start + num_steps - 1, shape (num_steps, batch_size, unroll)."""
        windows = np.arange(start, start + num_steps, dtype=np.int64) % self.updates_per_pass
        return self._first + (windows * self._unroll)[:, None, None]
