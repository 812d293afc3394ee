"""An option of a parser, from one line of text."""

from __future__ import annotations

import math
import re
from argparse import Action
from typing import Any

from laplace_metric.cli._option_values import reader_of

LINE = re.compile(
    r"(?P<name>[\w-]+)( (?P<value>[\w|]+)(?P<mark>[!*]?)(>=(?P<least>\d+))?(<=(?P<most>\d+))?)?"
    r"( as (?P<key>\w+))?( = (?P<default>\S+?))?(: (?P<help>.*))?"
)


def add_option(place: Any, line: str) -> Action:
    """Add an option to a parser: ``--name VALUE>=least<=most as key = default: help``.

    ``VALUE`` decides what is read, see ``reader_of``; ``a|b`` are choices. ``VALUE!`` is needed,
    ``VALUE*`` may be repeated. A name without dashes is an argument by its place; a name is enough.

    Examples
    --------
    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> option = add_option(parser, "--seed N>=0 = 3: of the holdout")
    >>> option.dest, option.help, parser.parse_args([]), parser.parse_args(["--seed", "7"])
    ('seed', 'of the holdout; default: 3', Namespace(seed=3), Namespace(seed=7))
    """
    found = LINE.fullmatch(line)
    assert found is not None, line
    name, value, default = found["name"], found["value"] or "", found["default"]
    text, needed = found["help"] or "", found["mark"] == "!"
    if default is not None and "default" not in text:
        text = f"{text}; default: {default}".removeprefix("; ")
    how: dict[str, Any] = {"help": text.replace("%", "%%"), "default": default}
    if value:
        how["type"] = reader_of(value, int(found["least"] or 1), float(found["most"] or math.inf))
        how["metavar"] = value
    if "|" in value:
        how["metavar"], how["choices"] = None, [how["type"](word) for word in value.split("|")]
    if name.startswith("-"):
        how |= {"dest": found["key"] or name.lstrip("-").replace("-", "_"), "required": needed}
    elif not needed:
        how["nargs"] = "?"
    if found["mark"] == "*":
        how |= {"action": "append", "default": []}
    elif not value:
        how |= {"action": "store_true", "default": False}
    action: Action = place.add_argument(name, **how)
    return action
