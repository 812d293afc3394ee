"""Distances under shared weights against sampling: ``benchmarks speed --pieces distances``.

On the trained embedders of ``embedders``: 200 queries, each with its nearest other query and with
a random one. The truth is 2,000 joint draws (the same weights for both). Reported are medians over
the pairs: the relative error of the mean and standard deviation that ``distance`` gives, of the
second order that ``Index.search`` takes, and by what factor the independent approximation
(computed and sampled) is off. Prior precision by marginal likelihood with "clip", and 1 with the
defaults.
"""

from __future__ import annotations

import itertools
import warnings
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.costs.embedders import NAMES, Problem, problem
from benchmarks.records import folder_of, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.laplace import Distance
from laplace_metric.laplace._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace._squared_distance import squared_distance

KINDS = (("arccos", "fixed"), ("euclidean", "positives"))
STRUCTURES = ("diag", "kron")
PRIORS = ("evidence", "1")
N_PAIRS, N_DRAWS = 200, 2_000


def fitted(
    given: Problem, distance: str, hessian: str, structure: str, prior: str
) -> LaplaceEmbedder:
    """Post-hoc Laplace at the prior precision of its evidence, or as it comes."""
    positivity = "clip" if prior == "evidence" else "absolute"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        embedder = LaplaceEmbedder(
            given.head,
            distance=distance,
            hessian=hessian,
            structure=structure,
            positivity=positivity,
        ).fit([(given.features, given.labels)], progress=False)
        if prior == "evidence":
            embedder.tune_prior()
    return embedder


def moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the draws of squared distances [S, B]."""
    return draws.mean(0), draws.std(0)


def second_order(embedder: LaplaceEmbedder, x: Tensor, y: Tensor) -> Distance:
    """What ``Index.search`` computes of these pairs."""
    fitted = embedder.fitted_
    a, b = embedder.activations(x), embedder.activations(y)
    sides = [(a.features, None), (b.features, None), (a.features, b.features)]
    covariances = [covariance(fitted.jacobian, fitted.posterior, *side) for side in sides]
    return squared_distance(EmbeddingPairs(a.raw, b.raw, *covariances), spherical=fitted.spherical)


def compare(embedder: LaplaceEmbedder, x: Tensor, y: Tensor) -> dict[str, float]:
    """Closed forms and independent draws against joint draws."""
    joint = embedder.draw(N_DRAWS, torch.Generator().manual_seed(0))
    mean, deviation = moments((joint(x) - joint(y)).square().sum(-1))
    apart = [
        embedder(v).sample(N_DRAWS, torch.Generator().manual_seed(seed))
        for seed, v in enumerate((x, y), start=1)
    ]
    alone = moments((apart[0] - apart[1]).square().sum(-1))
    shared, independent = (embedder.distance(x, y, shared_weights=s) for s in (True, False))
    quick = second_order(embedder, x, y)
    gap = lambda ours, truth: float(((ours - truth).abs() / truth).median())  # noqa: E731
    factor = lambda ours, truth: float((ours / truth).median())  # noqa: E731
    return {
        "mean_error": gap(shared.mean, mean),
        "deviation_error": gap(shared.standard_deviation, deviation),
        "second_order_mean_error": gap(quick.mean, mean),
        "second_order_deviation_error": gap(quick.standard_deviation, deviation),
        "independent_mean_factor": factor(independent.mean, mean),
        "independent_deviation_factor": factor(independent.standard_deviation, deviation),
        "sampled_mean_factor": factor(alone[0], mean),
        "sampled_deviation_factor": factor(alone[1], deviation),
    }


def rows_of(given: Problem) -> list[dict[str, Any]]:
    """Every distance, structure and prior, nearest and random pairs."""
    rows = []
    for (distance, hessian), structure, prior in itertools.product(KINDS, STRUCTURES, PRIORS):
        embedder = fitted(given, distance, hessian, structure, prior)
        x = given.queries[:N_PAIRS]
        embedding = embedder(x)
        gaps = torch.cdist(embedding.mean, embedding.mean).fill_diagonal_(torch.inf)
        gaps[gaps == 0] = torch.inf  # two images with one embedding have no distance to compare
        partners = {"nearest": gaps.argmin(1), "random": torch.arange(len(x)).roll(7)}
        for kind, other in partners.items():
            row: dict[str, Any] = {"problem": given.name, "distance": distance}
            row |= {"hessian": hessian, "structure": structure, "prior": prior, "pairs": kind}
            row["mean_uncertainty"] = float(embedding.uncertainty.mean())
            rows.append({**row, **compare(embedder, x, x[other])})
            print(rows[-1], flush=True)
    return rows


def run(options: Namespace) -> None:
    """Every trained embedder."""
    rows = [row for n in NAMES for row in rows_of(problem(n, options.data, options.cache))]
    print(write_record("distances", {"rows": rows}, folder_of(options)).name)
