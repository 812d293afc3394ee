"""What each piece of evidence adds, and rivals with the same information: ``--pieces evidence``.

Ten times up to 400 queries calibrate (for the calibration error also 100 and 200) and up to 2,000
others are asked. AUROC of "is the nearest item right?" by a logistic regression of more and more
columns of evidence, and by what one would fit instead to the same gallery and the same queries:

share       the share of the 20 nearest items that carry the nearest one's label
weighted    the same, weighted by the kernel of the distances
four        a logistic regression of distance, share, weighted share and ratio
probe       P of the nearest item's label by a multinomial logistic regression (scikit-learn,
            standardised) of the gallery's labels on the head's inputs; C of ``PROBE_C`` by a
            held-out fifth of the gallery, temperature by the calibration queries
LDA         linear discriminant analysis with Ledoit and Wolf's shrinkage, the same way
MSP, MaxLogit, energy, margin
            of the probe, whatever the nearest item is
1-NN, 10-NN distance of the head's inputs to the nearest, tenth nearest item, directions

Accuracy and area under the risk-coverage curve (mean error over all shares answered, surest first)
of the label that is answered: the likeliest of the vote, the probe, LDA, and ours. Two floors of a
calibration error, by queries drawn from the probabilities as if these were true: that of the truth,
and that of a logistic regression which is given the true log odds and learns two numbers, slope and
intercept, from as many queries as calibrate. Gains are paired: the difference within a split,
and its mean over the splits with a 95 % t-interval. The splits share one network and its queries,
so that the intervals are of the split.

``--pieces confirm``: the same of four more problems, on which nothing was chosen.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax, logit, logsumexp, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.problems import CONFIRMING, Problem
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.splits import K, drawn, shuffled, summarised
from laplace_metric.calibration._calibrated import calibrated
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration.probability._features import FEATURES, PairFeatures
from laplace_metric.calibration.probability._logistic_score import WIDE, fit_score
from laplace_metric.evaluation import auroc, expected_calibration_error

SPLITS, CALIBRATE, ASKED = 10, 400, 2_000
FEW = (100, 200, 400)
"""Queries of a calibration error."""
Array = npt.NDArray[Any]
STEPS: dict[str, tuple[str, ...]] = {
    "distance": ("distance", "rank"),
    "votes": ("share", "weighted", "ratio"),
    "class model": ("class_model",),
    "ambiguity": ("ambiguity",),
    "near and far": ("epistemic",),
    "posterior variance": ("spread",),
}
WITHOUT_LABELS = "gain: posterior variance, next to the distance alone"
RIVALS = ("share", "weighted", "four", "probe", "LDA", "MSP", "MaxLogit", "energy", "margin",
          "1-NN", "10-NN")  # fmt: skip
PROBE_C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
TEMPERATURES = np.geomspace(0.1, 10, 41)
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
    assert len(index.items.label_codes.unique()) == int(index.items.label_codes.max()) + 1
    gallery, asked = (
        problem.embedder.activations(part).features.numpy() for part in (problem.gallery[0], x)
    )
    rivals = Rivals(gallery, index.items.label_codes.numpy(), asked)
    rows = [one_split(judged, rivals, len(index), seed) for seed in range(splits)]
    facts = {"problem": problem.name, "splits": splits, "right": float(judged.match[:, 0].mean())}
    facts["probe C"] = rivals.probe_c
    return facts | {"developed on": problem.name in DEVELOPED} | summarised(rows)


class Rivals:
    """Models of the gallery's labels, and distances, of all queries."""

    def __init__(self, gallery: Array, codes: Array, asked: Array) -> None:
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(gallery, codes)
        self.lda: Array = lda.predict_proba(asked)
        probe, self.probe_c = chosen_probe(gallery, codes)
        logits: Array = probe.decision_function(asked)  # of two classes: one number
        self.logits = logits if logits.ndim == 2 else np.stack([-logits / 2, logits / 2], 1)
        unit = [x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12) for x in (gallery, asked)]
        self.nearest: Array = NearestNeighbors(n_neighbors=10).fit(unit[0]).kneighbors(unit[1])[0]

    def temperature(self, at: Array, codes: Array) -> float:
        """Likeliest for the queries at ``at`` whose class is in the gallery (Guo et al. 2017)."""
        there = codes >= 0
        logits, own = self.logits[at][there], codes[there]
        losses = [-log_softmax(logits / t, 1)[np.arange(len(own)), own].sum() for t in TEMPERATURES]
        return float(TEMPERATURES[int(np.argmin(losses))])


