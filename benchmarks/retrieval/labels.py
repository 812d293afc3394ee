"""Label sets, pooled and class by class: ``python -m benchmarks retrieval --pieces labels``.

Splits as in ``measure``: one half of the queries calibrates, the other is asked. The levels were
chosen on FashionMNIST, CIFAR-10 and photographs of birds.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch

from benchmarks.retrieval.measure import K, shuffled, summarised
from benchmarks.retrieval.problems import Problem
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.inputs._columns import Column
from laplace_metric.search import LabelSets

SPLITS = 10
ALPHA, OFTEN = 0.1, 50
"""Share that may be missed; test queries of a class whose coverage is shown alone."""
WAYS: dict[str, dict[str, Any]] = {
    "pooled": {"by_class": False},
    "by class": {},
    "with confidence": {"confidence": 0.9},
}


def measured(problem: Problem, splits: int, queries: int) -> dict[str, Any]:
    """Mean and spread over splits."""
    x, y = shuffled(problem.pool, queries)
    index = problem.embedder.index(*problem.gallery, progress=False)
    index.learn_classes()
    judged = index.labelled_hits(x, y, problem.depth)
    rows = []
    for seed in range(splits):
        generator = torch.Generator().manual_seed(seed)
        ours, theirs = np.array_split(drawn(len(judged), generator), 2)
        calibration = calibrated(judged.take(ours), K, len(index), drawn(len(ours), generator))
        rows.append(coverage(calibration, judged.take(theirs)))
    return {"problem": problem.name, "splits": splits, **summarised(rows)}


def coverage(calibration: Calibration, test: LabelledHits) -> dict[str, float | None]:
    """Of test queries whose label the index has."""
    held_out, known = calibration.held_out_labels(), test.take(test.known)
    assert known.codes is not None
    assert known.classes is not None
    counts = np.bincount(known.codes)
    outcome: dict[str, float | None] = {}
    for name, how in WAYS.items():
        levels = held_out.levels(ALPHA, **how)
        sets = LabelSets.of(known.hits, Column(known.classes), calibration, levels)
        held = sets.holds(known.classes[known.codes]).numpy()
        by_class = np.bincount(known.codes, held) / counts
        often = by_class[counts >= OFTEN]
        outcome |= {
            f"{name} coverage": float(held.mean()),
            f"{name} size": float(sets.sizes.double().mean()),
            f"{name} lowest tenth": float(np.quantile(by_class[counts > 0], 0.1)),
            f"{name} worst often": float(often.min()) if len(often) else None,
            f"{name} everywhere": float(sets.everywhere.sum()),
            f"{name} alone": float(levels.alone.sum()),
        }
        for c in np.flatnonzero(counts >= OFTEN).tolist():
            outcome[f"{name} class {c}"] = float(by_class[c])
    return outcome


def run(options: Namespace) -> None:
    """Every problem."""
    splits = min(options.splits, SPLITS)
    record_rows(options, "retrieval_labels", lambda p: measured(p, splits, options.queries))
