"""Recover known posteriors: MCInfoNCE, ELK and HIB of Kirchhof et al. (2023a), and Laplace.

    python -m benchmarks recovery --cache DIR [--size smoke|small|paper] [--seeds 0]

A finished run is a JSON in the cache and is not repeated; ``results/recovery.json`` has all. The
table shows it beside what the paper prints.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import torch

from benchmarks.records import markdown, read_record, read_rows, write_record
from benchmarks.recovery.encoders import train
from benchmarks.recovery.metrics import HESSIANS, laplace_concentration, recovery
from benchmarks.recovery.process import Process, Setting
from benchmarks.sizes import RECOVERY, TrainingSize

POINTS = 10_000
ENCODER, LATENTS, SHARED = "encoder of ", (8, 32), "shared backbone"
DIMENSIONS = (2, 40)
"""Of the encoder, next to the 10 of the process (figure 4); of both (figure 7, pairs as there)."""
SETTINGS = {
    "ambiguous": Setting(),
    **{f"published pairs, {d} dimensions": Setting(d, acceptance="published") for d in DIMENSIONS},
}
RUNS = (
    *((name, "mcinfonce") for name in SETTINGS),
    ("ambiguous", f"mcinfonce, {SHARED}"),
    *(("ambiguous", f"mcinfonce, {ENCODER}{n}") for n in LATENTS),
    ("ambiguous", "infonce"),
)


def budget(loss: str, size: str) -> tuple[str, TrainingSize]:
    """What is trained, and how long.

    Examples
    --------
    >>> budget("mcinfonce, encoder of 8", "small")[1].latent
    8
    """
    means = RECOVERY[size]
    name, _, more = loss.partition(", ")
    if more == SHARED:
        return name, replace(means, shared=True)
    if more.startswith(ENCODER):
        return name, replace(means, latent=int(more.removeprefix(ENCODER)))
    return name, means


def trained_row(setting: str, loss: str, size: str, seed: int, progress: bool) -> dict[str, Any]:
    """Train one encoder and compare it with the truth."""
    process, (kind, means) = Process(SETTINGS[setting], seed), budget(loss, size)
    start = time.process_time()
    encoder, curve = train(process, kind, means, seed, progress)
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
    for seed in options.seeds or (range(3) if options.size == "small" else (0,)):
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


Row = dict[str, Any]
PRINTED = {  # location error / rank, certainty (spread for other families) error / rank
    ("ambiguous", "mcinfonce"): "0.04 / 0.99, 6.15 / 0.82",
    ("ambiguous", "infonce"): "0.83 / 0.99",
    ("published pairs, 2 dimensions", "mcinfonce"): "0.05 / 1.00, 2.89 / 0.82",
    ("ambiguous", f"mcinfonce, {SHARED}"): "0.04 / 0.99, 7.31 / 0.87",
    **{("ambiguous", f"mcinfonce, {ENCODER}{n}"): "rank of kappa > 0.6" for n in LATENTS},
}


HEADER = ("posterior, loss", "seeds", "location error", "rank", "certainty error", "rank",
          "spread error", "rank", "median kappa", "printed")  # fmt: skip


def recovered() -> str:
    """The table beside the numbers that the paper prints."""
    return markdown(HEADER, cells(read_record("recovery")["rows"]))


def cells(rows: list[Row]) -> list[list[str]]:
    """Location and certainty: RMSE (MAE) and rank correlation, means over the seeds, as in RUNS."""
    kinds = sorted({(row["setting"], row["loss"]) for row in rows}, key=RUNS.index)
    lines = []
    for setting, loss in kinds:
        of = [row for row in rows if (row["setting"], row["loss"]) == (setting, loss)]
        printed = PRINTED.get((setting, loss), "")
        seeds = str(len(of))
        lines.append([f"{setting}, {loss}", seeds, *_numbers(of), printed])
        for name in [key for key in of[0] if key.startswith("laplace ")]:
            numbers = _numbers([row[name] for row in of])
            lines.append([f"{setting}, post-hoc {name}", seeds, *numbers, ""])
    return lines


def _numbers(rows: list[Row]) -> list[str]:
    cells = []
    for key, digits in (("location", 2), ("certainty", 1), ("spread", 3)):
        if key not in rows[0]:
            cells += ["", ""]
            continue
        rmse, mae, rank = (
            fmean(row[key][name] for row in rows) for name in ("rmse", "mae", "rank")
        )
        said = "n/a" if math.isnan(rank) else f"{rank:.2f}"
        cells += [f"{rmse:,.{digits}f} ({mae:,.{digits}f})", said]
    return [*cells, f"{fmean(row['kappa']['median'] for row in rows):,.0f}"]
