"""Sums over whole images with the channels last go through memory in order."""

import pytest
import torch
from torch import Tensor

from helpers_graph import calls, check_equal, targets, whole
from isotherm.engine.graph.image_sums import sum_images_in_memory_order
from isotherm.kernels.layout import with_channels_last

_aten = torch.ops.aten
IMAGES = with_channels_last(whole(2, 3, 4, 5, 6, dtype=torch.float32))


@pytest.mark.parametrize("keepdim", [True, False])
def test_the_pass_alone(keepdim):
    """It expects a traced step, and leaves a sum over rows, of images permuted as they lie in memory."""

    def function(x: Tensor) -> tuple[Tensor]:
        return (x.sum(dim=(1, 2, 3, 4), keepdim=keepdim),)

    program = check_equal(function, IMAGES, passes=[sum_images_in_memory_order])
    (total,) = calls(program, _aten.sum.dim_IntList)
    rows, dims = total.args
    assert dims == [1]
    assert rows.args[0].target is _aten.permute.default
    assert rows.args[0].meta["val"].is_contiguous()


@pytest.mark.parametrize(
    ("function", "images"),
    [
        (lambda x: (x.sum(dim=(1, 2, 3, 4)),), IMAGES.contiguous()),
        (lambda x: (x.sum(dim=(2, 3, 4)),), IMAGES),
        (lambda x: (x.sum(dim=(0, 1, 2, 3, 4)),), IMAGES),
        (lambda x: (x.sum(dim=(1, 2, 3)),), IMAGES[0]),
    ],
    ids=["channels first", "by example", "of all runs", "of one run"],
)
def test_other_sums_stay(function, images):
    program = check_equal(function, images, passes=[sum_images_in_memory_order])
    assert targets(program) == {_aten.sum.dim_IntList: 1}
