"""What each piece of evidence adds, and rivals with the same information: ``--pieces evidence``.

Ten times up to 400 queries calibrate (and, for the calibration error, 200) and up to 2,000 others
are asked. AUROC of "is the nearest item right?" by a score of more and more columns of evidence;
beside it what one would fit instead to the same gallery and the same queries:

share       the share of the 20 nearest items that carry the nearest one's label
four        a logistic regression of distance, share, weighted share and ratio
probe       a multinomial logistic regression of the gallery's labels on the head's inputs: P of the
            nearest item's label
LDA         linear discriminant analysis with Ledoit and Wolf's shrinkage, the same way

Accuracy and area under the risk-coverage curve (mean error over all shares answered, surest first)
of the label that is answered: the likeliest of the vote, the probe, LDA, and ours. The floor of a
calibration error is that of a perfect probability on as many queries.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.few import summarised
from benchmarks.retrieval.measure import K, shuffled
from benchmarks.retrieval.problems import Problem
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from laplace_metric.calibration._hits import FEATURES, LabelledHits, PairFeatures
from laplace_metric.calibration._learn import calibrated
from laplace_metric.calibration._probability import WIDE, fit_score
from laplace_metric.evaluation import auroc, expected_calibration_error

SPLITS, CALIBRATE, FEW, ASKED = 10, 400, 200, 2_000
Array = npt.NDArray[Any]
STEPS: dict[str, tuple[str, ...]] = {
    "distance": ("distance", "rank"),
    "votes": ("share", "weighted", "ratio"),
    "class model": ("class_model",),
    "ambiguity": ("ambiguity",),
    "near and far": ("epistemic",),
    "posterior variance": ("spread", "uncertainty"),
}
RIVALS = ("share", "four", "probe", "LDA")
DEVELOPED = ("fashion-mnist", "fashion-mnist, unseen", "cifar10", "cifar10, unseen", "birds",
             "birds, unseen")  # fmt: skip
"""Problems that the class model was developed on; the others ran once, after it was frozen."""


def measured(problem: Problem, splits: int, queries: int) -> dict[str, Any]:
    """Means of every number over the splits."""
    x, y = shuffled(problem.pool, queries)
    index = problem.embedder.index(*problem.gallery, progress=False)
    index.learn_classes()
    judged = index.labelled_hits(x, y, problem.depth)
    assert judged.codes is not None
    assert index.items.label_codes is not None
    gallery, asked = (
        problem.embedder.activations(part).features.numpy() for part in (problem.gallery[0], x)
    )
    codes = index.items.label_codes.numpy()
    models = {name: probabilities(name, gallery, codes, asked) for name in ("probe", "LDA")}
    rows = [one_split(judged, models, len(index), seed) for seed in range(splits)]
    facts = {"problem": problem.name, "splits": splits, "right": float(judged.match[:, 0].mean())}
    return facts | {"developed on": problem.name in DEVELOPED} | summarised(rows)


def probabilities(name: str, gallery: Array, codes: Array, asked: Array) -> Array:
    """P [Q, C] of a model of the gallery's labels."""
    model: Any = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    if name == "probe":
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(gallery, codes)
    p: Array = model.predict_proba(asked)
    return p


