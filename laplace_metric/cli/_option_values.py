"""Values of options, read and checked: paths, shares, numbers and choices."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from laplace_metric.cli._words import did_you_mean

# Values of options.


_PATHS = ("DATA", "DIR", "FILE", "FOLDER", "INDEX", "PATH", "QUERIES", "RULE", "TABLE")
_SHARES = ("A", "C", "F", "P", "R", "S", "SHARE")


def reader_of(value: str, least: int = 1, most: float = math.inf) -> Callable[[str], Any]:
    """Return what reads the value of an option, which its name in the help decides."""
    if value in _PATHS:
        return _path
    if value in _SHARES:
        return _number(float, lambda x: 0 < x < 1, "share between 0 and 1, such as 0.9")
    if value in ("X", "MIB"):
        return _number(float, lambda x: 0 < x < math.inf, "number above 0")
    if value in ("N", "K"):
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,.0f}"
        return _number(int, lambda x: least <= x <= most, f"whole number {bounds}")
    if "|" in value:
        return partial(_choice, value.split("|"))
    return str


def _path(text: str) -> Path:
    """Return a path; ``~`` is the home of a user, as in a shell that does not see it in quotes."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: name a file or a folder")
    return Path(os.path.expanduser(text))  # of pathlib "./~" would be the home as well


def _choice(choices: list[str], text: str) -> str | int:
    if text not in choices:
        near = did_you_mean(text, choices)
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not one of {', '.join(choices)}.{near}")
    return int(text) if text.isdigit() else text


def _number(
    make: Callable[[str], float], fits: Callable[[float], bool], what: str
) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = make(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a {what}")
        return value

    return read
