"""May a model's batch be computed in micro-batches? Found out on a few examples in float64, whole and in two halves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isotherm.engine.dropout import IndexOf, RandomIndices, index_in_whole_batch, run_keys
from isotherm.engine.memory import is_out_of_memory
from isotherm.engine.micro_batches import Dim, MicroBatches, accumulate, example_unit
from isotherm.engine.placed_task import PlacedTask
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model, seeded

# Examples of a half, where they need not be ghost batches: odd, so that pairs of neighbours show.
_FEW = 3
_TOLERANCE = 1e-9


class NotSeparable(UserError):
    """The examples of a batch cannot be computed in micro-batches; the message says why, and what can be done."""


class _Found(NamedTuple):
    """What an update is made of."""

    loss: Tensor
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def micro_batches_of(placed: PlacedTask, *, batch_size: int, size: int) -> MicroBatches:
    """Return how a batch is cut into micro-batches, once that is known to change nothing but rounding.

    Args:
        placed: the task on its device.
        batch_size: examples of an update.
        size: of a micro-batch; one of `sizes_of`.

    Raises:
        NotSeparable: the gradient or a buffer of a batch is not the mean over its micro-batches.
    """
    if size == batch_size:
        return MicroBatches.whole(batch_size)
    unit = example_unit(placed, batch_size)
    half = min(max(unit, _FEW // unit * unit), batch_size // 2 // unit * unit)
    exact = dataclasses.replace(placed, dtype=torch.float64, is_mixed=False)
    try:
        with seeded(0, "micro-batches"):
            small, large = _seen(exact, half), _seen(exact, 2 * half)
            found = MicroBatches(
                batch_size=2 * half,
                size=half,
                dropout_dims=_dims(small.dropout, large.dropout),
                augmentation_dims=_dims(small.augmentation, large.augmentation),
                buffer_dims=_buffer_dims(small.buffers, large.buffers),
            )
            _compare(_update(exact, found), _update(exact, MicroBatches.whole(2 * half)), exact)
    except NotSeparable:
        raise
    except Exception as error:  # whatever a user's module may raise for another number of examples
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise _refusal(f"with {half} and {2 * half} examples it raises {type(error).__name__}: {reason}") from error
    return dataclasses.replace(found, batch_size=batch_size, size=size)


# -- where the examples are -------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """The shapes of what a forward pass drew and of the buffers."""

    dropout: list[torch.Size]
    augmentation: list[torch.Size]
    buffers: dict[str, torch.Size]


def _seen(placed: PlacedTask, num: int) -> _Seen:
    """Return what a forward pass of some examples draws and keeps."""
    model = placed.model(seed=0, batch_size=num).train()
    seen = _Seen([], [], {name: buffer.shape for name, buffer in model.named_buffers()})

    def recorder(shapes: list[torch.Size]) -> IndexOf:
        def index_of(call: int, shape: torch.Size, device: torch.device) -> Tensor:
            shapes.append(shape)
            return index_in_whole_batch(call, shape, device)

        return index_of

    indices = RandomIndices(dropout=recorder(seen.dropout), augmentation=recorder(seen.augmentation))
    placed.training_loss(model, *_batch(placed, num), *_keys(placed), indices=indices)
    return seen


def _dims(small: list[torch.Size], large: list[torch.Size]) -> tuple[Dim, ...]:
    """Return the dimension that grows with the number of examples, of every result."""
    if len(small) != len(large):
        raise _refusal("it draws random numbers more often for some numbers of examples than for others")
    return tuple(_dim(*shapes) for shapes in zip(small, large, strict=True))


def _buffer_dims(small: Mapping[str, torch.Size], large: Mapping[str, torch.Size]) -> dict[str, int]:
    dims = {name: _dim(small[name], large[name]) for name in small}
    return {name: dim for name, dim in dims.items() if dim is not None}


def _dim(small: torch.Size, large: torch.Size) -> Dim:
    """Return the one dimension that is twice as long for twice as many examples, None where nothing changes."""
    changed = [dim for dim, sizes in enumerate(zip(small, large, strict=False)) if sizes[0] != sizes[1]]
    if not changed and len(small) == len(large):
        return None
    if len(small) != len(large) or len(changed) > 1 or large[changed[0]] != 2 * small[changed[0]]:
        raise _refusal(f"a tensor of shape {tuple(small)} has shape {tuple(large)} for twice as many examples")
    return changed[0]


# -- the same update twice --------------------------------------------------------------------------------------------


def _update(placed: PlacedTask, micro_batches: MicroBatches) -> _Found:
    """Return loss, gradients and buffers of an update."""
    num = micro_batches.batch_size
    model = placed.model(seed=0, batch_size=num).train()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = accumulate(placed, model, micro_batches, _batch(placed, num), *_keys(placed))
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    return _Found(loss, gradients, dict(model.named_buffers()))


def _batch(placed: PlacedTask, num: int) -> tuple[Tensor, Tensor]:
    """Return the first examples of seed 0, real numbers in float64."""
    index = placed.order(seed=0, batch_size=num).block(0, 1)[0]
    x, y = placed.batch(index, seed=0, step=0)
    return tuple(t.to(placed.dtype) if t.is_floating_point() else t for t in (x, y))  # type: ignore[return-value]


def _keys(placed: PlacedTask) -> tuple[Tensor, Tensor]:
    """Return the keys of seed 0 and the number of the first update."""
    return run_keys(0).to(placed.device), torch.zeros((), dtype=torch.int64, device=placed.device)


def _compare(halves: _Found, whole: _Found, placed: PlacedTask) -> None:
    """Raise `NotSeparable` where an update in two halves is not the update of the whole."""
    if not _close(halves.loss, whole.loss):
        raise _refusal("its loss is no mean over examples", placed)
    for kind, ours, theirs in (
        ("gradient", halves.gradients, whole.gradients),
        ("buffer", halves.buffers, whole.buffers),
    ):
        for name, value in theirs.items():
            if not _close(ours[name], value):
                what = f"the gradient of {name}" if kind == "gradient" else f"its buffer {name}"
                raise _refusal(f"{what} depends on which examples are computed together", placed)


def _close(ours: Tensor, theirs: Tensor) -> bool:
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    scale = theirs.norm() if theirs.isfinite().all() else torch.zeros(())
    same = (ours - theirs).abs() <= _TOLERANCE * (scale + 1e-3)
    return bool((same | (ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def _refusal(reason: str, placed: PlacedTask | None = None) -> NotSeparable:
    """Return the error, with the layer that is most often the cause."""
    norms = [] if placed is None else _batch_norms(initial_model(placed.build, seed=0))
    if norms:
        remedy = (
            f"{type(norms[0]).__name__} normalises over all examples of a batch: use it.GhostBatchNorm2d, whose ghost "
            "batches are computed whole, or LayerNorm or GroupNorm, or a batch size that fits into memory"
        )
    else:
        remedy = (
            "a layer or a loss that mixes examples, or random numbers other than dropout, cannot be computed in "
            "parts: use a batch size that fits into memory"
        )
    return NotSeparable(f"the batch cannot be cut into micro-batches: {reason}; {remedy}")


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
