"""The command line: ``laplace-metric demo``. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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
        print("laplace-metric: interrupted, nothing was written", file=sys.stderr)
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
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_demo_options(demo)
    return parser


def _add_demo_options(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--dataset", choices=tuple(RECIPES), default=DEFAULT, help="what to embed")
    demo.add_argument(
        "--data",
        metavar="DIR",
        help="folder of the image sets, for all but digits; else $LAPLACE_METRIC_DATA",
    )
    demo.add_argument(
        "--output", type=Path, default=Path("report.html"), metavar="FILE", help="the report"
    )
    demo.add_argument(
        "--json", type=Path, metavar="FILE", help="the numbers; else next to the report"
    )
    demo.add_argument(
        "--figure", type=Path, metavar="FILE", help="also save an overview (.png, .svg or .pdf)"
    )
    demo.add_argument(
        "--epochs", type=_positive, metavar="N", help="of training; else the set's own"
    )
    demo.add_argument(
        "--limit",
        type=_positive,
        metavar="N",
        help="at most so many images to train on, and in each evaluated set",
    )
    demo.add_argument(
        "--seeds", type=_positive, metavar="N", help="networks to train; else the set's own number"
    )
    demo.add_argument("--seed", type=_natural, default=0, metavar="N", help="of the first network")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} must be at least 0")
    return value
