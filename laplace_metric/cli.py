"""The command line: ``laplace-metric demo``. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from laplace_metric.demo.recipes import DEFAULT, RECIPES

MISUSE, INTERRUPTED = 2, 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a user's mistake, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return _demo(options)
    except KeyboardInterrupt:
        print("laplace-metric: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not _is_users(error):
            raise
        print(f"laplace-metric: error: {error}", file=sys.stderr)
        return MISUSE


def _demo(options: argparse.Namespace) -> int:
    from laplace_metric.demo.command import demo

    demo(options)
    return 0


def _is_users(error: Exception) -> bool:
    from laplace_metric.errors import LaplaceMetricError

    return isinstance(error, (LaplaceMetricError, OSError))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="laplace-metric", description="Honest uncertainty for any embedder.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train a small embedder and compare three kinds of uncertainty",
        description="Train a small embedder, compare three kinds of uncertainty on it, and write "
        "a report. The default needs no download and takes well under a minute.",
    )
    _add_demo_options(demo)
    return parser


def _add_demo_options(demo: argparse.ArgumentParser) -> None:
    add = demo.add_argument
    add("--dataset", choices=tuple(RECIPES), default=DEFAULT, help=f"default: {DEFAULT}")
    add("--data", metavar="DIR", help="folder of the image sets; default: $LAPLACE_METRIC_DATA")
    add(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the report; default: report.html",
    )
    add("--json", type=Path, metavar="FILE", help="the numbers; default: next to the report")
    add("--figure", type=Path, metavar="FILE", help="also an overview, as .png, .svg or .pdf")
    add("--epochs", type=_whole(1), metavar="N", help="of training; default: set by the data set")
    add("--limit", type=_whole(2), metavar="N", help="most images to train on, and to evaluate")
    add("--seeds", type=_whole(1), metavar="N", help="networks to train; default: set as above")
    add("--seed", type=_whole(0), default=0, metavar="N", help="of the first network; default: 0")


def _whole(least: int) -> Callable[[str], int]:
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
