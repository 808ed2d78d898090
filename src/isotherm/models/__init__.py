"""Models by name: the one table that says which there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from isotherm.models.mlp import mlp

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp_40_100_100_10": partial(mlp, (40, 100, 100, 10)),
}
