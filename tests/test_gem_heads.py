"""Generalised-mean pooling and a whitening layer, as LAM has them on birds and faces (its head)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn
from torch.func import functional_call, jacrev

from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.errors import LaplaceMetricError, WeightsChangedError
from laplace_metric.training import train_embedder

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
G = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.randn(24, 3, 6, 5, generator=G).double(), torch.arange(24) % 4
PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def gem_of_the_page():
    """The module that the page of models shows."""
    (source,) = (part for part in PAGE.read_text().split("```") if "class GeM" in part)
    lines = source.removeprefix("python\n").split("\n\n\n")[0]
    names = {"torch": torch}
    exec(lines, names)
    return names["GeM"]


GeM = gem_of_the_page()


class Normalize(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x, dim=-1)


def retrieval(normalized=True, power=3.0):
    """Convolutions, the pooling, a whitening that keeps the dimension, and unit length."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()), GeM(power), nn.Linear(6, 6),
        *([Normalize()] if normalized else []),
    ).double()  # fmt: skip


def whitened(model):
    """The same with the whitening of principal components in place of a learnt one."""
    with torch.no_grad():
        pooled = model[1](model[0](IMAGES))
        mean = pooled.mean(0)
        values, basis = torch.linalg.eigh((pooled - mean).T @ (pooled - mean) / len(pooled))
        weight = basis.T / (values[:, None] + 1e-6).sqrt()
        model[2].weight.copy_(weight)
        model[2].bias.copy_(-weight @ mean)
    return model


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 8.0), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_the_pooling_is_the_power_mean(power, height, width, seed):
    x = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed)).double()
    pool = GeM(power).double()
    found, power = pool(x).detach(), float(pool.p.detach())  # of float32
    expected = x.clamp(min=1e-6).pow(power).flatten(2).mean(2).pow(1 / power)
    close(found, expected)
    assert bool((found <= x.flatten(2).amax(2) + 1e-6).all())
    if power == 1:
        close(found, x.clamp(min=1e-6).mean((2, 3)))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("make", [retrieval, lambda normalized: whitened(retrieval(normalized))])
def test_jacobian_and_covariance_are_those_of_autograd_through_the_model(make, normalized):
    model = make(normalized)
    embedder = LaplaceEmbedder(model, structure="diag", hessian="positives")
    embedder.fit([(IMAGES, LABELS)], progress=False)
    assert (embedder.head_.name, embedder.head_.normalized) == ("2", normalized)
    raw = nn.Sequential(*model[:3])
    names = ("2.weight", "2.bias")
    weights = {name: dict(raw.named_parameters())[name] for name in names}
    parts = jacrev(lambda w: functional_call(raw, w, (IMAGES,)))(weights)
    j = torch.cat([parts[name].flatten(2) for name in names], dim=2).detach()  # [B, Z, P]
    h = embedder.activations(IMAGES).features
    close(h, model[1](model[0](IMAGES)).detach())
    close(embedder.fitted_.jacobian.jacobian(h), j)
    law = embedder(IMAGES).distribution
    close(law.loc, raw(IMAGES).detach())
    variances = embedder.posterior_.variance
    expected = torch.einsum("bzp,p,bzp->bz", j, variances, j)
    close(law.covariance.diagonal(), expected)
    if normalized:
        close(embedder(IMAGES).mean.norm(dim=1), torch.ones(24, dtype=torch.float64))


def test_trained_saved_searched_and_drawn_online(tmp_path):
    model = retrieval().float()
    x = IMAGES.float()
    before = float(model[1].p.detach())
    train_embedder(model, [(x, LABELS)] * 3, ContrastiveLoss(), epochs=2)
    assert float(model[1].p.detach()) != before  # the power is learnt, and is no part of the head
    embedder = LaplaceEmbedder(model).fit([(x, LABELS)], progress=False)
    assert embedder.posterior_.mean.numel() == 6 * 6 + 6
    embedder.save(tmp_path / "saved")
    loaded = LaplaceEmbedder.load(tmp_path / "saved", copy.deepcopy(model))
    torch.testing.assert_close(loaded(x).variance, embedder(x).variance)
    index = embedder.index(x, LABELS, progress=False)
    assert index.search(x[:2], k=3).ids[:, 0].tolist() == [0, 1]
    online = OnlineLaplace(retrieval().float(), samples=2)
    drawn = online.fit([(x, LABELS)], ContrastiveLoss(), epochs=1, seed=0, progress=False)
    assert drawn(x).variance.shape == (24, 6)


def test_another_power_or_whitening_is_noticed(tmp_path):
    model = retrieval()
    embedder = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    embedder.save(tmp_path / "saved")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[1].p.add_(1)
    with pytest.raises(LaplaceMetricError, match=r"1\.p|weights"):
        LaplaceEmbedder.load(tmp_path / "saved", other)(IMAGES)
    with torch.no_grad():
        model[2].weight.add_(0.1)
    with pytest.raises(WeightsChangedError, match="'2' changed"):
        embedder(IMAGES)
