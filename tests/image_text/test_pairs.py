"""Many-to-many pairs: what is read, what is refused, what a batch holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.errors import InputError, LabelError
from laplace_metric.image_text import ImageTextPairs
from laplace_metric.image_text._pairs import PairBatches
from laplace_metric.inputs._by_row import count_inputs, take_inputs


def random_pairs(n: int, m: int, seed: int) -> tuple[ImageTextPairs, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    match = torch.rand(n, m, generator=g) < 0.3
    match[torch.arange(n), torch.arange(n) % m] = True
    match[torch.arange(m) % n, torch.arange(m)] = True
    return ImageTextPairs(torch.zeros(n, 1), torch.zeros(m, 1), match.nonzero()), match


SIZES = (st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000))


@settings(max_examples=50, deadline=None)
@given(*SIZES)
def test_match_is_the_matrix_of_all_pairs(n, m, seed):
    pairs, match = random_pairs(n, m, seed)
    g = torch.Generator().manual_seed(seed)
    i, j = (torch.randint(k, (5,), generator=g) for k in (n, m))  # with repeats, in any order
    assert bool((pairs.match(i, j) == match[i][:, j]).all())
    assert pairs.images_per_text.tolist() == match.sum(0).tolist()


@settings(max_examples=50, deadline=None)
@given(*SIZES, st.integers(2, 12))
def test_an_epoch_has_every_pair_once_and_no_pair_alone(n, m, seed, size):
    pairs, match = random_pairs(n, m, seed)
    generator = torch.Generator().manual_seed(seed)
    if len(pairs) < 2:
        with pytest.raises(InputError, match="one pair"):
            PairBatches(pairs, size, generator)
        return
    loader = PairBatches(pairs, size, generator)
    batches = [rows for rows, _ in loader]
    assert len(batches) == len(loader)
    assert min(map(len, batches)) >= 2
    assert max(map(len, batches)) <= max(size, 3)
    seen = torch.cat(batches)
    assert len(seen) == int(match.sum())
    assert bool((seen.unique(dim=0) == match.nonzero()).all())


def test_captions_become_texts_each_once():
    images = np.zeros((3, 2))
    pairs = ImageTextPairs.of(images, [["red", "car"], "red", ["car", "big", "car"]])
    assert pairs.texts == ["red", "car", "big"]
    assert pairs.pairs.tolist() == [[0, 0], [0, 1], [1, 0], [2, 1], [2, 2]]


@pytest.mark.parametrize(
    ("captions", "error", "message"),
    [
        ("ab", LabelError, "pass one for each"),
        (["a", [3]], InputError, r"captions\[1\] holds 3"),
        ([[], []], LabelError, "all empty"),
        (["a", []], LabelError, "1 of 2 images have no partner, the first is row 1"),
    ],
)
def test_captions_that_are_refused(captions, error, message):
    with pytest.raises(error, match=message):
        ImageTextPairs.of(torch.zeros(2, 1), captions)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([[0, 0], [1, 2]], InputError, "pairs name texts 0 to 2 of 2"),
        ([[0, 0], [1, 0]], LabelError, "1 of 2 texts have no partner, the first is row 1"),
        ([[0.0, 1.0]], InputError, "pass whole numbers"),
    ],
)
def test_rows_that_are_refused(rows, error, message):
    with pytest.raises(error, match=message):
        ImageTextPairs(torch.zeros(2, 1), ["a", "b"], torch.tensor(rows))


def test_inputs_of_every_kind():
    mapping = {"ids": torch.arange(4), "mask": ["a", "b", "c", "d"]}
    assert count_inputs("x", mapping) == 4
    taken = take_inputs(mapping, torch.tensor([3, 0]))
    assert taken["ids"].tolist() == [3, 0]
    assert taken["mask"] == ["d", "a"]
    assert take_inputs(np.arange(4), torch.tensor([2])).tolist() == [2]
    assert take_inputs(("a", "b"), torch.tensor([1])) == ["b"]
    for bad in (3, torch.tensor(1), [], {"a": [1], "b": [1, 2]}):
        with pytest.raises(InputError):
            count_inputs("x", bad)
