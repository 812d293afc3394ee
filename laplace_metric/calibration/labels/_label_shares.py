"""Probabilities of all labels of a query, of which a group of labels has the sum.

Of P(c) of the neighbours' labels (``_label_posterior``), a group G of labels has

    P(G) = sum_{c in G} P(c)

since the labels exclude each other. The rest, "none of the neighbours' labels", is of no group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from laplace_metric.calibration._array_namespace import Array
from laplace_metric.errors import FileFormatError
from laplace_metric.io import saved

NO_GROUP = -1
"""Group of a label that has none, and answer to a query without candidates."""


@dataclass(frozen=True)
class LabelShares:
    """Probability of each label that a neighbour of some query has; an entry a query and label.

    Parameters
    ----------
    query : [m]
        Row of the query of each entry.
    code : [m]
        Place of its label among the classes.
    probability : [m]
        Probability that it is the label of the query.

    Examples
    --------
    >>> shares = LabelShares.of(np.array([[0.5, 0.25, 0.125]]), np.array([[2, 0, 1, 2]]))
    >>> group, probability = shares.answers(np.array([0, 1, 1]), 1)
    >>> group.tolist(), probability.tolist()
    ([1], [0.625])
    """

    query: Int[np.ndarray, " m"] = saved(least=0)
    code: Int[np.ndarray, " m"] = saved(least=0)
    probability: Float[np.ndarray, " m"] = saved(0, 1)

    @classmethod
    def of(cls, posterior: Any, labels: npt.NDArray[Any]) -> LabelShares:
        """Return the entries of P [Q, V] at the nearest neighbour of each label, 0 elsewhere.

        Parameters
        ----------
        posterior : [Q, V]
            Probabilities, as ``LabelPosterior`` returns them.
        labels : [Q, K]
            Codes of the neighbours' labels; -1 where there is no neighbour.
        """
        codes = labels[:, : posterior.shape[1]]
        query, column = np.nonzero((posterior > 0) & (codes >= 0))
        return cls(
            query, codes[query, column].astype(np.int64), posterior[query, column].clip(0, 1)
        )

    def answers(self, group_of: npt.NDArray[np.intp], n: int) -> tuple[npt.NDArray[np.intp], Array]:
        """Return the likeliest group of n queries, ``NO_GROUP`` without one, and its probability.

        Parameters
        ----------
        group_of : [C]
            Group of each class; ``NO_GROUP`` for one that has none.
        n : int
            Number of queries.
        """
        group, kept = np.full(n, NO_GROUP, dtype=np.intp), group_of[self.code] >= 0
        probability = np.zeros(n)
        if not kept.any():
            return group, probability
        query, own = self.query[kept], group_of[self.code[kept]]
        width = int(own.max()) + 1
        pairs, place = np.unique(query * width + own, return_inverse=True)
        total = np.bincount(place, self.probability[kept])
        of_query, of_group = pairs // width, pairs % width
        order = np.lexsort((-of_group, total, of_query))  # of equal ones, the first group
        last = order[np.append(np.diff(of_query[order]) > 0, True)]
        group[of_query[last]] = of_group[last]
        probability[of_query[last]] = total[last].clip(0, 1)
        return group, probability


@dataclass(frozen=True)
class HeldOutShares:
    """Probabilities of all labels of the n calibration queries, and what is true of each.

    Parameters
    ----------
    tested : LabelShares
        Probabilities of the tested queries, by fits that did not see them.
    other : LabelShares
        Probabilities of the same queries by the fit that answers, if the calibration is
        cross-fitted; else those of the queries that fitted it, among which thresholds are chosen.
    truth : [n]
        Place of the label of each tested query among the classes; -1 for one that no item has.
    """

    tested: LabelShares
    other: LabelShares
    truth: Int[np.ndarray, " n"] = saved(least=-1)

    def check(self, n_tested: int, n_other: int, n_classes: int) -> None:
        """Refuse entries of a file that are of no query, or of no class.

        Parameters
        ----------
        n_tested, n_other : int
            Number of the queries of each kind.
        n_classes : int
            Number of classes.

        Raises
        ------
        FileFormatError
            Then.
        """
        for shares, n in ((self.tested, n_tested), (self.other, n_other)):
            if shares.query.max(initial=-1) >= n or shares.code.max(initial=-1) >= n_classes:
                raise FileFormatError(
                    "calibration/shares are of queries or classes that are not there"
                )
        if len(self.truth) != n_tested or self.truth.max(initial=-1) >= n_classes:
            raise FileFormatError("calibration/shares.truth is not one class for each query")
