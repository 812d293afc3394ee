from __future__ import annotations

import pickle

import pytest
import torch

from laplace_metric.distributions import (
    DenseCovariance,
    DiagonalCovariance,
    Gaussian,
    ProjectedNormal,
)
from laplace_metric.distributions._covariance import PendingCovariance, RotatedCovariance

B, Z = 4, 3


def make(kind: str):
    g = torch.Generator().manual_seed(0)
    values = torch.rand(B, Z, generator=g, dtype=torch.float64)
    if kind == "diagonal":
        return DiagonalCovariance(values)
    q = torch.linalg.qr(torch.randn(Z, Z, generator=g, dtype=torch.float64))[0]
    rotated = RotatedCovariance(q, values)
    return rotated if kind == "rotated" else DenseCovariance(rotated.dense())


@pytest.mark.parametrize("kind", ["diagonal", "rotated", "dense"])
def test_every_kind_is_its_dense_matrix(kind):
    c = make(kind)
    dense = c.dense()
    v = torch.randn(B, Z, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(c.diagonal(), dense.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(c.apply(v), torch.einsum("bkl,bl->bk", dense, v))
    u = torch.nn.functional.normalize(v)
    tangent = torch.eye(Z) - u[:, :, None] * u[:, None, :]
    expected = (tangent @ dense @ tangent).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(c.tangent_diagonal(u), expected)
    torch.testing.assert_close(c.tangent_trace(u), expected.sum(1))
    torch.testing.assert_close(c.trace(), dense.diagonal(dim1=1, dim2=2).sum(1))
    noise = torch.randn(100_000, B, Z, generator=torch.Generator().manual_seed(2)).double()
    colored = c.color(noise)
    covariance = torch.einsum("nbk,nbl->bkl", colored, colored) / len(noise)
    assert float((covariance - dense).norm() / dense.norm()) < 0.02
    parts = [c.select(slice(0, 1)), c.select(torch.tensor([1, 2, 3]))]
    torch.testing.assert_close(type(c).concatenate(parts).dense(), dense)


def test_rounding_below_zero_does_not_become_nan():
    matrix = torch.tensor([[[1.0, 1.0], [1.0, 1.0 - 1e-7]]])
    assert bool(torch.isfinite(DenseCovariance(matrix).color(torch.ones(1, 1, 2))).all())


@pytest.mark.parametrize("law", [Gaussian, ProjectedNormal])
@pytest.mark.parametrize("kind", ["diagonal", "rotated", "dense"])
def test_a_pending_covariance_is_computed_once_and_only_when_it_is_read(kind, law):
    loc, made, calls = torch.ones(B, Z).double(), make(kind), []
    pending = PendingCovariance(loc.shape, lambda: calls.append(1) or made)
    p, expected = law(loc, pending), law(loc, made)
    assert p.mean.shape == loc.shape
    assert not calls
    torch.testing.assert_close(p.variance, expected.variance)
    torch.testing.assert_close(p.total_variance, expected.variance.sum(1))
    torch.testing.assert_close(p.select(slice(1, 3)).variance, expected.variance[1:3])
    torch.testing.assert_close(law.concatenate([p, p]).variance[B:], expected.variance)
    again = pickle.loads(pickle.dumps(law(loc, PendingCovariance(loc.shape, lambda: made))))
    torch.testing.assert_close(again.variance, expected.variance)
    assert calls == [1]
