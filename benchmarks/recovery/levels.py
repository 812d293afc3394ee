"""Level of the recovered kappa: MCInfoNCE with more draws.

    python -m benchmarks recovery --pieces levels --cache DIR [--seeds 0]

``runs`` asks with 8 draws while mu learns and 32 while kappa does, which is enough for ranks. The
loss is a biased estimate for few draws, so that kappa is learnt too large (Kirchhof et al. 2023a,
figure 3). Here are 64 and 128 draws with the same steps, six minutes a seed.
A finished run is a JSON in the cache and is not repeated.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.records import Store, write_record
from benchmarks.recovery.encoders import train
from benchmarks.recovery.metrics import recovery
from benchmarks.recovery.process import Process, Setting
from benchmarks.sizes import RECOVERY, TrainingSize

POINTS, SEEDS = 10_000, (0, 1, 2)
MORE_DRAWS = 64, 128
"""While mu learns, and while kappa does."""
RUNS: dict[str, TrainingSize] = {"mcinfonce": replace(RECOVERY["small"], draws=MORE_DRAWS)}
"""Loss -> what is trained, and how long."""


def trained_row(loss: str, means: TrainingSize, seed: int, progress: bool) -> dict[str, Any]:
    """Train one encoder on ambiguous inputs, and compare it with the truth."""
    process = Process(Setting(), seed)
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
    """Train what is missing, then write ``levels.json``."""
    store, rows = Store(options.cache / "levels"), []
    for loss, means in RUNS.items():
        for seed in options.seeds or SEEDS:
            if not store.has(loss, seed):
                store.write(trained_row(loss, means, seed, not options.quiet), loss, seed)
            row = store.read(loss, seed)
            row.pop("environment")
            rows.append(row)
            shown = {key: row[key] for key in ("location", "certainty")}
            print(loss, seed, shown, f"{row['cpu_seconds']:.0f} s", flush=True)
    print(write_record("levels", {"rows": rows}).name)
