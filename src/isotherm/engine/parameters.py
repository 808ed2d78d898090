"""The parameters of a fleet's runs, their velocities, and the update of all of them.

Every matrix or filter is a block of its own, with the runs in front, so that a product can write its gradient where the
update reads it. The vectors (biases, scales) are columns of one block: many small ones then cost one operation. Where
products want it, matrices are filled up with zeros, which stay zeros: their gradients are.

Shape suffixes: M runs, N values of a block, R rows, C columns, I inner side of two factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isotherm.engine.graph.step_graph import MatrixShape, aligned

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Which parameters share a tensor (M, N), and whether L2 moves them."""

    names: tuple[str, ...]
    decays: bool


class Settings(NamedTuple):
    """What the update of every run is made with, shape (M, 1) each; without clipping or L2 there is None."""

    momentum_M1: Tensor
    l2_M1: Tensor | None
    clip_M1: Tensor | None

    def select(self, keep: Tensor) -> Settings:
        """Return those of some of the runs."""
        return Settings(*(None if values is None else values[keep] for values in self))  # type: ignore[arg-type]


class Weights:
    """Where each parameter lies, and the tensors that hold them.

    Args:
        initial: parameters by name with the runs in front.
        decayed: names of those that L2 moves.
        channels_last: hold filters (out, in, height, width) with the input channels last in memory.
        aligns: hold matrices with both sides filled up to multiples of 8.
    """

    def __init__(
        self, initial: Mapping[str, Tensor], *, decayed: Collection[str], channels_last: bool, aligns: bool = False
    ) -> None:
        self.shapes = {name: tensor.shape[1:] for name, tensor in initial.items()}
        self._channels_last, self._aligns = channels_last, aligns
        self._blocks = [_Block(names=(name,), decays=name in decayed) for name, s in self.shapes.items() if len(s) >= 2]
        for decays in (True, False):
            names = [n for n, s in self.shapes.items() if len(s) < 2 and (n in decayed) == decays]
            if names:
                self._blocks.append(_Block(names=tuple(names), decays=decays))
        self.values = [self._joined(initial, block) for block in self._blocks]
        self.velocities = [torch.zeros_like(value) for value in self.values]

    def _joined(self, tensors: Mapping[str, Tensor], block: _Block) -> Tensor:
        """Return tensors (M, ...) of a block's parameters as one (M, N)."""
        rows = [self._flat(tensors[name]) for name in block.names]
        return rows[0].contiguous() if len(rows) == 1 else torch.cat(rows, dim=1)

    def _flat(self, tensor_M: Tensor) -> Tensor:
        if self._channels_last and tensor_M.ndim == 5:
            tensor_M = tensor_M.permute(0, 1, 3, 4, 2)
        if self._aligns and tensor_M.ndim == 3:
            rows, columns = tensor_M.shape[1:]
            if (padding := (aligned(columns) - columns, aligned(rows) - rows)) != (0, 0):
                tensor_M = functional.pad(tensor_M, (0, padding[0], 0, padding[1]))
        return tensor_M.flatten(1) if tensor_M.ndim > 1 else tensor_M.unsqueeze(1)

    def _unflat(self, rows: Tensor, shape: torch.Size) -> Tensor:
        if self._channels_last and len(shape) == 4:
            return rows.view(-1, shape[0], shape[2], shape[3], shape[1]).permute(0, 1, 4, 2, 3)
        if self._aligns and len(shape) == 2:
            whole = rows.view(-1, *map(aligned, shape))
            for dim, size in enumerate(shape, 1):
                if size != whole.shape[dim]:
                    whole = whole.narrow(dim, 0, size)
            return whole
        return rows.view(-1, *shape)

    @property
    def matrices(self) -> list[MatrixShape | None]:
        """Rows and columns of the blocks that are matrices."""
        shapes = [self.shapes[block.names[0]] for block in self._blocks]
        return [(shape[0], shape[1]) if len(shape) == 2 else None for shape in shapes]

    def parameters(self, values: Sequence[Tensor] | None = None) -> Tensors:
        """Return the parameters by name with the runs in front: views of the blocks."""
        found: Tensors = {}
        for block, value in zip(self._blocks, self.values if values is None else values, strict=True):
            sizes = [self.shapes[name].numel() for name in block.names]
            pieces = [value] if len(sizes) == 1 else torch.split(value, sizes, dim=1)  # vectors
            for name, piece in zip(block.names, pieces, strict=True):
                found[name] = self._unflat(piece, self.shapes[name])
        return {name: found[name] for name in self.shapes}

    def gradients(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradients of named parameters as those of the blocks."""
        return [self._joined(gradients, block) for block in self._blocks]

    def select(self, keep: Tensor) -> None:
        """Let only some of the runs stay."""
        self.values = [value[keep] for value in self.values]
        self.velocities = [velocity[keep] for velocity in self.velocities]

    def apply(
        self,
        values: Sequence[Tensor],
        velocities: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate_M1: Tensor,
        num_clipped_M1: Tensor,
        settings: Settings,
        *,
        factored: Collection[int] = (),
    ) -> None:
        """Heavy ball with coupled L2, u = m u + g + λ w and w = w - ε u, as `torch.optim.SGD` does it, in place.

        A clipped gradient is cut before L2 and momentum. Gradients are only read: two may be one tensor. Blocks at the
        places `factored` are left to `apply_factors`.
        """
        factor_M1 = None
        if settings.clip_M1 is not None:
            squares = [torch.linalg.vector_norm(g, dim=1, keepdim=True).square() for g in gradients]
            norm_M1 = torch.stack(squares).sum(dim=0).sqrt()
            num_clipped_M1 += norm_M1 > settings.clip_M1
            factor_M1 = (settings.clip_M1 / norm_M1).clamp(max=1.0)
        blocks = zip(self._blocks, values, velocities, gradients, strict=True)
        for place, (block, value, velocity, g) in enumerate(blocks):
            if place in factored:
                continue
            l2_M1 = settings.l2_M1 if block.decays else None
            heavy_ball(value, velocity, g, learning_rate_M1, settings.momentum_M1, l2_M1, factor_M1=factor_M1)

    def apply_factors(
        self,
        place: int,
        value: Tensor,
        velocity: Tensor,
        half: Tensor,
        factors: tuple[Tensor, Tensor],
        learning_rate_M1: Tensor,
        settings: Settings,
    ) -> None:
        """Update one matrix, and its rounded copy, by a gradient of two factors; there is no clipping."""
        assert settings.clip_M1 is None
        l2_M1 = settings.l2_M1 if self._blocks[place].decays else None
        if value.is_cuda:
            _update_by_factors(value, velocity, half, *factors, learning_rate_M1, settings.momentum_M1, l2_M1)
        else:
            gradient = gradient_of_factors(*factors).to(velocity.dtype)
            heavy_ball(value, velocity, gradient, learning_rate_M1, settings.momentum_M1, l2_M1)
            half.copy_(value)


def gradient_of_factors(left_MRI: Tensor, right_MIC: Tensor) -> Tensor:
    """Return the gradient (M, N) of two factors."""
    return torch.bmm(left_MRI, right_MIC).flatten(1)


def _update_by_factors(
    value_MN: Tensor,
    velocity_MN: Tensor,
    half_MN: Tensor,
    left_MRI: Tensor,
    right_MIC: Tensor,
    rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
) -> None:
    """Heavy ball in place with the product as gradient, on a GPU; renews the rounded weights too."""
    from isotherm.kernels.triton import factored_update

    shape = len(value_MN), left_MRI.shape[1], right_MIC.shape[2]
    value_MRC, velocity_MRC, half_MRC = (t.view(shape) for t in (value_MN, velocity_MN, half_MN))
    factored_update.update(value_MRC, velocity_MRC, half_MRC, left_MRI, right_MIC, rate_M1, momentum_M1, l2_M1)


def heavy_ball(
    value: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    learning_rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
    *,
    factor_M1: Tensor | None = None,
) -> None:
    """Update values (M, N) and their velocities in place by a gradient, cut by a factor if there is one."""
    if factor_M1 is None:
        torch.addcmul(gradient, velocity, momentum_M1, out=velocity)
    else:
        velocity.mul_(momentum_M1).addcmul_(gradient, factor_M1)
    if l2_M1 is not None:
        velocity.addcmul_(value, l2_M1)
    value.addcmul_(velocity, learning_rate_M1, value=-1.0)
