"""Which sums are of images that lie alike in memory."""

import pytest
import torch

from helpers_graph import calls, whole
from isotherm.engine.graph.image_additions import image_addition
from isotherm.engine.graph.trace import trace
from isotherm.kernels.layout import with_channels_last

IMAGES = [with_channels_last(whole(2, 3, 4, 5, 6, seed=seed)) for seed in range(2)]


def addition_in(function):
    program = trace(function, *IMAGES)
    return image_addition(calls(program, torch.ops.aten.add.Tensor)[0]), program.graph.find_nodes(op="placeholder")


def test_images_that_lie_alike():
    found, arguments = addition_in(lambda x, y: (x + y,))
    assert [found.left, found.right] == arguments


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + 1,),
        lambda x, y: (torch.add(x, y, alpha=2),),
        lambda x, y: (x + y.contiguous(),),
        lambda x, y: (x + y.float(),),
        lambda x, y: (x + y[:1],),
        lambda x, y: (x.contiguous() + y.contiguous(),),
        lambda x, y: (x[0, 0] + y[0, 0],),
    ],
    ids=["number", "scaled", "other layout", "other type", "other shape", "channels first", "three dimensions"],
)
def test_other_sums(function):
    assert addition_in(function)[0] is None
