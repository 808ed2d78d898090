"""Memory layout of many runs' tensors, also as seen from within `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from isotherm.kernels.layout import (
    has_channels_last,
    is_under_one_vmap,
    of_all_runs,
    runs_first,
    with_channels_last,
    with_runs_first,
)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# -- channels last --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", [(), (4,), (3, 4)], ids=str)
def test_channels_are_put_last_once(front):
    plain = normal(*front, 6, 5, 7)
    assert not has_channels_last(plain)
    moved = with_channels_last(plain)
    assert has_channels_last(moved)
    assert torch.equal(moved, plain)
    assert moved.stride()[-3:] == (1, 7 * 6, 6)
    assert with_channels_last(moved) is moved


def test_images_with_gaps_do_not_lie_so():
    images = with_channels_last(normal(4, 6, 5, 7))
    assert has_channels_last(images[:2])
    for piece in (images[:, :3], images[::2], images[:, :, 1:], images[..., ::2]):
        assert not has_channels_last(piece)
        assert torch.equal(with_channels_last(piece), piece)
        assert has_channels_last(with_channels_last(piece))


def test_one_channel_or_one_pixel_lies_either_way():
    assert has_channels_last(normal(4, 1, 5, 7))
    assert has_channels_last(normal(4, 6, 1, 1))


# -- behind `torch.func` --------------------------------------------------------------------------------------------


def seen_within(look: Callable[[Tensor], object], transform: Callable[..., Callable[..., Tensor]], x: Tensor) -> object:
    """Return what a look at a tensor gives within a transformed function."""
    found: list[object] = []

    def function(x: Tensor) -> Tensor:
        found.append(look(x))
        return x.sum()

    transform(function)(x)
    return found[-1]


def runs_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return vmap(function)


def gradients_of_runs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return vmap(grad(function))


def gradient_through_runs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return grad(lambda x: vmap(grad(function))(x).sum() + vmap(function)(x).sum())


WITHIN_ONE_VMAP = [runs_of, gradients_of_runs, gradient_through_runs]


@pytest.mark.parametrize("transform", WITHIN_ONE_VMAP)
def test_the_tensor_of_all_runs_is_found(transform):
    x = normal(3, 4, 2)
    assert seen_within(lambda _: is_under_one_vmap(), transform, x)
    found = seen_within(of_all_runs, transform, x)
    assert found.shape == (3, 4, 2)
    assert torch.equal(found, x)


def test_without_vmap_it_is_the_tensor_itself():
    x = normal(3, 4)
    assert of_all_runs(x) is x
    assert not is_under_one_vmap()
    assert not seen_within(lambda _: is_under_one_vmap(), grad, x)
    assert torch.equal(seen_within(of_all_runs, grad, x), x)


def test_runs_elsewhere_than_in_front_are_none():
    x = normal(3, 4)
    assert seen_within(of_all_runs, lambda function: vmap(function, in_dims=1), x) is None
    assert seen_within(of_all_runs, lambda function: vmap(grad(function), in_dims=1), x) is None
    assert seen_within(lambda _: is_under_one_vmap(), lambda function: vmap(function, in_dims=1), x)


def test_what_all_runs_share_is_none():
    shared = normal(4)
    assert seen_within(lambda _: of_all_runs(shared), runs_of, normal(3, 4)) is None
    assert seen_within(lambda _: of_all_runs(shared), gradients_of_runs, normal(3, 4)) is None


def test_runs_of_runs_are_none():
    x = normal(2, 3, 4)
    for transform in (lambda function: vmap(vmap(function)), lambda function: vmap(vmap(grad(function)))):
        assert seen_within(of_all_runs, transform, x) is None
        assert not seen_within(lambda _: is_under_one_vmap(), transform, x)


def test_it_is_over_when_vmap_is():
    vmap(torch.sin)(normal(3, 4))
    assert not is_under_one_vmap()


def test_a_compiler_is_told_of_no_vmap():
    found: list[tuple[bool, bool]] = []

    def look(x: Tensor) -> Tensor:
        found.append((is_under_one_vmap(), of_all_runs(x) is x))
        return x

    def compiled(x: Tensor) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            return look(x)

    vmap(compiled)(normal(3, 4))
    assert found == [(False, True)]


# -- what `vmap` hands over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_runs_are_put_in_front(dim):
    x = normal(3, 4, 2)
    found = with_runs_first(x.movedim(0, dim), dim, 3)
    assert torch.equal(found, x)


def test_what_has_no_runs_is_repeated_without_a_copy():
    x = normal(4, 2)
    found = with_runs_first(x, None, 3)
    assert torch.equal(found, torch.stack([x] * 3))
    assert found.stride() == (0, 2, 1)
    assert found.data_ptr() == x.data_ptr()


def test_an_operation_is_given_tensors_as_they_are_stored():
    images, vectors = normal(4, 3, 6, 5, 7), normal(4, 3)
    given = (images, images[:, 0], vectors, vectors[:, 0], 7, None)
    found = runs_first(SimpleNamespace(batch_size=3), (1, None, 1, None, None, None), given)
    assert torch.equal(found[0], images.movedim(1, 0))
    assert torch.equal(found[1], images[:, 0].expand(3, 4, 6, 5, 7))
    assert all(has_channels_last(x) for x in found[:2])
    assert torch.equal(found[2], vectors.t())
    assert torch.equal(found[3], vectors[:, 0].expand(3, 4))
    assert all(x.is_contiguous() for x in found[2:4])
    assert found[4:] == [7, None]
    kept = with_channels_last(images)
    assert runs_first(SimpleNamespace(batch_size=4), (0,), (kept,))[0] is kept
