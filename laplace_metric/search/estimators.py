"""``MatchClassifier`` and ``LaplaceMetricTransformer``: estimators of scikit-learn.

``MatchClassifier``: the labels of the nearest items, with probabilities that were calibrated.

Of a query, the index has P(c) for the labels c of its voting neighbours, and P(none) for all else
(``calibration``). scikit-learn asks for probabilities of the classes alone, so that

    P(c | one of the C classes is right) = P(c) + P(none) / C
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor, nn

from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.randomness import as_generator
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes
from laplace_metric.errors import InputError, LabelError, LaplaceMetricWarning, callers_line
from laplace_metric.evaluation import abstention
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._not_classes import check_noise
from laplace_metric.laplace import Settings
from laplace_metric.laplace._settings_of_vectors import all_unit, settings_of_vectors
from laplace_metric.laplace.fit._fit import fit_posterior
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.models import Precomputed
from laplace_metric.search._cross_fit import cross_index
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._index import Index
from laplace_metric.search._refit import HeadEmbedder

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before 1.6 it is a method

    def validate_data(estimator: Any, /, *args: Any, **options: Any) -> Any:
        """Validate data as scikit-learn 1.6 does."""
        return estimator._validate_data(*args, **options)


Array = npt.NDArray[Any]
ROWS = 256
"""Rows that enter the model at once."""
MEANT = dict.fromkeys(
    ("precision", "abstain", "abstain_label"),
    "laplace_metric.guard_classifier.GuardClassifier(precision=, abstain_label=) abstains.",
)
"""Keywords of another class, and what is meant here."""


class PosteriorEstimator(BaseEstimator):  # type: ignore[misc]
    """Settings, checks and fit of the posterior."""

    model: nn.Module | None
    head: Any
    distance: str | None
    hessian: str | None
    structure: str
    prior_precision: float | str

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _checked(self, x: Any, y: Any) -> tuple[Array, Tensor]:
        """Return rows [N, D] and the place of each label in ``classes_``, which is set."""
        x, y = validate_data(self, x, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        check_noise("y", self.classes_[codes])
        if len(self.classes_) < 2:
            raise LabelError(f"y has one class, {self.classes_[0]!r}: pass two classes or more.")
        return x, torch.from_numpy(codes.astype(np.int64))

    def _seen(self, x: Any) -> Array:
        """Return rows [N, D] of as many features as were fitted."""
        check_is_fitted(self)
        rows: Array = validate_data(self, x, reset=False, dtype=[np.float64, np.float32])
        return rows

    def _fit_posterior(self, x: Array, codes: Tensor) -> HeadEmbedder:
        model = Precomputed(x.shape[1]) if self.model is None else self.model
        head = "append" if self.model is None else self.head
        given = {"distance": self.distance, "hessian": self.hessian}
        asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.model is None:
            asked = settings_of_vectors(asked, unit=all_unit(torch.from_numpy(np.array(x))))
        settings = Settings(structure=self.structure, prior_precision=self.prior_precision, **asked)
        pairs = zip(batches_of(x), codes.split(ROWS), strict=True)
        inputs = Inputs.of_batches("X", pairs, labelled=True)
        fitted = fit_posterior(model, head, inputs, settings, FitOptions(progress=False))
        return HeadEmbedder(model, fitted, settings)


def batches_of(x: Array) -> list[Array]:
    """Return rows in batches, copied because the memory may be read-only."""
    return [np.array(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]


class MatchClassifier(ClassifierMixin, PosteriorEstimator):  # type: ignore[misc]
    """Classifier by the nearest items, whose probabilities are calibrated by cross-fitting.

    Parameters
    ----------
    model : nn.Module or None
        Model that turns rows into embeddings. None, the default: the rows are embeddings already.
    head : module, dotted name, "append" or None
        Part of ``model`` that gets the posterior, as for ``LaplaceEmbedder``; not used without a
        model. None, the default: as for ``LaplaceEmbedder``.
    folds : int
        Number of parts of the rows, at least 2; each is searched among the others, with a posterior
        that was not fitted to it. More are slower. Default: 5.
    distance : "arccos" | "euclidean" or None
        Distance of two embeddings, as for ``LaplaceEmbedder``. None, the default: "arccos" for a
        model and for rows of length 1, "euclidean" for other rows.
    hessian : "fixed" | "positives" | "full" or None
        Pairs that count in the curvature, as for ``LaplaceEmbedder``. None, the default:
        "positives" for rows without a model that are compared by "euclidean", else "fixed".
    structure : "auto" | "diag" | "kron" | "full"
        Form in which the curvature is stored, as for ``LaplaceEmbedder``. Default: "auto".
    prior_precision : float > 0 or "auto"
        Precision of the prior over the head's parameters, as for ``LaplaceEmbedder``; a larger one
        means less uncertainty. Default: "auto".
    random_state : int or None
        Seed that deals the rows out to the folds. None: the seed 0. Default: 0.

    Attributes
    ----------
    classes_ : array [C]
        Labels of the classes, sorted.
    index_ : Index
        Index of all rows, with labels 0 to C - 1: ``index_.search`` returns neighbours, distances
        and "unknown".
    calibrated_ : bool
        True if there were enough rows to calibrate; else probabilities are votes.

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

    _keywords_meant = MEANT

    @named_keywords
    def __init__(
        self,
        model: nn.Module | None = None,
        head: Any = None,
        folds: int = 5,
        distance: str | None = None,
        hessian: str | None = None,
        structure: str = "auto",
        prior_precision: float | str = "auto",
        random_state: int | None = 0,
    ) -> None:
        self.model, self.head, self.folds = model, head, folds
        self.distance, self.hessian, self.structure = distance, hessian, structure
        self.prior_precision, self.random_state = prior_precision, random_state

    def fit(self, X: Any, y: Any) -> MatchClassifier:
        """Fit the posterior to rows [N, D] and their classes [N], and index the rows."""
        check_count("folds", self.folds, 2)
        as_generator(self.random_state, "random_state")
        x, codes = self._checked(X, y)
        self.index_ = self._indexed(self._fit_posterior(x, codes), x, codes)
        self.calibrated_ = self.index_.calibration is not None
        return self

    def _indexed(self, embedder: HeadEmbedder, x: Array, codes: Tensor) -> Index:
        rows, column = batches_of(x), Column.of("y", codes)
        try:
            return cross_index(
                embedder, rows, column, folds=self.folds, seed=self.random_state, progress=False
            )
        except InputError as error:
            warnings.warn(
                f"probabilities are not calibrated but votes of the neighbours: {error}",
                LaplaceMetricWarning,
                stacklevel=callers_line(),
            )
            pairs = [(batch, None) for batch in rows]
            return Index.build(Encoder.of(embedder), pairs, codes, progress=False)

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities [N, C], in the order of ``classes_``; each row sums to 1."""
        p = self._label_probabilities(self._seen(X))
        p += (1 - p.sum(1, keepdims=True)).clip(min=0) / p.shape[1]
        found: Array = p / p.sum(1, keepdims=True)
        return found

    def decision_function(self, X: Any) -> Array:
        """Return the probability [N, C] of each class; the rest is that it is none of them.

        For two classes it is that of the likelier one [N], with a minus sign for the first class.
        """
        p = self._label_probabilities(self._seen(X))
        return np.where(p[:, 1] > p[:, 0], p[:, 1], -p[:, 0]) if p.shape[1] == 2 else p

    def _label_probabilities(self, x: Array) -> Array:
        return label_probabilities(self.index_, x, len(self.classes_))

    def predict(self, X: Any) -> Array:
        """Return the likeliest class [N]."""
        x = self._seen(X)
        return np.asarray(self.classes_[self._label_probabilities(x).argmax(1)])


def label_probabilities(index: Index, x: Array, n_classes: int) -> Array:
    """Return P(c) [N, C] of rows; before a calibration shares of a vote, drawn to 1 / C.

    The nearest n rows vote then, n being half of the smallest class, between 1 and ``VOTES``: of as
    many voters as there are rows the largest class would win everywhere. They vote by their
    distance, and stand beside one more vote, 1 / C for each class.

    Parameters
    ----------
    index : Index
        Index whose labels are 0 to C - 1.
    x : array [N, D]
        Rows that are searched, as the index encodes them.
    n_classes : int
        Number of classes, C.
    """
    calibration = index.calibration
    smallest = torch.bincount(torch.as_tensor(index.labels), minlength=n_classes).min()
    voters = max(1, min(VOTES, int(smallest) // 2))
    depth = voters if calibration is None else min(len(index), max(VOTES, calibration.depth))
    probability = np.zeros((len(x), n_classes))
    for start, batch in zip(range(0, len(x), ROWS), batches_of(x), strict=True):
        hits, part = index.search(batch, depth).hits, probability[start : start + ROWS]
        codes = hits.voted.labels[:, :VOTES]
        if calibration is None:
            shares = np.zeros_like(part)
            nearest = LabelVotes.of(hits.distance[:, :voters], codes[:, :voters])
            np.put_along_axis(shares, nearest.labels, nearest.weighted, 1)
            part[:] = (voters * shares + 1 / n_classes) / (voters + 1)
        else:
            scores = calibration.label_scores(hits)[:, :VOTES].clip(min=0)
            np.add.at(part, (np.arange(len(part))[:, None], codes), scores)
    return probability


def selective_risk_scorer(estimator: Any, X: Any, y: Any) -> float:
    """Return minus the area under the risk-coverage curve, for ``GridSearchCV(scoring=...)``.

    The area is the mean error of the most certain share p of the rows, p = 0.05 to 1
    (``abstention``). A row is as certain as its largest probability; ``precision`` of a
    ``GuardClassifier`` is not used.

    Parameters
    ----------
    estimator : classifier
        Fitted classifier with ``predict_proba`` and ``classes_``.
    X, y : [N, D], [N]
        Rows to classify, and their true classes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> x, y = load_iris(return_X_y=True)
    >>> scores = cross_val_score(MatchClassifier(), x, y, scoring=selective_risk_scorer, cv=3)
    >>> bool((scores > -0.1).all())
    True
    """
    p = estimator.predict_proba(X)
    return abstention(-p.max(1), estimator.classes_[p.argmax(1)] == np.asarray(y)).area - 1


# ``LaplaceMetricTransformer``: rows in, embeddings and their uncertainty out.


OUTPUTS = ("both", "embedding", "numbers")
NUMBERS = ("uncertainty", "epistemic")


class LaplaceMetricTransformer(TransformerMixin, PosteriorEstimator):  # type: ignore[misc]
    """Transformer of rows [N, D] to embeddings [N, Z] and their uncertainty.

    Parameters
    ----------
    model : nn.Module or None
        Model that turns rows into embeddings. None, the default: the rows are embeddings already.
    head : module, dotted name, "append" or None
        Part of ``model`` that gets the posterior, as for ``LaplaceEmbedder``; not used without a
        model. None, the default: as for ``LaplaceEmbedder``.
    output : "both" | "embedding" | "numbers"
        Columns of the result: the "embedding" [N, Z]; the "numbers" [N, 2], uncertainty and
        epistemic number; or "both" [N, Z + 2], the embedding first. Default: "both".
    distance : "arccos" | "euclidean" or None
        Distance of two embeddings, as for ``LaplaceEmbedder``. None, the default: "arccos" for a
        model and for rows of length 1, "euclidean" for other rows.
    hessian : "fixed" | "positives" | "full" or None
        Pairs that count in the curvature, as for ``LaplaceEmbedder``. None, the default:
        "positives" for rows without a model that are compared by "euclidean", else "fixed".
    structure : "auto" | "diag" | "kron" | "full"
        Form in which the curvature is stored, as for ``LaplaceEmbedder``. Default: "auto".
    prior_precision : float > 0 or "auto"
        Precision of the prior over the head's parameters, as for ``LaplaceEmbedder``; a larger one
        means less uncertainty. Default: "auto".

    Attributes
    ----------
    classes_ : array [C]
        Labels of the classes, sorted.
    encoder_ : Encoder
        Model and posterior.

    Raises
    ------
    InputError, LabelError
        For settings that do not exist, and a single class; both are ``ValueError``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> LaplaceMetricTransformer().fit(x, y).transform(x[:2]).shape
    (2, 6)
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        head: Any = None,
        output: str = "both",
        distance: str | None = None,
        hessian: str | None = None,
        structure: str = "auto",
        prior_precision: float | str = "auto",
    ) -> None:
        self.model, self.head, self.output = model, head, output
        self.distance, self.hessian, self.structure = distance, hessian, structure
        self.prior_precision = prior_precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any) -> LaplaceMetricTransformer:
        """Fit the posterior to rows [N, D] and their classes [N]."""
        check_name("output", self.output, OUTPUTS)
        x, codes = self._checked(X, y)
        embedder = self._fit_posterior(x, codes)
        self.encoder_ = Encoder.of(embedder)
        self._n_outputs = embedder.fitted_.head.n_outputs
        return self

    def transform(self, X: Any) -> Array:
        """Return [N, Z + 2], [N, Z] or [N, 2] numbers, as ``output``, in the type of the rows."""
        x = self._seen(X)
        encoded = Encoded.concatenate([self.encoder_(batch) for batch in batches_of(x)])
        mean, numbers = encoded.mean, torch.stack([encoded.trace, encoded.epistemic], 1)
        wanted = {"embedding": mean, "numbers": numbers, "both": torch.cat([mean, numbers], 1)}
        found: Array = wanted[self.output].cpu().numpy().astype(x.dtype)
        return found

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns."""
        embedding = [f"embedding{i}" for i in range(self._n_outputs)]
        names = {"embedding": embedding, "numbers": [*NUMBERS], "both": [*embedding, *NUMBERS]}
        return np.array(names[self.output], dtype=object)
