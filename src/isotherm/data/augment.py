"""Images from bytes to model inputs: crop, flip and normalise a whole batch with tensor operations.

The random numbers come from the caller, so that a run's crops depend only on its seed and the update, whether it is
trained alone or in a fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from isotherm.errors import UserError

# shape -> 32 random bits per element, in int64
RandomBits = Callable[[tuple[int, ...]], Tensor]


class Transform(Protocol):
    """What happens to a batch of inputs between storage and model."""

    def train(self, inputs: Tensor, bits: RandomBits) -> Tensor:
        """Return the inputs for training."""

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return the inputs for evaluation."""

    def targets(self, targets: Tensor) -> Tensor:
        """Return the targets of the loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """Divides bytes by 255 and nothing else.

    >>> Scaled().evaluate(torch.tensor([[0, 51, 255]], dtype=torch.uint8)).tolist()
    [[0.0, 0.20000000298023224, 1.0]]
    """

    def train(self, inputs: Tensor, bits: RandomBits) -> Tensor:
        """Return values in [0, 1]."""
        return self.evaluate(inputs)

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return values in [0, 1]."""
        return inputs.to(torch.float32) / 255.0

    def targets(self, targets: Tensor) -> Tensor:
        """Return images as targets on the same scale, labels unchanged."""
        return self.evaluate(targets) if targets.dtype == torch.uint8 else targets


@dataclass(frozen=True, kw_only=True, slots=True)
class CropAndFlip:
    """The CIFAR pipeline: pad, crop at random to the original size, flip at random, normalise.

    Args:
        mean: of every channel, on the scale 0 to 255.
        std: of every channel.
        pad: pixels added on each side before the crop; 0 for no crop.
        padding: "reflect" mirrors the image at its edge, "zero" adds black pixels.
        flip: mirror left and right with probability 1/2.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int = 4
    padding: Literal["reflect", "zero"] = "reflect"
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding not in ("reflect", "zero"):
            raise UserError(f"padding={self.padding!r} is unknown; use 'reflect' or 'zero'")
        if isinstance(self.pad, bool) or not isinstance(self.pad, int) or self.pad < 0:
            raise UserError(f"pad must be a whole number of at least 0, not {self.pad!r}; use 0 for no crop")
        if not isinstance(self.flip, bool):
            raise UserError(f"flip must be true or false, not {self.flip!r}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(isinstance(v, int | float) for v in values):
                raise UserError(
                    f"{name}={values!r} is not a tuple of numbers; give one per channel, of an array {name}.tolist()"
                )
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UserError(
                f"mean={self.mean!r} and std={self.std!r} need one value per channel each, std above 0; for images in "
                "three channels use e.g. mean=(125, 123, 114), std=(63, 62, 67)"
            )

    def train(self, inputs: Tensor, bits: RandomBits) -> Tensor:
        """Return random crops (n, channels, height, width) in float32."""
        num, channels, height, width = inputs.shape
        if self.pad >= min(height, width):
            raise UserError(f"pad={self.pad} is not below the image size {height} x {width}; use a smaller one")
        bits_n3 = bits((num, 3))
        offset_n2 = ((bits_n3[:, :2] * (2 * self.pad + 1)) >> 32) - self.pad
        flip_n = (bits_n3[:, 2] >> 31) * int(self.flip)
        rows_nh = offset_n2[:, :1] + torch.arange(height, device=inputs.device)
        columns_w = torch.arange(width, device=inputs.device)
        columns_nw = offset_n2[:, 1:] + columns_w + flip_n.unsqueeze(1) * (width - 1 - 2 * columns_w)
        rows_nh, row_is_inside = self._source(rows_nh, height)
        columns_nw, column_is_inside = self._source(columns_nw, width)
        example = torch.arange(num, device=inputs.device)[:, None, None, None]
        channel = torch.arange(channels, device=inputs.device)[None, :, None, None]
        crops = inputs[example, channel, rows_nh[:, None, :, None], columns_nw[:, None, None, :]]
        if self.padding == "zero":
            inside = row_is_inside[:, None, :, None] & column_is_inside[:, None, None, :]
            crops = crops * inside.to(crops.dtype)
        return self.evaluate(crops)

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return the normalised images in float32."""
        if inputs.shape[1] != len(self.mean):
            raise UserError(
                f"images have {inputs.shape[1]} channels, but mean has {len(self.mean)} values; give one per channel"
            )
        mean, std = (_per_channel(values, inputs.device) for values in (self.mean, self.std))
        return (inputs.to(torch.float32) - mean) / std

    def targets(self, targets: Tensor) -> Tensor:
        """Return the labels."""
        return targets

    def _source(self, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the source index of positions in the padded image, and whether they lie inside the image."""
        is_inside = (index >= 0) & (index < size)
        if self.padding == "zero":
            return index.clamp(0, size - 1), is_inside
        mirrored = index.abs()
        return torch.where(mirrored > size - 1, 2 * (size - 1) - mirrored, mirrored), is_inside


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values as a tensor (channels, 1, 1), created on the device: a captured CUDA graph cannot copy to it."""
    return torch.stack([torch.full((1, 1), value, dtype=torch.float32, device=device) for value in values])
