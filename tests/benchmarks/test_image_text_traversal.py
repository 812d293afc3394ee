"""Traversal against a loop over images, steps and texts."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.image_text.traversal import (
    Traversal,
    traversal,
    traversal_scores,
)
from tests.image_text.conftest import random_embedding


def by_hand(image, texts, root, steps, end):
    """Every step by itself, by the expected squared distance."""
    paths = []
    for n in range(len(image)):

        def csd(t, mu):
            return float((texts.mean[t] - mu).square().sum() + texts.variance[t].sum())

        goal = image.mean[n]
        if end == "text":
            goal = texts.mean[min(range(len(texts)), key=lambda t: csd(t, image.mean[n]))]
        start = root.mean[n if len(root) > 1 else 0]
        path = []
        for k in range(steps):
            q = start + (goal - start) * k / (steps - 1)
            q = q / math.sqrt(float(q @ q))
            path.append(min(range(len(texts)), key=lambda t: csd(t, q)))
        paths.append(path)
    return paths


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 12), st.integers(2, 5), st.integers(2, 9),
    st.sampled_from(["text", "image"]), st.booleans(), st.integers(0, 9_999),
)  # fmt: skip
def test_every_step_is_the_nearest_text(n, m, d, steps, end, one_root, seed):
    image, texts = random_embedding(n, d, seed), random_embedding(m, d, seed + 1)
    root = random_embedding(1 if one_root else n, d, seed + 2)
    path = traversal(image, texts, root, steps=steps, end=end)
    assert path.rows.tolist() == by_hand(image, texts, root, steps, end)


def test_scores_are_those_of_sets():
    path = Traversal(torch.tensor([[3, 3, 1, 0, 1], [2, 2, 2, 2, 2]]))
    own = torch.tensor([[0, 3, 7, 7], [4, 5, 6, 7]])
    scores = traversal_scores(path, own)
    assert scores["precision"].tolist() == [2 / 3, 0]
    assert scores["recall"].tolist() == [2 / 3, 0]  # 7 stands twice, and counts once
    assert scores["any"].tolist() == [1, 0]
    assert scores["root"].tolist() == [1, 0]
    assert path.distinct == [[3, 1, 0], [2]]
