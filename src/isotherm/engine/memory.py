"""The memory that a run of a fleet needs, estimated from two forward passes, and whether it ran out."""

from __future__ import annotations

import torch
from torch import Tensor

from isotherm.core.machine import physical_memory
from isotherm.engine.dropout import run_keys
from isotherm.engine.placed_task import PlacedTask, ghost_layers
from isotherm.tasks.raised import suppressed

# Of every parameter: weight and gradient; what the optimiser keeps comes on top.
_STATES = 2
# Of every weight: a copy in lower precision or another layout.
_COPIES = 1
# What the backward pass needs in addition to what the forward pass keeps for it.
_BACKWARD_FACTOR = 2.0
# The rest is for the data, for other programs and for estimates that are too low.
_USABLE = 0.5
_CUDA_ERROR_MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation


def bytes_per_run(
    placed: PlacedTask, batch_size: int, *, micro_batch_size: int | None = None, num_moments: int = 1
) -> int:
    """Return roughly how many bytes one run of a fleet needs: its state, and the activations of an update.

    Of a module that cannot be called, only the state is counted; the check before a fleet reports the error.

    Args:
        placed: the task on its device.
        batch_size: examples of an update.
        micro_batch_size: examples that are computed at once; all by default.
        num_moments: what the optimiser keeps of every parameter: 1 velocity, or 2 means.
    """
    num_at_once = micro_batch_size or batch_size
    num_copies = _COPIES + (num_at_once < batch_size)  # the sum of the micro-batches' gradients
    of_copies = num_copies * placed.num_parameters * placed.dtype.itemsize
    of_states = state_bytes(placed.num_parameters, dtype=placed.dtype, num_moments=num_moments)
    of_activations = round(_BACKWARD_FACTOR * _kept_bytes(placed, num_at_once))
    return of_states + of_copies + max(of_activations, _output_bytes(placed))  # evaluation follows an update


def state_bytes(num_parameters: int, *, dtype: torch.dtype = torch.float32, num_moments: int = 1) -> int:
    """Return the bytes of the weights, moments and gradients of one run.

    >>> state_bytes(1000)
    12000
    """
    return (_STATES + num_moments) * num_parameters * dtype.itemsize


def _output_bytes(placed: PlacedTask) -> int:
    """Return the bytes of a run's outputs over its largest split, where the metric needs all at once; else 0."""
    if not placed.metric_is_over_split:
        return 0
    with suppressed(), torch.no_grad():  # as above
        x, y = placed.evaluation_batch("test", 0, 1)
        _, output = placed.evaluation_scores(placed.model(seed=0, batch_size=1).eval(), x, y)
        return output.nbytes * max(len(targets) for _, targets in placed.splits.values())
    return 0


def _kept_bytes(placed: PlacedTask, batch_size: int) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, estimated from two small batches.

    One is not enough: rounded weights are kept too, and do not grow with the batch.
    """
    num = min(batch_size, _few(placed, batch_size))
    with suppressed():  # the check before a fleet says what is wrong, in better words
        kept = _kept_of(placed, num)
        if num == batch_size:
            return kept
        more = _kept_of(placed, 2 * num) - kept
        return kept + more * (batch_size - num) // num
    return 0


def _kept_of(placed: PlacedTask, num: int) -> int:
    """Return the bytes that a forward pass of some examples keeps, other than parameters and buffers."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    model = placed.model(seed=0, batch_size=num).train()
    held = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    index = placed.order(seed=0, batch_size=num).block(0, 1)[0]
    x, y = placed.batch(index, seed=0, step=0)
    keys = run_keys(0).to(placed.device)
    step = torch.zeros((), dtype=torch.int64, device=placed.device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        placed.training_loss(model, x, y, keys, step)
    return sum(size for address, size in seen.items() if address not in held)


def _few(placed: PlacedTask, batch_size: int) -> int:
    """Return a number of examples that is quick to try and a multiple of the ghost batch sizes."""
    ghosts = ghost_layers(placed.build()) if placed.has_convolutions else {}
    size = max(ghosts.values(), default=8)
    return batch_size if batch_size % size else size


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _CUDA_ERROR_MEMORY_ALLOCATION
    return type(error) is RuntimeError and _is_of_cpu_allocator(error)


def is_fault_of_gpu(error: BaseException) -> bool:
    """Tell whether a GPU reported an error after which no call to it works any more in this process."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def _is_of_cpu_allocator(error: RuntimeError) -> bool:
    """Tell whether PyTorch's CPU allocator raised an error.

    It raises a plain `RuntimeError` without an error code, a cause or any other attribute, so its name in the message
    is all there is to tell it by.
    """
    return "DefaultCPUAllocator: " in str(error)


def usable_memory(device: torch.device) -> int:
    """Return how many bytes a fleet may use on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return round(_USABLE * free)
    return round(_USABLE * physical_memory())


def memory_of_one_run(device: torch.device) -> int:
    """Return how many bytes a single run may be estimated to need before its batches are cut into micro-batches.

    On a GPU all of its memory: the estimate may be too high, and a GPU says so in time when memory runs out. A system
    without memory ends processes, so there it is what a fleet may use.
    """
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else usable_memory(device)


def runs_that_fit(
    placed: PlacedTask,
    batch_size: int,
    *,
    shared_by: int = 1,
    micro_batch_size: int | None = None,
    num_moments: int = 1,
) -> int:
    """Return how many runs fit into the device's memory at once, at least one.

    Args:
        placed: the task on its device.
        batch_size: of the runs.
        shared_by: processes that share the memory.
        micro_batch_size: examples that a run computes at once; all by default.
        num_moments: what the optimiser keeps of every parameter.
    """
    each = max(1, bytes_per_run(placed, batch_size, micro_batch_size=micro_batch_size, num_moments=num_moments))
    return max(1, usable_memory(placed.device) // shared_by // each)
