"""A precision of the answers of each class, not only of all together.

Of the answers with one label, a threshold is tested as that of all answers is, on the calibration
queries that are answered with it (``guarantees._precision``). Which classes have enough of these is
a matter of counts alone, and does not look at what is right: the m classes with most answers are
tested, m as large as the smallest of them could still pass at the level

    delta / m

if all of its answers were right. By Bonferroni's inequality the guarantees of all classes hold at
once with probability 1 - delta. The answers of other classes are not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import Rows, Shown
from laplace_metric._utils.validation import check_share
from laplace_metric.calibration._answers import Answers
from laplace_metric.calibration._calibration_queries import CalibrationQueries
from laplace_metric.calibration._compared import Compared, check_covered
from laplace_metric.calibration._gallery_change import GalleryChange
from laplace_metric.calibration._rule import Rule
from laplace_metric.calibration.guarantees._queries_needed import about
from laplace_metric.errors import InputError

NAMED = 5
"""Number of classes without a guarantee that are named."""


class Shortfall(NamedTuple):
    """Queries of a class whose precision cannot be guaranteed.

    Parameters
    ----------
    answers : int
        Number of tested queries that are answered with it.
    needed : int or None
        Number of such queries that would probably do; None if it cannot be told.
    least : int
        Number of such queries that would do if all were answered right.
    """

    answers: int
    needed: int | None
    least: int

    def __str__(self) -> str:
        if self.needed is None:
            return f"{self.answers:,} tested answers, at least {self.least:,} needed"
        return f"{self.answers:,} tested answers, about {about(self.needed)} needed"


@dataclass(frozen=True, repr=False)
class ClassRule(Shown):
    """Answer a query if its probability reaches the threshold of its label; abstain elsewhere.

    ``Index.guarantee_by_class`` makes it. ``rule(index.search(queries))`` applies it, and so does
    ``index.ask(queries, rule)``.

    Parameters
    ----------
    rules : dict of label to Rule
        Rule of each class whose precision is guaranteed.
    refused : dict of label to Shortfall
        Classes whose precision cannot be guaranteed, with the queries that are missing. Their
        answers are not given.
    target : float in (0, 1)
        Smallest share of the answers of each class that are right.
    confidence : float in (0, 1)
        Probability, over calibration sets, with which it holds for all classes at once.
    coverage : float in [0, 1]
        Share of the calibration queries that are answered.
    alpha : float in (0, 1) or None
        Share of queries with a match that may be called unknown, and are not answered then. None:
        the probability alone decides.
    gallery : GalleryChange or None
        Change of the gallery since the calibration. None, the default: there was none.
    calibration : str or None
        Identity of the calibration that tested it, as of ``Rule``. None, the default: not known.
    """

    rules: Mapping[Any, Rule]
    refused: Mapping[Any, Shortfall]
    target: float
    confidence: float
    coverage: float
    alpha: float | None
    gallery: GalleryChange | None = None
    calibration: str | None = None

    @classmethod
    def guaranteeing(
        cls,
        queries: CalibrationQueries,
        answer: npt.NDArray[np.intp],
        classes: npt.NDArray[Any],
        precision: float,
        confidence: float,
        alpha: float | None,
        calibration: str | None = None,
    ) -> ClassRule:
        """Return the rule that answers most and keeps a precision of each class.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test the thresholds.
        answer : [n]
            Place in ``classes`` of the label with which each is answered.
        classes : [C]
            Labels of the index, sorted.
        precision, confidence : float in (0, 1)
            Precision of each class, and the probability that all are kept.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.

        Raises
        ------
        InputError
            If no class has enough queries, with what the largest has.
        """
        target, delta = (
            check_share("precision", precision),
            1 - check_share("confidence", confidence),
        )
        names = classes.tolist()
        rows = [np.flatnonzero((answer == c) & ~queries.abstained) for c in range(len(classes))]
        parts = [queries.take(own) for own in rows]
        counts = np.array([part.n_groups or len(part) for part in parts])
        order = np.argsort(-counts, kind="stable")
        fewest = [queries.fewest(target, delta / m) for m in range(1, len(classes) + 1)]
        enough = np.flatnonzero(counts[order] >= fewest)
        n_tested = int(enough[-1]) + 1 if len(enough) else 0
        rules: dict[Any, Rule] = {}
        refused: dict[Any, Shortfall] = {}
        for place, c in enumerate(order.tolist()):
            name, part = names[c], parts[c]
            level = delta / (n_tested if place < n_tested else n_tested + 1)
            try:
                if place >= n_tested:
                    raise InputError("too few")
                rules[name] = Rule.guaranteeing(
                    part,
                    "precision",
                    target,
                    1 - level,
                    of="label",
                    alpha=alpha,
                    calibration=calibration,
                )
            except InputError:
                least = queries.fewest(target, level)
                needed = _needed(part, target, level, least)
                refused[name] = Shortfall(int(counts[c]), needed, least)
        if not rules:
            told = ", ".join(f"{name!r} ({refused[name]})" for name in [*refused][:NAMED])
            raise InputError(
                f"precision={target:g} cannot be guaranteed of any class: {told}. Ask for less, "
                "calibrate on more queries, or guarantee the precision of all answers together."
            )
        answered = sum(rule.coverage * len(rule.queries) for rule in rules.values())  # type: ignore
        coverage = answered / len(queries)
        return cls(rules, refused, target, confidence, coverage, alpha, None, calibration)

    def after(self, change: GalleryChange | None) -> ClassRule:
        """Return the same rule for a gallery that has changed; see ``Rule.after``."""
        rules = {name: rule.after(change) for name, rule in self.rules.items()}
        return replace(self, rules=rules, gallery=change)

    @property
    def proven(self) -> bool:
        """True if the guarantee follows from a theorem, except for ``alpha``."""
        return all(rule.proven for rule in self.rules.values())

    def __call__(self, found: Any) -> Answers:
        """Answer each query, or abstain.

        Parameters
        ----------
        found : SearchResult or CalibratedHits
            Result of ``index.search`` or ``calibration.apply``.

        Raises
        ------
        InputError
            For anything else.
        NotFittedError
            For a search of an index that was not calibrated, or without labels.
        """
        if not hasattr(found, "label_probability"):
            raise InputError(
                f"found is a {type(found).__name__}, and this rule is of an index: pass what "
                "index.search(...) or calibration.apply(...) returned."
            )
        asked = Compared.of_hits(found, "label", self.alpha)
        check_covered(self.calibration, found)
        names = [] if asked.label is None else asked.label.tolist()
        least = [self.rules[name].value if name in self.rules else np.inf for name in names]
        return asked.answers(np.array(least))

    def __str__(self) -> str:
        return "\n".join(self._told())

    def _told(self) -> list[str]:
        values = [rule.value for rule in self.rules.values()]
        lowest = min(rule.estimate or 0.0 for rule in self.rules.values())
        known = (
            "" if self.alpha is None else f" and the query is not unknown at alpha={self.alpha:g}"
        )
        n, of = len(self.rules), len(self.rules) + len(self.refused)
        one = min(self.rules.values(), key=lambda rule: rule.proven)  # a simulated one, if any is
        still = "guarantees"
        if self.gallery is not None and not self.gallery.covered:
            still = "guaranteed"
        told = [
            f"answers with the label if its probability is at least that of its class "
            f"({min(values):.4f} to {max(values):.4f}, {n} of {of} classes){known}",
            f"{still} a precision of at least {100 * self.target:g}% of the answers of each of "
            f"these classes, all at once, with {100 * self.confidence:g}% confidence "
            f"({one.proof}; level {1 - (one.confidence or 0.0):.3g} a class, Bonferroni)",
            f"the lowest precision of a class is {lowest:.2%}; answers {self.coverage:.1%} of all",
        ]
        if self.refused:
            some = [f"{name!r} ({self.refused[name]})" for name in [*self.refused][:NAMED]]
            rest = ", ..." * (len(self.refused) > NAMED)
            told.append(f"answers {len(self.refused)} classes never: {', '.join(some)}{rest}")
        return told if self.gallery is None else [*told, str(self.gallery)]

    def _sentence(self) -> str:
        return "; ".join(self._told())

    def _shown_rows(self) -> Rows:
        return [
            (f"{name!r}", f"from {rule.value:.4f} on: precision {rule.estimate:.2%}, n={rule.n:,}")
            for name, rule in self.rules.items()
        ]


def _needed(part: CalibrationQueries, target: float, level: float, least: int) -> int | None:
    """Return the number of queries of a class that would probably do."""
    more = part.queries_needed(target, 1 - level).more
    if more is None:
        return None
    return max(least, len(part) + (more // 2 if len(part.grid) else more))
