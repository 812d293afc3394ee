"""``python -m benchmarks confirm [NAMES] [--dry-run]``: what is run, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.confirm.differences import TOLERANCE, differences
from benchmarks.confirm.own_library import extracted
from benchmarks.confirm.portions import PORTIONS, Portion
from benchmarks.confirmation import confirm_record
from benchmarks.imports import ROOT
from benchmarks.packages import EXTRAS, require_packages
from benchmarks.records import FIXED_VARIABLE, RESULTS, RESULTS_VARIABLE, read_record
from benchmarks.whole_run import (
    FIXED,
    OTHER_LIBRARY,
    PIECES,
    UP_TO_DATE,
    WholePiece,
    piece_of,
)
from laplace_metric.errors import InputError, UnknownNameError

OWN = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg", FIXED_VARIABLE: ""}
"""One thread, and the processor's own kernels, on which numbers of trained networks depend."""
SHOWN = 12
"""Numbers that moved, of each record, on the screen; the log has all."""
CONFIRMED, MOVED, FAILED = "confirmed", "moved", "failed"


class Asked(NamedTuple):
    """A record, its piece, and why it is not run; ``why`` is empty if it is."""

    name: str
    piece: WholePiece
    why: str

    @property
    def path(self) -> Path:
        """Its file."""
        return (RESULTS / "small" if self.piece.tasks else RESULTS) / f"{self.name}.json"

    @property
    def portion(self) -> Portion:
        """What is run again of it."""
        return PORTIONS[self.name]

    def read(self) -> dict[str, Any]:
        """Return the record as it stands."""
        return read_record(self.path.stem, self.path.parent)

    def seconds(self) -> float:
        """Return an estimate: its part of the recorded seconds, without encoding of images."""
        record = self.read()
        if self.piece.tasks:
            rows = self.portion.rows(record, record)
            parts = [part for row in rows for part in (*row["cost"].values(), row["measuring"])]
            return sum(p["wall_seconds"] for p in parts if isinstance(p, dict))
        whole = record["environment"].get("seconds") or 60 * self.piece.minutes
        return float(whole) * self.portion.share(record)


def asked(names: Sequence[str]) -> list[Asked]:
    """Return records by their names or those of their pieces; all that are not current by default.

    Raises
    ------
    UnknownNameError
        For a name that is neither.
    """
    everything = [(name, piece) for piece in PIECES for name in piece.records]
    known = {name for name, _ in everything} | {piece.name for piece in PIECES}
    for name in names:
        if name not in known:
            raise UnknownNameError("names", name, tuple(sorted(known)))
    chosen = {
        record: Asked(record, piece_of(record), why_not(record))
        for record, piece in everything
        if not names or {record, piece.name} & set(names)
    }
    return list(chosen.values())


def why_not(name: str) -> str:
    """Return why a record is not run again; nothing if it can be confirmed."""
    piece = piece_of(name)
    state = piece.state_of(name)
    if state in UP_TO_DATE:
        return f"{state}: nothing to do"
    if name not in PORTIONS:
        return "times: no run repeats them, run it"
    if state != OTHER_LIBRARY:
        return f"{state}: run it"
    record = read_record(name, RESULTS / "small" if piece.tasks else RESULTS)
    if (threads := record["environment"].get("threads")) != 1:
        return f"made on {threads} threads, on which its numbers depend: run it"
    if lacking := piece.lacks():
        return f"rivals are not installed: pip install {' '.join(lacking)}"
    return ""


def has_fixed_kernels(record: Mapping[str, Any]) -> bool:
    """Return whether a record was made by the same kernels on every x86 processor.

    Those that do not say so were, if the run of everything made them, which notes seconds.
    """
    facts = record["environment"]
    return bool(facts.get("fixed", "seconds" in facts))


def depends_on_the_processor(record: Mapping[str, Any]) -> bool:
    """Return whether another processor's kernels may have made a record, or it does not say."""
    return not record["environment"].get("fixed")


def plan(records: Sequence[Asked]) -> str:
    """Return a line for each record: estimated seconds, and what would be run or why not."""
    lines = [f"{'record':18} {'seconds':>7}  what is run again"]
    todo = [one for one in records if not one.why]
    for one in records:
        if one.why:
            lines.append(f"{one.name:18} {'':7}  nothing: {one.why}")
        else:
            lines.append(f"{one.name:18} {one.seconds():7.0f}  {one.portion.about(one.read())}")
    total = sum(one.seconds() for one in todo)
    lines.append(f"{'all':18} {total:7.0f}  {len(todo)} records, one after the other")
    return "\n".join(lines)


