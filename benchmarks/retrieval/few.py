"""Match probabilities from few queries: ``python -m benchmarks retrieval --pieces few``.

Twenty times 40, 100, 200, 400 or 1,000 queries are drawn at random and calibrate the index; up to
2,000 of the others are asked. Means over the draws with 95 % t-intervals: of the AUROC by which the
match probability distinguishes right nearest items from wrong ones, less that of the distance
alone; of the same for right nearest items and foreign inputs; of the log loss and the calibration
error. The draws share the queries that are asked, so that the intervals are of the calibration, not
of the data set. The prior was chosen on digits and FashionMNIST.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t

from benchmarks.retrieval.measure import K, shuffled
from benchmarks.retrieval.problems import PROBLEMS, Problem, mnist
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from benchmarks.retrieval.strangers import digits
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.evaluation import auroc, expected_calibration_error

SIZES = (40, 100, 200, 400, 1_000)
Array = npt.NDArray[np.float64]
ASKED, LEAST = 2_000, 100
"""Queries that are asked, at most and at least."""
CHOSEN_ON = {"digits": digits, "fashion-mnist": PROBLEMS["fashion-mnist"]}
FEW = {**CHOSEN_ON, "mnist": mnist, "birds": PROBLEMS["birds"], "texts": PROBLEMS["texts"]}


def measured(problem: Problem, draws: int, queries: int) -> dict[str, Any]:
    """Everything about one problem."""
    x, y = shuffled(problem.pool, queries)
    index = problem.embedder.index(*problem.gallery, progress=False)
    index.learn_classes()
    judged = index.labelled_hits(x, y, problem.depth)
    foreign = [index.search(part, problem.depth).hits for part in problem.ood.values()]
    sizes = []
    for n in SIZES:
        if len(judged) - n >= LEAST:
            rows = [one_draw(judged, foreign, len(index), n, seed) for seed in range(draws)]
            sizes.append({"queries": n, "draws": draws, **summarised(rows)})
    recall = float(judged.match[:, 0].mean())
    chosen_on = problem.name in CHOSEN_ON
    facts = {"problem": problem.name, "items": len(index), "right": recall}
    return {**facts, "chosen on": chosen_on, "sizes": sizes}


def one_draw(
    judged: LabelledHits, foreign: Sequence[SearchHits], n_items: int, n: int, seed: int
) -> dict[str, float]:
    """Every number of one draw."""
    generator = torch.Generator().manual_seed(seed)
    order = drawn(len(judged), generator)
    test = judged.take(order[n : n + ASKED])
    calibration = calibrated(judged.take(order[:n]), K, n_items, drawn(n, generator))

    def answers(hits: SearchHits) -> tuple[Array, Array]:
        return calibration.assess(hits).match_probability[:, 0], hits.distance[:, 0]

    right = test.match[:, 0]
    p, distance = answers(test.hits)
    said = np.where(right, p, 1 - p).clip(1e-12)
    outcome = {
        "gain": auroc(-p[right], -p[~right]) - auroc(distance[right], distance[~right]),
        "auroc": auroc(-p[right], -p[~right]),
        "constant": float(p.max() == p.min()),
        "log loss": float(-np.log(said).mean()),
        "ece": expected_calibration_error(p, right).ece,
    }
    if foreign:
        theirs, far = (np.concatenate(parts) for parts in zip(*map(answers, foreign), strict=True))
        outcome["foreign gain"] = auroc(-p[right], -theirs) - auroc(distance[right], far)
    return outcome


def summarised(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean of every number and the half width of its 95 % t-interval."""
    summary = {}
    for key in rows[0]:
        values = torch.tensor([row[key] for row in rows], dtype=torch.float64)
        half = float(t.ppf(0.975, len(rows) - 1) * values.std() / len(rows) ** 0.5)
        summary[key] = {"mean": float(values.mean()), "half": half}
    return summary


def run(options: Namespace) -> None:
    """Every problem."""
    how = options.splits, options.queries
    record_rows(options, "few", lambda problem: measured(problem, *how), FEW)
