"""``python -m tests.hostile --calls 10000 --seed 0``: the table, as JSON and markdown."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.hostile.attack import KNOWN, attack, keys, known, one, summary
from tests.hostile.outcomes import BAD


def markdown(table: dict[str, Any]) -> str:
    """The classes, and below them every bad place."""
    lines = ["| ended in | calls |", "|---|---:|"]
    lines += [f"| {name} | {count:,} |" for name, count in table["classes"].items()]
    lines += [f"| **all** ({table['distinct']:,} distinct) | {table['calls']:,} |", ""]
    if table["places"]:
        lines += [
            "| place | line | class | calls | example | number |",
            "|---|---:|---|---:|---|---:|",
        ]
    for entry in table["places"]:
        cells = [entry[k] for k in ("place", "line", "kind", "calls", "example", "first")]
        lines.append("| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make one call again, with its traceback")
    parser.add_argument(
        "--write-known", action="store_true", help="add the bad places to known_places.json"
    )
    parser.add_argument("--output", type=Path, help="stem of a .json and a .md")
    options = parser.parse_args()
    output = None if options.output is None else options.output.resolve()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        before = os.getcwd()
        os.chdir(folder)  # calls write where paths without a folder point to
        try:
            return run(options, output)
        finally:
            os.chdir(before)


def run(options: argparse.Namespace, output: Path | None) -> int:
    """Make the calls; 1 if a place is bad that is not known."""
    torch.set_num_threads(1)
    if options.only is not None:
        made = one(options.only, options.seed)
        print(made.call, made.outcome, sep="\n")
        return int(made.outcome.kind in BAD)
    start = time.process_time()
    table = summary(list(attack(options.calls, options.seed)))
    table |= {"seed": options.seed, "cpu_seconds": round(time.process_time() - start, 1)}
    if options.write_known:
        KNOWN.write_text(json.dumps(sorted(known() | keys(table)), indent=1) + "\n")
    if output is None:
        json.dump(table, sys.stdout, indent=1)
    else:
        output.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
        output.with_suffix(".md").write_text(markdown(table))
        print(markdown(table))
    return int(bool(keys(table) - known()))


if __name__ == "__main__":
    sys.exit(main())
