"""Every benchmark by its name: ``python -m benchmarks NAME [options]``.

A command has one or more pieces, each a module with a function ``run(options)``. Several pieces
run one after the other, each in a process of its own, so that times and peaks are its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.definitions import definitions, library
from benchmarks.methods import METHODS
from benchmarks.packages import EXTRA_OF, modules_of, modules_of_pieces, require_packages
from benchmarks.protocols import PROTOCOLS
from benchmarks.records import CODE_OF_PIECE, work_folder
from benchmarks.sizes import SIZES
from benchmarks.tasks import TASKS
from laplace_metric.errors import LaplaceMetricError

Options = argparse.Namespace


class Command(NamedTuple):
    """One line of the table.

    Parameters
    ----------
    about : str
    pieces : mapping of a name to its module, or to ``module:function``; default: ``run``
    options : names in ``OPTIONS``
    sizes : names; the first one is the default
    data : pieces that are left out where there is no data folder
    of_size : pieces of a size, where these are not all; a piece of one size alone is not of others
    """

    about: str
    pieces: Mapping[str, str]
    options: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    of_size: Mapping[str, tuple[str, ...]] = {}


def device(name: str) -> torch.device:
    """A device of this machine.

    Raises
    ------
    argparse.ArgumentTypeError
        If torch cannot use it.
    """
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(
            f"{name!r} is no device that torch can use here"
        ) from error


def home_path(text: str) -> Path:
    """A path, with the home of a user for ``~``."""
    return Path(text).expanduser()


def _modules(room: str, *names: str, **places: str) -> dict[str, str]:
    pieces = {**{name: name for name in names}, **places}
    return {name: f"benchmarks.{room}.{place}" for name, place in pieces.items()}


def load_piece(place: str) -> Callable[[Options], None]:
    """What a piece runs."""
    module, _, function = place.partition(":")
    piece: Callable[[Options], None] = getattr(import_module(module), function or "run")
    return piece


OPTIONS: dict[str, dict[str, Any]] = {
    "data": {
        "type": os.path.expanduser,
        "help": "folder of the image sets (or LAPLACE_METRIC_DATA)",
    },
    "cache": {"type": home_path, "default": Path("benchmark-cache"), "help": "finished work"},
    "output": {"type": home_path, "help": "folder of the JSON and the figures"},
    "quiet": {"action": "store_true", "help": "no progress bars"},
    "download": {"action": "store_true", "help": "fetch image sets that are missing"},
    "device": {"type": device, "default": torch.device("cpu"), "help": "cpu, cuda or cuda:0"},
    "tasks": {"nargs": "+", "choices": TASKS, "metavar": "TASK"},
    "methods": {"nargs": "+", "choices": tuple(METHODS), "metavar": "METHOD"},
    "n": {"type": int, "nargs": "+", "metavar": "N", "help": "points or items, not those of SIZE"},
    "seeds": {"type": int, "nargs": "+", "metavar": "SEED"},
    "runs": {"nargs": "+", "help": "only those whose name holds one of these"},
    "problems": {"nargs": "+", "help": "some of those that are measured"},
    "splits": {"type": int, "default": 20, "help": "random splits of the queries"},
    "queries": {"type": int, "default": 6_000, "help": "of each problem, at most"},
    "plan": {"action": "store_true", "help": "print what would be run, and end"},
    "only": {"nargs": "+", "metavar": "PIECE", "help": "these pieces of the plan"},
    "processes": {"type": int, "default": os.cpu_count() or 1, "help": "pieces at once"},
    "out": {"type": home_path, "default": Path("report.html"), "help": "the page"},
    "json": {"type": home_path, "metavar": "FOLDER", "help": "default: benchmarks/results/<size>"},
    "protocols": {"nargs": "+", "choices": tuple(PROTOCOLS), "help": "those to collect"},
    "names": {"nargs": "*", "metavar": "NAME", "help": "records or pieces; default: all"},
    "dry-run": {"action": "store_true", "help": "print what would be run, and end"},
    "from-json": {"action": "store_true", "help": "only the page, from FOLDER"},
}
COMMANDS = {
    "all": Command("every number of every page: what is missing or stale is run, and resumed",
                   {"all": "benchmarks.whole_run"},
                   ("data", "cache", "plan", "only", "processes", "out"), ("small", "smoke")),
    "confirm": Command("run a portion of each record again; if equal, it is of this library",
                       {"confirm": "benchmarks.confirm.command"},
                       ("names", "data", "cache", "dry-run", "quiet")),
    "report": Command("collect finished runs into one JSON a protocol, and make one page of them",
                      {"report": "benchmarks.report.collect"},
                      ("cache", "out", "json", "from-json", "protocols"), tuple(SIZES)),
    "figures": Command("PNG figures of the collected JSON",
                       {"figures": "benchmarks.page_figures"},
                       ("json", "output"), tuple(SIZES)),
    "tables": Command("write the tables of the pages from the committed JSON",
                      {"tables": "benchmarks.tables"}),
    "encode": Command("encode the image sets and texts once",
                      {"encode": "benchmarks.encoders.features"}, ("data", "cache")),
    "recovery": Command("recover known posteriors: the controlled experiment",
                        _modules("recovery", "levels", "losses", recovery="runs"),
                        ("cache", "runs", "seeds", "quiet"), ("small", "smoke", "paper")),
    "costs": Command("what the library costs: fits, queries, guards, the server, exports",
                     _modules("costs", "aims", "limits", "peers", "beside", "points", "guard",
                              "serve", "export", **{"on-device": "on_device"}),
                     ("data", "cache", "output", "device", "n", "problems"),
                     ("full", "gpu", "smoke"),
                     data=("beside", "guard", "serve", "export"),
                     of_size={"gpu": ("on-device",), "smoke": ("on-device", "points")}),
    "posterior": Command("what the curvature of a head adds to search, and is its variance true",
                         _modules("posterior", "ablation", "variance", "frozen", "layers",
                                  "costs", "draws", "discount", "rivals", "miners"),
                         ("data", "output", "cache"), ("full", "smoke"),
                         data=("ablation", "variance", "frozen", "layers", "costs", "draws",
                               "miners"),
                         of_size={"smoke": ("ablation", "variance")}),
    "retrieval": Command("is the nearest item right: evidence, rivals and guarantees",
                         _modules("retrieval", "evidence", "guarantees", "power", "growing",
                                  "twenty", "forty", "tags", "unfamiliar",
                                  confirm="evidence:confirm",
                                  fitted="guarantees:run_fitted",
                                  **{"twenty-figure": "twenty:run_figure"},
                                  neighbours="pictures:run_neighbours",
                                  **{"posterior-neighbours": "pictures:run_posterior"},
                                  questions="pictures:run_questions",
                                  **{"views-figure": "views_picture"},
                                  evaluation="evaluation_picture"),
                         ("data", "cache", "output", "problems", "splits", "queries"),
                         ("full", "smoke")),
    "image-text": Command("heads with and without variances on emoji and their keywords",
                          _modules("image_text", "figures", **{"image-text": "measure"}),
                          ("data", "cache", "output", "seeds"), ("small", "smoke")),
    "papers": Command("what papers print, ours, and a verdict: reproduced or contradicted",
                      {"papers": "benchmarks.papers.measure"}, ("data", "cache", "output")),
    "variants": Command("online against post-hoc fits, and what papers report of views and people",
                        _modules("variants", "online", "views", "people", "transfer",
                                 **{"people-hib": "people_hib"}),
                        ("data", "cache", "seeds")),
}  # fmt: skip
"""Commands beside the protocols."""
RUN = Command("run protocols; what is finished is kept and not repeated",
              {"run": "benchmarks.protocols.runner"},
              ("data", "cache", "tasks", "methods", "device", "download", "quiet"),
              tuple(SIZES))  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and say in a line what the user can mend."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    name = words[0] if words and words[0] in COMMANDS else None
    options = parser(name).parse_args(words[1:] if name else words)
    try:
        try:
            return execute(name, options)
        except ModuleNotFoundError as error:
            require_packages(EXTRA_OF.keys() & {error.name}, f"this run of {name or 'protocols'}")
            raise
    except LaplaceMetricError as error:
        print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished runs are kept, the same command goes on from here.")
        return 130


def execute(name: str | None, options: Options) -> int:
    """One piece here, several in processes of their own until one fails; the exit code."""
    if name is None:
        require_packages(modules_of(options), " ".join(options.protocols))
        run_piece(RUN.pieces["run"], options)
        return 0
    pieces = chosen(COMMANDS[name], options)
    modules = {COMMANDS[name].pieces[piece].partition(":")[0] for piece in pieces}
    needed = modules_of_pieces(one for one in modules if not one.startswith(WITHOUT_WORK))
    require_packages(needed, f"this run of {name}")
    if len(pieces) == 1:
        run_piece(COMMANDS[name].pieces[pieces[0]], options)
        return 0
    for piece in pieces:
        print(f"{piece} ...", flush=True)
        words = [name, "--pieces", piece, *repeated(COMMANDS[name], options)]
        if code := subprocess.run([sys.executable, "-m", "benchmarks", *words]).returncode:
            return code
    return 0


def run_piece(place: str, options: Options) -> None:
    """Run a piece in the folder of its code's work, and note its hashes in what it writes."""
    module = place.partition(":")[0]
    if "cache" in options and not module.startswith(WITHOUT_WORK):
        CODE_OF_PIECE.update(definitions=definitions(module), library=library(module))
        options.cache = work_folder(options.cache, module)
    fix_kernels()
    load_piece(place)(options)


