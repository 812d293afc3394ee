"""What the library costs: every measurement of this folder, each in a process of its own.

    python -m benchmarks speed [--data DIR --cache DIR] [--laplace-python PYTHON]

Without data, those that need none. Each writes its JSON into ``benchmarks/results``; peers run in
environments of their own (``costs/peers/README.md``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

ALONE = ("speed", "vmf_speed", "jacobians")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them one after the other; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks speed", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--cache", help="encoded images and trained heads")
    parser.add_argument("--laplace-python", help="Python of an environment with laplace-torch")
    for module, words in commands(parser.parse_args(arguments)):
        print(f"{module} ...", flush=True)
        code = subprocess.run(
            [sys.executable, "-m", f"benchmarks.costs.{module}", *words]
        ).returncode
        if code:
            return code
    return 0


def commands(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """(module, its words) of everything that can run.

    Examples
    --------
    >>> none = argparse.Namespace(data=None, cache=None, laplace_python=None)
    >>> [module for module, _ in commands(none)]
    ['speed', 'vmf_speed', 'jacobians']
    """
    found: list[tuple[str, list[str]]] = [(module, []) for module in ALONE]
    if options.cache is not None:
        words = ["--cache", options.cache, *(["--data", options.data] if options.data else [])]
        peer = ["--laplace-python", options.laplace_python] if options.laplace_python else []
        found += [("structures", words + peer), ("distances", words)]
    return found
