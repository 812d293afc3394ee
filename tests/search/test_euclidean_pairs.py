"""Distances of pairs off the sphere take the stored means: against covariances written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis
from laplace_metric.search._encoder import Encoder
from laplace_metric.search.classes._class_model import without_subnormal

D, Z = 5, 3


@pytest.mark.parametrize("n_queries", [1, 4])
@pytest.mark.parametrize("alike", [True, False])
def test_moments_are_those_of_covariances_written_out(alike, n_queries):
    """Outputs that vary alike, and outputs with variances of their own in a rotated basis."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, D, generator=g).double(), torch.arange(30) % 3
    head = torch.nn.Linear(D, Z).double()
    embedder = LaplaceEmbedder(head, distance="euclidean", hessian="positives", structure="kron")
    fitted = embedder.fit([(x, y)], progress=False).fitted_
    curvature = fitted.posterior.curvature
    (block,) = curvature.basis.blocks
    if not alike:
        turned = torch.linalg.qr(torch.randn(Z, Z, generator=g).double()).Q
        block = replace(block, left=turned)
        values = torch.rand(Z * (D + 1), generator=g).double()
        curvature = replace(curvature, basis=KroneckerEigenbasis((block,)), eigenvalues=values)
        posterior = replace(fitted.posterior, curvature=curvature)
        fitted = replace(fitted, posterior=posterior)
    encoder = Encoder(embedder.model, fitted)
    queries, items = encoder(x[:n_queries] + 0.3), encoder(x[10:])
    positions = torch.stack([torch.randperm(20, generator=g)[:6] for _ in range(n_queries)])
    found = encoder.pairs(queries, items, positions)
    variances = block.fold(fitted.posterior.spectrum)
    for q in range(n_queries):
        for rank, item in enumerate(positions[q].tolist()):
            gap = torch.cat([x[q] + 0.3 - x[10 + item], torch.zeros(1).double()])
            spread = variances @ (gap @ block.right).square()
            c = block.left @ spread.diag() @ block.left.mT
            m = head.weight.detach() @ gap[:-1]
            mean, variance = m @ m + c.trace(), 4 * m @ c @ m + 2 * (c @ c).trace()
            torch.testing.assert_close(found.mean[q, rank], mean)
            torch.testing.assert_close(found.variance[q, rank], variance)


def test_entries_whose_products_are_subnormal_are_zero():
    root = torch.tensor([[1.0, 1e-30], [0.0, 2.0]])
    assert without_subnormal(root).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    plain = torch.tensor([[1.0, 1e-3], [0.0, 2.0]])
    assert without_subnormal(plain) is plain  # which is not held twice


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_the_first_hits_are_k_or_all(k):
    numbers = np.arange(6.0).reshape(2, 3)
    hits = SearchHits(numbers.astype(int), numbers, numbers, None, np.zeros(2))
    assert hits.nearest(k).distance.tolist() == numbers[:, :k].tolist()
    assert hits.nearest(k).positions.shape == (2, min(k, 3))
