"""The closed-form diagonals against dense float64 autograd over all ordered pairs."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._feature_store import FeatureStore
from tests.contrastive.oracle import all_pair_weights, dense_ggn

LABELS = {
    "balanced": [0, 1, 0, 1, 2, 2],
    "imbalanced": [0, 0, 0, 0, 1, 1, 2],
    "one member": [3, 3, 3, 9, 5],
}
KINDS = list(itertools.product(["euclidean", "arccos"], [False, True]))
HESSIANS = ["full", "positives", "fixed"]


def make_head(z: int, d: int, bias: bool, seed: int = 0) -> nn.Linear:
    g = torch.Generator().manual_seed(seed)
    head = nn.Linear(d, z, bias=bias).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return head


def make_features(n: int, d: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coordinates(h, head, distance, normalized):
    z = head(h).detach()
    return z / z.norm(dim=1, keepdim=True) if normalized or distance == "arccos" else z


def oracle(h, head, targets, distance, hessian, normalized):
    if hessian == "positives":
        targets = targets.clamp_min(0)
    cross = hessian != "fixed"
    return dense_ggn(h, head, targets, distance=distance, normalized=normalized, cross=cross)


def relative_error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours - expected).norm() / expected.norm().clamp_min(1e-300))


def assert_matches(h, labels, head, distance, normalized, hessian, margin, tolerance=1e-8):
    loss = ContrastiveLoss.of(distance, hessian, normalized=normalized, margin=margin)
    ours = all_pairs_curvature(FeatureStore.of(h, labels), LinearJacobian.of(head), loss).values
    targets = all_pair_weights(labels, coordinates(h, head, distance, normalized), margin)
    expected = oracle(h, head, targets, distance, hessian, normalized).diagonal()
    # rounding is relative to what is summed before signs cancel, entry by entry: pairs of either
    # sign, and |[h, 1] / r|^2 of the points (where H is 0, as for Z = 1 or a bias of differences)
    mass = oracle(h, head, targets.abs(), distance, hessian, normalized).diagonal()
    z = head(h).detach()
    r = z.norm(dim=1, keepdim=True) if loss.geometry.spherical else torch.ones(len(h), 1)
    layout = LinearJacobian.of(head).layout
    units = (layout.augment(h) / r).square().sum(0).expand(layout.n_outputs, -1)
    rounding = 1e-13 * mass.abs() + 1e-14 * layout.flatten(units)
    assert bool(((ours - expected).abs() <= tolerance * expected.norm() + rounding).all())


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
def test_duplicates(distance, normalized, hessian):
    labels = torch.tensor([0, 0, 1, 1, 0])
    h = make_features(5, 2)
    h[1], h[3] = h[0], h[0]  # one duplicate in the class, one across classes
    assert_matches(h, labels, make_head(2, 2, True), distance, normalized, hessian, 0.5)
    assert_matches(h, labels, make_head(2, 2, True), distance, normalized, hessian, None)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    hessian=st.sampled_from(HESSIANS),
    labels=st.lists(st.integers(0, 3), min_size=3, max_size=7).filter(lambda x: len(set(x)) > 1),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e12]),
    margin=st.sampled_from([None, 0.7]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(  # three points in one direction: weights .15, .15 and -.3 cancel
    ("euclidean", True), "fixed", [0, 0, 1], (2, 1), 1e12, None, True, 0
)
def test_any_shape_scale_and_imbalance(kind, hessian, labels, shape, scale, margin, bias, seed):
    head = make_head(*shape, bias, seed)
    h = make_features(len(labels), shape[1], seed + 1) * scale
    assert_matches(h, torch.tensor(labels), head, *kind, hessian, margin, tolerance=1e-7)


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
@pytest.mark.parametrize("margin", [None, 1.2])
def test_miner_pairs_and_triplets(distance, normalized, hessian, margin):
    h, head = make_features(5, 3), make_head(2, 3, True)
    pairs = tuple(torch.tensor(i) for i in ([0, 1, 1], [1, 0, 2], [0, 2, 3, 3], [3, 4, 1, 1]))
    triplets = tuple(torch.tensor(i) for i in ([0, 0, 3], [1, 2, 4], [3, 4, 0]))
    for indices, (a1, p, a2, n) in (
        (pairs, pairs),
        (triplets, (triplets[0], triplets[1], triplets[0], triplets[2])),
    ):
        f = coordinates(h, head, distance, normalized)
        targets = torch.zeros(5, 5, dtype=torch.float64)
        for i, j in zip(a1.tolist(), p.tolist(), strict=True):
            targets[i, j] += 1 / len(a1)
        if hessian != "positives":
            for i, j in zip(a2.tolist(), n.tolist(), strict=True):
                if margin is None or (f[i] - f[j]).norm() <= margin:
                    targets[i, j] -= 1 / len(a2)
        expected = oracle(h, head, targets, distance, "full", normalized).diagonal()
        if hessian == "fixed":
            expected = oracle(h, head, targets, distance, "fixed", normalized).diagonal()
        loss = ContrastiveLoss.of(distance, hessian, normalized=normalized, margin=margin)
        ours = batch_curvature(h, LinearJacobian.of(head), loss, indices_tuple=indices).values
        assert relative_error(ours, expected) < 1e-10
