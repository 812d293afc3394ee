"""Labels of queries, or None where the index abstains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.tables import as_pandas
from laplace_metric.search._result import SearchResult

if TYPE_CHECKING:
    import pandas


LIKELIER_THAN_NOT = 0.5


@dataclass(frozen=True, repr=False)
class Classification(Shown):
    """A label for each of Q queries, or None where the index abstains.

    Parameters
    ----------
    labels : array [Q] of objects
        Whole numbers or strings, as those of the index; None: abstained.
    probability : Tensor [Q]
        That the likeliest label is the query's, whether it is answered or not.
    threshold : float
        Labels with a smaller probability are not answered.
    unknown : Tensor [Q]
        Queries that are not answered whatever the probability is.
    """

    labels: np.ndarray[Any, Any]
    probability: Float[Tensor, " Q"]
    threshold: float
    unknown: Bool[Tensor, " Q"]

    @property
    def answered(self) -> Bool[Tensor, " Q"]:
        """True where there is a label [Q]."""
        return (self.probability >= self.threshold) & ~self.unknown

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, query: int) -> tuple[Any, float]:
        """Label, or None, and probability of one query."""
        return self.labels[query], float(self.probability[query])

    def to_pandas(self) -> pandas.DataFrame:
        """One row a query: label, probability, answered, unknown.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        numbers = {"probability": self.probability, "answered": self.answered}
        numbers["unknown"] = self.unknown
        columns = {name: values.cpu().numpy() for name, values in numbers.items()}
        return as_pandas({"label": self.labels, **columns})

    def _sentence(self) -> str:
        answered = f"{int(self.answered.sum()):,} of {len(self):,} queries have a label"
        unknown = f"{int(self.unknown.sum()):,} are unknown"
        return f"{answered}; {unknown}, the others have too small a probability."

    def _shown_rows(self) -> Rows:
        return in_rows(vars(self).items())


def classified(result: SearchResult, threshold: float, alpha: float | None) -> Classification:
    """Return the classification of a search of an index that labels calibrated."""
    p, p_value = result.label_probability, result.p_value
    assert result.label is not None
    assert p is not None
    assert p_value is not None
    unknown = torch.zeros_like(p, dtype=torch.bool) if alpha is None else p_value <= alpha
    found = Classification(result.label.astype(object), p, threshold, unknown)
    found.labels[(~found.answered).cpu().numpy()] = None
    return found
