"""What is promised and what is kept: ``python -m benchmarks retrieval --pieces measure``.

Every problem's queries are split in two at random, twenty times: one half calibrates the index, the
other is asked once. Means over splits, and the spread between them; the index, its queries and what
they find are the same in all splits.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.retrieval.problems import Problem
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import Question, asked
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.distributions import cap_angle, vmf_concentration

SPLITS, QUERIES, K = 20, 6_000, 10
CREDIBLE = 0.95
RANKINGS = ("mean", "expected", "shared")


def measured(problem: Problem, splits: int = SPLITS, queries: int = QUERIES) -> dict[str, Any]:
    """Everything about one problem."""
    x, y = shuffled(problem.pool, queries)
    rankings = {name: recall(problem, name, (x, y)) for name in RANKINGS}
    index = problem.embedder.index(*problem.gallery, progress=False)
    index.learn_classes()
    start = time.perf_counter()
    judged = index.labelled_hits(x, y, problem.depth)
    seconds = time.perf_counter() - start
    norm = problem.embedder.activations(x).raw.norm(dim=1)
    ood = {name: index.search(part, K).hits for name, part in problem.ood.items()}
    question = Question(judged, y, norm, ood, len(index), K)
    rows = [asked(question, seed) for seed in range(splits)]
    return {
        "problem": problem.name,
        "items": len(index),
        "queries": len(x),
        "known": float(judged.known.mean()),
        "size": list(judged.hits.positions.shape),
        "recall@1": rankings,
        "seconds": seconds,
        "credible": credible(judged, index.items.encoded.mean.shape[1]),
        "splits": splits,
        **summarised(rows),
    }


def shuffled(part: tuple[Tensor, Tensor], limit: int) -> tuple[Tensor, Tensor]:
    """Some queries in a fixed random order."""
    x, y = part
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:limit]
    return x[rows], y[rows]


def recall(problem: Problem, rank_by: str, pool: tuple[Tensor, Tensor]) -> float:
    """Share of the queries with a match whose nearest item is one."""
    index = problem.embedder.index(*problem.gallery, rank_by=rank_by, progress=False)
    judged = index.labelled_hits(*pool, 1)
    return float(judged.match[judged.known, 0].mean())


def credible(judged: LabelledHits, dimension: int) -> dict[str, float]:
    """Credible sets: their size, and how often they hold a match."""
    uncertainty = torch.from_numpy(judged.hits.uncertainty)
    radius = credible_radius(uncertainty, dimension, CREDIBLE).numpy()
    members = judged.hits.distance <= radius[:, None]
    held = (members & judged.match).any(1)[judged.known]
    sizes = members.sum(1)
    return {"coverage": float(held.mean()), "size": float(sizes.mean())}


def credible_radius(trace: Tensor, dimension: int, probability: float) -> Tensor:
    """Euclidean radius [Q] about the unit mean of the cap with a query's posterior, in [0, 2].

    The smallest cap that holds its latent direction with this probability (Kirchhof et al. 2023,
    MCInfoNCE, section 5.3 and C.5): it says where the query may lie, and nothing about labels.

    Parameters
    ----------
    trace : Tensor [Q]
        Of the tangent covariance, whose resultant length ``(1 + t)^(-1/2)`` gives the
        concentration, as in ``Embedding.concentration``.

    Examples
    --------
    >>> credible_radius(torch.tensor([1e-4, 0.1, 10.0]), 64, 0.95)
    tensor([0.0114, 0.3490, 1.3297])
    """
    concentration = vmf_concentration((1 + trace).rsqrt(), dimension)
    return 2 * (cap_angle(concentration, dimension, probability) / 2).sin()


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over splits of every number; counts of words, means of curves."""
    summary: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if row.get(key) is not None]
        if values and isinstance(values[0], str):
            summary[key] = {word: values.count(word) for word in sorted(set(values))}
        elif values and isinstance(values[0], list):
            summary[key] = torch.tensor(values, dtype=torch.float64).mean(0).tolist()
        else:
            summary[key] = spread(values)
    return summary


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of the splits in which a number exists."""
    if not values:
        return {"n": 0}
    numbers = torch.tensor(values, dtype=torch.float64)
    sd = float(numbers.std()) if len(values) > 1 else 0.0
    return {"mean": float(numbers.mean()), "sd": sd, "n": len(values)}


def run(options: Namespace) -> None:
    """Every problem."""
    record_rows(options, "retrieval", lambda p: measured(p, options.splits, options.queries))
