"""Crop, flip and normalisation against one image at a time, padded by PyTorch."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.engine.dropout import KeyedBits, noise_key
from isotherm.errors import UserError

COLOURS = {"mean": (10.0, 100.0, 200.0), "std": (3.0, 60.0, 0.5)}
GREY = {"mean": (0.0,), "std": (1.0,)}


def images(num: int, *, channels: int = 3, height: int = 7, width: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, channels, height, width), generator=generator, dtype=torch.uint8)


def given_bits(num: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**32, (num, 3), generator=generator)


def one_by_one(x: Tensor, bits: Tensor, transform: CropAndFlip) -> Tensor:
    """Pad every image with PyTorch, cut out a window, flip it, normalise it channel by channel."""
    pad, results = transform.pad, []
    for image, (down, across, flip) in zip(x.float(), bits.tolist(), strict=True):
        mode = "reflect" if transform.padding == "reflect" else "constant"
        padded = functional.pad(image.unsqueeze(0), (pad,) * 4, mode=mode)[0] if pad else image
        top, left = down * (2 * pad + 1) // 2**32, across * (2 * pad + 1) // 2**32
        crop = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        if transform.flip and flip >= 2**31:
            crop = crop.flip(2)
        channels = [(c - m) / s for c, m, s in zip(crop, transform.mean, transform.std, strict=True)]
        results.append(torch.stack(channels))
    return torch.stack(results)


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("pad", [0, 1, 2, 5])
@pytest.mark.parametrize("flip", [True, False])
def test_a_batch_is_what_image_by_image_gives(padding, pad, flip):
    transform = CropAndFlip(**COLOURS, pad=pad, padding=padding, flip=flip)
    x, bits = images(200), given_bits(200)
    ours = transform.train(x, lambda shape: bits[: shape[0], : shape[1]])
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, one_by_one(x, bits, transform), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("padding", ["reflect", "zero"])
def test_the_extremes_of_the_bits_are_the_extremes_of_the_crop(padding):
    transform = CropAndFlip(**COLOURS, pad=4, padding=padding)
    ends = (0, 2**31 - 1, 2**31, 2**32 - 1)
    bits = torch.tensor(list(itertools.product(ends, ends, ends)))
    x = images(len(bits))
    torch.testing.assert_close(transform.train(x, lambda _: bits), one_by_one(x, bits, transform), rtol=1e-6, atol=1e-6)


def test_black_pixels_are_normalised_like_any_other():
    x = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    transform = CropAndFlip(**COLOURS, pad=1, padding="zero", flip=False)
    corner = transform.train(x, lambda _: torch.zeros(1, 3, dtype=torch.int64))[0, :, 0, 0]
    assert corner.tolist() == pytest.approx([-10 / 3, -100 / 60, -200 / 0.5])


def test_offsets_and_flips_are_uniform_and_independent():
    """Rows and columns are drawn into the image; its middle then shows where it was cut and which way it looks."""
    rows, columns = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
    num = 18_000
    x = torch.stack([rows, columns]).to(torch.uint8).expand(num, 2, 5, 5)
    transform = CropAndFlip(mean=(0.0, 0.0), std=(1.0, 1.0), pad=1)
    shown = transform.train(x, KeyedBits(noise_key(3, "augmentation"), torch.tensor(17)))
    down, across = shown[:, 0, 2, 2] - 2, shown[:, 1, 2, 2] - 2
    is_flipped = (shown[:, 1, 2, 1] > shown[:, 1, 2, 3]).float()
    assert down.unique().tolist() == across.unique().tolist() == [-1, 0, 1]
    counts = ((down + 1) * 6 + (across + 1) * 2 + is_flipped).long().bincount(minlength=18)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_every_update_and_every_seed_has_its_own_crops():
    transform, x = CropAndFlip(**COLOURS), images(50)
    seen = [
        transform.train(x, KeyedBits(noise_key(seed, "augmentation"), torch.tensor(step)))
        for seed, step in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert torch.equal(seen[0], seen[3])
    for one, other in itertools.combinations(seen[:3], 2):
        differing = (one != other).flatten(1).any(dim=1)
        assert differing.double().mean() > 0.9


def test_without_padding_and_flip_training_sees_what_evaluation_sees():
    transform, x = CropAndFlip(**COLOURS, pad=0, flip=False), images(20)
    assert torch.equal(transform.train(x, lambda _: given_bits(20)), transform.evaluate(x))


def test_evaluation_normalises_and_nothing_else():
    x = images(4)
    mean, std = (torch.tensor(COLOURS[name]).view(3, 1, 1) for name in ("mean", "std"))
    torch.testing.assert_close(CropAndFlip(**COLOURS).evaluate(x), (x.float() - mean) / std, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("in_dim", [None, 0])
def test_many_runs_at_once_are_a_loop_over_them(padding, in_dim):
    transform = CropAndFlip(**COLOURS, pad=2, padding=padding)
    keys, step = torch.stack([noise_key(seed) for seed in range(3)]), torch.tensor(5)
    x_MB = torch.stack([images(8, seed=seed if in_dim == 0 else 0) for seed in range(3)])

    def of_run(x: Tensor, key: Tensor) -> Tensor:
        return transform.train(x, KeyedBits(key, step))

    ours = vmap(of_run, in_dims=(in_dim, 0))(x_MB if in_dim == 0 else x_MB[0], keys)
    assert torch.equal(ours, torch.stack([of_run(x, key) for x, key in zip(x_MB, keys, strict=True)]))


def test_labels_stay_as_they_are():
    labels = torch.tensor([3, 1, 2])
    assert CropAndFlip(**COLOURS).targets(labels) is labels
    assert Scaled().targets(labels) is labels


def test_scaled_bytes_are_fractions_of_255_as_inputs_and_as_targets():
    x = torch.arange(256, dtype=torch.uint8).view(2, 128)
    expected = torch.arange(256).view(2, 128).float() / 255
    for ours in (Scaled().train(x, given_bits), Scaled().evaluate(x), Scaled().targets(x)):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"padding": "mirror"}, ["padding='mirror'", "'reflect' or 'zero'"]),
        ({"pad": -1}, ["pad must be", "at least 0, not -1", "0 for no crop"]),
        ({"std": (1.0, 1.0)}, ["one value per channel", "std above 0"]),
        ({"std": (1.0, 0.0, 1.0)}, ["one value per channel", "std above 0"]),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(changes, words):
    with pytest.raises(UserError) as caught:
        CropAndFlip(**{**COLOURS, **changes})
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_pad_as_large_as_the_image():
    with pytest.raises(UserError, match="pad=6 is not below the image size 7 x 6; use a smaller one"):
        CropAndFlip(**COLOURS, pad=6).train(images(2), lambda _: given_bits(2))


def test_another_number_of_channels():
    for call in (CropAndFlip(**GREY).evaluate, lambda x: CropAndFlip(**GREY).train(x, lambda _: given_bits(2))):
        with pytest.raises(UserError, match="images have 3 channels, but mean has 1 values"):
            call(images(2))


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("pad", 2.0, "pad must be a whole number of at least 0, not 2.0"),
        ("pad", "4", "pad must be a whole number of at least 0, not '4'"),
        ("flip", "False", "flip must be true or false, not 'False'"),
        ("mean", 0.5, "mean=0.5 is not a tuple of numbers"),
        ("std", ("a",), "is not a tuple of numbers"),
    ],
)
def test_fields_of_the_wrong_type_are_refused(field, value, sentence):
    with pytest.raises(UserError, match=sentence):
        CropAndFlip(**{"mean": (1.0,), "std": (1.0,), field: value})