def chosen_probe(gallery: Array, codes: Array) -> tuple[Any, float]:
    """A logistic regression of the labels, and its C: the best of a held-out fifth."""

    def fitted(rows: Array, c: float) -> Any:
        regression = LogisticRegression(C=c, max_iter=200)
        return make_pipeline(StandardScaler(), regression).fit(gallery[rows], codes[rows])

    order = np.random.default_rng(0).permutation(len(codes))
    held, rest = np.split(order, [len(order) // 5])
    held = held[np.isin(codes[held], codes[rest])]
    best = (-np.inf, PROBE_C[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for c in PROBE_C:
            model = fitted(rest, c)
            own = np.searchsorted(model.classes_, codes[held])
            value = model.predict_log_proba(gallery[held])[np.arange(len(held)), own].mean()
            if value < best[0]:
                break
            best = (value, c)
        return fitted(np.arange(len(codes)), best[1]), best[1]


def one_split(judged: LabelledHits, rivals: Rivals, n_items: int, seed: int) -> dict[str, float]:
    """Every number of one split."""
    generator = torch.Generator().manual_seed(seed)
    order = drawn(len(judged), generator)
    n = min(CALIBRATE, len(judged) // 2)
    ours, theirs = order[:n], order[n : n + ASKED]
    known, test = judged.take(ours), judged.take(theirs)
    right, row = test.match[:, 0], {}

    def tells(score: Array) -> float:
        return auroc(-score[right], -score[~right])

    def learnt(names: list[str]) -> float:
        columns = sorted(FEATURES.index(name) for name in names)
        score = fit_score(x, match.astype(float), weight, columns, WIDE)
        return tells(score(asked.values[:, 0]))

    names, before = list[str](), 0.0
    first, asked = (PairFeatures.of(part.hits).take(K) for part in (known, test))
    x, match = first.values[first.exists], known.match[:, :K][first.exists]
    weight = 1 / np.repeat(first.exists.sum(1), first.exists.sum(1))
    for step, more in STEPS.items():
        names += more
        row[f"+ {step}"] = learnt(names)
        row[f"gain: {step}"], before = row[f"+ {step}"] - before, row[f"+ {step}"]
    row[WITHOUT_LABELS] = learnt([*STEPS["distance"], "spread"]) - row["+ distance"]
    votes = test.hits.voted
    row["share"], row["weighted"] = tells(votes.share[:, 0]), tells(votes.weighted[:, 0])
    four = [FEATURES.index(name) for name in ("distance", "share", "weighted", "ratio")]
    logistic = make_pipeline(StandardScaler(), LogisticRegression())
    logistic.fit(first.values[:, 0, four], known.match[:, 0])
    row["four"] = tells(logistic.predict_proba(asked.values[:, 0, four])[:, 1])
    calibration = calibrated(known, K, n_items, drawn(len(known), generator))
    found = calibration.assess(test.hits)
    assert found.carrier is not None
    assert found.label_probability is not None
    assert test.codes is not None
    row["match probability"] = tells(found.match_probability[:, 0])
    best = np.where(votes.labels[:, :20] >= 0, votes.weighted[:, :20], -1).argmax(1)[:, None]
    answered: dict[str, tuple[Array, Array]] = {
        "vote": _taken(test.match, votes.weighted, best),
        "ours": (
            np.take_along_axis(test.match, found.carrier[:, None], 1)[:, 0],
            found.label_probability,
        ),
    }
    assert known.codes is not None
    logits = rivals.logits[theirs] / rivals.temperature(ours, known.codes)
    for name, p in {"probe": softmax(logits, 1), "LDA": rivals.lda[theirs]}.items():
        row[name] = tells(p[np.arange(len(p)), votes.labels[:, 0]])
        answered[name] = p.argmax(1) == test.codes, p.max(1)
    runner_up, top = np.partition(logits, -2, axis=1)[:, -2:].T
    row["MSP"], row["MaxLogit"] = tells(softmax(logits, 1).max(1)), tells(top)
    row["energy"], row["margin"] = tells(logsumexp(logits, 1)), tells(top - runner_up)
    row["1-NN"], row["10-NN"] = (tells(-rivals.nearest[theirs, k - 1]) for k in (1, 10))
    row |= {f"ahead: {name}": row["match probability"] - row[name] for name in RIVALS}
    for name, (correct, sure) in answered.items():
        row[f"{name}: accuracy"] = float(correct.mean())
        row[f"{name}: aurc"] = aurc(correct, sure)
    for few in FEW:
        calibration = calibrated(known.take(slice(few)), K, n_items, drawn(min(few, n), generator))
        p = calibration.assess(test.hits).match_probability[:, 0]
        row[f"ece {few}"] = expected_calibration_error(p, right).ece
        row[f"ece {few} floor"], row[f"ece {few} two numbers"] = floors(p, few, seed)
    return row


def floors(p: Array, n: int, seed: int) -> tuple[float, float]:
    """Mean calibration error of true probabilities [N], and of two numbers learnt from n queries.

    Means of 20 draws of labels; a draw in which all n are right, or none, has no slope and does
    not count.
    """
    g, errors = np.random.default_rng(seed), []
    log_odds = logit(p.clip(1e-6, 1 - 1e-6))[:, None]
    for _ in range(20):
        rows, right = g.choice(len(p), n), g.random(len(p)) < p
        learnt = g.random(n) < p[rows]
        if learnt.all() or not learnt.any():
            continue
        fitted = LogisticRegression(C=np.inf).fit(log_odds[rows], learnt)
        both = p, fitted.predict_proba(log_odds)[:, 1]
        errors.append([expected_calibration_error(one, right).ece for one in both])
    true, two_numbers = np.mean(errors, axis=0)
    return float(true), float(two_numbers)


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


def confirm(options: Namespace) -> None:
    """Every problem that had no part in any choice."""
    splits = min(options.splits, SPLITS)
    record_rows(options, "confirm", lambda p: measured(p, splits, options.queries), CONFIRMING)


def _rows(record: str = "evidence") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_record(record)["rows"]
    return rows


def _said(row: dict[str, Any]) -> str:
    return "developed on it" if row["developed on"] else "confirmed on it"


def _cells(row: dict[str, Any], names: list[str], best: Callable[..., str] = max) -> list[str]:
    top = best(names, key=lambda name: row[name]["mean"])
    cells = [thousandths(row[name]["mean"]) for name in names]
    return [f"**{cell}**" if name == top else cell for name, cell in zip(names, cells, strict=True)]


def _signed(number: dict[str, float]) -> str:
    return f"{number['mean']:+.3f} ± {number['half']:.3f}".replace("0.", ".")


def steps_table() -> str:
    """AUROC by more and more evidence, and what the last step adds."""
    names = [f"+ {step}" for step in STEPS]
    gains = f"gain: {list(STEPS)[-1]}", WITHOUT_LABELS
    lines = [
        [row["problem"], _said(row), *_cells(row, names), *(_signed(row[gain]) for gain in gains)]
        for row in _rows()
    ]
    header = ["problem", "the class model was", *names, "gain of the last"]
    return markdown([*header, "the same next to the distance alone"], lines)


def best_rival(row: dict[str, Any]) -> str:
    """Of all, picked after the fact."""
    return max(RIVALS, key=lambda name: float(row[name]["mean"]))


def first_page() -> str:
    """Ours beside the best rival with the same labels and queries, and beside distance alone."""
    lines = []
    for row in sorted(_rows(), key=lambda row: bool(row["developed on"])):
        rival = best_rival(row)
        cells = [thousandths(row[n]["mean"]) for n in ("match probability", rival, "+ distance")]
        starred = row["problem"] + " \\*" * bool(row["developed on"])
        lines.append([starred, *cells[:2], _signed(row[f"ahead: {rival}"]), cells[2]])
    return markdown(["problem", "ours", "best rival", "ahead", "distance alone"], lines)


def rivals_table() -> str:
    """AUROC of rivals and of ours."""
    names = [*RIVALS, "match probability"]
    lines = [
        [row["problem"], *_cells(row, names), _signed(row[f"ahead: {best_rival(row)}"])]
        for row in _rows()
    ]
    return markdown(["problem", *names, "ahead of the best rival"], lines)


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


def confirm_table() -> str:
    """Four more problems, a row each."""
    header = ["problem", "+ distance", "+ votes", "+ class model", "+ all else", "of the variance"]
    header += ["match probability ahead of the best rival", "label: ours / best other"]
    header += ["AURC: ours / best other", "200 queries: ECE / floor / of two numbers"]
    lines = []
    for row in _rows("confirm"):
        steps = [f"+ {s}" for s in ("distance", "votes", "class model", "posterior variance")]
        rival, others = best_rival(row), ("vote", "probe", "LDA")
        lines.append([
            row["problem"],
            *(thousandths(row[step]["mean"]) for step in steps),
            _signed(row["gain: posterior variance"]),
            f"{_signed(row[f'ahead: {rival}'])} ({rival})",
            *(
                f"{thousandths(row[f'ours: {what}']['mean'])} / "
                f"{thousandths(best(row[f'{name}: {what}']['mean'] for name in others))}"
                for what, best in (("accuracy", max), ("aurc", min))
            ),
            " / ".join(
                thousandths(row[f"ece 200{of}"]["mean"]) for of in ("", " floor", " two numbers")
            ),
        ])  # fmt: skip
    return markdown(header, lines)


TABLES = {
    "evidence-confirm": confirm_table,
    "evidence-steps": steps_table,
    "evidence-rivals": rivals_table,
    "evidence-labels": labels_table,
}
