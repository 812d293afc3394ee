"""The five tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tests.damage.damages import damage, share
from tests.damage.disks import fill
from tests.damage.kills import kill
from tests.damage.links import plant
from tests.damage.races import race
from tests.damage.writers import Writer, command_writers, python_writers

Row = dict[str, Any]
BAD = ("lost", "left", "wrong", "unnamed", "failed", "touched", "changed by reading")
"""Columns that must be 0."""


def markdown(tables: dict[str, list[Row]]) -> str:
    """A table a kind, with a sum below it."""
    lines = []
    for title, rows in tables.items():
        if not rows:
            continue
        names = list(rows[0])
        lines += ["", f"## {title}", "", "| " + " | ".join(names) + " |"]
        lines.append("|---|" + "---:|" * (len(names) - 1))
        total = {n: sum(row[n] for row in rows) for n in names[1:] if n != "steps"}
        for row in [*rows, {names[0]: "**all**", **total}]:
            lines.append("| " + " | ".join(str(row.get(name, "")) for name in names) + " |")
    return "\n".join(lines).strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="of each writer")
    parser.add_argument("--damages", type=int, default=0, help="of all saved values together")
    parser.add_argument("--disks", type=int, default=0, help="sizes of a full disk")
    parser.add_argument("--races", type=int, default=0, help="trials of each writer")
    parser.add_argument("--links", type=int, default=0, help="plant every n-th link")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="writers whose name begins so")
    parser.add_argument("--writers", choices=("all", "python", "commands"), default="all")
    parser.add_argument("--output", type=Path, help="stem of a .json and a .md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is shared by processes: a killed one would keep it
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        tables = _tables(options, Path(name))
    text = markdown(tables)
    print(text, f"\n{time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}", sep="")
    if options.output is not None:
        options.output.with_suffix(".md").write_text(text)
        options.output.with_suffix(".json").write_text(json.dumps(tables, indent=1) + "\n")
    return int(any(row.get(key) for rows in tables.values() for row in rows for key in BAD))


def _tables(options: argparse.Namespace, place: Path) -> dict[str, list[Row]]:
    writers = [] if options.writers == "commands" else python_writers()
    writers += [] if options.writers == "python" else command_writers(place)
    writers = [w for w in writers if w.name.startswith(tuple(options.only))]

    def rows(n: int, of: Callable[[Writer], Row], chosen: list[Writer]) -> list[Row]:
        made = []
        for writer in chosen if n else []:
            made.append(of(writer))
            print(made[-1], flush=True)
        return made

    saved = [w for w in writers if not w.command or w.name in ("fit", "index")]
    n = {w.name: share(options.damages, i, len(saved)) for i, w in enumerate(saved)}
    return {
        "kill -9": rows(
            options.kills, lambda w: kill(w, place, options.kills, options.seed), writers
        ),
        "damaged files": rows(
            options.damages, lambda w: damage(w, place, n[w.name], options.seed), saved
        ),
        "full disk": rows(options.disks, lambda w: fill(w, place, options.disks), writers),
        "two writers and a reader": rows(
            options.races, lambda w: race(w, place, options.races), writers
        ),
        "planted links": rows(options.links, lambda w: plant(w, place, options.links), writers),
    }


if __name__ == "__main__":
    sys.exit(main())
