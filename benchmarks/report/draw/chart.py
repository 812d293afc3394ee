"""What the page is given: charts with a title and a sentence that says how to read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Chart:
    """A picture; its legend is pairs of a sample and a name.

    ``columns`` sets a long legend in columns.
    """

    title: str
    svg: Markup
    legend: list[tuple[Markup, str]] = field(default_factory=list)
    columns: bool = False
    how: str = ""
    good: str = ""


@dataclass(frozen=True)
class Block:
    """Charts that answer one question."""

    title: str
    charts: list[Chart]
