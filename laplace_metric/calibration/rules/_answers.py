"""Answers to queries: a label, or none where a rule abstains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from laplace_metric._utils.display import SOME, Rows, Shown
from laplace_metric._utils.tables import as_pandas
from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.rules._searched_among import SearchedAmong
from laplace_metric.errors import CallError

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

UNFAMILIAR, UNCERTAIN = "unfamiliar", "uncertain"
"""Reasons to abstain: the query is unlike all that calibrated; its probability is too small."""


class _Three(NamedTuple):
    """The values that an answer is unpacked to."""

    label: Any
    probability: float
    reason: str


class Answer(_Three):
    """Answer to one query: ``label, probability, reason = answer``, and ``answer.level``.

    Parameters
    ----------
    label : int, str or None
        Label of the query; None where the rule abstains.
    probability : float in [0, 1]
        Probability that the answer is right, whether it is given or not.
    reason : "" | "unfamiliar" | "uncertain"
        Reason to abstain; "" where there is an answer.
    level : int or None
        Level of the answer, of a rule with coarser answers: 0 for a label, 1 for a group of the
        first level, and so on. It is an attribute alone: unpacking, comparing and indexing have the
        three values before it. None, the default: the rule abstains, or answers with labels alone.

    Examples
    --------
    >>> answer = Answer("shoes", 0.96, "", level=1)
    >>> label, probability, reason = answer
    >>> label, answer.level, answer
    ('shoes', 1, Answer(label='shoes', probability=0.96, reason='', level=1))
    """

    def __new__(cls, label: Any, probability: float, reason: str, level: int | None = None) -> Self:
        """Keep the level next to the three values."""
        made = super().__new__(cls, label, probability, reason)
        made.__dict__["_level"] = level
        return made

    @property
    def level(self) -> int | None:
        """Level of the answer; None where there is none, or answers are labels alone."""
        found: int | None = self.__dict__.get("_level")
        return found

    @property
    def answered(self) -> bool:
        """True where there is an answer."""
        return not self.reason

    def _replace(self, **values: Any) -> Self:
        """Return the answer with other values; the level is kept."""
        return type(self)(**{**self._asdict(), "level": self.level, **values})

    def __repr__(self) -> str:
        told = super().__repr__()
        return told if self.level is None else f"{told[:-1]}, level={self.level})"


@dataclass(frozen=True, repr=False, eq=False)
class Answers(Shown):
    """Answers to Q queries, as NumPy arrays.

    ``answers[3]`` is the ``Answer`` to one query, ``answers[mask]`` the answers to some.

    Parameters
    ----------
    label : array [Q] of objects
        Label of each query, a whole number or a string as in the index; None where the rule
        abstains. A rule about a match answers with the label of the nearest item, or with its id
        where items have no labels. Of a rule of scores, which knows neither, all are None, unless
        it is given labels.
    probability : array [Q] of floats in [0, 1]
        Probability that the answer is right, whether it is given or not.
    reason : array [Q] of strings
        Reason to abstain: "unfamiliar" where the query is unlike all that calibrated or nothing was
        found, "uncertain" where the probability is too small; "" where there is an answer.
    answered : array [Q] of booleans
        True where there is an answer.
    among : SearchedAmong or None
        Number of items that could be found, of a search among some of them: a guarantee was tested
        with all. None, the default: all could be found.
    query_ids : array [Q] or None
        Id of each query that is several views of one thing, as in the search. None, the default:
        each row is a query.
    level : array [Q] of objects or None
        Level of each answer, of a rule with coarser answers: 0 for a label, 1 for a group of the
        first level, and so on; None where it abstains. None, the default: answers are labels alone.
    """

    label: np.ndarray[Any, Any]
    probability: Array
    reason: np.ndarray[Any, Any]
    answered: Flags
    among: SearchedAmong | None = None
    query_ids: np.ndarray[Any, Any] | None = None
    level: np.ndarray[Any, Any] | None = None

    @classmethod
    def of(
        cls, label: np.ndarray[Any, Any] | None, probability: Array, answered: Flags, strange: Flags
    ) -> Answers:
        """Return answers whose labels are None where they are not answered.

        Parameters
        ----------
        label : [Q] or None
            Labels that would be answered; None: there are none.
        probability : [Q]
            Probability that each is right.
        answered, strange : [Q]
            True where there is an answer; where the query is unfamiliar.
        """
        given = np.full(len(answered), None, dtype=object)
        if label is not None:
            given[answered] = label.astype(object)[answered]
        reason = np.where(answered, "", np.where(strange, UNFAMILIAR, UNCERTAIN))
        return cls(given, probability, reason, answered)

    def __len__(self) -> int:
        return len(self.answered)

    def __iter__(self) -> Iterator[Answer]:
        return (self[query] for query in range(len(self)))

    @overload
    def __getitem__(self, query: int) -> Answer: ...

    @overload
    def __getitem__(self, query: slice | list[int] | np.ndarray[Any, Any]) -> Answers: ...

    def __getitem__(self, query: Any) -> Answer | Answers:
        """Answer to one query; the answers to some: of a slice, of rows, or of a mask."""
        if isinstance(query, str):
            raise CallError(f"answers[{query!r}]: pass the row of a query, or read answers.label.")
        if isinstance(query, slice) or np.ndim(query):
            some = query if isinstance(query, slice) else np.asarray(query)
            if not isinstance(some, slice) and not some.size and some.dtype != bool:
                some = some.astype(np.intp)  # an empty list is of floats
            return replace(
                self,
                label=self.label[some],
                probability=self.probability[some],
                reason=self.reason[some],
                answered=self.answered[some],
                query_ids=None if self.query_ids is None else self.query_ids[some],
                level=None if self.level is None else self.level[some],
            )
        level = None if self.level is None else self.level[query]
        return Answer(
            self.label[query],
            float(self.probability[query]),
            str(self.reason[query]),
            None if level is None else int(level),
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with the columns label, probability, reason and answered.

        Ids of queries, where they have any, come first; levels, of a rule with coarser answers,
        stand last.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        ids = {} if self.query_ids is None else {"query": self.query_ids}
        levels = {} if self.level is None else {"level": self.level}
        return as_pandas(
            ids
            | {
                "label": self.label,
                "probability": self.probability,
                "reason": self.reason,
                "answered": self.answered,
            }
            | levels
        )

    def _sentence(self) -> str:
        answered, strange = int(self.answered.sum()), int((self.reason == UNFAMILIAR).sum())
        rest = f"{strange:,} are unfamiliar, {len(self) - answered - strange:,} uncertain"
        by = ""
        if self.level is not None and answered:
            levels = self.level[self.answered].astype(int)
            counts = [f"{int((levels == at).sum()):,} at level {at}" for at in np.unique(levels)]
            by = f" ({', '.join(counts)})"
        return f"{answered:,} of {len(self):,} queries are answered{by}; {rest}."

    def _shown_rows(self) -> Rows:
        rows = [] if self.among is None else [("among", str(self.among))]
        for query in range(min(len(self), SOME)):
            label, probability, reason = answer = self[query]
            told = reason or ("answered" if label is None else label)
            name = f"query {query}" if self.query_ids is None else str(self.query_ids[query])
            by = f", level {answer.level}" if answer.level else ""
            rows.append((name, f"{told}, {probability:.2f}{by}"))
        return rows
