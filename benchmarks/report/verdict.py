"""What a comparison says, in sentences: who is best, and whether its data can tell.

``smoke`` runs the comparison on scikit-learn's digits and prints its table and its verdict.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

from benchmarks.records import read_record, thousandths
from benchmarks.report.cells import quality_table
from benchmarks.report.glossary import about
from benchmarks.report.reading import Part, Record, described, parts, summary
from benchmarks.report.three_numbers import MATCH
from laplace_metric.errors import LaplaceMetricError

OURS = "laplace"
SHOWN = ("recall@1", "r_auroc", "auroc photographs")
NAMED = 3
PROTOCOLS = ("lam", "url", "pretrained")
"""Comparisons of the smallest size."""


def sentences(part: Part) -> list[str]:
    """Return who is best by the main metric, who cannot be told from it, and where ours stands."""
    key = about(part.record["protocol"]).main
    compared = part.record["comparisons"].get(part.task, {}).get(key)
    if not compared:
        return []
    kind, best, leaders = described(key).name, compared["best"], compared["leaders"]
    seeds = len({row["seed"] for rows in part.methods.values() for row in rows})
    by = "one seed" if seeds == 1 else f"{seeds} seeds"
    said = [f"{part.task}: {quoted(best)} has the best {kind}."]
    others = [name for name in leaders if name != best]
    if others:
        some = ", ".join(map(quoted, others[:NAMED])) + (
            f" and {n} more" if (n := len(others) - NAMED) > 0 else ""
        )
        said.append(f"No, {by} cannot tell it from {some} (paired 95 % intervals).")
    else:
        said.append(f"Yes, {by} can tell it from every other method (paired 95 % intervals).")
    if best.startswith(OURS):
        return [*said, _best_rival(part, key, best)]
    apart = compared[f"{OURS} minus"].get(best)
    if apart and apart.get("low") is not None:
        ends = f"95 %: {apart['low']:+.3f} to {apart['high']:+.3f}"
        said.append(f"{quoted(OURS)} minus {quoted(best)}: {apart['difference']:+.3f} ({ends}).")
    return said


def _best_rival(part: Part, key: str, best: str) -> str:
    """Return what ``best``, one of ours, has, and the best method that is not."""
    means = {name: summary(rows, key).mean for name, rows in part.methods.items()}
    rivals = {n: x for n, x in means.items() if not n.startswith(OURS) and math.isfinite(x)}
    labels = "; it reads the labels of the gallery, too" if best == MATCH else ""
    said = f"It has {thousandths(means[best])}{labels}."
    if not rivals:
        return said
    sign = 1 if described(key).direction >= 0 else -1
    rival = max(rivals, key=lambda name: sign * rivals[name])
    return f"{said} The best rival, {quoted(rival)}, has {thousandths(rivals[rival])}."


def quoted(name: str) -> str:
    """Return a name in marks: some have commas."""
    return f"\u201c{name}\u201d"


def verdict(record: Record) -> list[str]:
    """Return the sentences of every task, a line each."""
    return [" ".join(said) for part in parts(record) if (said := sentences(part))]


def smoke(options: Namespace) -> None:
    """Run the comparison at its smallest size, print its table and verdict, and write the page."""
    print("Runs three comparisons on scikit-learn's digits: about three minutes.", flush=True)
    start, folder = time.perf_counter(), options.cache / "smoke-results"
    where = ["--size", "smoke", "--cache", str(options.cache)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    running = [
        subprocess.Popen([sys.executable, "-m", "benchmarks", *protocols, *where, "--quiet"],
                         env=environment)
        for protocols in (PROTOCOLS[:1], PROTOCOLS[1:])
    ]  # fmt: skip
    codes = [process.wait() for process in running]
    if any(codes):
        raise LaplaceMetricError("a comparison failed: see above.")
    words = ["report", *where, "--json", str(folder), "--out", str(options.out)]
    subprocess.run([sys.executable, "-m", "benchmarks", *words], env=environment, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    record = read_record("lam", folder)
    print("The task `digits`: 0 to 9, a small network; photographs are foreign.", end="\n\n")
    print(quality_table(record, "digits", SHOWN), end="\n\n")
    for name in PROTOCOLS:
        print(*verdict(read_record(name, folder)), sep="\n")
    took = time.perf_counter() - start
    print(f"{took:.0f} s; the page with every number and chart: {Path(options.out).resolve()}")
