"""What is measured of a posterior while a model trains: plain numbers, by name.

``r_auroc_s``: the chance that a query whose nearest neighbour is wrong has the larger score s than
one whose is right. ``ausc_s``: area under the share of right answers as the queries with the
largest s are left out. ``ood_auroc_NAME``: the chance that an input of another data set has the
larger score than a query. Scores s: ``epistemic``, where the fit keeps it, and ``uncertainty``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import NotFittedError, UndefinedMetricWarning
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k, sparsification
from laplace_metric.models import device_of, labelled_batches


@dataclass(frozen=True, repr=False)
class Seen(Shown):
    """A data set as a posterior sees it.

    Parameters
    ----------
    mean : Tensor [N, Z]
    labels : Tensor [N]
    scores : dict of name to Tensor [N]
        "uncertainty" and, where the fit keeps it, "epistemic"; larger = less sure.
    """

    mean: Float[Tensor, "N Z"]
    labels: Int[Tensor, " N"]
    scores: dict[str, Float[Tensor, " N"]]

    @classmethod
    def joined(cls, parts: Iterable[Seen]) -> Seen:
        """Several data sets as one.

        Examples
        --------
        >>> one = Seen(torch.ones(2, 3), torch.tensor([0, 1]), {"uncertainty": torch.ones(2)})
        >>> Seen.joined([one, one]).mean.shape
        torch.Size([4, 3])
        """
        listed = list(parts)
        names = set.intersection(*(set(part.scores) for part in listed))
        scores = {name: torch.cat([part.scores[name] for part in listed]) for name in names}
        mean = torch.cat([part.mean for part in listed])
        labels = torch.cat([part.labels for part in listed])
        return cls(mean, labels, scores)


def seen_by(embedder: LaplaceEmbedder, loader: Iterable[Any]) -> Seen:
    """Everything that a loader of ``(inputs, labels)`` yields; one forward pass.

    Raises
    ------
    EmptyLoaderError, LabelError
        For a loader without batches or labels.

    Examples
    --------
    >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
    >>> sorted(seen_by(LaplaceEmbedder.from_embeddings(x, y), [(x, y)]).scores)
    ['epistemic', 'uncertainty']
    """
    how: dict[str, Any] = {"progress": False, "description": "Measuring"}
    parts = []
    for inputs, labels in labelled_batches(loader, device_of(embedder.model), **how):
        embedding = embedder(inputs)
        scores = {"uncertainty": embedding.uncertainty}
        with suppress(NotFittedError):  # pairs of batches keep nothing to compare with
            scores["epistemic"] = embedding.epistemic
        parts.append(Seen(embedding.mean, labels, scores))
    return Seen.joined(parts)


def posterior_numbers(
    queries: Seen,
    references: Seen | None = None,
    ood: Mapping[str, Seen] | None = None,
    *,
    among_them: bool = False,
) -> dict[str, float]:
    """How well the scores rank the answers to queries; what is undefined is left out.

    Parameters
    ----------
    queries : Seen
    references : Seen or None
        What the nearest neighbours are of; None: the queries, each without itself.
    ood : mapping of name to Seen
        Out-of-distribution sets; their labels do not count.
    among_them : bool
        Whether the queries are the first rows of the references; each is left out of its own.

    Examples
    --------
    >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
    >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
    >>> near, far = (seen_by(embedder, [(values, y)]) for values in (x, 9 - x))
    >>> sorted(posterior_numbers(near, ood={"far": far}))[:2]
    ['ausc_epistemic', 'ausc_uncertainty']
    """
    score = "epistemic" if "epistemic" in queries.scores else "uncertainty"
    found = {f"mean_{name}": float(values.mean()) for name, values in queries.scores.items()}
    for name, other in (ood or {}).items():
        found[f"ood_auroc_{name}"] = auroc(queries.scores[score], other.scores[score])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        found |= _of_answers(queries, references, among_them)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _of_answers(queries: Seen, references: Seen | None, among_them: bool) -> dict[str, float]:
    """Of queries with another item of their class."""
    against: dict[str, Any] = {}
    if references is not None:
        against = {"gallery": references.mean, "gallery_labels": references.labels}
        if among_them:
            against["exclude"] = torch.arange(len(queries.labels))
    recall = recall_at_k(queries.mean, queries.labels, 1, **against)
    if not recall.n_queries:
        return {}
    counted, right = recall.counted, recall.per_query[recall.counted]
    found = {"recall_at_1": recall.value}
    for name, values in queries.scores.items():
        found[f"r_auroc_{name}"] = r_auroc(values[counted], right)
        found[f"ausc_{name}"] = sparsification(values[counted], right).ausc
    return found
