"""The rows of the ablation: what is put beside the mean embedding z, in one vector.

    mean z        nothing
    h             what enters the head, alone
    h whitened    (S_within + 10 tr/D I)^(-1/2) h: within-class scatter of the fit set, with a ridge
    M^(-1/4)      M^(-1/4) h: half a whitening by the second moment of the fit set, without labels
    noise         N(theta, s^2 I): weights without data, [z ; s sqrt(Z) [h ; 1]]
    posterior     [z ; C^(1/2) [h ; 1]], the predictive vectors of a fit
    one observation     the same under the prior of ``uncertainty``, not that of the trained weights

Whitened h, M^(-1/4), noise and posterior are compared at the same share of the squared length, so
that no row has another temperature than the others; each also at the share that the items' own
labels choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.posterior.problems import Trained
from laplace_metric import LaplaceEmbedder
from laplace_metric.laplace._predictive_vectors import PredictiveVectors

Part = Callable[[Tensor], Tensor]
ONE_OBSERVATION, TRAINED_WEIGHTS = "one observation", "trained weights"
"""Priors of a posterior: the default, and the one that predictive vectors have by default."""
MOMENTS = "M^(-1/4)"
RIDGE, SMALLEST = 10.0, 1e-6


def embedder_of(trained: Trained) -> LaplaceEmbedder:
    """The head with a posterior, at the defaults of the library."""
    model = nn.Sequential(nn.Identity(), trained.head)
    return LaplaceEmbedder(model).fit([trained.fit])


def parts_of(trained: Trained, embedder: LaplaceEmbedder) -> dict[str, Part]:
    """What each row puts beside z, up to its length."""
    h, y = trained.fit
    root, moments = _whitening(h, y), _of_moments(h)
    fitted = embedder.fitted_
    vectors = PredictiveVectors.of(fitted)
    weak = PredictiveVectors.of(replace(fitted, predictive_prior=None))
    return {
        "h whitened": lambda x: x @ root,
        MOMENTS: lambda x: x @ moments,
        "noise": lambda x: torch.cat([x, x.new_ones(len(x), 1)], 1),
        "posterior": lambda x: vectors.seen(x) * vectors.variances.sqrt(),
        ONE_OBSERVATION: lambda x: weak.seen(x) * weak.variances.sqrt(),
    }


def under_priors(embedder: LaplaceEmbedder) -> dict[str, LaplaceEmbedder]:
    """The embedder with its posterior under each prior."""
    fitted, model, settings = embedder.fitted_, embedder.model, embedder.settings
    assert fitted.predictive_prior is not None
    strong = fitted.with_precision(fitted.predictive_prior)
    return {
        ONE_OBSERVATION: embedder,
        TRAINED_WEIGHTS: LaplaceEmbedder.from_fitted(model, settings, strong),
    }


def joined(z: Tensor, part: Tensor, share: float, squares: tuple[float, float]) -> Tensor:
    """``[z ; part]`` at a share of the squared length; ``squares``: of items, z and part."""
    scale = (share / (1 - share) * squares[0] / squares[1]) ** 0.5
    return torch.cat([z, scale * part], 1)


def _whitening(h: Tensor, y: Tensor) -> Tensor:
    codes = y.unique(return_inverse=True)[1]
    n = torch.bincount(codes).to(h)
    means = torch.zeros(len(n), h.shape[1]).index_add_(0, codes, h) / n[:, None]
    within = h - means[codes]
    scatter = within.mT @ within / len(h)
    ridge = RIDGE * scatter.trace() / len(scatter)
    values, basis = torch.linalg.eigh((scatter + ridge * torch.eye(len(scatter))).double())
    return (basis * values.rsqrt()).to(h)


def _of_moments(h: Tensor) -> Tensor:
    values, basis = torch.linalg.eigh((h.mT @ h / len(h)).double())
    return (basis * values.clamp_min(SMALLEST * float(values.max())) ** -0.25).to(h)
