"""What a search promises: every piece of this folder, one after the other.

python -m benchmarks retrieval --data DIR --cache DIR [--pieces NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

PIECES = {
    "measure": ("data", "cache"),
    "cost": (),
    "drift": ("data", "cache"),
    "picture": (),
    "neighbours": ("data",),
}
"""Module -> the options that it takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks retrieval", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", help="folder of the image sets (or LAPLACE_METRIC_DATA)")
    parser.add_argument("--cache", default="benchmark-cache", help="where features are kept")
    parser.add_argument("--pieces", nargs="+", choices=PIECES, default=list(PIECES))
    for module, words in commands(parser.parse_args(arguments)):
        print(f"{module} ...", flush=True)
        command = [sys.executable, "-m", f"benchmarks.retrieval.{module}", *words]
        if code := subprocess.run(command).returncode:
            return code
    return 0


def commands(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """(module, its words) of every piece that was asked for.

    Examples
    --------
    >>> commands(argparse.Namespace(data=None, cache="c", pieces=["cost", "drift"]))
    [('cost', []), ('drift', ['--cache', 'c'])]
    """
    found = []
    for name in options.pieces:
        given = {option: getattr(options, option) for option in PIECES[name]}
        told = {option: value for option, value in given.items() if value is not None}
        found.append((name, [word for o, value in told.items() for word in (f"--{o}", value)]))
    return found