def run(options: Namespace) -> None:
    """Confirm record by record; exit with 1 if numbers moved or a run failed.

    Raises
    ------
    SystemExit
        So.
    """
    records = asked(options.names)
    print(plan(records), flush=True)
    if options.dry_run:
        return
    todo = [one for one in records if not one.why]
    needed = {extra for one in todo for extra in one.piece.extras}
    require_packages([m for extra in EXTRAS if extra in needed for m in EXTRAS[extra]], "confirm")
    logs = options.cache / "confirm"
    logs.mkdir(parents=True, exist_ok=True)
    ends: list[str] = []
    with tqdm(todo, desc="Confirming", disable=True if options.quiet else None) as bar:
        for one in bar:
            bar.set_postfix_str(one.name)
            end, said = confirmed(one, options, logs)
            ends.append(end)
            tqdm.write(said)
    print(", ".join(f"{ends.count(end)} {end}" for end in (CONFIRMED, MOVED, FAILED)))
    if ends.count(CONFIRMED) < len(ends):
        raise SystemExit(1)


def confirmed(one: Asked, options: Namespace, logs: Path) -> tuple[str, str]:
    """Run the portion of a record, compare, and write what was found; the end, and its words."""
    start, log = time.perf_counter(), logs / f"{one.name}.txt"
    record = one.read()
    again = made_again(one, options, log, ROOT)
    if again is None:
        return FAILED, f"{one.name}: failed, see {log}"
    found, beside = differences(one.portion, record, again), ""
    kernels: dict[str, Any] = {}
    if found.moved and depends_on_the_processor(record):
        earlier = by_its_library(one, record, options, log)
        if earlier is not None:
            moved, found = found, differences(one.portion, earlier, again)
            kernels = {"beside": "its own library, here", "kernels": rounded(moved.largest)}
            beside = f" to those of its own library here; kernels move it by {moved.largest:.1e}"
    took = f"{time.perf_counter() - start:.0f} s"
    if found.moved:
        with log.open("a") as text:
            print(*found.moved, sep="\n", file=text)
        shown = [f"  {line}" for line in found.moved[:SHOWN]]
        if (rest := len(found.moved) - SHOWN) > 0:
            shown.append(f"  and {rest} more: {log}")
        head = f"{one.name}: {len(found.moved)} of {found.numbers} numbers moved"
        head += f", by {found.largest:.1e} of one at most ({took})"
        if beside:
            head += "; its own library, run here, gives others"
        elif depends_on_the_processor(record):
            head += "; it was made by a processor's own kernels, and another one moves it, too"
        return MOVED, "\n".join([head, *shown])
    if not found.numbers:
        raise InputError(f"{one.name}: no number was compared, so that nothing is confirmed.")
    compared = {
        "portion": one.portion.about(record),
        "numbers": found.numbers,
        "largest difference": rounded(found.largest),
        "tolerance": TOLERANCE,
        **kernels,
    }
    confirm_record(one.path, one.piece.module, record, compared)
    largest = f"largest difference {found.largest:.1e}"
    return CONFIRMED, (
        f"{one.name}: confirmed, {found.numbers} numbers equal{beside}, {largest} ({took})"
    )


def rounded(difference: float) -> float:
    """Return two digits of a difference."""
    return float(f"{difference:.1e}")


def made_again(one: Asked, options: Namespace, log: Path, root: Path) -> dict[str, Any] | None:
    """Run the portion by the library in ``root``, and return its record; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        code = run_portion(one, options, Path(folder), log, root)
        made = Path(folder) / "results" / f"{one.name}.json"
        return None if code or not made.is_file() else read_record(made.stem, made.parent)


def by_its_library(
    one: Asked, record: Mapping[str, Any], options: Namespace, log: Path
) -> dict[str, Any] | None:
    """Run the portion here by the library of the record; None where that cannot be done."""
    with tempfile.TemporaryDirectory() as folder:
        root = extracted(record, Path(folder))
        if root is None:
            return None
        return made_again(one, options, log.with_suffix(".earlier.txt"), root)


def run_portion(one: Asked, options: Namespace, folder: Path, log: Path, root: Path) -> int:
    """Run the portion with an empty cache but for encodings of images and texts; its exit code.

    ``root`` has the library that runs it.
    """
    (folder / "work").mkdir()
    shared = options.cache.resolve() / "encoded"
    shared.mkdir(parents=True, exist_ok=True)
    (folder / "work" / "encoded").symlink_to(shared, target_is_directory=True)
    kernels = FIXED if has_fixed_kernels(one.read()) else OWN
    environment = {**os.environ, **kernels, RESULTS_VARIABLE: str(folder / "results")}
    words = ["-m", "benchmarks.confirm.again", one.name, str(folder / "work")]
    words += [str(Path(options.data).resolve())] if options.data else []
    with log.open("w") as text:
        return subprocess.run(
            [sys.executable, *words], stdout=text, stderr=subprocess.STDOUT, env=environment,
            check=False, cwd=root,
        ).returncode  # fmt: skip
