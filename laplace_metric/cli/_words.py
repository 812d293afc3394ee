"""Words of the command line: its name, how help is asked for, and the nearest known word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PROGRAM = "laplace-metric"
HELP = {"-h", "--help"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known names; empty if none is near.

    Parameters
    ----------
    name : str
        Word that is not known.
    known : names
        Words that are known.

    Examples
    --------
    >>> did_you_mean("serch", ["fit", "search"]), did_you_mean("x", ["fit"])
    (" Did you mean 'search'?", '')
    """
    near = get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
