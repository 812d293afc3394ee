"""``MatchClassifier``: the labels of the nearest items, with probabilities that were calibrated.

Of a query, the index has P(c) for the labels c of its voting neighbours, and P(none) for all else
(``search.match``). scikit-learn asks for probabilities of the classes alone, so that

    P(c | one of the C classes is right) = P(c) + P(none) / C
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.search._cross_fit import cross_index
from laplace_metric.search._index import Index
from laplace_metric.search._items import Column
from laplace_metric.search.estimators._base import (
    Array,
    PosteriorEstimator,
    RowsEmbedder,
    batches_of,
)
from laplace_metric.search.match import VOTES


class MatchClassifier(ClassifierMixin, PosteriorEstimator):  # type: ignore[misc]
    """The label of the nearest items, whose probabilities are calibrated by cross-fitting.

    Parameters
    ----------
    model, head, distance, hessian, structure, prior_precision
        As of ``LaplaceMetricTransformer``.
    folds : int
        Parts of the rows; each asks the others, with a posterior that did not see it.
    random_state : int
        Deals the rows out to the folds.

    Attributes
    ----------
    classes_ : array [C]
    index_ : Index
        Of all rows, with labels 0 to C - 1: ``index_.search`` has neighbours, distances, "unknown".
    calibrated_ : bool
        Whether there were rows enough to calibrate on; else probabilities are votes.

    Raises
    ------
    InputError, LabelError
        For settings that do not exist, and a single class; both are ``ValueError``.

    Warns
    -----
    LaplaceMetricWarning
        If there were too few rows to calibrate on.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> classifier = MatchClassifier().fit(x[::2], y[::2])
    >>> bool(classifier.score(x[1::2], y[1::2]) > 0.9), classifier.calibrated_
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        head: Any = None,
        folds: int = 5,
        distance: str = "euclidean",
        hessian: str = "positives",
        structure: str = "auto",
        prior_precision: float = 1.0,
        random_state: int = 0,
    ) -> None:
        self.model, self.head, self.folds = model, head, folds
        self.distance, self.hessian, self.structure = distance, hessian, structure
        self.prior_precision, self.random_state = prior_precision, random_state

    def fit(self, X: Any, y: Any) -> MatchClassifier:
        """Fit the posterior to rows [N, D] and their classes [N], and index the rows."""
        check_count("folds", self.folds, 2)
        x, codes = self._checked(X, y)
        self.index_ = self._indexed(self._fit_posterior(x, codes), x, codes)
        self.calibrated_ = self.index_.calibration is not None
        return self

    def _indexed(self, embedder: RowsEmbedder, x: Array, codes: Tensor) -> Index:
        rows, column = batches_of(x), Column.of("y", codes)
        how: dict[str, Any] = {"folds": self.folds, "seed": self.random_state}
        try:
            return cross_index(embedder, rows, column, progress=False, **how)
        except InputError as error:
            warnings.warn(
                f"probabilities are not calibrated but votes of the neighbours: {error}",
                LaplaceMetricWarning,
                stacklevel=3,
            )
            pairs = [(batch, None) for batch in rows]
            return Index.build(embedder, pairs, codes, progress=False)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [N, C] of the classes, in the order of ``classes_``; each row sums to 1."""
        x = self._seen(X)
        return np.concatenate([self._probabilities(batch) for batch in batches_of(x)])

    def _probabilities(self, batch: Array) -> Array:
        calibration, index = self.index_.calibration, self.index_
        depth = min(len(index), VOTES if calibration is None else max(VOTES, calibration.depth))
        hits = index.search(batch, depth).hits
        votes = hits.votes
        assert votes is not None
        probability = torch.zeros(len(batch), len(self.classes_), dtype=torch.float64)
        codes = votes.labels[:, :VOTES].cpu()
        if calibration is None:
            probability.scatter_(1, codes, votes.weighted[:, :VOTES].cpu())
        else:
            scores = calibration.label_scores(hits)[:, :VOTES].double().cpu()
            probability.scatter_add_(1, codes, scores.clamp(min=0))
        none = (1 - probability.sum(1, keepdim=True)).clamp(min=0)
        probability += none / len(self.classes_)
        found: Array = (probability / probability.sum(1, keepdim=True)).numpy()
        return found

    def predict(self, X: Any) -> Array:
        """The likeliest class [N]."""
        probability = self.predict_proba(X)  # which says so before a fit
        found: Array = self.classes_[probability.argmax(1)]
        return found
