"""How well posteriors are recovered up to a rotation, by a Laplace posterior too."""

from __future__ import annotations

import torch
from scipy.stats import spearmanr
from torch import Tensor

from baselines.distributions import mean_resultant_length
from benchmarks.recovery.encoders import Encoder
from benchmarks.recovery.process import Process
from laplace_metric import LaplaceEmbedder

PAIRED = 1_000
DRAWS = 256


def agreement(predicted: Tensor, true: Tensor) -> dict[str, float]:
    """RMSE, mean absolute error (the "RMSE" of the published code) and Spearman's rank correlation.

    Examples
    --------
    >>> agreement(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0]))["rank"]
    1.0
    """
    error = (predicted - true).double()
    return {
        "rmse": float(error.square().mean().sqrt()),
        "mae": float(error.abs().mean()),
        "rank": round(float(spearmanr(predicted.numpy(), true.numpy()).statistic), 12),
    }


def cosines(mu: Tensor) -> Tensor:
    """``mu_i.mu_j`` of all pairs i < j of the first points."""
    some = mu[:PAIRED]
    i, j = torch.triu_indices(len(some), len(some), 1)
    return (some @ some.mT)[i, j]


def recovery(process: Process, x: Tensor, mu: Tensor, kappa: Tensor) -> dict[str, dict[str, float]]:
    """Location by ``<mu_i, mu_j>``, certainty by kappa, spread by the mean cosine distance.

    The spread makes posteriors of other families comparable: E[1 - mu.z], by draws of the true one
    and ``1 - A(kappa)`` of the predicted one.
    """
    found = {"location": agreement(cosines(mu), cosines(process.mu(x)))}
    if process.setting.family != "dirac":
        found["certainty"] = agreement(kappa, process.kappa(x))
        found["spread"] = agreement(
            1 - mean_resultant_length(kappa, mu.shape[1]), spread(process, x)
        )
    return {**found, "kappa": {"median": float(kappa.median())}}


def spread(process: Process, x: Tensor) -> Tensor:
    """E[1 - mu.z] of the true posteriors [n], by draws."""
    mu, total = process.mu(x), torch.zeros(len(x))
    for _ in range(DRAWS):
        total += 1 - (mu * process.latents(x)).sum(-1)
    return total / DRAWS


PAIRS = 4_096
HESSIANS = ("fixed", "positives", "full")


def laplace_concentration(
    process: Process, encoder: Encoder, x: Tensor, hessian: str
) -> tuple[Tensor, float]:
    """Concentrations [n] of x, and the share of the curvature that was clipped.

    The encoder's last layer gets the posterior; a pair (x, x+) is a class of two, every other pair
    of inputs is negative.
    """
    pairs = process.pairs(PAIRS)
    labels = torch.arange(PAIRS).repeat(2)
    embedder = LaplaceEmbedder(
        encoder.location, hessian=hessian, structure="diag", positivity="clip"
    )
    embedder.fit([(torch.cat(pairs) - 0.5, labels)], progress=False)
    return embedder(x - 0.5).concentration, embedder.hessian_.negative_fraction
