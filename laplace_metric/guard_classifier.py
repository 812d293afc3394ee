"""``GuardClassifier``: a ``Guard`` over vectors or a model, as an estimator of scikit-learn."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_consistent_length
from torch import Tensor, nn

from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.validation import check_fraction, check_share
from laplace_metric.calibration import Answers
from laplace_metric.calibration.rules._answers import UNFAMILIAR
from laplace_metric.errors import (
    FewQueriesWarning,
    InputError,
    UndefinedMetricWarning,
    callers_line,
)
from laplace_metric.guard import Guard
from laplace_metric.search import Index
from laplace_metric.search._encoder import Encoder
from laplace_metric.search.estimators import PosteriorEstimator, batches_of, label_probabilities

Array = npt.NDArray[Any]
KEYWORDS = {
    "metric": "the distance is distance='arccos' or 'euclidean'.",
    "abstain": "pass abstain_label=, what predict returns where it abstains.",
    "reject_label": "pass abstain_label=, what predict returns where it abstains.",
    "threshold": "it is chosen by fit: state precision=, the share of the answers that are right.",
    "alpha": "state precision=, the share of the answers that are right.",
    "confidence": "it is 95%; Guard(...).index.guarantee(precision=, confidence=) takes another.",
    "k": "20 neighbours vote.",
    "n_neighbors": "20 neighbours vote.",
    "folds": "5 parts of the rows calibrate; MatchClassifier(folds=) takes another number.",
    "cv": "5 parts of the rows calibrate; MatchClassifier(folds=) takes another number.",
    "held_out": "the rows of fit calibrate; Guard(X, y, held_out=(queries, labels)) takes others.",
    "search": "call Guard(X, y, search=).",
    "coarser": "call Guard(X, y, coarser=levels), whose answers have a level.",
    "by_class": "call Guard(X, y, by_class=True).",
    "seed": "pass random_state=.",
}
"""Keywords of other classes, and what is meant here."""
ATTRIBUTES = {
    "decision_function": "call predict_proba(X), or ask(X).probability",
    "threshold_": "read guard_.rule.value",
    "rule_": "read guard_.rule",
    "index_": "read guard_.index",
    "decision": "call ask(X)",
    "kneighbors": "call guard_.index.search(X, k)",
    "at": "call set_params(precision=).fit(X, y), or guard_.at(precision)",
}
"""Attributes that the classifier does not have, and what does the same."""
ABSTAIN = "abstain"


class GuardClassifier(ClassifierMixin, PosteriorEstimator):  # type: ignore[misc]
    """Classifier that abstains, so that a stated share of its answers is right.

    The rows of ``fit`` are the items of a ``Guard`` and calibrate it. Its guarantee is that of a
    ``Guard`` without ``held_out``: simulated, not proven, for later rows of the same distribution,
    and only if no model before it was trained on these rows.

    With too few rows no guarantee can be given. ``fit`` then warns, ``guaranteed_`` is False, and
    ``predict`` answers where its estimate of the probability is at least ``precision``.

    Parameters
    ----------
    model : nn.Module or None
        Model that turns rows into embeddings. None, the default: the rows are embeddings already.
    precision : float in (0, 1)
        Share of the answers that are right, to be guaranteed with 95 % confidence. Default: 0.9.
    abstain_label : object
        Answer of ``predict`` where it abstains: a value of the type of the classes that is none of
        them. None, the default: None for classes that are objects or booleans; "abstain" for
        strings; for numbers -1, or 1 less than the smallest class if that is negative, or 1 more
        than the largest one of unsigned numbers.
    trained_on_items : bool or None
        True if ``model`` was trained on the rows of ``fit``, by your statement, which is an error:
        they cannot calibrate it. A model needs False here. None, the default: not stated, which is
        enough without a model.
    open_set_fraction : float in [0, 1)
        Share of the later rows of a class that ``fit`` has not seen. Default: 0.
    head : module, dotted name, "append" or None
        Part of ``model`` that gets the posterior, as for ``LaplaceEmbedder``; not used without a
        model. None, the default: as for ``LaplaceEmbedder``.
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
        Seed of the split into parts that calibrate. None: the seed 0. Default: 0.

    Attributes
    ----------
    classes_ : array [C]
        Labels of the classes, sorted.
    n_features_in_ : int
        Numbers of a row.
    guaranteed_ : bool
        True if ``precision`` is guaranteed.
    abstain_label_ : object
        Answer of ``predict`` where it abstains.
    guard_ : Guard or None
        Guard, whose labels are the places 0 to C - 1 in ``classes_``. None if the rows are too few
        to calibrate.

    Raises
    ------
    InputError, LabelError
        For settings that do not exist, a single class, an ``abstain_label`` that is a class or of
        another type, and a model that may have been trained on the rows; both are ``ValueError``.

    Warns
    -----
    FewQueriesWarning
        If ``precision`` cannot be guaranteed, with the reason.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> x, y = load_digits(return_X_y=True)
    >>> classifier = GuardClassifier(precision=0.95).fit(x[:900], y[:900])
    >>> classifier.guaranteed_, classifier.predict([*x[900:902], 16 - x[900]]).tolist()
    (True, [4, 9, -1])
    """

    _keywords_meant = KEYWORDS

    @named_keywords
    def __init__(
        self,
        model: nn.Module | None = None,
        precision: float = 0.9,
        abstain_label: Any = None,
        trained_on_items: bool | None = None,
        open_set_fraction: float = 0.0,
        head: Any = None,
        distance: str | None = None,
        hessian: str | None = None,
        structure: str = "auto",
        prior_precision: float | str = "auto",
        random_state: int | None = 0,
    ) -> None:
        self.model, self.precision, self.abstain_label = model, precision, abstain_label
        self.trained_on_items, self.open_set_fraction = trained_on_items, open_set_fraction
        self.head, self.distance, self.hessian = head, distance, hessian
        self.structure, self.prior_precision = structure, prior_precision
        self.random_state = random_state

    def __getattr__(self, name: str) -> Any:
        advice = f": {ATTRIBUTES[name]}." if name in ATTRIBUTES else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=self
        )

    def fit(self, X: Any, y: Any) -> GuardClassifier:
        """Fit the posterior to rows and index them; they calibrate it.

        Parameters
        ----------
        X : array [N, D]
            Rows without NaN.
        y : [N]
            Class of each row: whole numbers, strings or booleans.

        Raises
        ------
        InputError
            For settings out of range, and rows as listed for the class.
        LabelError
            For labels as listed for the class.
        """
        check_share("precision", self.precision)
        check_fraction("open_set_fraction", self.open_set_fraction)
        if self.model is not None and self.trained_on_items is not False:
            raise InputError(
                f"trained_on_items={self.trained_on_items!r}: rows that the model was trained on "
                "cannot calibrate it. Pass trained_on_items=False if it was trained on other data, "
                "or use Guard(X, y, model=model, held_out=(queries, labels))."
            )
        x, codes = self._checked(X, y)
        self.abstain_label_ = abstain_label_of(self.abstain_label, self.classes_)
        self.guard_: Guard | None = None
        try:
            self.guard_ = self._guard(x, codes)
            self._index = self.guard_.index
            missing = "" if self.guard_.rule is not None else self._missing(self.guard_)
        except InputError as error:  # too few rows; settings that are wrong are so again below
            embedder, missing = self._fit_posterior(x, codes), str(error)
            pairs = [(batch, None) for batch in batches_of(x)]
            self._index = Index.build(Encoder.of(embedder), pairs, codes, progress=False)
        self.guaranteed_ = not missing
        if missing:
            warnings.warn(
                f"precision={self.precision:g} cannot be guaranteed: {missing.rstrip('.')}. "
                "guaranteed_ is False: predict answers where its estimate of the probability is at "
                f"least {self.precision:g}.",
                FewQueriesWarning,
                stacklevel=callers_line(),
            )
        return self

    def _guard(self, x: Array, codes: Tensor) -> Guard:
        settings: dict[str, Any] = {
            "head": None if self.model is None else self.head,
            "distance": self.distance,
            "hessian": self.hessian,
            "structure": self.structure,
            "prior_precision": self.prior_precision,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewQueriesWarning)  # fit has its own
            return Guard(
                x,
                codes,
                model=self.model,
                precision=self.precision,
                trained_on_items=self.trained_on_items,
                open_set_fraction=self.open_set_fraction,
                seed=self.random_state,
                **{name: value for name, value in settings.items() if value is not None},
            )

    def _missing(self, guard: Guard) -> str:
        needed = guard.calibration.queries_needed(self.precision, of="label")
        return needed.told("rows needed") or needed.reason

    def ask(self, X: Any) -> Answers:
        """Answer N rows or abstain: label, probability and reason of each.

        ``label`` has values of ``classes_``, and None where it abstains; ``answered`` is True where
        there is an answer.
        """
        x = self._seen(X)
        places, probability, reason = self._decided(x)
        answered, strange = reason == "", reason == UNFAMILIAR
        return Answers.of(self.classes_[places], probability, answered, strange)

    def _decided(self, x: Array) -> tuple[Array, Array, Array]:
        """Return place of the likeliest class, probability and reason to abstain, each [N]."""
        if self.guard_ is not None and self.guaranteed_:
            parts = [self.guard_.ask(batch) for batch in batches_of(x)]
            labels = np.concatenate([part.label for part in parts])
            places = np.where(labels == np.array(None), 0, labels).astype(int)
            probability = np.concatenate([part.probability for part in parts])
            return places, probability, np.concatenate([part.reason for part in parts])
        p = label_probabilities(self._index, x, len(self.classes_))
        places, probability = p.argmax(1), p.max(1)
        # votes are sums of shares: what equals the precision may be below it in the last digits
        reason = np.where(probability >= self.precision - 1e-9, "", "uncertain").astype(object)
        if self._index.calibration is not None:
            found = [self._index.search(batch, 1).unknown for batch in batches_of(x)]
            reason[np.concatenate([np.asarray(part) for part in found])] = UNFAMILIAR
        return places, probability, reason

    def predict(self, X: Any) -> Array:
        """Return a class for each row [N], or ``abstain_label_`` where it abstains."""
        places, _, reason = self._decided(self._seen(X))
        labels: Array = self.classes_[places]
        if self.abstain_label_ is None:
            labels = labels.astype(object)
        abstention = np.array(
            [self.abstain_label_], None if labels.dtype.kind == "U" else labels.dtype
        )
        found: Array = np.where(reason == "", labels, abstention)
        return found

    def answered(self, X: Any) -> npt.NDArray[np.bool_]:
        """Return True for each row [N] that ``predict`` answers; its mean is the coverage."""
        found: npt.NDArray[np.bool_] = self._decided(self._seen(X))[2] == ""
        return found

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities [N, C] in the order of ``classes_``, of every row; they sum to 1.

        What is left for none of the classes is divided equally among them, as by
        ``MatchClassifier``; they do not depend on ``precision``.
        """
        x = self._seen(X)
        p = label_probabilities(self._index, x, len(self.classes_))
        p += (1 - p.sum(1, keepdims=True)).clip(min=0) / p.shape[1]
        found: Array = p / p.sum(1, keepdims=True)
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the answers that are right; rows that it abstains from do not count.

        Compare it with ``precision``, next to the coverage ``answered(X).mean()``. A search for the
        best ``score`` chooses the highest precision: it abstains most.

        Parameters
        ----------
        X : array [N, D]
            Rows without NaN.
        y : [N]
            Class of each row.
        sample_weight : [N] or None
            Weight of each row. None, the default: all weigh the same.

        Warns
        -----
        UndefinedMetricWarning
            If it answers no row; the score is then NaN.
        """
        places, _, reason = self._decided(self._seen(X))
        check_consistent_length(places, y, sample_weight)
        weight = np.ones(len(places)) if sample_weight is None else np.asarray(sample_weight, float)
        weight = weight * (reason == "")
        if not weight.sum() > 0:
            warnings.warn(
                "no row was answered: the share of answers that are right is not defined.",
                UndefinedMetricWarning,
                stacklevel=callers_line(),
            )
            return float("nan")
        return float(np.average(self.classes_[places] == np.asarray(y), weights=weight))


def abstain_label_of(asked: Any, classes: Array) -> Any:
    """Return the label of an abstention among these classes: the one asked for, or a default.

    Parameters
    ----------
    asked : object
        Label that was asked for. None: the default of the type of the classes.
    classes : array [C]
        Sorted classes of the fit, whose type the label has to have.

    Raises
    ------
    InputError
        If it is a class, or a value that cannot stand in one array with the classes.

    Examples
    --------
    >>> abstain_label_of(None, np.array([0, 1])), abstain_label_of(None, np.array([-1, 1]))
    (-1, -2)
    >>> abstain_label_of("?", np.array(["no", "yes"]))
    '?'
    """
    kind, dtype = classes.dtype.kind, classes.dtype
    if asked is None and kind in "Ob":
        return None
    label = _default_label(classes) if asked is None else asked
    if any(label is each or label == each for each in classes.tolist()):
        raise InputError(f"abstain_label={label!r} is a class of y: pass another value.")
    if kind == "O":
        return label
    named = kind == "U"
    fits = isinstance(label, str) if named else _held_by(dtype, label)
    if not fits:
        wanted = "a string" if named else "None" if kind == "b" else f"a number of {dtype}"
        raise InputError(f"abstain_label={label!r}, classes are {dtype}: pass {wanted}.")
    return label


def _default_label(classes: Array) -> Any:
    """Return the label of an abstention among sorted strings or numbers.

    Raises
    ------
    InputError
        If the type of the numbers has no other value.
    """
    dtype = classes.dtype
    if dtype.kind == "U":
        return ABSTAIN
    least, most = (classes[place].item() for place in (0, -1))
    ends = [most + 1] if dtype.kind == "u" else [min(-1, least - 1), most + 1]
    taken = set(classes.tolist())
    for label in chain(ends, range(256)):
        if label not in taken and _held_by(dtype, label):
            return dtype.type(label).item()
    raise InputError(f"classes are all values of {dtype}: pass y of a wider type, such as int64.")


def _held_by(dtype: np.dtype[Any], label: Any) -> bool:
    """Return whether a type of numbers has this value."""
    if dtype.kind == "b" or isinstance(label, (str, bool)):
        return False
    try:
        return bool(dtype.type(label) == label) or (dtype.kind == "f" and label != label)
    except (TypeError, ValueError, OverflowError):
        return False
