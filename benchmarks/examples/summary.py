"""What an uncertainty is worth on queries, in four numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric import Embedding
from laplace_metric.evaluation import auroc
from laplace_metric.evaluation.neighbours import nearest_neighbours


@dataclass(frozen=True)
class Summary:
    """Share of queries with a right nearest neighbour, and how well uncertainty tells trouble.

    Parameters
    ----------
    recall : float in [0, 1]
        Of all known queries.
    sure_recall : float in [0, 1]
        Of the surer half.
    wrong_auroc : float in [0, 1]
        A wrong nearest neighbour against a right one, by uncertainty.
    unknown_auroc : float in [0, 1]
        An unknown query against a known one, by uncertainty.
    """

    title: str
    recall: float
    sure_recall: float
    wrong_auroc: float
    unknown_auroc: float

    def __str__(self) -> str:
        return (
            f"{self.title}\n"
            f"  recall@1, all queries / surer half   {self.recall:.3f} / {self.sure_recall:.3f}\n"
            f"  AUROC, wrong neighbour               {self.wrong_auroc:.3f}\n"
            f"  AUROC, unknown query                 {self.unknown_auroc:.3f}"
        )


def summarise(
    title: str,
    gallery: Embedding,
    gallery_labels: Tensor,
    queries: Embedding,
    query_labels: Tensor,
    unknown: Embedding,
) -> Summary:
    """Retrieve every query's nearest gallery item and see what the uncertainty says."""
    found = nearest_neighbours(queries.mean, gallery.mean, k=1)
    nearest = torch.as_tensor(found.indices).flatten()
    right = gallery_labels[nearest] == query_labels
    u = queries.uncertainty
    sure = u <= u.median()
    return Summary(
        title=title,
        recall=float(right.double().mean()),
        sure_recall=float(right[sure].double().mean()),
        wrong_auroc=auroc(u[right], u[~right]),
        unknown_auroc=auroc(u, unknown.uncertainty),
    )
