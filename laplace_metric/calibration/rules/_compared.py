"""Numbers that a rule compares with its threshold, and the one place where it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplace_metric._utils.validation import ArrayLike, is_tensor
from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.guarantees._test_sequences import NEVER
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._gallery_change import warn_uncovered
from laplace_metric.calibration.rules._searched_among import warn_among
from laplace_metric.calibration.scores._scored_queries import ScoredQueries
from laplace_metric.errors import InputError, NotFittedError


@dataclass(frozen=True, eq=False)
class Compared:
    """Probabilities that a rule compares, of Q queries.

    Parameters
    ----------
    probability : [Q] or [Q, k]
        Probability of each answer, or of each hit; ``NEVER`` where nothing was found.
    strange : [Q]
        True for a query that is unlike all that calibrated, which is not answered.
    label : [Q] or None
        Label that would be answered. None, the default: there is none.
    """

    probability: Array
    strange: Flags
    label: np.ndarray[Any, Any] | None = None

    @classmethod
    def of_scores(
        cls,
        scores: ScoredQueries,
        found: Any,
        evidence: Mapping[str, ArrayLike],
        kind: str | Sequence[str] | None = None,
    ) -> Compared:
        """Return the probabilities of scored hits [Q, k].

        Parameters
        ----------
        scores : ScoredQueries
            Calibration that turns scores into probabilities.
        found : [Q], [Q, k] or [Q, k, S]
            Scores, as for ``calibrate_scores``.
        evidence : dict of str to [Q] or [Q, k]
            Columns that calibrated it, by name.
        kind : str, sequence of str or None
            Meaning of the scores, compared with that of the calibration. None, the default: not
            stated.

        Raises
        ------
        InputError
            For the result of an index, and for other scores than those that calibrated it.
        """
        if hasattr(found, "match_probability"):
            raise InputError(
                f"found is a {type(found).__name__}, and this rule is of scores: pass scores "
                "[Q, k], or take a rule of index.guarantee(...)."
            )
        p = scores.assessed(found, evidence, kind)
        return cls(p, np.zeros(len(p), bool))

    @classmethod
    def of_hits(cls, found: Any, of: str, alpha: float | None) -> Compared:
        """Return the probabilities of what an index, or ``Calibration.apply``, has found.

        Parameters
        ----------
        found : Assessment, SearchResult or CalibratedHits
            Match probabilities [Q, k], label probabilities [Q] and p-values [Q]; a probability is 0
            where there is no hit.
        of : "match" | "label" | "hits"
            Probability that is compared.
        alpha : float in (0, 1) or None
            Largest p-value of an unknown query; None: none is unknown.

        Raises
        ------
        NotFittedError
            If there is no such probability.
        """
        probability = found.label_probability if of == "label" else found.match_probability
        if probability is None:
            how = "" if found.p_value is None else " with labels"
            raise NotFittedError(
                f"the index was not calibrated{how}: call index.calibrate(...) first."
            )
        p = as_numpy(probability).astype(np.float64)
        p = np.where(p > 0, p, NEVER)
        strange = np.zeros(len(p), bool) if alpha is None else as_numpy(found.p_value) <= alpha
        label = getattr(found, "label" if of == "label" else "nearest", None)
        return cls(p, strange, None if label is None else as_numpy(label))

    @property
    def first(self) -> Compared:
        """Probability of the first hit of each query, in the place of all hits."""
        p = self.probability
        return Compared(p if p.ndim == 1 else p[:, 0], self.strange, self.label)

    def accepted(self, least: float | Array) -> Flags:
        """Return which answers, or hits, have a probability of at least ``least``."""
        there = (self.probability > NEVER) & (self.probability >= least)
        return np.asarray(there & ~self.strange.reshape(-1, *[1] * (there.ndim - 1)))

    def answers(self, least: float | Array) -> Answers:
        """Return the answers whose probability is at least ``least``, one a query."""
        p, nothing = self.probability, self.probability == NEVER
        return Answers.of(self.label, p.clip(0), self.accepted(least), self.strange | nothing)


def check_covered(tested: str | None, found: Any) -> None:
    """Require that a guarantee is about what was found.

    Parameters
    ----------
    tested : str or None
        Identity of the calibration that tested the rule; None if no index made it.
    found : Assessment, SearchResult or CalibratedHits
        Result with the identity of its calibration.

    Raises
    ------
    InputError
        For another calibration, naming both.

    Warns
    -----
    StaleCalibrationWarning
        If the gallery has new classes since its calibration (a search warns of other changes), and
        for a search among some items.
    """
    change = getattr(found, "gallery", None)
    if change is not None and not (change.covered or change.large):
        warn_uncovered(change)
    if (among := getattr(found, "among", None)) is not None:
        warn_among(among)
    if found.calibration is None or found.calibration == tested:
        return
    if tested is None:
        raise InputError(
            "this rule was tested on probabilities that no index made, and found is of the "
            f"calibration {found.calibration}: take a rule of index.guarantee(...), or compare "
            "your own probabilities with rule.value."
        )
    raise InputError(
        f"this rule was tested by the calibration {tested}, and found is of the calibration "
        f"{found.calibration}, for which it guarantees nothing: take a rule of the index that "
        "searched, index.guarantee(...), or search the index that made this one."
    )


def as_numpy(values: Any) -> np.ndarray[Any, Any]:
    """Return a tensor, an array or a list as an array."""
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)
