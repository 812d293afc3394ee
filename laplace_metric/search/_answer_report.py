"""``AnswerReport``: what became of labelled queries, all together, by class and by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import LINES, Rows, Shown, as_percent
from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.rules._answers import UNFAMILIAR
from laplace_metric.evaluation._share_interval import share_interval

if TYPE_CHECKING:
    from laplace_metric.plots import Figure

NAMED = 3
"""True classes of wrong answers that are named."""
ANSWERED = "answered"
"""Key of the queries that are answered, among the reasons."""


class ClassOutcome(NamedTuple):
    """Answers with one label, and queries of its class.

    Parameters
    ----------
    name : int, str or None
        Label of the class; None for the queries whose label no item has.
    right, given : int
        Right answers with this label, of all that are given with it.
    lower : float in [0, 1]
        Exact lower end of the share that is right, which holds with 95 % confidence; 0 where none
        is given.
    answered, queries : int
        Answered queries, of those of this class.
    really : dict of label to int
        True classes of its wrong answers, the most frequent first; up to three.
    level : int
        Level of the answers, 0 for labels. Default: 0.
    """

    name: Any
    right: int
    given: int
    lower: float
    answered: int
    queries: int
    really: dict[Any, int]
    level: int = 0

    def __str__(self) -> str:
        told = "none given"
        if self.given:
            told = (
                f"{self.right:,} of {self.given:,} right ({as_percent(self.right / self.given)}, "
                f"at least {as_percent(self.lower)})"
            )
        told += f"; {self.answered:,} of its {self.queries:,} queries answered"
        wrong = ", ".join(
            f"{'no class here' if name is None else repr(name)} ({n:,})"
            for name, n in self.really.items()
        )
        return f"{told}; really {wrong}" if wrong else told


@dataclass(frozen=True, repr=False, eq=False)
class AnswerReport(Shown):
    """Outcome of Q labelled queries; ``Guard.evaluate`` makes it, and ``print`` shows the table.

    Parameters
    ----------
    label : array [Q] of objects
        Likeliest label of each query, whether it is given or not.
    truth : array [Q] of objects
        True label of each query, or its group at the level of the answer; None of a query whose
        label no item has.
    probability : array [Q] of floats in [0, 1]
        Probability that the likeliest label is right.
    reason : array [Q] of strings
        Reason to abstain: "unfamiliar" or "uncertain"; "" where the label is given.
    precision : float in (0, 1) or None
        Precision that was guaranteed. None, the default: none was.
    level : array [Q] of ints or None
        Level of each answer, whether it is given or not, of a rule with coarser answers. None, the
        default: answers are labels.
    truths : tuple of arrays [Q] of objects
        True label, and group at each coarser level. Default: ``truth`` alone.

    Examples
    --------
    >>> report = AnswerReport(*map(np.array, (
    ...     ["a", "a", "b", "b"], ["a", "b", "b", "a"], [0.9, 0.8, 0.9, 0.4],
    ...     ["", "", "", "uncertain"],
    ... )))
    >>> report.coverage, round(report.right_share, 3), round(report.lower, 3)
    (0.75, 0.667, 0.135)
    >>> print(report.classes[0])
    1 of 2 right (50.0%, at least 2.5%); 1 of its 2 queries answered; really 'b' (1)
    """

    label: npt.NDArray[Any]
    truth: npt.NDArray[Any]
    probability: Array
    reason: npt.NDArray[Any]
    precision: float | None = None
    level: npt.NDArray[np.intp] | None = None
    truths: tuple[npt.NDArray[Any], ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    @property
    def answered(self) -> Flags:
        """True for each query [Q] whose label is given."""
        return np.asarray(self.reason == "")

    @property
    def right(self) -> Flags:
        """True for each query [Q] whose likeliest label is right, given or not."""
        known = np.array([truth is not None for truth in self.truth.tolist()], bool)
        return np.asarray(self.label == self.truth, bool) & known

    @property
    def coverage(self) -> float:
        """Share of the queries that are answered; 0 without queries."""
        return float(self.answered.mean()) if len(self) else 0.0

    @property
    def right_share(self) -> float | None:
        """Share of the answers that are right; None without answers."""
        return float(self.right[self.answered].mean()) if self.answered.any() else None

    @property
    def lower(self) -> float:
        """Exact lower end of ``right_share``, which holds with 95 % confidence; 0 without answers.

        Queries have to be independent, and must not have calibrated the guarantee.
        """
        return _lower(int((self.right & self.answered).sum()), int(self.answered.sum()))

    @property
    def reasons(self) -> dict[str, int]:
        """Number of queries that are "answered", and that are not, by reason."""
        return dict(Counter(reason or ANSWERED for reason in self.reason.tolist()).most_common())

    @property
    def levels(self) -> dict[int, tuple[int, int, float]]:
        """Number of answers of each level, right ones among them, and the exact lower end.

        Level 0 are labels; it is the only one without coarser answers.
        """
        of, found = self._level_of, dict[int, tuple[int, int, float]]()
        for at in range(max(1, len(self.truths))):
            given = self.answered & (of == at)
            right, n = int((self.right & given).sum()), int(given.sum())
            found[at] = n, right, _lower(right, n)
        return found

    @property
    def _level_of(self) -> npt.NDArray[np.intp]:
        return np.zeros(len(self), np.intp) if self.level is None else self.level

    @cached_property
    def classes(self) -> tuple[ClassOutcome, ...]:
        """Outcome of each class, that with the least precise answers first.

        Classes whose label is not given stand last. Groups of coarser answers have rows of their
        own, with the queries of all their labels, behind those of the labels, level by level.
        """
        rows = list[ClassOutcome]()
        for at, truth in enumerate(self.truths or (self.truth,)):
            rows += self._of_level(at, truth)
        return tuple(sorted(rows, key=_weakest_first))

    def _of_level(self, at: int, truths: npt.NDArray[Any]) -> list[ClassOutcome]:
        """Return the outcome of each label, or group, of a level."""
        rows, given_here = list[ClassOutcome](), self.answered & (self._level_of == at)
        told, truth = self.label[given_here].tolist(), truths[given_here].tolist()
        pairs = Counter(zip(told, truth, strict=True))
        of_label, of_truth = Counter(told), Counter(truths[self.answered].tolist())
        queries = Counter(truths.tolist())
        wrong: dict[Any, Counter[Any]] = {}
        for (label, true), n in pairs.items():
            if label != true:
                wrong.setdefault(label, Counter())[true] = n
        for name in sorted({*queries, *of_label}, key=lambda name: (str(type(name)), name)):
            right, given = 0 if name is None else pairs[name, name], of_label[name]
            really = dict(wrong.get(name, Counter()).most_common(NAMED))
            lower = _lower(right, given)
            rows.append(
                ClassOutcome(name, right, given, lower, of_truth[name], queries[name], really, at)
            )
        return rows

    def plot(self) -> Figure:
        """Plot the share that is right against the share answered, and the reliability.

        Raises
        ------
        InputError
            Without queries.
        MissingPackageError
            Without matplotlib.
        """
        from laplace_metric.plots import outcome_plot

        return outcome_plot(
            self.probability,
            self.right,
            self.reason == UNFAMILIAR,
            answered=self.answered,
            precision=self.precision,
        )

    def _sentence(self) -> str:
        answered = f"answers {self.coverage:.1%} of {len(self):,} queries"
        if self.right_share is None:
            return f"{answered}."
        asked = "" if self.precision is None else f"; {self.precision:.4g} was guaranteed"
        return (
            f"{answered}; {as_percent(self.right_share)} of the answers are right, at least "
            f"{as_percent(self.lower)} with 95% confidence{asked}."
        )

    @property
    def _counts(self) -> list[tuple[str, str]]:
        """Numbers of queries by reason, and of answers by level."""
        rows = [(reason, f"{n:,}") for reason, n in self.reasons.items()]
        if self.level is not None:
            for at, (n, right, lower) in self.levels.items():
                told = "none"
                if n:
                    share = as_percent(right / n)
                    told = f"{right:,} of {n:,} right ({share}, at least {as_percent(lower)})"
                rows.append((f"level {at}", told))
        return rows

    def _shown_rows(self) -> Rows:
        rows = self._counts
        room = LINES - 2 - len(rows)
        rows += [(self._name(one), str(one)) for one in self.classes[:room]]
        if len(self.classes) > room:
            rows.append(("and", f"{len(self.classes) - room:,} classes: print(report) has all"))
        return rows

    def _name(self, one: ClassOutcome) -> str:
        name = "of no class here" if one.name is None else repr(one.name)
        return f"{name} (level {one.level})" if len(self.truths) > 1 else name

    def __str__(self) -> str:
        rows = [*self._counts, *((self._name(one), str(one)) for one in self.classes)]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([self._sentence(), *(f"  {name:<{width}}  {told}" for name, told in rows)])


def _weakest_first(one: ClassOutcome) -> tuple[int, bool, float]:
    return one.level, not one.given, one.right / max(1, one.given)


def _lower(right: int, given: int) -> float:
    """Return the exact one-sided 95 % lower end of a share."""
    return float(share_interval(right, given, 0.9)[0]) if given else 0.0
