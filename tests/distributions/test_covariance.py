from __future__ import annotations

import pytest
import torch

from laplace_metric.distributions import DenseCovariance, DiagonalCovariance, RotatedCovariance

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
    noise = torch.randn(100_000, B, Z, generator=torch.Generator().manual_seed(2)).double()
    colored = c.color(noise)
    covariance = torch.einsum("nbk,nbl->bkl", colored, colored) / len(noise)
    assert float((covariance - dense).norm() / dense.norm()) < 0.02
    parts = [c.select(slice(0, 1)), c.select(torch.tensor([1, 2, 3]))]
    torch.testing.assert_close(type(c).concatenate(parts).dense(), dense)


def test_rounding_below_zero_does_not_become_nan():
    matrix = torch.tensor([[[1.0, 1.0], [1.0, 1.0 - 1e-7]]])
    assert bool(torch.isfinite(DenseCovariance(matrix).color(torch.ones(1, 1, 2))).all())
