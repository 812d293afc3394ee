"""A label for each query, or none where the index abstains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import SOME, Rows, Shown
from laplace_metric.calibration._thresholds import Threshold, accepts, comparison_of
from laplace_metric.search._result import SearchResult

LIKELIER_THAN_NOT = 0.5
"""Threshold of a label unless another one is given."""


class Answer(NamedTuple):
    """Answer of one query.

    Parameters
    ----------
    label : int, str or None
        Label of the query; None if the index abstains.
    probability : float
        Probability that the likeliest label is the query's.
    reason : "" | "unfamiliar" | "uncertain"
        Reason to abstain; "" if there is a label.
    """

    label: Any
    probability: float
    reason: str


@dataclass(frozen=True, repr=False)
class Classification(Shown):
    """A label for each of Q queries, or None where the index abstains.

    Parameters
    ----------
    labels : array [Q] of objects
        Whole numbers or strings, as those of the index; None where it abstains.
    probability : Tensor [Q]
        Probability that the likeliest label is the query's, whether it is answered or not.
    threshold : float
        Queries with a smaller probability are not answered.
    of : "match" | "label"
        The probability that is compared with the threshold: that the nearest item is a match, or
        that the likeliest label is the query's.
    unknown : Tensor [Q]
        Queries that are not answered whatever the probability is.
    answered : bool array [Q]
        True where there is a label.
    """

    labels: np.ndarray[Any, Any]
    probability: Float[Tensor, " Q"]
    threshold: float
    of: str
    unknown: Bool[Tensor, " Q"]
    answered: Bool[np.ndarray, " Q"]

    @property
    def reason(self) -> np.ndarray[Any, Any]:
        """Reason [Q] to abstain: "unfamiliar" (unknown), "uncertain" (too improbable), or ""."""
        unknown = self.unknown.cpu().numpy()
        return np.where(unknown, "unfamiliar", np.where(self.answered, "", "uncertain"))

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, query: int) -> Answer: ...

    @overload
    def __getitem__(self, query: slice | list[int] | np.ndarray[Any, Any]) -> Classification: ...

    def __getitem__(self, query: Any) -> Answer | Classification:
        """Answer of one query; the classification of some: of a slice, of rows, or of a mask."""
        if isinstance(query, slice) or np.ndim(query):
            some = query if isinstance(query, slice) else np.asarray(query)
            return replace(
                self,
                labels=self.labels[some],
                probability=self.probability[some],
                unknown=self.unknown[some],
                answered=self.answered[some],
            )
        return Answer(self.labels[query], float(self.probability[query]), str(self.reason[query]))

    def _sentence(self) -> str:
        answered, unknown = int(self.answered.sum()), int(self.unknown.sum())
        rest = f"{unknown:,} are unfamiliar, {len(self) - answered - unknown:,} uncertain"
        return f"{answered:,} of {len(self):,} queries have a label; {rest}."

    def _shown_rows(self) -> Rows:
        rows = [("threshold", f"{self.threshold:.4g} of the {self.of} probability")]
        for query in range(min(len(self), SOME)):
            label, probability, reason = self[query]
            rows.append((f"query {query}", f"{reason or label}, {probability:.2f}"))
        return rows


def classified(
    result: SearchResult, threshold: Threshold | float, alpha: float | None
) -> Classification:
    """Return the classification of a search of an index that labels calibrated.

    Parameters
    ----------
    threshold : Threshold or float
        Threshold that ``accepts`` compares; a number is compared with the probability of the label.
    alpha : float or None
        Share of known queries that may be called unknown, for a threshold that is a number.
    """
    p, p_value = result.label_probability, result.p_value
    assert result.label is not None
    assert p is not None
    assert p_value is not None
    value, level, of = comparison_of(threshold, alpha, "label")
    unknown = torch.zeros_like(p, dtype=torch.bool) if level is None else p_value <= level
    answered = accepts(threshold, result, alpha, "label").cpu().numpy()
    labels = result.label.astype(object)
    labels[~answered] = None
    return Classification(labels, p, value, of, unknown, answered)
