"""Features in float32: the uncertainty is that of float64, also where sums over pairs cancel."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LaplaceMetricWarning

N, D, Z = 20_000, 16, 4
LOSSES = list(itertools.product(["euclidean", "arccos"], ["full", "positives", "fixed"]))


def features(offset: float) -> tuple[Tensor, Tensor]:
    """Ten clusters of unequal sizes around a common mean."""
    g = torch.Generator().manual_seed(0)
    labels = (torch.arange(N) % 13).clamp_max(9)
    return torch.randn(10, D, generator=g)[labels] + torch.randn(N, D, generator=g) + offset, labels


def fitted(dtype: torch.dtype, h: Tensor, labels: Tensor, *, bias: bool, **settings):
    torch.manual_seed(1)
    head = nn.Linear(D, Z, bias=bias).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        return LaplaceEmbedder(head, **settings).fit([(h.to(dtype), labels)], progress=False)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize(("distance", "hessian"), LOSSES)
@pytest.mark.parametrize("prior", ["one observation", "trained weights"])
def test_the_uncertainty_is_that_of_float64(prior, distance, hessian, structure, bias, offset):
    h, labels = features(offset)
    settings = {"distance": distance, "hessian": hessian, "structure": structure, "bias": bias}
    if prior == "trained weights":
        mean = fitted(torch.float64, h, labels, **settings).posterior_.mean
        settings["prior_precision"] = len(mean) / float(mean.square().sum())
    single, exact = (
        fitted(dtype, h, labels, **settings)(h[:200].to(dtype)).uncertainty
        for dtype in (torch.float32, torch.float64)
    )
    # at this offset rotated inputs lose four digits, which a weak prior does not cover up
    weak = offset and prior == "one observation" and (distance, hessian) == ("arccos", "fixed")
    rtol = 3e-3 if weak and structure != "diag" else 1e-3
    torch.testing.assert_close(single.double(), exact, rtol=rtol, atol=0)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_the_bias_of_a_raw_head_has_no_curvature(structure, offset):
    h, labels = features(offset)  # differences of features do not see it, whatever they are
    settings = {"distance": "euclidean", "hessian": "positives", "structure": structure}
    settings |= {"prior_precision": 1.0, "temperature": 1.0}
    embedder = fitted(torch.float32, h, labels, bias=True, **settings)
    bias = embedder.posterior_.variance[-Z:]
    torch.testing.assert_close(bias, torch.ones(Z), rtol=1e-5, atol=0)  # the prior, as it was


def test_a_chain_and_a_general_head_are_summed_in_float64_too():
    h, labels = features(0.0)
    h, labels = h[:500], labels[:500]
    torch.manual_seed(1)
    parts = nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, Z)
    for head in (nn.Sequential(*parts), nn.Sequential(*parts, nn.LayerNorm(Z))):
        settings = {"hessian": "positives", "structure": "diag", "n_effective": 1e6}
        values = []
        for dtype in (torch.float32, torch.float64):
            embedder = LaplaceEmbedder(head.to(dtype), head, distance="euclidean", **settings)
            embedder.fit([(h.to(dtype), labels)], progress=False)
            values.append(embedder(h[:50].to(dtype)).uncertainty.double())
        torch.testing.assert_close(*values, rtol=1e-3, atol=0)
        assert (
            next(head.parameters()).dtype == torch.float64
        )  # of the user's head: no copy, no cast
