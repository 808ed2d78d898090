"""The parameters of many runs in groups, their moments, and the update of all of them.

Every matrix or filter is a parameter group of its own, with the runs in front, so that a matmul can write its gradient
where the update reads it. The vectors (biases, scales) are columns of one group: many small ones then cost one
operation. Where matmuls want it, matrices are padded with zeros, which stay zeros: their gradients are.

Shape suffixes: M runs, N values of a group, R rows, C columns, I inner side of two factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from isotherm.engine.graph.step_graph import MatrixShape, aligned
from isotherm.engine.update_rules import Group, HeavyBall, Matrices, Settings, UpdateRule, heavy_ball

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Which parameters share a tensor (M, N), and what the update rule is told of them."""

    names: tuple[str, ...]
    told: Group


class ParameterGroups:
    """Which group holds each parameter, and the groups' values and moments (M, N).

    `moments` are those of the first group, then those of the second, and so on: how many depends on the update rule.

    Args:
        initial: parameters by name with the runs in front.
        decayed: names of those that L2 or weight decay moves.
        channels_last: hold filters (out, in, height, width) with the input channels last in memory.
        pads_matrices: hold matrices with both sides padded to multiples of 8.
        rule: what an update does; heavy ball by default.
        orthogonal: names of matrices that the rule is to know as such, for Muon.
    """

    def __init__(
        self,
        initial: Mapping[str, Tensor],
        *,
        decayed: Collection[str],
        channels_last: bool,
        pads_matrices: bool = False,
        rule: UpdateRule | None = None,
        orthogonal: Collection[str] = (),
    ) -> None:
        self.shapes = {name: tensor.shape[1:] for name, tensor in initial.items()}
        self._channels_last, self._pads_matrices = channels_last, pads_matrices
        self._rule: UpdateRule = HeavyBall() if rule is None else rule
        self._groups = [
            _Group(names=(name,), told=Group(name in decayed, self._matrices_of(name) if name in orthogonal else None))
            for name, shape in self.shapes.items()
            if len(shape) >= 2
        ]
        for decays in (True, False):
            names = [n for n, s in self.shapes.items() if len(s) < 2 and (n in decayed) == decays]
            if names:
                self._groups.append(_Group(names=tuple(names), told=Group(decays)))
        self._num_moments = [self._rule.num_moments(group.told) for group in self._groups]
        self.values = [self._joined(initial, group) for group in self._groups]
        self.moments = [
            torch.zeros_like(value)
            for value, num in zip(self.values, self._num_moments, strict=True)
            for _ in range(num)
        ]

    @property
    def matrices(self) -> list[MatrixShape | None]:
        """Rows and columns of the matrix that each group holds, before padding; None where it holds no matrix."""
        shapes = [self.shapes[group.names[0]] for group in self._groups]
        return [(shape[0], shape[1]) if len(shape) == 2 else None for shape in shapes]

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the parameters that each group holds."""
        return tuple(group.names for group in self._groups)

    def parameters(self, values: Sequence[Tensor] | None = None) -> Tensors:
        """Return the parameters by name with the runs in front: views of the groups."""
        found: Tensors = {}
        for group, value in zip(self._groups, self.values if values is None else values, strict=True):
            sizes = [self.shapes[name].numel() for name in group.names]
            pieces = [value] if len(sizes) == 1 else torch.split(value, sizes, dim=1)  # vectors
            for name, piece in zip(group.names, pieces, strict=True):
                found[name] = self._unflat(piece, self.shapes[name])
        return {name: found[name] for name in self.shapes}

    def gradients(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradients of named parameters as those of the groups."""
        return [self._joined(gradients, group) for group in self._groups]

    def select(self, keep: Tensor) -> None:
        """Keep only some of the runs."""
        self.values = [value[keep] for value in self.values]
        self.moments = [moment[keep] for moment in self.moments]

    def moments_of(self, index: int, moments: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return those moments that belong to a group."""
        first = sum(self._num_moments[:index])
        return moments[first : first + self._num_moments[index]]

    def apply(
        self,
        values: Sequence[Tensor],
        moments: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate_M1: Tensor,
        num_clipped_M1: Tensor,
        settings: Settings,
        *,
        step: Tensor | None = None,
        factored: Collection[int] = (),
    ) -> None:
        """Clip the gradients and make the update of the rule, in place; L2 comes after clipping.

        Gradients are only read: two may be one tensor. Groups whose index is in `factored` are left to `apply_factors`.
        `step` is the number of the update, from 0, for rules that depend on it.
        """
        factor_M1 = self._clipping_factor(gradients, num_clipped_M1, settings)
        rates = self._rule.rates(learning_rate_M1, settings, step)
        for index, (group, value, gradient) in enumerate(zip(self._groups, values, gradients, strict=True)):
            if index not in factored:
                own = self.moments_of(index, moments)
                self._rule.update(group.told, value, own, gradient, rates, settings, factor_M1)

    def _clipping_factor(
        self, gradients: Sequence[Tensor], num_clipped_M1: Tensor, settings: Settings
    ) -> Tensor | None:
        """Return by how much every run's gradient is shortened, and count those that are."""
        if settings.clip_M1 is None:
            return None
        squares = [torch.linalg.vector_norm(g, dim=1, keepdim=True).square() for g in gradients]
        norm_M1 = torch.stack(squares).sum(dim=0).sqrt()
        num_clipped_M1 += norm_M1 > settings.clip_M1
        return (settings.clip_M1 / norm_M1).clamp(max=1.0)

    def apply_factors(
        self,
        index: int,
        value: Tensor,
        velocity: Tensor,
        bfloat16_copy: Tensor,
        factors: tuple[Tensor, Tensor],
        learning_rate_M1: Tensor,
        settings: Settings,
    ) -> None:
        """Update one matrix, and its copy in bfloat16, by a gradient of two factors: heavy ball without clipping."""
        assert settings.clip_M1 is None
        assert self._rule == HeavyBall()
        l2_M1 = settings.l2_M1 if self._groups[index].told.decays else None
        if value.is_cuda:
            _update_by_factors(value, velocity, bfloat16_copy, *factors, learning_rate_M1, settings.momentum_M1, l2_M1)
        else:
            gradient = gradient_of_factors(*factors).to(velocity.dtype)
            heavy_ball(value, velocity, gradient, learning_rate_M1, settings.momentum_M1, l2_M1)
            bfloat16_copy.copy_(value)

    def _matrices_of(self, name: str) -> Matrices:
        """Return the shape of a matrix, and that of the tensor that holds it."""
        rows, columns = self.shapes[name]
        held = (aligned(rows), aligned(columns)) if self._pads_matrices else (rows, columns)
        return Matrices(rows, columns, held)

    def _joined(self, tensors: Mapping[str, Tensor], group: _Group) -> Tensor:
        """Return tensors (M, ...) of a group's parameters as one (M, N)."""
        rows = [self._flat(tensors[name]) for name in group.names]
        return rows[0].contiguous() if len(rows) == 1 else torch.cat(rows, dim=1)

    def _flat(self, tensor_M: Tensor) -> Tensor:
        if self._channels_last and tensor_M.ndim == 5:
            tensor_M = tensor_M.permute(0, 1, 3, 4, 2)
        if self._pads_matrices and tensor_M.ndim == 3:
            rows, columns = tensor_M.shape[1:]
            if (padding := (aligned(columns) - columns, aligned(rows) - rows)) != (0, 0):
                tensor_M = functional.pad(tensor_M, (0, padding[0], 0, padding[1]))
        return tensor_M.flatten(1) if tensor_M.ndim > 1 else tensor_M.unsqueeze(1)

    def _unflat(self, rows: Tensor, shape: torch.Size) -> Tensor:
        if self._channels_last and len(shape) == 4:
            return rows.view(-1, shape[0], shape[2], shape[3], shape[1]).permute(0, 1, 4, 2, 3)
        if self._pads_matrices and len(shape) == 2:
            whole = rows.view(-1, *map(aligned, shape))
            for dim, size in enumerate(shape, 1):
                if size != whole.shape[dim]:
                    whole = whole.narrow(dim, 0, size)
            return whole
        return rows.view(-1, *shape)


def gradient_of_factors(left_MRI: Tensor, right_MIC: Tensor) -> Tensor:
    """Return the gradient (M, N) of two factors."""
    return torch.bmm(left_MRI, right_MIC).flatten(1)


def _update_by_factors(
    value_MN: Tensor,
    velocity_MN: Tensor,
    copy_MN: Tensor,
    left_MRI: Tensor,
    right_MIC: Tensor,
    rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
) -> None:
    """Heavy ball in place by a gradient of two factors, on a GPU; renews the bfloat16 copy of the weights too."""
    from isotherm.kernels.triton import factored_update

    shape = len(value_MN), left_MRI.shape[1], right_MIC.shape[2]
    value_MRC, velocity_MRC, copy_MRC = (t.view(shape) for t in (value_MN, velocity_MN, copy_MN))
    factored_update.update(value_MRC, velocity_MRC, copy_MRC, left_MRI, right_MIC, rate_M1, momentum_M1, l2_M1)
