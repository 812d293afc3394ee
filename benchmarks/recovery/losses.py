"""The other losses of table 3 of MCInfoNCE's paper: expected likelihood kernels (ELK), and HIB.

    python -m benchmarks recovery --pieces losses --cache DIR [--seeds 0]

The process and the steps are those of ``runs``. ELK has a closed form, so that no number of draws
biases kappa. Eq. 55 prints it times 20 ("elk times 20"); without the factor ("elk") it is the exact
probability of the pair. HIB is that of eq. 54. A finished run is a JSON in the cache and is not
repeated.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.records import Store, write_record
from benchmarks.recovery.encoders import train
from benchmarks.recovery.metrics import recovery
from benchmarks.recovery.process import Process, Setting
from benchmarks.sizes import RECOVERY

NAME, POINTS, SEEDS = "losses", 10_000, (0, 1, 2)
RUNS = "elk", "elk times 20", "hib"


def trained_row(loss: str, size: str, seed: int, progress: bool) -> dict[str, Any]:
    """Train one encoder on ambiguous inputs, and compare it with the truth."""
    process, means = Process(Setting(), seed), RECOVERY[size]
    start = time.process_time()
    encoder, curve = train(process, loss, means, seed, progress)
    seconds = time.process_time() - start
    x = process.inputs(POINTS)
    with torch.no_grad():
        posterior = encoder(x)
    return {
        "loss": loss,
        "budget": asdict(means),
        "seed": seed,
        "cpu_seconds": seconds,
        "curve": curve,
        **recovery(process, x, posterior.loc, posterior.concentration),
    }


def run(options: Namespace) -> None:
    """Train what is missing, then write ``losses.json``."""
    store, rows = Store(options.cache / f"losses-{options.size}"), []
    for seed in options.seeds or SEEDS:
        for loss in RUNS:
            if not store.has(loss, seed):
                row = trained_row(loss, options.size, seed, not options.quiet)
                store.write(row, loss, seed)
            row = store.read(loss, seed)
            row.pop("environment")
            rows.append(row)
            shown = {key: row[key] for key in ("location", "certainty")}
            print(loss, seed, shown, f"{row['cpu_seconds']:.0f} s", flush=True)
    if options.size != "smoke":
        print(write_record(NAME, {"rows": rows}).name)
