from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import load
from laplace_metric.datasets import ImageSet
from laplace_metric.datasets._image_set import split_classes
from laplace_metric.errors import InputError

LABELS = [3, 0, 2, 1, 2, 0]
FOUR = ImageSet(torch.zeros(6, 1, 1, 1), torch.tensor(LABELS), "four", tuple("abcd"))


@given(seen=st.sets(st.integers(0, 3), min_size=1, max_size=3))
def test_halves_share_no_class_and_lose_no_image(seen: set[int]) -> None:
    first, second = split_classes(FOUR, seen)
    assert first.labels.tolist() == [label for label in LABELS if label in seen]
    assert second.labels.tolist() == [label for label in LABELS if label not in seen]
    assert first.class_names == second.class_names == FOUR.class_names


def test_number_means_the_first_classes() -> None:
    assert split_classes(FOUR, 1)[0].labels.tolist() == [0, 0]
    assert split_classes(FOUR, 3)[1].labels.tolist() == [3]


@pytest.mark.parametrize("chosen", [0, 4, -1, [], [4], [-1, 0], [0, 1, 2, 3]])
def test_bad_choices(chosen: int | list[int]) -> None:
    with pytest.raises(InputError, match=r"train_classes=.* 4 classes 0\.\.3"):
        split_classes(FOUR, chosen)


def test_digits() -> None:
    seen, unseen = split_classes(load("digits"), 7)
    assert seen.labels.unique().tolist() == list(range(7))
    assert unseen.labels.unique().tolist() == [7, 8, 9]
