"""Frames and other near-copies among the points of a fit leave ``epistemic`` what it is."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.familiarity._bursts import bursts, joined_bursts

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
ORDER = np.random.default_rng(0).permutation(len(Y))
KNOWN, UNSEEN = ORDER[Y[ORDER] < 8], ORDER[Y[ORDER] >= 8]


def epistemic(k: int, items: int, noise: float, order: bool = False) -> tuple[Tensor, Tensor]:
    """Of new digits of the classes that were fitted, and of two others."""
    g = np.random.default_rng(1)
    rows = np.repeat(KNOWN[:items], k)
    x = (X[rows] + noise * g.normal(size=(len(rows), 64))).astype("float32")
    if order:
        mixed = g.permutation(len(rows))
        rows, x = rows[mixed], x[mixed]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedder = LaplaceEmbedder.from_embeddings(x, Y[rows])
    fresh, unseen = (torch.tensor(X[at]) for at in (KNOWN[700:], UNSEEN))
    return embedder(fresh).epistemic, embedder(unseen).epistemic


@pytest.mark.parametrize(
    ("k", "items", "noise"),
    [
        (10, 160, 0.0),  # exact copies
        (2, 160, 0.02),
        (5, 160, 0.02),
        (10, 160, 0.02),
        (10, 160, 0.1),
        (10, 600, 0.02),  # more points than are stored
    ],
)
def test_a_new_input_of_a_known_class_has_0_on_average(k, items, noise):
    """As without the frames, and an unseen class is as far as without them."""
    once, unseen_once = epistemic(1, items, 0.0)
    known, unseen = epistemic(k, items, noise, order=True)
    assert abs(float(known.mean())) < 0.4
    assert 0.5 < float(known.std()) < 1.5
    assert float(unseen.mean()) == pytest.approx(float(unseen_once.mean()), rel=0.35)
    assert abs(float(once.mean())) < 0.3


def test_points_without_bursts_are_left_as_they_are(monkeypatch):
    from laplace_metric.familiarity import _fit_set

    calls = []
    monkeypatch.setattr(_fit_set, "joined_bursts", lambda *given: calls.append(given))
    epistemic(1, 600, 0.0)
    assert not calls


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_burst_is_found_with_all_of_its_points_and_no_other(size):
    g = torch.Generator().manual_seed(0)
    scenes = torch.randn(12 * 4, 16, generator=g).repeat_interleave(size, 0)
    x = scenes + 0.01 * torch.randn(len(scenes), 16, generator=g)
    codes, scene = torch.arange(len(x)) // (12 * size), torch.arange(len(x)) // size
    mixed = torch.randperm(len(x), generator=g)
    x, codes, scene = x[mixed], codes[mixed], scene[mixed]
    found = bursts(x, codes, torch.arange(len(x)))
    assert found.size.unique().tolist() == [size]
    farthest = torch.cdist(x.double(), x.double()).masked_fill(scene[:, None] != scene, 0).amax(1)
    torch.testing.assert_close(found.radius, farthest, rtol=1e-3, atol=1e-6)
    joined = joined_bursts(x, codes, found)
    assert torch.equal(joined[:, None] == joined, scene[:, None] == scene)


def test_points_that_lie_apart_are_joined_with_none():
    g = torch.Generator().manual_seed(0)
    x, codes = torch.randn(80, 16, generator=g), torch.arange(80) % 4
    x[40:50] = x[:10]  # equal vectors of another class, and of the same class
    found = bursts(x, codes, torch.arange(80))
    assert len(joined_bursts(x, codes, found)) == 80
    same = joined_bursts(x, codes, found)
    assert not bool((same[:, None] == same)[codes[:, None] != codes].any())
