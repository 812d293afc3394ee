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
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=0)


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


def displaced(where: str, offset: float, n: int, d: int) -> tuple[Tensor, Tensor, nn.Module]:
    """Rectified inputs with an offset, without any structure of classes, and a head."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (n,), generator=g)
    h, head = torch.randn(n, d, generator=g).relu(), nn.Linear(d, 6)
    if where == "one class":
        h[labels == 0] += offset
    elif where == "one coordinate":
        h[:, 0] += offset
    else:
        h += offset
    if where == "inputs, not outputs":
        with torch.no_grad():
            head.bias -= head(h.mean(0))
    return h, labels, head


PLACES = ("all", "one class", "one coordinate", "inputs, not outputs")
OFFSETS = [
    (1.0, "auto", "all", "kron", 2_000, 24),
    (100.0, "auto", "all", "kron", 2_000, 24),
    (10.0, 1.0, "inputs, not outputs", "kron", 8_000, 128),
    *itertools.product([1.0, 100.0, 1e3], [1.0], PLACES, ["diag", "kron", "full"], [2_000], [24]),
]


@pytest.mark.parametrize(("offset", "temperature", "where", "structure", "n", "d"), OFFSETS)
def test_an_offset_leaves_the_uncertainty_its_digits(offset, temperature, where, structure, n, d):
    h, labels, head = displaced(where, offset, n, d)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        for dtype in (torch.float32, torch.float64):
            embedder = LaplaceEmbedder(head.to(dtype), structure=structure, temperature=temperature)
            found.append(embedder.fit(h.to(dtype), labels)(h[:100].to(dtype)))
    single, exact = (e.uncertainty.double() for e in found)
    # products round in another way on each machine: 1e-3 is the largest on some, 1.7e-3 on others
    torch.testing.assert_close(single, exact, rtol=3e-3, atol=0)
    traces = [e.distribution.covariance.trace().double() for e in found]
    torch.testing.assert_close(*traces, rtol=3e-3, atol=0)
