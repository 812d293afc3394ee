"""How the command line reads its arguments: one-line errors, numbers in their range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

MISUSE = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``least`` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    return _number(text, "number above 0", lambda value: 0 < value < math.inf)


def share(text: str) -> float:
    """A number between 0 and 1, neither of them."""
    return _number(text, "share between 0 and 1", lambda value: 0 < value < 1)


def _number(text: str, what: str, fine: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fine(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return value
