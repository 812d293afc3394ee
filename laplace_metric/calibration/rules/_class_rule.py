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

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import Rows
from laplace_metric._utils.validation import ArrayLike, as_path
from laplace_metric.calibration._array_namespace import Array
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._queries_needed import about
from laplace_metric.calibration.guarantees._theories import missing_queries, precision_theory
from laplace_metric.calibration.guarantees._theory import MATCH, Guarantee
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.calibration.scores._answer_classes import first_labels
from laplace_metric.calibration.scores._scored_queries import SCORES, ScoredQueries
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import MALFORMED, Fields, Kind, Part, SavedFile, write

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
class ClassRule(Rule):
    """Answer a query if its probability reaches the threshold of its label; abstain elsewhere.

    ``Index.guarantee_by_class`` makes it. ``rule(index.search(queries))`` applies it, and so does
    ``index.ask(queries, rule)``. ``ScoreCalibration.guarantee_by_class`` makes one of scores, which
    ``rule(scores, labels=labels)`` applies. Its ``value`` is the lowest threshold of a class, its
    ``estimate`` the lowest precision of one, its ``theorem`` that of all; ``rules`` has those of
    each.

    Parameters
    ----------
    rules : dict of label to Rule
        Rule of each class whose precision is guaranteed. Default: none.
    refused : dict of label to Shortfall
        Classes whose precision cannot be guaranteed, with the queries that are missing. Their
        answers are not given. Default: none.
    """

    FILE: ClassVar[Kind] = Kind("class_rule", "a saved rule of classes", 1)

    rules: Mapping[Any, Rule] = field(default_factory=dict)
    refused: Mapping[Any, Shortfall] = field(default_factory=dict)

    @classmethod
    def of_classes(
        cls,
        queries: CalibrationQueries,
        asked: Guarantee,
        answer: npt.NDArray[np.intp],
        classes: npt.NDArray[Any],
        calibration: str | None = None,
        *,
        scores: ScoredQueries | None = None,
    ) -> ClassRule:
        """Return the rule that answers most and keeps a precision of each class.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test the thresholds.
        asked : Guarantee
            Precision of the labels of each class, and the confidence with which all are kept.
        answer : [n]
            Place in ``classes`` of the label with which each is answered.
        classes : [C]
            Labels of the index, sorted.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.
        scores : ScoredQueries or None
            Calibration that turns scores into probabilities. None, the default: hits come with
            probabilities.

        Raises
        ------
        InputError
            If no class has enough queries, with what the largest has.
        """
        theory, delta, names = precision_theory(queries, asked), asked.delta, classes.tolist()
        rows = [np.flatnonzero((answer == c) & ~queries.abstained) for c in range(len(classes))]
        parts = [queries.take(own) for own in rows]
        counts = np.array([part.n_groups or len(part) for part in parts])
        order = np.argsort(-counts, kind="stable")
        shares = [asked.at_level(delta / m) for m in range(1, len(classes) + 1)]
        fewest = [theory.fewest(parts[c], own) for c, own in zip(order, shares, strict=True)]
        enough = np.flatnonzero(counts[order] >= fewest)
        n_tested = int(enough[-1]) + 1 if len(enough) else 0
        rules: dict[Any, Rule] = {}
        refused: dict[Any, Shortfall] = {}
        for place, c in enumerate(order.tolist()):
            name, part = names[c], parts[c]
            each = asked.at_level(delta / (n_tested if place < n_tested else n_tested + 1))
            try:
                if place >= n_tested:
                    raise InputError("too few")
                rules[name] = Rule.guaranteeing(part, each, calibration=calibration)
            except InputError:
                least = theory.fewest(part, each)
                refused[name] = Shortfall(int(counts[c]), _needed(part, each, least), least)
        if not rules:
            told = ", ".join(f"{name!r} ({refused[name]})" for name in [*refused][:NAMED])
            raise InputError(
                f"precision={asked.target:g} cannot be guaranteed of any class: {told}. Ask for "
                "less, calibrate on more queries, or guarantee the precision of all answers "
                "together."
            )
        made = [*rules.values()]
        tested = [0 if rule.queries is None else len(rule.queries) for rule in made]
        answered = sum((rule.coverage or 0.0) * n for rule, n in zip(made, tested, strict=True))
        lowest = min(made, key=lambda rule: rule.estimate or 0.0)
        weakest = min(made, key=lambda rule: rule.proven)  # a simulated one, if any is
        return cls(
            min(rule.value for rule in made),
            asked,
            lowest.estimate,
            lowest.bound,
            answered / len(queries),
            sum(tested),
            weakest.theorem,
            None,
            scores,
            None,
            calibration,
            rules,
            refused,
        )

    def after(self, change: GalleryChange | None) -> ClassRule:
        """Return the same rule for a gallery that has changed; see ``Rule.after``."""
        if change == self.gallery:
            return self
        rules = {name: rule.after(change) for name, rule in self.rules.items()}
        theorem = self.theorem if change is None else None
        return replace(self, rules=rules, gallery=change, theorem=theorem)

    def __call__(
        self,
        found: Any,
        *,
        labels: Any = None,
        kind: str | Sequence[str] | None = None,
        **evidence: ArrayLike,
    ) -> Answers:
        """Answer each query with its label, or abstain; see ``Rule``.

        Parameters
        ----------
        found : SearchResult or CalibratedHits; for a rule of scores, [Q], [Q, k] or [Q, k, S]
            Result of ``index.search`` or ``calibration.apply``; or scores.
        labels : [Q] or [Q, k] whole numbers or strings, or None
            Label of the first hit of each query, or of all hits, for a rule of scores. None, the
            default, for a rule of an index.
        kind : str, one per scorer, or None
            Meaning of the scores, to be compared with that which calibrated. None, the default: it
            is not compared.
        **evidence : [Q] or [Q, k]
            Further columns of a rule of scores, by name.

        Raises
        ------
        InputError
            As ``Rule``; for scores without labels, and labels next to the result of an index.
        """
        if self.scores is None:
            if labels is not None:
                raise InputError("labels= is for rules of scores: a search has labels of its own.")
            return super().__call__(found, kind=kind, **evidence)
        if labels is None:
            raise InputError(
                "this rule has a threshold of each label: pass labels=, that of the first hit of "
                "each query."
            )
        first = self.compared(found, evidence, kind).first
        names = first_labels(labels, len(first.probability))
        known = np.array([name in self.rules or name in self.refused for name in names.tolist()])
        if len(names) and not known.any():
            raise InputError(
                f"labels are {names.tolist()[:NAMED]}, none of which calibrated this rule: pass "
                f"those of the first hits, such as {[*self.rules][:NAMED]}."
            )
        return replace(first, label=names).answers(self._least(names))

    def passed(
        self, found: Any, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Refuse to pass on hits: a rule of classes is of one answer a query.

        Parameters
        ----------
        found : SearchResult, CalibratedHits or scores
            Hits, as for ``Rule.passed``.
        kind : str, one per scorer, or None
            Meaning of the scores. None, the default: it is not compared.
        **evidence : [Q] or [Q, k]
            Further columns, by name.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError("a rule of classes is of one answer a query: call rule(...).")

    def export(self, path: str | Path, format: str = "onnx", *, dtype: Any = None) -> Any:
        """Refuse to write a graph: it would have one threshold.

        Parameters
        ----------
        path : path
            Name of a file.
        format : "onnx" | "torch"
            Format of the file. Default: "onnx".
        dtype : torch.float32, torch.float64 or None
            Type of the inputs and outputs. None, the default: float32.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError("a rule of classes has a threshold of each class: a graph has one.")

    def _least(self, labels: np.ndarray[Any, Any] | None) -> float | Array:
        """Return the threshold [Q] of each label; infinity of a class without one."""
        names = [] if labels is None else labels.tolist()
        return np.array([self.rules[n].value if n in self.rules else np.inf for n in names])

    def _queries(self) -> CalibrationQueries:
        raise InputError(
            "each class has its own queries: ask the rule of one, rule.rules[label], for its rates."
        )

    def save(self, path: str | Path) -> None:
        """Write one file of a rule of scores; ``Rule.load`` reads it, without torch.

        Parameters
        ----------
        path : path
            Name of a safetensors file, which is replaced in one step.

        Raises
        ------
        InputError
            For a rule of an index: save the index or its calibration, and ask for the rule again.
        WriteError
            If it cannot be written; an old file is kept.
        """
        if self.scores is None:
            raise InputError(
                f"{path}: a rule of classes of an index has no file. Save the index or its "
                "calibration, and call guarantee_by_class(...) of it."
            )
        told = {"target": self.target, "confidence": self.confidence}
        parts = {"class_rule": Part(self.FILE, told), "scores": self.scores.part()}
        write(as_path("path", path), parts)

    @classmethod
    def _of_file(cls, file: SavedFile) -> ClassRule:
        """Return the rule of an opened file of ``save``."""
        with file.checked():
            content = Fields(file.part(cls.FILE).content, "class_rule")
            scores = ScoredQueries.of_part(file.part(SCORES))
            asked = Guarantee(
                "precision", content.share("target"), content.share("confidence"), MATCH
            )
            answers = scores.answers
        if answers is not None:
            codes = answers.codes.astype(np.intp)
            with suppress(InputError, *MALFORMED):
                return cls.of_classes(scores.queries, asked, codes, answers.classes, scores=scores)
        raise FileFormatError(f"{file.path} holds a rule that does not follow from its queries.")

    def _told(self) -> list[str]:
        values = [rule.value for rule in self.rules.values()]
        n, of = len(self.rules), len(self.rules) + len(self.refused)
        target, sure = 100 * (self.target or 0.0), 100 * (self.confidence or 0.0)
        level = 1 - (next(iter(self.rules.values())).confidence or 0.0)
        told = [
            f"answers with the label if its probability is at least that of its class "
            f"({min(values):.4f} to {max(values):.4f}, {n} of {of} classes){self._known}",
            f"{self._verb} a precision of at least {target:g}% of the answers of each of "
            f"these classes, all at once, with {sure:g}% confidence "
            f"({self.proof}; level {level:.3g} a class, Bonferroni)",
            f"the lowest precision of a class is {self.estimate:.2%}; answers "
            f"{self.coverage:.1%} of all",
        ]
        if self.refused:
            some = [f"{name!r} ({self.refused[name]})" for name in [*self.refused][:NAMED]]
            rest = ", ..." * (len(self.refused) > NAMED)
            told.append(f"answers {len(self.refused)} classes never: {', '.join(some)}{rest}")
        return told if self.gallery is None else [*told, str(self.gallery)]

    def _shown_rows(self) -> Rows:
        return [
            (
                f"{name!r}",
                f"from {rule.value:.4f} on: precision {rule.estimate:.2%}, n={rule.n_tested:,}",
            )
            for name, rule in self.rules.items()
        ]


def _needed(part: CalibrationQueries, asked: Guarantee, least: int) -> int | None:
    """Return the number of queries of a class that would probably do."""
    more = missing_queries(part, asked).more_queries
    if more is None:
        return None
    return max(least, len(part) + (more if part.thresholds is None else more // 2))
