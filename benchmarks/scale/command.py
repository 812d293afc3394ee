"""How it scales: every piece of this folder, each in a process of its own, then the picture.

    python -m benchmarks scale [--budget smoke|full] [--pieces NAME ...] [--device cuda]

Each writes its part of ``results/scale.json``; a smoke run writes to ``benchmark-cache`` instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIECES = ("points", "processes", "margin", "gallery", "device", "picture")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them one after the other; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--budget", choices=("smoke", "full"), default="full")
    parser.add_argument("--output", type=Path, help="folder of the JSON")
    parser.add_argument("--pieces", nargs="+", choices=PIECES, default=PIECES)
    parser.add_argument("--device", help="of the piece `device`")
    for module, words in commands(parser.parse_args(arguments)):
        print(f"{module} ...", flush=True)
        command = [sys.executable, "-m", f"benchmarks.scale.{module}", *words]
        if code := subprocess.run(command).returncode:
            return code
    return 0


def commands(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """(module, its words) of every piece that was asked for.

    Examples
    --------
    >>> one = argparse.Namespace(budget="smoke", output=None, pieces=["device"], device="cuda")
    >>> commands(one)
    [('device', ['--budget', 'smoke', '--device', 'cuda'])]
    """
    output = [] if options.output is None else ["--output", str(options.output)]
    shared = ["--budget", options.budget, *output]
    device = [] if options.device is None else ["--device", options.device]
    return [(name, [*shared, *(device if name == "device" else [])]) for name in options.pieces]
