"""The facts behind the text on the autoencoder."""

from __future__ import annotations

import os

import pytest

from pages.calibration.autoencoder import MEAN_IMAGE_TEST, MEAN_IMAGE_TRAIN, shift_of_best


def test_the_best_of_seven_are_shifted_and_all_of_fifteen_are_not() -> None:
    assert shift_of_best(5, 7) == pytest.approx(0.42, abs=0.005)
    assert shift_of_best(15, 15) == pytest.approx(0, abs=1e-6)


@pytest.mark.real_data
@pytest.mark.skipif("ISOTHERM_DATA" not in os.environ, reason="ISOTHERM_DATA is not set")
def test_a_collapsed_run_scores_like_the_mean_image() -> None:
    from isotherm.data import mnist
    from isotherm.data.catalogue import data_folder

    train, test = (images.flatten(1).double() / 255 for images, _ in mnist.load(data_folder()))
    scores = [float((images - train.mean(dim=0)).square().sum(dim=1).mean()) for images in (test, train)]
    assert scores == pytest.approx([MEAN_IMAGE_TEST, MEAN_IMAGE_TRAIN], abs=1e-4)
