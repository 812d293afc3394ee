"""What a report says, apart from how it looks."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.datasets import ImageSet
from laplace_metric.evaluation_protocol import MethodResult


@dataclass(frozen=True)
class Section:
    """Methods compared on one set of queries.

    Parameters
    ----------
    title, intro : str
    results : dict of method name to tuple of MethodResult
        The same queries and strange sets for all; one result for each seed. Figures show the
        first, tables the mean over all.
    images : ImageSet
        The queries, row by row as they were evaluated.
    """

    title: str
    intro: str
    results: dict[str, tuple[MethodResult, ...]]
    images: ImageSet

    @property
    def first(self) -> dict[str, MethodResult]:
        """The first seed's results."""
        return {name: results[0] for name, results in self.results.items()}


@dataclass(frozen=True)
class Report:
    """A whole report.

    Parameters
    ----------
    title, lead : str
    facts : dict of str to str
        How the numbers came about, shown at the end.
    sections : tuple of Section
    spread : str
        What stands under the numbers of the tables.
    highlight : str
        The method whose most and least certain queries are shown.
    """

    title: str
    lead: str
    facts: dict[str, str]
    sections: tuple[Section, ...]
    spread: str
    highlight: str
