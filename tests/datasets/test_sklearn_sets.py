from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_sample_image

from benchmarks.datasets import load


def test_digits_are_those_of_scikit_learn() -> None:
    train, test = load("digits"), load("digits", "test")
    images = torch.cat([train.images, test.images])
    np.testing.assert_array_equal(images.squeeze(1).numpy() * 16, load_digits().images)
    assert torch.cat([train.labels, test.labels]).tolist() == load_digits().target.tolist()
    assert (len(train), len(test)) == (1297, 500)
    assert float(images.min()) == 0
    assert float(images.max()) == 1


@pytest.mark.parametrize("size", [8, 28, 53])
def test_colour_patches_are_squares_of_the_photographs(size: int) -> None:
    """Every square of the grid of `china.jpg` is in exactly one split, like a chessboard."""
    train, test = (
        load("photographs", split, size=size, colour=True) for split in ("train", "test")
    )
    photograph = torch.tensor(load_sample_image("china.jpg") / 255.0).float().permute(2, 0, 1)
    take = {0: iter(train.images), 1: iter(test.images)}
    for row in range(427 // size):
        for column in range(640 // size):
            top, left = row * size, column * size
            square = photograph[:, top : top + size, left : left + size]
            torch.testing.assert_close(next(take[(row + column) % 2]), square)


def test_grey_is_the_luma_of_the_colours() -> None:
    grey, colour = load("photographs"), load("photographs", colour=True)
    red, green, blue = colour.images.unbind(1)
    expected = 0.299 * red + 0.587 * green + 0.114 * blue
    torch.testing.assert_close(grey.images[:, 0], expected)
    assert grey.images.shape == (4240, 1, 8, 8)
    assert 0 <= float(grey.images.min()) < float(grey.images.max()) <= 1


def test_limit_keeps_both_photographs() -> None:
    limited = load("photographs", limit=10)
    assert limited.labels.bincount().tolist() == [5, 5]
    assert torch.equal(limited.images[1], load("photographs").images[424])
