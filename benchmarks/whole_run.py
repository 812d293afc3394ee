"""Every number of every page: ``python -m benchmarks all --size small --data DIR``.

Prints the plan: each piece, its records, how long it takes and whether they are of the present
code. Runs what is missing or stale, several pieces at once and each on one thread; pieces that
measure times run last, one after the other. Interrupted, the same command goes on. Afterwards the
records of the comparison are collected, and the tables, the figures and the report are written.

``--size smoke`` needs no data: the comparison on scikit-learn's digits, its table and its verdict.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.confirmation import is_confirmed
from benchmarks.definitions import COMPARISON, definitions, library
from benchmarks.methods import METHODS
from benchmarks.methods.code import code_of
from benchmarks.packages import EXTRAS, modules_of, require_packages
from benchmarks.protocols import PROTOCOLS
from benchmarks.records import RESULTS, note_seconds, read_record, spent, work_folder
from benchmarks.report import verdict
from laplace_metric.errors import InputError, UnknownNameError

CURRENT, CONFIRMED, MISSING = "current", "confirmed", "missing"
UP_TO_DATE = (CURRENT, CONFIRMED)
"""States of records of the present library; ``confirm`` says so of those that another one made."""
STALE, OTHER_LIBRARY = "stale: definitions changed", "stale: other library code"
METHODS_DIFFER = "stale: methods added or changed"
STATES = (MISSING, STALE, METHODS_DIFFER, OTHER_LIBRARY, CONFIRMED)
FIXED = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg",
    "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "FAISS_OPT_LEVEL": "avx2", "LAPLACE_METRIC_FIXED": "1",
}  # fmt: skip
"""One thread and the same kernels on every x86 processor of the last ten years."""

RIVALS = {
    "mapie": "mapie",
    "laplace": "--no-deps laplace-torch asdfghjkl opt_einsum",
    "curvlinops": "--no-deps curvlinops-for-pytorch einconv linear_operator",
    "cleanlab": "--no-deps cleanlab termcolor",
    "crepes": "crepes",
}
"""Module of a rival -> what ``pip install`` takes."""


@dataclass(frozen=True)
class WholePiece:
    """One process of the run.

    Parameters
    ----------
    name : str
    words : str
        Its command, after ``python -m benchmarks``.
    module : str
        Whose code defines its numbers.
    records : tuple of str
        Names of its records in ``results``; of the comparison, names of protocols in ``small``.
    minutes : float
        Estimate for one core, from recorded seconds; the record's own seconds replace it.
    tasks : tuple of str
        Those of the comparison; (): not of the comparison.
    timed : bool
        Whether it measures times, and so runs alone and with the processor's own kernels.
    needs : tuple of str
        Modules of its rivals: without one its record would lack their columns.
    """

    name: str
    words: str
    module: str
    records: tuple[str, ...]
    minutes: float
    tasks: tuple[str, ...] = ()
    timed: bool = False
    needs: tuple[str, ...] = ()

    @property
    def extras(self) -> tuple[str, ...]:
        """Extras of pyproject.toml without which it fails."""
        if self.module.startswith("benchmarks.costs"):
            return tuple(extra for extra in ("export", "serve") if self.name == f"costs-{extra}")
        return () if self.module.startswith("benchmarks.recovery") else ("benchmarks", "pretrained")

    def lacks(self) -> list[str]:
        """Return what must be installed before it can run."""
        return [RIVALS[module] for module in self.needs if find_spec(module) is None]

    def state(self) -> str:
        """Return whether the records are of the present code."""
        found = [self.state_of(name) for name in self.records]
        return next((one for one in STATES if one in found), CURRENT)

    def state_of(self, name: str) -> str:
        """Return whether one of the records is of the present code."""
        folder = RESULTS / "small" if self.tasks else RESULTS
        if not (folder / f"{name}.json").is_file():
            return MISSING
        record = read_record(name, folder)
        if self.tasks and not any(row["task"] in self.tasks for row in record["rows"]):
            return MISSING
        code = record["environment"]
        if code.get("definitions") != definitions(self.module):
            return STALE
        if self._lacks_methods(name, record):
            return METHODS_DIFFER
        if code.get("library") == library(self.module):
            return CURRENT
        return CONFIRMED if is_confirmed(record, self.module) else OTHER_LIBRARY

    def _lacks_methods(self, protocol: str, record: dict[str, Any]) -> bool:
        """Return whether a method that is wanted has no measurement by its present code."""
        if not self.tasks:
            return False
        there = {(row["task"], row["method"]): row.get("code") for row in record["rows"]}
        asked = PROTOCOLS[protocol]
        return any(
            there.get((task, method)) != code_of(method)
            for task in {*asked.tasks["small"], *asked.if_there}.intersection(self.tasks)
            for method in METHODS
            if asked.wants(task, method)
        )

    def estimate(self) -> float:
        """Return minutes on one core."""
        if self.tasks or self.state() not in UP_TO_DATE:
            return self.minutes
        seconds = [read_record(name)["environment"].get("seconds", 0) for name in self.records]
        return sum(seconds) / 60 or self.minutes


def _compare(name: str, protocols: str, tasks: str, minutes: float) -> WholePiece:
    words = f"{protocols} --size small --quiet --tasks {tasks}"
    return WholePiece(
        name, words, COMPARISON, tuple(protocols.split()), minutes, tuple(tasks.split())
    )


def _piece(
    name: str,
    command: str,
    module: str,
    minutes: float,
    record: str = "",
    timed: bool = False,
    needs: tuple[str, ...] = (),
) -> WholePiece:
    alone, place = name == command, f"benchmarks.{module}"
    words = command if command == "papers" else f"{command} --pieces {name}"
    title = name if alone else f"{command}-{name}"
    return WholePiece(title, words, place, (record or name,), minutes, (), timed, needs)


PIECES = (
    _compare("compare-birds", "lam url", "cub", 45),
    _compare("compare-people", "human corruption", "cifar10h-soft cifar10", 50),
    _compare("compare-unseen", "url", "cifar10-unseen", 40),
    _compare("compare-fashion", "lam", "fashion-mnist", 40),
    _compare("compare-pretrained", "pretrained",
             "pretrained-cub-unseen pretrained-cifar10 pretrained-text", 40),
    _piece("evidence", "retrieval", "retrieval.evidence", 13),
    _piece("confirm", "retrieval", "retrieval.evidence", 8),
    _piece("ablation", "posterior", "posterior.ablation", 15, "posterior"),
    _piece("variance", "posterior", "posterior.variance", 13),
    _piece("frozen", "posterior", "posterior.frozen", 5),
    _piece("layers", "posterior", "posterior.layers", 10),
    _piece("discount", "posterior", "posterior.discount", 1),
    _piece("rivals", "posterior", "posterior.rivals", 1),
    _piece("miners", "posterior", "posterior.miners", 5),
    _piece("fitted", "retrieval", "retrieval.guarantees", 57),
    _piece("guarantees", "retrieval", "retrieval.guarantees", 3),
    _piece("power", "retrieval", "retrieval.power", 3, needs=("mapie",)),
    _piece("growing", "retrieval", "retrieval.growing", 4),
    _piece("twenty", "retrieval", "retrieval.twenty", 2),
    _piece("forty", "retrieval", "retrieval.forty", 8),
    _piece("tags", "retrieval", "retrieval.tags", 4),
    _piece("unfamiliar", "retrieval", "retrieval.unfamiliar", 3),
    _piece("recovery", "recovery", "recovery.runs", 58),
    _piece("levels", "recovery", "recovery.levels", 13),
    _piece("losses", "recovery", "recovery.losses", 8),
    _piece("online", "variants", "variants.online", 40),
    _piece("views", "variants", "variants.views", 12),
    _piece("people", "variants", "variants.people", 10),
    _piece("people-hib", "variants", "variants.people_hib", 6, "people_hib"),
    _piece("papers", "papers", "papers.measure", 1),
    _piece("transfer", "variants", "variants.transfer", 7),
    _piece("image-text", "image-text", "image_text.measure", 22, "image_text"),
    _piece("costs", "posterior", "posterior.costs", 3, "posterior_costs", timed=True),
    _piece("guard", "costs", "costs.guard", 4, timed=True),
    _piece("serve", "costs", "costs.serve", 6, timed=True),
    _piece("export", "costs", "costs.export", 3, timed=True),
    _piece("limits", "costs", "costs.limits", 4, timed=True),
    _piece("aims", "costs", "costs.aims", 4, timed=True),
    _piece("peers", "costs", "costs.peers", 2, timed=True, needs=("laplace", "curvlinops")),
    _piece("beside", "costs", "costs.beside", 4, timed=True, needs=("cleanlab", "crepes", "mapie")),
    _piece("points", "costs", "costs.points", 3, timed=True),
)  # fmt: skip
"""Every piece, the most important first."""


def piece_of(record: str) -> WholePiece:
    """Return the piece of a record; of several, the first."""
    return next(piece for piece in PIECES if record in piece.records)


DRAWN = (
    "retrieval --pieces twenty-figure neighbours questions posterior-neighbours views-figure "
    "evaluation",
    "posterior --pieces draws",
    "image-text --pieces figures",
    "figures --size small",
)
"""What draws the figures afterwards."""


def run(options: Namespace) -> None:
    """Print the plan, run what is not current, and write the pages."""
    if options.size == "smoke":
        if options.plan or options.only:
            raise InputError("--plan and --only are for --size small: smoke is one run of minutes.")
        smoke = Namespace(protocols=verdict.PROTOCOLS, methods=None)
        require_packages(modules_of(smoke), "all --size smoke")
        return verdict.smoke(options)
    pieces = chosen(options.only)
    print(plan(pieces, options.processes), flush=True)
    if options.plan:
        return None
    if options.data is None and "LAPLACE_METRIC_DATA" not in os.environ:
        raise InputError("--data is not given: name the folder of the image sets.")
    todo = [piece for piece in pieces if piece.state() not in UP_TO_DATE]
    extras = {extra for piece in todo for extra in piece.extras}
    require_packages([m for extra in EXTRAS if extra in extras for m in EXTRAS[extra]], "the plan")
    logs = options.cache / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    failed = _together(todo, options, logs)
    written = _pages(options, logs)
    print(f"{len(todo) - len(failed)} of {len(todo)} pieces done; logs: {logs}")
    if failed or not written:
        raise InputError(f"{', '.join(failed) or 'the pages'} failed: see {logs}.")
    return None


def chosen(names: Sequence[str] | None) -> list[WholePiece]:
    """Return the pieces of these names, all by default.

    Raises
    ------
    UnknownNameError
        For a name that no piece has.
    """
    known = {piece.name: piece for piece in PIECES}
    for name in names or ():
        if name not in known:
            raise UnknownNameError("only", name, tuple(known))
    return [piece for piece in PIECES if not names or piece.name in names]


def plan(pieces: Sequence[WholePiece], processes: int) -> str:
    """Return a line for each piece, and the total of what is to be run."""
    lines = [f"{'piece':22} {'minutes':>7}  {'record':30} state"]
    total = 0.0
    for piece in pieces:
        state, minutes = piece.state(), piece.estimate()
        total += minutes * (state not in UP_TO_DATE)
        lacking = "; rivals are not installed" if state not in UP_TO_DATE and piece.lacks() else ""
        lines.append(
            f"{piece.name:22} {minutes:7.0f}  {', '.join(piece.records):30} {state}{lacking}"
        )
    alone = sum(p.estimate() for p in pieces if p.timed and p.state() not in UP_TO_DATE)
    wall = alone + (total - alone) / max(1, processes)
    lines.append(f"{'to be run':22} {total:7.0f}  about {wall / 60:.1f} h by {processes} processes")
    return "\n".join(lines)


def _together(todo: Sequence[WholePiece], options: Namespace, logs: Path) -> list[str]:
    """Run pieces, the timed ones last and alone; return the names of those that failed."""
    failed = []
    for some, workers in (
        ([piece for piece in todo if not piece.timed], options.processes),
        ([piece for piece in todo if piece.timed], 1),
    ):
        with ThreadPoolExecutor(max(1, workers)) as pool:
            try:
                codes = list(pool.map(lambda piece: _alone(piece, options, logs), some))
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
        failed += [piece.name for piece, code in zip(some, codes, strict=True) if code]
    return failed


def _alone(piece: WholePiece, options: Namespace, logs: Path) -> int:
    """Run one piece in a process of its own; its exit code."""
    if lacking := piece.lacks():
        wanted = " and ".join(f"pip install {package}" for package in lacking)
        print(f"{piece.name}: not run, for it compares with other packages: {wanted}", flush=True)
        return 1
    words = [*piece.words.split(), "--cache", str(options.cache)]
    if "recovery" not in words:
        words += ["--data", options.data] if options.data else []
    own = {"MPLBACKEND": "Agg", "LAPLACE_METRIC_FIXED": ""}
    environment = {**os.environ, **(own if piece.timed else FIXED)}
    _mark(options.cache, piece).unlink(missing_ok=True)
    start = time.perf_counter()
    with (logs / f"{piece.name}.txt").open("a") as log:
        code = subprocess.run([sys.executable, "-m", "benchmarks", *words], stdout=log,
                              stderr=subprocess.STDOUT, env=environment).returncode  # fmt: skip
    took = time.perf_counter() - start
    seconds = spent(work_folder(options.cache, piece.module), piece.name, took)
    if not code:
        _mark(options.cache, piece).touch()
        for name in () if piece.tasks else piece.records:
            note_seconds(name, seconds, RESULTS)
    print(f"{piece.name}: {'failed' if code else 'done'} after {took / 60:.1f} min", flush=True)
    return code


def _mark(cache: Path, piece: WholePiece) -> Path:
    return work_folder(cache, piece.module) / f"{piece.name} is done"


def compared(cache: Path) -> list[str]:
    """Return the protocols of which the cache has every piece, by the present code."""
    left = {p for piece in PIECES if not _mark(cache, piece).is_file() for p in piece.records}
    return [name for name in PROTOCOLS if name not in left]


def _pages(options: Namespace, logs: Path) -> bool:
    """Collect what is whole of the comparison; write tables, figures and the report."""
    data = ["--data", options.data] if options.data else []
    report = ["report", "--size", "small", "--cache", str(options.cache), "--out", str(options.out)]
    whole = compared(options.cache)
    commands = [[*report, *(["--protocols", *whole] if whole else ["--from-json"])]]
    for drawn in DRAWN:
        needs = [] if drawn.startswith("figures") else ["--cache", str(options.cache), *data]
        commands.append([*drawn.split(), *needs])
    commands.append(["tables"])
    environment = {**os.environ, **FIXED}
    done = True
    with (logs / "pages.txt").open("a") as log:
        for words in commands:
            command = [sys.executable, "-m", "benchmarks", *words]
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT,
                                  env=environment).returncode  # fmt: skip
            done = done and not code
    return done
