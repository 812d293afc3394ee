"""Guarantees of a gallery that grows: ``python -m benchmarks retrieval --pieces growing``.

A ``Guard`` over 300 items of Gaussian classes guarantees a precision of 90 %, calibrated by its own
items. Then items are added: of the same classes, a tenth as many and as many again; and of a class
that was not there, whose queries are then asked, too. The true precision is that of 2,000 new
queries. Broken: it lies below the target, with an exact 95 % interval (Clopper & Pearson); up to
5 % may be, and 2,000 queries tell it to half a per cent.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import Guard
from laplace_metric.errors import LaplaceMetricWarning

RUNS, ITEMS, ASKED, TARGET = 60, 300, 2_000, 0.9
CLASSES, SIZE = 8, 8
APART = {"overlapping classes": 2.4, "separate classes": 2.8}
"""Distance of two class means, in standard deviations."""
STEPS = ("as calibrated", "a tenth more", "as many more", "a new class")
Drawn = tuple[npt.NDArray[np.float32], npt.NDArray[np.int_]]


def drawn(g: np.random.Generator, means: npt.NDArray[np.float64], n: int, classes: int) -> Drawn:
    """Draw n rows of the first classes; a third of them is noisier."""
    y = g.integers(classes, size=n)
    noise = np.where(g.random((n, 1)) < 1 / 3, 1.5, 1.0)
    return (means[y] + noise * g.normal(size=(n, SIZE))).astype(np.float32), y


def grown(apart: float, seed: int) -> dict[str, tuple[float, float]]:
    """Return the true precision and the share answered, step by step; {} without a guarantee."""
    g = np.random.default_rng(seed)
    means = apart / np.sqrt(2) * g.normal(size=(CLASSES, SIZE))
    known = CLASSES - 1
    guard = Guard(*drawn(g, means, ITEMS, known), precision=TARGET)
    if guard.rule is None:
        return {}
    found = {}
    for step, n in zip(STEPS, (0, ITEMS // 10, ITEMS - ITEMS // 10, ITEMS // 7), strict=True):
        classes = CLASSES if step == STEPS[-1] else known
        if step == STEPS[-1]:
            y = np.full(n, known)
            guard.add((means[y] + g.normal(size=(n, SIZE))).astype(np.float32), y)
        elif n:
            guard.add(*drawn(g, means, n, known))
        x, truth = drawn(g, means, ASKED, classes)
        answers = guard.ask(x)
        right = (answers.label == truth)[answers.answered]
        found[step] = (float(right.mean()) if len(right) else 1.0, float(answers.answered.mean()))
    return found


def run(options: Namespace) -> None:
    """Every world and step."""
    rows: list[dict[str, Any]] = []
    runs = 3 if options.size == "smoke" else RUNS
    for name, apart in APART.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            made = [own for seed in range(runs) if (own := grown(apart, seed))]
        for step in STEPS:
            precision = np.array([own[step][0] for own in made])
            broken = int((precision < TARGET).sum())
            ends = binomtest(broken, max(1, len(made))).proportion_ci(0.95, method="exact")
            rows.append(
                {
                    "world": name, "step": step, "runs": runs, "given": len(made),
                    "precision": float(precision.mean()) if made else None,
                    "answered": float(np.mean([own[step][1] for own in made])) if made else None,
                    "broken": broken, "low": float(ends.low), "high": float(ends.high),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    write_record("growing", {"target": TARGET, "rows": rows}, folder_of(options))


def growing_table() -> str:
    """Precision, answered and broken guarantees after each step."""
    lines = []
    for row in read_record("growing")["rows"]:
        broken = f"{row['broken']} of {row['given']} ({row['low']:.1%} to {row['high']:.1%})"
        lines.append(
            [row["world"], row["step"], f"{row['precision']:.1%}", f"{row['answered']:.1%}", broken]
        )
    return markdown(["world", "items", "right, of 90%", "answered", "broken"], lines)


TABLES = {"retrieval-growing": growing_table}
