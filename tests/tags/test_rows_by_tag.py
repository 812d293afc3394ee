"""The curvature of sets of tags against all pairs, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.tags import rows_by_tag
from tests.contrastive.oracle import dense_ggn

N, D, Z = 6, 3, 2


def shared(has: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, N] of pairs: shared tags over all such, and the rest of all tags, negative."""
    y = (has @ has.T).double()
    rest = torch.outer(has.sum(1), has.sum(1)).double() - y
    return y / y.sum(), -rest / rest.sum().clamp_min(1)


@settings(deadline=None, max_examples=8)
@given(
    tags=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=N, max_size=N).filter(
        lambda sets: len(set().union(*sets)) > 1
    )
)
@pytest.mark.parametrize("hessian", ["full", "positives"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_a_pair_counts_once_for_each_tag_that_it_shares(distance, hessian, tags):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    head = nn.Linear(D, Z).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    rows, labels = (torch.from_numpy(part) for part in rows_by_tag([sorted(s) for s in tags]))
    how = {"distance": distance, "hessian": hessian, "structure": "full", "positivity": "clip"}
    embedder = LaplaceEmbedder(nn.Sequential(nn.Identity(), head), **how)
    embedder.fit([(x[rows], labels)], progress=False)
    has = torch.tensor([[float(tag in own) for tag in range(4)] for own in tags])
    positive, negative = shared(has)
    weights = positive + negative * (hessian == "full")
    expected = dense_ggn(x, head, weights, distance=distance, normalized=False, cross=True)
    values, vectors = torch.linalg.eigh((expected + expected.T) / 2)
    expected = (vectors * values.clamp_min(0)) @ vectors.T
    found = embedder.hessian_.to_dense()
    assert float((found - expected).norm()) < 1e-8 * float(values.abs().max())
