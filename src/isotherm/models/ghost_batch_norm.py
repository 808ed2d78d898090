"""Batch normalisation over ghost batches: groups of fixed size, whatever the batch size.

The noise that batch normalisation adds depends on how many examples share their statistics. Ghost batches keep that
number constant (Hoffer et al. 2017), so that a sweep over batch sizes does not change the normalisation.

On a GPU, in mixed precision and channels last, custom kernels compute the same (`kernels.ops.ghost_norm`).

Shape suffixes: G ghost batches, N examples of each, C channels, H x W pixels.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

Activation = Literal["relu"]


class GhostBatchNorm2d(nn.Module):
    """Normalise each ghost batch by its own mean and variance; in evaluation mode by running statistics.

    Once per forward pass the running statistics move towards the batch's: the means and unbiased variances, averaged
    over ghost batches. The buffer `update_rate` says how far; at one, they are those of the last batch. Half precision
    is normalised in float32.

    Args:
        num_features: channels of the input, shape (batch, channels, height, width).
        ghost_size: examples per ghost batch; a smaller batch is one ghost batch.
        eps: added to the variance.
        update_rate: weight of the newest batch in the running statistics.
        activation: 'relu' to rectify the result, which a kernel does in the same pass.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    update_rate: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        ghost_size: int = 64,
        eps: float = 1e-5,
        update_rate: float = 0.1,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ghost_size, int) or ghost_size < 1:
            raise UserError(f"ghost_size={ghost_size!r} is not a positive number of examples; the paper uses 64")
        if activation is not None and activation not in get_args(Activation):
            raise UserError(
                f"activation={activation!r} is not supported by this layer; use 'relu', or None and apply your own"
            )
        self.num_features, self.ghost_size, self.eps, self.activation = num_features, ghost_size, eps, activation
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("update_rate", torch.tensor(update_rate))

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised, scaled, shifted per channel and activated, in the dtype of x."""
        if x.ndim != 4 or x.shape[1] != self.num_features:
            raise UserError(
                f"an input of shape {tuple(x.shape)} cannot be normalised over {self.num_features} channels; "
                f"give images of shape (batch, {self.num_features}, height, width)"
            )
        if self.training and ghost_norm_ops.fits(x):
            return self._by_kernels(x)
        y = self._normalised(x)
        return y if self.activation is None else torch.relu(y)

    def _by_kernels(self, x: Tensor) -> Tensor:
        size = self._ghost_size_in(x)
        y, mean_GC, var_GC = ghost_norm_ops.ghost_norm(
            x, self.weight, self.bias, ghost_size=size, eps=self.eps, relu=self.activation == "relu"
        )
        mean_G1C11, var_G1C11 = (t.view(len(t), 1, -1, 1, 1) for t in (mean_GC, var_GC))
        self._update_running_statistics(mean_G1C11, var_G1C11, num_values=size * x.shape[2] * x.shape[3])
        return y

    def _normalised(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        if not self.training:
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            centred = wide - self.running_mean.view(-1, 1, 1)
            return (centred * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)).to(x.dtype)

        size = self._ghost_size_in(x)
        x_GNCHW = wide.view(-1, size, *x.shape[1:])
        var_G1C11, mean_G1C11 = torch.var_mean(x_GNCHW, dim=(1, 3, 4), correction=0, keepdim=True)
        self._update_running_statistics(mean_G1C11, var_G1C11, num_values=size * x.shape[2] * x.shape[3])
        scale_G1C11 = self.weight.view(-1, 1, 1) * torch.rsqrt(var_G1C11 + self.eps)
        # centred first: the gradient of the variance then sums values around zero
        return ((x_GNCHW - mean_G1C11) * scale_G1C11 + self.bias.view(-1, 1, 1)).flatten(0, 1).to(x.dtype)

    def _ghost_size_in(self, x: Tensor) -> int:
        """Return the ghost batch size for this batch, or raise a UserError."""
        size = self.checked_ghost_size(x.shape[0])
        if size * x.shape[2] * x.shape[3] < 2:
            raise UserError(
                f"an input of shape {tuple(x.shape)} has one value per channel and ghost batch, which has no variance; "
                "use a batch size of at least 2, or larger images"
            )
        return size

    def checked_ghost_size(self, batch_size: int) -> int:
        """Return the ghost batch size for a batch size, or raise a UserError."""
        size = min(batch_size, self.ghost_size)
        if size == 0 or batch_size % size:
            lower = batch_size // self.ghost_size * self.ghost_size
            fitting = f"{lower} or {lower + self.ghost_size}" if lower else f"{self.ghost_size}"
            raise UserError(
                f"a batch of {batch_size} cannot be split into ghost batches of {self.ghost_size}; "
                f"use a batch size of {fitting}, or another ghost size"
            )
        return size

    def _update_running_statistics(self, mean_G1C11: Tensor, var_G1C11: Tensor, *, num_values: int) -> None:
        """Move the running statistics towards those of this batch, in place, as `torch.func` expects of buffers."""
        unbiased = num_values / (num_values - 1)
        keep = 1 - self.update_rate
        mean, var = mean_G1C11.detach().mean(dim=(0, 1, 3, 4)), var_G1C11.detach().mean(dim=(0, 1, 3, 4))
        self.running_mean.mul_(keep).add_(mean * self.update_rate)
        self.running_var.mul_(keep).add_(var * (self.update_rate * unbiased))

    def extra_repr(self) -> str:
        """Return what `print` shows of the layer."""
        activation = "" if self.activation is None else f", activation={self.activation}"
        return f"{self.num_features}, ghost_size={self.ghost_size}, eps={self.eps}{activation}"
