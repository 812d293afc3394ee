"""A table as GitHub shows it."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table, first column left and the others right."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def thousandths(value: float) -> str:
    """Three decimals, without the zero before the point.

    Examples
    --------
    >>> thousandths(0.5), thousandths(-0.25), thousandths(10.125)
    ('.500', '-.250', '10.125')
    """
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
