"""When strangers come: ``python -m benchmarks retrieval --pieces strangers``.

Queries without a match in the gallery, of classes that it lacks or of another data set altogether,
are up to a quarter of those that are asked. The calibration has seen none of them, as many, or
as many that pretend: queries from which their own class is hidden. What is called unknown is
answered like everything else, or not. Of each of the six what becomes of a promised precision, on
the other half of the queries, split by split.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.datasets import load
from benchmarks.retrieval.measure import K, shuffled, summarised
from benchmarks.retrieval.problems import PROBLEMS, Problem, Source
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.errors import InputError

PROMISES = (0.8, 0.9)
ALPHA = 0.05
SHARE = 0.2
"""Of strangers among the queries of a problem that has no missing classes."""
ALL = 1 - 1e-9
"""A share that leaves no query out."""
MISSING = 8
"""The first digit that the gallery lacks."""
RULES: dict[str, float | None] = {"probability alone": None, "not unknown": ALPHA}
"""alpha, or None."""


@dataclass(frozen=True)
class Asked:
    """Queries of which some are strangers, with what they find.

    Parameters
    ----------
    judged, pretended : LabelledHits
        Of all items; and of those that are no match of the query.
    n_items : int
        Of the index.
    kind : str
        Where strangers come from: classes that the gallery lacks, or another set.
    """

    judged: LabelledHits
    pretended: LabelledHits
    n_items: int
    kind: str


def with_strangers(problem: Problem, queries: int) -> Asked:
    """Of a problem; strangers have a label that the gallery lacks."""
    x, y = shuffled(problem.pool, queries)
    index, kind = problem.embedder.index(*problem.gallery, progress=False), "missing classes"
    if bool(torch.isin(y, problem.gallery[1]).all()):
        kind, others = next(iter(problem.ood.items()))
        n = min(len(others), round(len(x) * SHARE / (1 - SHARE)))
        nobody = torch.full((n,), int(problem.gallery[1].max()) + 1, dtype=y.dtype)
        x, y = torch.cat([x, others[:n]]), torch.cat([y, nobody])
    judged = index.labelled_hits(x, y, problem.depth)
    pretended = index.labelled_hits(x, y, problem.depth, open_set_fraction=ALL)
    return Asked(judged, pretended, len(index), kind)


def measured(problem: Problem, splits: int, queries: int) -> dict[str, Any]:
    """Everything about one problem."""
    asked = with_strangers(problem, queries)
    rows = [one_split(asked, seed) for seed in range(splits)]
    share = float((~asked.judged.known).mean())
    facts = {"problem": problem.name, "strangers": asked.kind, "share": share}
    return {**facts, "queries": len(asked.judged), "splits": splits, **summarised(rows)}


def one_split(asked: Asked, seed: int) -> dict[str, float | None]:
    """Every number of one split; None where a promise could not be made."""
    judged, generator = asked.judged, torch.Generator().manual_seed(seed)
    ours, theirs = np.array_split(drawn(len(judged), generator), 2)
    test, known = judged.take(theirs), ours[judged.known[ours]]
    n = round(float((~judged.known).mean()) * len(known))
    parts = judged.take(known[n:]), asked.pretended.take(known[:n])
    seen = {
        "none": judged.take(known),
        "pretended": LabelledHits.concatenate(parts),
        "as many": judged.take(ours),
    }
    outcome: dict[str, float | None] = {}
    for name, held in seen.items():
        learnt = calibrated(
            held, K, asked.n_items, drawn(len(held), torch.Generator().manual_seed(seed))
        )
        for (rule, alpha), target in product(RULES.items(), PROMISES):
            of = f"{name}, {rule}, {target:g}"
            outcome |= {f"{of}: {k}": v for k, v in kept(learnt, test, target, alpha).items()}
    return outcome


def kept(
    calibration: Calibration, test: LabelledHits, target: float, alpha: float | None
) -> dict[str, float | None]:
    """Whether a promise was made, and what its answers were."""
    try:
        threshold = calibration.guarantee(precision=target, of="match", alpha=alpha)
    except InputError:
        return {"made": 0.0}
    judged = calibration.assess(test.hits)
    answered = judged.match_probability[:, 0] >= threshold.value
    if alpha is not None:
        answered &= judged.p_value > alpha
    right = float(test.match[answered, 0].mean()) if bool(answered.any()) else None
    return {
        "made": 1.0,
        "obtained": right,
        "kept": None if right is None else float(right >= target),
        "answered, with a match": float(answered[test.known].mean()),
        "answered, strangers": float(answered[~test.known].mean()),
    }


def digits(_: Source) -> Problem:
    """Pixels as embeddings; one query in five is an 8 or a 9, of which the gallery has none."""
    parts = (load("digits", split) for split in ("train", "test"))
    (x, y), pool = ((part.pixels(slice(None)).flatten(1), part.labels) for part in parts)
    gallery = x[y < MISSING], y[y < MISSING]
    return Problem(
        "digits", LaplaceEmbedder.from_embeddings(*gallery, distance="arccos"), gallery, pool, {}
    )


def run(options: Namespace) -> None:
    """Every problem, and the digits of the page on matches."""
    problems = {"digits": digits, **PROBLEMS}
    how = options.splits, options.queries
    record_rows(options, "strangers", lambda problem: measured(problem, *how), problems)
