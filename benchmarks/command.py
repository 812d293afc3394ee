"""The command line of the benchmarks: run protocols, or ``report`` on finished runs."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.costs import command as costs
from benchmarks.engine.runner import Job, Runner
from benchmarks.methods import METHODS
from benchmarks.protocols import PROTOCOLS
from benchmarks.recovery import command as recovery
from benchmarks.report import command as report
from benchmarks.retrieval import command as retrieval
from benchmarks.scale import command as scale
from benchmarks.sizes import SIZES
from benchmarks.tasks import TASKS, Workspace
from laplace_metric.errors import LaplaceMetricError, LaplaceMetricWarning

COMMANDS = {
    "report": report.main,
    "recovery": recovery.main,
    "speed": costs.main,
    "scale": scale.main,
    "retrieval": retrieval.main,
}
"""Commands that put no question to a fitted method."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and say in a line what the user can mend."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]](words[1:])
    options = parser().parse_args(words)
    warnings.simplefilter("ignore", LaplaceMetricWarning)  # clipped curvature and the like
    space = Workspace(
        options.data,
        options.cache,
        SIZES[options.size],
        options.device,
        options.download,
        not options.quiet,
    )
    runner = Runner(space)
    try:
        jobs = runner.jobs(PROTOCOLS[name] for name in options.protocols)
        runner.run(job for job in jobs if chosen(job, options))
    except LaplaceMetricError as error:
        print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished runs are kept, the same command goes on from here.")
        return 130
    return 0


def chosen(job: Job, options: argparse.Namespace) -> bool:
    """Whether a job is among those that were asked for."""
    return (options.methods is None or job.method in options.methods) and (
        options.tasks is None or job.task in options.tasks
    )


def device(name: str) -> torch.device:
    """A device of this machine."""
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(
            f"{name!r} is no device that torch can use here"
        ) from error


def parser() -> argparse.ArgumentParser:
    """Its options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run protocols; what is finished is kept and not repeated.",
        epilog="Other commands: `report` (JSON and a page of finished runs), `recovery` (the "
        "controlled experiment), `speed` (what the library costs), `scale` (how that grows with "
        "the number of points), `retrieval` (what a search promises and keeps); each "
        "has its own --help.",
    )
    names = ", ".join(PROTOCOLS)
    found.add_argument("protocols", nargs="+", choices=PROTOCOLS, metavar="PROTOCOL", help=names)
    found.add_argument("--size", choices=SIZES, default="smoke")
    found.add_argument("--data", help="folder of the image sets (or LAPLACE_METRIC_DATA)")
    found.add_argument("--cache", type=Path, default=Path("benchmark-cache"))
    found.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK")
    found.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    found.add_argument("--device", type=device, default="cpu", help="cpu, cuda or cuda:0")
    found.add_argument("--download", action="store_true", help="fetch image sets that are missing")
    found.add_argument("--quiet", action="store_true", help="no progress bars")
    return found
