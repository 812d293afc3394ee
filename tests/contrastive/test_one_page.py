"""``curvature.by_class``, called from top to bottom, is the curvature of a fit."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._jacobian_terms import LinearDense
from laplace_metric.curvature.by_class import (
    ClassPairWeights,
    ClassSums,
    PointBlocks,
    Points,
    diagonal_sum,
    left_sum,
    quadratic,
    right_sum,
    times,
    view_points,
)
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._feature_store import FeatureStore


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_page_is_the_default_fit(distance):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (60,), generator=g)
    h = torch.randn(60, 5, generator=g, dtype=torch.float64) + labels[:, None]
    head = LinearJacobian(
        torch.randn(3, 5, generator=g, dtype=torch.float64), torch.ones(3).double()
    )
    loss = ContrastiveLoss.of(distance, "fixed", normalized=True)

    points = view_points(h, head.forward(h), spherical=True)
    u, r = points.directions, points.lengths
    weights = ClassPairWeights(ClassSums.of(labels, u), negatives=True)
    blocks = PointBlocks.of(u, *weights.sums(points, labels), curved_loss=distance == "arccos")
    (layer,) = (part.divided(r) for part in head.layers(h))

    fitted = all_pairs_curvature(FeatureStore.of(h, labels), head, loss, "diag")
    torch.testing.assert_close(head.layout.flatten(diagonal_sum(blocks, layer)), fitted.values)

    dense = all_pairs_curvature(FeatureStore.of(h, labels), head, loss, "full").matrix
    order = head.layout.fold(torch.arange(len(dense)))  # [Z, A]
    tensor = dense[order.flatten()][:, order.flatten()].view(3, 6, 3, 6)  # [Z, A, Z, A]
    a, s = (torch.randn(n, n, generator=g, dtype=torch.float64) for n in (6, 3))
    a, s = a + a.mT, s + s.mT
    left = torch.einsum("oapb,ab->op", tensor, a)
    right = torch.einsum("oapb,op->ab", tensor, s)
    torch.testing.assert_close(left_sum(blocks, layer, a), left)
    torch.testing.assert_close(right_sum(blocks, layer, s), right)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1000.0])
def test_sums_about_the_mean_of_the_inputs_are_those_about_the_origin(offset):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(50, 5, generator=g, dtype=torch.float64) + offset
    u, v = torch.randn(2, 50, 3, generator=g, dtype=torch.float64)
    blocks = PointBlocks(torch.randn(50, generator=g, dtype=torch.float64), u, v)
    (layer,) = LinearJacobian(torch.randn(3, 5).double()).layers(a)
    s = torch.randn(3, 3, generator=g, dtype=torch.float64)
    s = s + s.mT
    t = blocks.dense(3)  # [50, 3, 3]
    expected = 2 * torch.einsum("nop,op,na,nb->ab", t, s, a, a)
    torch.testing.assert_close(right_sum(blocks, layer, s), expected)

    head = LinearJacobian(torch.randn(3, 5).double())
    points = Points(a, a, u, torch.ones(50, 1).double())
    (full,) = LinearDense(head).points(points, blocks)
    expected = 2 * torch.einsum("nop,na,nb->oapb", t, a, a).flatten(2).flatten(0, 1)
    torch.testing.assert_close(full, expected)


def test_a_diagonal_stands_for_its_matrix():
    a, diagonal = torch.randn(4, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    matrix = torch.diag(diagonal)
    torch.testing.assert_close(times(a, diagonal), a @ matrix)
    torch.testing.assert_close(times(a, matrix), a @ matrix)
    torch.testing.assert_close(times(a, matrix + 1), a @ (matrix + 1))
    expected = torch.einsum("na,ab,nb->n", a, matrix, a)
    torch.testing.assert_close(quadratic(a, diagonal), expected)
    torch.testing.assert_close(quadratic(a, matrix), expected)
    torch.testing.assert_close(quadratic(a, None), a.square().sum(1))