def fix_kernels() -> None:
    """Use one thread and kernels that repeat themselves, if the environment asks for it."""
    if os.environ.get("LAPLACE_METRIC_FIXED"):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


WITHOUT_WORK = (
    "benchmarks.report", "benchmarks.encoders", "benchmarks.whole_run", "benchmarks.confirm",
)  # fmt: skip
"""Commands that read or share the work of others."""


def chosen(command: Command, options: Options) -> list[str]:
    """The pieces that were asked for, else all that can run."""
    if len(command.pieces) == 1:
        return list(command.pieces)
    if options.pieces is not None:
        return list(options.pieces)
    if (size := getattr(options, "size", "")) in command.of_size:
        return list(command.of_size[size])
    elsewhere = {name for names in command.of_size.values() for name in names}
    has_data = "data" in options and (options.data or os.environ.get("LAPLACE_METRIC_DATA"))
    return [
        name
        for name in command.pieces
        if name not in elsewhere and (has_data or name not in command.data)
    ]


def repeated(command: Command, options: Options) -> list[str]:
    """The options as words, but for those that have their defaults.

    Examples
    --------
    >>> repeated(COMMANDS["variants"], parser("variants").parse_args(["--seeds", "5", "6"]))
    ['--seeds', '5', '6']
    """
    words = ["--size", options.size] if command.sizes else []
    for name in command.options:
        value, usual = getattr(options, name.replace("-", "_")), OPTIONS[name].get("default")
        if value == usual or value is None or value is False:
            continue
        values = value if isinstance(value, list) else [value]
        listed = OPTIONS[name].get("nargs") == "*"
        words += [] if listed else [f"--{name}"]
        words += [] if value is True else map(str, values)
    return words


def parser(name: str | None = None) -> argparse.ArgumentParser:
    """The options of a command, or of the protocols."""
    command = RUN if name is None else COMMANDS[name]
    made = argparse.ArgumentParser(
        prog=" ".join(["python -m benchmarks", *([name] if name else [])]),
        description=f"{command.about[0].upper()}{command.about[1:]}.",
    )
    if name is None:
        names = ", ".join(PROTOCOLS)
        made.add_argument("protocols", nargs="+", choices=PROTOCOLS, metavar="PROTOCOL", help=names)
        others = "; ".join(f"`{key}`: {one.about}" for key, one in COMMANDS.items())
        made.epilog = f"Other commands, each with its own --help: {others}."
    if len(command.pieces) > 1:
        made.add_argument("--pieces", nargs="+", choices=tuple(command.pieces))
    if command.sizes:
        made.add_argument("--size", choices=command.sizes, default=command.sizes[0])
    for option in command.options:
        listed = OPTIONS[option].get("nargs") == "*"
        made.add_argument(option if listed else f"--{option}", **OPTIONS[option])
    return made
