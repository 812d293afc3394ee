"""Tags of queries: those that are given, and what they turned out to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import SOME, Rows, Shown, in_rows
from laplace_metric._utils.tables import as_pandas
from laplace_metric.errors import InputError

if TYPE_CHECKING:
    import pandas

Tag = tuple[Any, float]


@dataclass(frozen=True, repr=False, eq=False)
class TagAnswers(Shown):
    """Tags of Q queries, as NumPy arrays. ``answers[3]`` is the list of the tags of one query.

    Parameters
    ----------
    tag : array [Q, M] of objects
        Candidates of each query, those of most neighbours first; None where there are fewer.
    probability : array [Q, M] of floats in [0, 1]
        Probability that the query has the tag; 0 where there is no candidate.
    given : array [Q, M] of booleans
        True for each tag that is given.
    possible : array [Q, M] of booleans, or None
        True for the candidates that keep a recall, if one was asked for, and for given tags: few of
        a query's tags are missing. None, the default: none was.

    Examples
    --------
    >>> tags = np.array([["red", "round"]], object)
    >>> answers = TagAnswers(tags, np.array([[0.97, 0.4]]), np.array([[True, False]]))
    >>> answers[0]
    [('red', 0.97)]
    """

    tag: npt.NDArray[Any]
    probability: npt.NDArray[np.float64]
    given: npt.NDArray[np.bool_]
    possible: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[list[Tag]]:
        return (self[query] for query in range(len(self)))

    def __getitem__(self, query: int) -> list[Tag]:
        """Tags that one query is given, each with its probability, the likeliest first.

        Raises
        ------
        InputError
            For anything but the number of a query: take rows of the arrays.
        """
        if isinstance(query, bool) or not isinstance(query, (int, np.integer)):
            raise InputError(f"answers[{query!r:.40}]: pass the number of a query, such as 3.")
        given = self.given[query]
        p = self.probability[query][given]
        order = np.argsort(-p, kind="stable")
        tags = self.tag[query][given][order].tolist()
        return list(zip(tags, p[order].tolist(), strict=True))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of candidates with the columns query, tag, probability, given, possible.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        query, place = np.nonzero(self.tag != None)  # noqa: E711 - of an array of objects
        columns: dict[str, Any] = {"query": query, "tag": self.tag[query, place]}
        columns["probability"] = self.probability[query, place]
        columns["given"] = self.given[query, place]
        if self.possible is not None:
            columns["possible"] = self.possible[query, place]
        return as_pandas(columns)

    def _sentence(self) -> str:
        some = int(self.given.any(1).sum())
        return f"{int(self.given.sum()):,} tags of {some:,} of {len(self):,} queries."

    def _shown_rows(self) -> Rows:
        rows = []
        for query in range(min(len(self), SOME)):
            told = ", ".join(f"{tag} {p:.2f}" for tag, p in self[query])
            rows.append((f"query {query}", told or "none"))
        return rows


@dataclass(frozen=True, repr=False)
class TagReport(Shown):
    """Counts of the tags that queries were given, and of those that are right.

    Parameters
    ----------
    queries : int
        Number of queries.
    tagged : int
        Number of queries that were given a tag or more.
    given, right : int
        Number of tags that were given, and of those that their queries have.
    tags : int
        Number of tags that the queries have.

    Examples
    --------
    >>> TagReport(100, 64, 144, 123, 297).precision.__round__(3)
    0.854
    """

    queries: int
    tagged: int
    given: int
    right: int
    tags: int

    @property
    def precision(self) -> float:
        """Share of the given tags that are right; NaN without any."""
        return self.right / self.given if self.given else float("nan")

    @property
    def recall(self) -> float:
        """Share of the queries' tags that were given; NaN without any."""
        return self.right / self.tags if self.tags else float("nan")

    def _sentence(self) -> str:
        return (
            f"{self.right:,} of {self.given:,} given tags are right ({self.precision:.1%}), of "
            f"{self.tags:,} tags that {self.queries:,} queries have."
        )

    def _shown_rows(self) -> Rows:
        if not self.queries:
            return []
        shown = {
            "queries with a tag": f"{self.tagged:,} ({self.tagged / self.queries:.1%})",
            "tags a query": f"{self.given / self.queries:.2f} given, "
            f"{self.tags / self.queries:.2f} true",
            "recall": f"{self.recall:.1%}",
        }
        return in_rows(shown.items())
