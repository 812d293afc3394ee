"""Traversal against a loop over images, steps and texts; inclusion by quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.image_text import _zero_shot as _shared
from laplace_metric.image_text.uses import Traversal, inclusion_root, traversal, traversal_scores
from tests.image_text.uses.gaussians import certain, random_embedding


def by_hand(image, texts, root, steps, end):
    """Every step by itself, by the expected squared distance."""
    paths = []
    for n in range(len(image)):

        def csd(t, mu, trace=0.0):
            return float((texts.mean[t] - mu).square().sum() + texts.variance[t].sum() + trace)

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


def test_blocks_of_images_give_the_same_path(monkeypatch):
    image, texts, root = (random_embedding(n, 4, n) for n in (9, 7, 9))
    whole, best = traversal(image, texts, root).rows, inclusion_root(image, texts).mean
    monkeypatch.setattr("laplace_metric.image_text._traversal.PAIRS", 200)
    monkeypatch.setattr(_shared, "PAIRS", 15)
    assert traversal(image, texts, root).rows.tolist() == whole.tolist()
    torch.testing.assert_close(inclusion_root(image, texts).mean, best)


def test_a_wide_text_is_passed_over_unless_variances_are_left_out():
    texts = random_embedding(2, 3, 0)
    mu = texts.mean[:1].repeat(2, 1)
    mu[1] = torch.nn.functional.normalize(mu[0] + torch.tensor([0.05, 0, 0]), dim=0)
    v = torch.tensor([[1.0] * 3, [0.01] * 3]).double()
    wide = type(texts)(type(texts.distribution)(mu, v))
    assert traversal(wide[0], wide, wide[0], end="image").distinct == [[1]]
    assert traversal(wide[0], certain(wide), wide[0], end="image").distinct == [[0]]


def test_the_root_is_the_text_of_the_largest_product_of_densities():
    """``int p_1^2 p_2`` by quadrature, a dimension at a time."""
    image, texts = random_embedding(12, 2, 1), random_embedding(10, 2, 2)
    x = torch.linspace(-8, 8, 40_001, dtype=torch.float64)

    def density(e: Embedding, row: int, d: int):
        return torch.distributions.Normal(e.mean[row, d], e.variance[row, d].sqrt()).log_prob(x)

    def log_overlap(n: int, t: int) -> float:
        parts = [2 * density(image, n, d) + density(texts, t, d) for d in range(2)]
        return sum(float(torch.trapezoid(p.exp(), x).log()) for p in parts)

    best = [max(range(10), key=lambda t: log_overlap(n, t)) for n in range(12)]
    root = inclusion_root(image, texts)
    torch.testing.assert_close(root.mean, texts.mean[best])
    torch.testing.assert_close(root.variance, texts.variance[best])
    base = random_embedding(1, 2, 3)
    averaged = inclusion_root(image, texts, base)
    sums = (texts.mean[best] + base.mean) / 2
    torch.testing.assert_close(averaged.mean, sums / sums.norm(dim=1, keepdim=True))
    v = (texts.variance[best] + base.variance) / 4 / sums.norm(dim=1, keepdim=True) ** 2
    torch.testing.assert_close(averaged.variance, v)


def test_scores_are_those_of_sets():
    path = Traversal(torch.tensor([[3, 3, 1, 0, 1], [2, 2, 2, 2, 2]]))
    own = torch.tensor([[0, 3, 7, 7], [4, 5, 6, 7]])
    scores = traversal_scores(path, own)
    assert scores["precision"].tolist() == [2 / 3, 0]
    assert scores["recall"].tolist() == [2 / 3, 0]  # 7 stands twice, and counts once
    assert scores["any"].tolist() == [1, 0]
    assert scores["root"].tolist() == [1, 0]
    assert path.distinct == [[3, 1, 0], [2]]


def test_what_is_refused():
    e = random_embedding(3, 4, 0)
    with pytest.raises(InputError, match="steps=1"):
        traversal(e, e, e, steps=1)
    with pytest.raises(InputError, match="root has 2 rows and image 3"):
        traversal(e, e, e[:2])
    with pytest.raises(InputError, match=r"differ in size: .*'texts': 5"):
        traversal(e, random_embedding(3, 5, 0), e)
    with pytest.raises(InputError, match="image is a Tensor: pass an Embedding"):
        traversal(e.mean, e, e)
    with pytest.raises(InputError, match="texts is empty"):
        traversal(e, e[torch.zeros(3).bool()], e)
    with pytest.raises(UnknownNameError, match="end"):
        traversal(e, e, e, end="caption")
    with pytest.raises(InputError, match="texts has no variances"):
        inclusion_root(e, certain(e))
    with pytest.raises(InputError, match="base has 3 rows"):
        inclusion_root(e, e, e)
    with pytest.raises(InputError, match=r"own has shape \(2, 4\)"):
        traversal_scores(traversal(e, e, e), torch.zeros(2, 4).long())
