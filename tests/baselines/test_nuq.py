from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.neighbors import KernelDensity

from baselines import NUQ
from baselines.nuq import N_BANDWIDTHS
from tests.baselines.labelled_points import labelled_points, on_vectors

PARTS = ("total", "aleatoric", "epistemic")


def weights(x, query, h, k):
    """The k largest w and where, by a loop over the training set."""
    all_w = [
        math.exp(-sum((a - b) ** 2 for a, b in zip(query, row, strict=True)) / (2 * h * h))
        for row in x
    ]
    order = sorted(range(len(x)), key=lambda i: math.dist(query, x[i]))[:k]
    return {i: all_w[i] for i in order}


def label_shares(w, labels, n_classes, prior):
    total = sum(w.values()) + n_classes * prior
    return [
        (sum(v for i, v in w.items() if labels[i] == c) + prior) / total for c in range(n_classes)
    ]


def slow(x, labels, query, *, h, k, prior):
    """U_a and U_e as in the paper: tau^2 = sigma^2 |K|^2 / (N h^d p), with scipy's Gaussians."""
    n, d = x.shape
    n_classes = int(labels.max()) + 1
    w = weights(x.tolist(), query.tolist(), h, k)
    eta = label_shares(w, labels.tolist(), n_classes, prior)
    kernel = multivariate_normal(np.zeros(d), np.eye(d))
    density = sum(kernel.pdf((query.numpy() - x[i].numpy()) / h) for i in w) / (n * h**d)
    squared_norm = (4 * math.pi) ** (-d / 2)  # the integral of K^2
    tau = [math.sqrt(p * (1 - p) * squared_norm / (n * h**d * density)) for p in eta]
    return min(1 - p for p in eta), 2 * math.sqrt(2 / math.pi) * max(tau)


@settings(deadline=None, max_examples=40)
@given(labelled_points(), st.integers(1, 30), st.sampled_from([1e-5, 0.1, 3.0]))
def test_against_the_paper(points, k, prior):
    x, labels, queries = points
    h = float(x.std()) + 0.5
    queries = torch.cat([queries[:4] / 3 + x[:4], x[:2]])
    u = {
        part: on_vectors(NUQ, x, labels, part=part, k=k, bandwidth=h, prior=prior)(queries)
        for part in PARTS
    }
    u = {part: embedding.uncertainty.exp().tolist() for part, embedding in u.items()}
    for b, query in enumerate(queries):
        distances = torch.cdist(query[None], x)[0].sort().values
        if k < len(x) and distances[k] - distances[k - 1] < 1e-9:
            continue  # which of two equally far ones counts is open
        aleatoric, epistemic = slow(x, labels, query, h=h, k=k, prior=prior)
        assert u["aleatoric"][b] == pytest.approx(aleatoric, rel=1e-8)
        assert u["epistemic"][b] == pytest.approx(epistemic, rel=1e-8)
        assert u["total"][b] == pytest.approx(aleatoric + epistemic, rel=1e-8)


def test_the_density_is_scikit_learns():
    """With all neighbours and two classes: (U_e / 2)^2 pi/2 = U_a (1 - U_a) |K|^2 / (N h^d p)."""
    g = torch.Generator().manual_seed(0)
    x, queries = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (60, 9))
    h, n, d = 0.8, 60, 3
    u = {}
    for part in ("aleatoric", "epistemic"):
        method = on_vectors(NUQ, x, torch.arange(n) % 2, part=part, k=n, bandwidth=h)
        u[part] = method(queries).uncertainty.exp().numpy()
    p = np.exp(KernelDensity(bandwidth=h).fit(x.numpy()).score_samples(queries.numpy()))
    variance = (u["epistemic"] / 2) ** 2 * np.pi / 2
    expected = u["aleatoric"] * (1 - u["aleatoric"]) / (4 * np.pi) ** (d / 2) / (n * h**d * p)
    np.testing.assert_allclose(variance, expected, rtol=1e-9)


@settings(deadline=None, max_examples=25)
@given(labelled_points(), st.integers(1, 30))
def test_bandwidth_leaves_each_item_out(points, k):
    """The candidates and the choice, by loops; copies and one-member classes included."""
    x, labels, _ = points
    n, prior = len(x), 1e-3
    n_near = min(k, n - 1)
    x = x + 1e-4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).double()
    twin = int((labels == labels[0]).nonzero().max())  # of its class: else ties decide on labels
    x[twin] = x[0]
    lists = []
    for i in range(n):
        rest = sorted((math.dist(x[i].tolist(), x[j].tolist()), j) for j in range(n) if j != i)
        lists.append(rest[:n_near])
    low, high = (np.mean([near[r][0] for near in lists]) for r in (0, -1))
    scores = {}
    for h in np.linspace(low, high, N_BANDWIDTHS):
        total = 0.0
        for i, near in enumerate(lists):
            w = {j: math.exp(-(d**2) / (2 * h * h)) for d, j in near}
            total += math.log(
                label_shares(w, labels.tolist(), int(labels.max()) + 1, prior)[labels[i]]
            )
        scores[float(h)] = total
    h = float(on_vectors(NUQ, x, labels, k=k, prior=prior).parts["memory"].bandwidth)
    closest = min(scores, key=lambda other: abs(other - h))
    assert h == pytest.approx(closest, rel=1e-5)
    assert scores[closest] == pytest.approx(max(scores.values()), rel=1e-5, abs=1e-5)


def test_far_away_nothing_is_known():
    """eta is 1/C, and the epistemic part goes on growing where every w is below the least float."""
    g = torch.Generator().manual_seed(0)
    x, labels = torch.randn(40, 2, generator=g), torch.arange(40) % 4
    far = torch.tensor([[1e3, 0.0], [1e4, 0.0], [1e5, 0.0]])
    aleatoric = on_vectors(NUQ, x, labels, part="aleatoric")(far).uncertainty
    torch.testing.assert_close(aleatoric.exp(), torch.full((3,), 0.75))
    for part in ("epistemic", "total"):
        u = on_vectors(NUQ, x, labels, part=part)(far).uncertainty
        assert bool((u.diff() > 1e3).all())


def test_an_offset_of_all_vectors_changes_nothing():
    """Neighbours are searched in float32 around the mean, so a common offset cancels nothing."""
    g = torch.Generator().manual_seed(0)
    x, labels = torch.randn(50, 4, generator=g).round(decimals=2), torch.arange(50) % 2
    plain, moved = (
        on_vectors(NUQ, x + c, labels, bandwidth=0.5)(x[:9] + c + 0.25) for c in (0, 4096)
    )
    torch.testing.assert_close(moved.uncertainty, plain.uncertainty, rtol=0.02, atol=0.02)