def one_split(
    judged: LabelledHits, models: dict[str, Array], n_items: int, seed: int
) -> dict[str, float]:
    """Every number of one split."""
    generator = torch.Generator().manual_seed(seed)
    order = drawn(len(judged), generator)
    n = min(CALIBRATE, len(judged) // 2)
    ours, theirs = order[:n], order[n : n + ASKED]
    known, test = judged.take(ours), judged.take(theirs)
    right, row = test.match[:, 0], {}

    def tells(score: Array) -> float:
        return auroc(-score[right], -score[~right])

    columns: list[int] = []
    first, asked = (PairFeatures.of(part.hits).take(K) for part in (known, test))
    x, match = first.values[first.exists], known.match[:, :K][first.exists]
    weight = 1 / np.repeat(first.exists.sum(1), first.exists.sum(1))
    for step, names in STEPS.items():
        columns += [FEATURES.index(name) for name in names]
        score = fit_score(x, match.astype(float), weight, sorted(columns), WIDE)
        row[f"+ {step}"] = tells(score(asked.values[:, 0]))
    votes = test.hits.voted
    row["share"] = tells(votes.share[:, 0])
    four = [FEATURES.index(name) for name in ("distance", "share", "weighted", "ratio")]
    logistic = make_pipeline(StandardScaler(), LogisticRegression())
    logistic.fit(first.values[:, 0, four], known.match[:, 0])
    row["four"] = tells(logistic.predict_proba(asked.values[:, 0, four])[:, 1])
    calibration = calibrated(known, K, n_items, drawn(len(known), generator))
    found = calibration.assess(test.hits)
    assert found.answer is not None
    assert found.label_probability is not None
    assert test.codes is not None
    row["match probability"] = tells(found.match_probability[:, 0])
    best = np.where(votes.labels[:, :20] >= 0, votes.weighted[:, :20], -1).argmax(1)[:, None]
    answered: dict[str, tuple[Array, Array]] = {
        "vote": _taken(test.match, votes.weighted, best),
        "ours": (
            np.take_along_axis(test.match, found.answer[:, None], 1)[:, 0],
            found.label_probability,
        ),
    }
    for name, p in models.items():
        own = p[theirs]
        row[name] = tells(own[np.arange(len(own)), votes.labels[:, 0]])
        answered[name] = own.argmax(1) == test.codes, own.max(1)
    for name, (correct, sure) in answered.items():
        row[f"{name}: accuracy"] = float(correct.mean())
        row[f"{name}: aurc"] = aurc(correct, sure)
    few = calibrated(known.take(slice(FEW)), K, n_items, drawn(min(FEW, n), generator))
    p = few.assess(test.hits).match_probability[:, 0]
    row["ece"] = expected_calibration_error(p, right).ece
    random = np.random.default_rng(seed)
    floor = [expected_calibration_error(p, random.random(len(p)) < p).ece for _ in range(20)]
    return row | {"ece floor": float(np.mean(floor))}


def _taken(match: Array, sure: Array, at: Array) -> tuple[Array, Array]:
    return np.take_along_axis(match, at, 1)[:, 0], np.take_along_axis(sure, at, 1)[:, 0]


def aurc(correct: Array, sure: Array) -> float:
    """Mean error over all shares answered, surest first (Geifman & El-Yaniv 2017)."""
    order = np.argsort(-sure, kind="stable")
    return float((np.cumsum(~correct[order]) / np.arange(1, len(order) + 1)).mean())


def run(options: Namespace) -> None:
    """Every problem."""
    splits = min(options.splits, SPLITS)
    record_rows(options, "evidence", lambda p: measured(p, splits, options.queries))


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_record("evidence")["rows"]
    return rows


def _said(row: dict[str, Any]) -> str:
    return "developed on it" if row["developed on"] else "confirmed on it"


def _cells(row: dict[str, Any], names: list[str], best: Callable[..., str] = max) -> list[str]:
    top = best(names, key=lambda name: row[name]["mean"])
    cells = [thousandths(row[name]["mean"]) for name in names]
    return [f"**{cell}**" if name == top else cell for name, cell in zip(names, cells, strict=True)]


def steps_table() -> str:
    """AUROC by more and more evidence."""
    names = [f"+ {step}" for step in STEPS]
    lines = [[row["problem"], _said(row), *_cells(row, names)] for row in _rows()]
    return markdown(["problem", "the class model was", *names], lines)


def rivals_table() -> str:
    """AUROC of rivals and of ours; the calibration error with few queries."""
    names = [*RIVALS, "match probability"]
    lines = []
    for row in _rows():
        ahead = row["match probability"]["mean"] - max(row[name]["mean"] for name in RIVALS)
        ece = [thousandths(row[name]["mean"]) for name in ("ece", "ece floor")]
        lines.append(
            [
                row["problem"],
                _said(row),
                *_cells(row, names),
                ("+" if ahead >= 0 else "") + thousandths(ahead),
                *ece,
            ]
        )
    header = ["problem", "the class model was", *names, "ahead of the best rival"]
    return markdown([*header, "ECE, 200 queries", "its floor"], lines)


def labels_table() -> str:
    """Accuracy and AURC of the label."""
    names = ("vote", "LDA", "probe", "ours")
    lines = []
    for row in _rows():
        accuracy = _cells(row, [f"{name}: accuracy" for name in names])
        lines.append([row["problem"], _said(row), *accuracy,
                      *_cells(row, [f"{name}: aurc" for name in names], min)])  # fmt: skip
    header = ["problem", "the class model was", *names, *(f"AURC {name}" for name in names)]
    return markdown(header, lines)


TABLES = {
    "evidence-steps": steps_table,
    "evidence-rivals": rivals_table,
    "evidence-labels": labels_table,
}
