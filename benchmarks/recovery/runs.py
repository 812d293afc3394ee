"""Recover known posteriors: MCInfoNCE, ELK and HIB of Kirchhof et al. (2023a), and Laplace.

    python -m benchmarks recovery --cache DIR [--size smoke|small|paper] [--seeds 0]

A finished run is a JSON in the cache and is not repeated; ``results/recovery.json`` has all.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.records import read_rows, write_record
from benchmarks.recovery.metrics import HESSIANS, laplace_concentration, recovery
from benchmarks.recovery.process import Process, Setting
from benchmarks.recovery.train import train
from benchmarks.sizes import RECOVERY

POINTS = 10_000
MORE = ", 8 x the draws"
SETTINGS = {
    "ambiguous": Setting(),
    "clear": Setting(smallest=64, largest=128),
    "injective": Setting(family="dirac"),
    "gaussian": Setting(family="gaussian"),
    "laplace": Setting(family="laplace"),
    "published pairs": Setting(acceptance="published"),
}
RUNS = (
    *((name, "mcinfonce") for name in SETTINGS),
    *(("ambiguous", loss) for loss in ("elk", "elk times 20", "hib", "infonce")),
    ("ambiguous", f"mcinfonce{MORE}"),
)


def trained_row(setting: str, loss: str, size: str, seed: int, progress: bool) -> dict[str, Any]:
    """Train one encoder and compare it with the truth."""
    process, means = Process(SETTINGS[setting], seed), RECOVERY[size]
    if loss.endswith(MORE):
        means = replace(means, draws=(8 * means.draws[0], 8 * means.draws[1]))
    start = time.process_time()
    encoder, curve = train(process, loss.removesuffix(MORE), means, seed, progress)
    seconds = time.process_time() - start
    x = process.inputs(POINTS)
    with torch.no_grad():
        posterior = encoder(x)
    row = {
        "setting": setting,
        "loss": loss,
        "budget": asdict(means),
        "seed": seed,
        "cpu_seconds": seconds,
        "curve": curve,
        **recovery(process, x, posterior.loc, posterior.concentration),
    }
    if loss == "infonce":
        for hessian in HESSIANS:
            kappa, clipped = laplace_concentration(process, encoder, x, hessian)
            scores = recovery(process, x, posterior.loc, kappa)
            row[f"laplace {hessian}"] = {**scores, "clipped_fraction": clipped}
    return row


def run(options: Namespace) -> None:
    """Run what is missing, then write the record."""
    folder = options.cache / f"recovery-{options.size}"
    for seed in options.seeds or (0,):
        for setting, loss in RUNS:
            name = f"{setting}-{loss}-seed{seed}".replace(" ", "_").replace(",", "")
            wanted = options.runs is None or any(part in name for part in options.runs)
            if wanted and not (folder / f"{name}.json").is_file():
                row = trained_row(setting, loss, options.size, seed, not options.quiet)
                write_record(name, row, folder)
                ranks = {
                    k: v["rank"] for k, v in row.items() if isinstance(v, dict) and "rank" in v
                }
                print(name, ranks, f"{row['cpu_seconds']:.0f} s", flush=True)
    if options.size != "smoke" and options.runs is None:
        print(write_record("recovery", {"rows": read_rows(folder)}).name)
