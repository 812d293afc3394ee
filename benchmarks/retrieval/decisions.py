"""Decisions for scores with known truth: ``python -m benchmarks retrieval --pieces decisions``.

2,000 calibrations each of worlds in which the rates of every threshold are known: a query has a
match in the collection or not, and the score of its first hit is normal, with another mean for
right ones, or one of a few values (ties). Each calibration fits a probability, asks for a guarantee
and breaks it if the true rate of the rule is on the wrong side: the share of these, with an exact
95 % interval (Clopper & Pearson), and the mean coverage. ``keep relevant`` holds on average: the
mean share of relevant items left out over calibrations, with its 95 % interval.

On real problems (``--pieces scores``) twenty times up to 1,000 queries calibrate and up to 2,000
others are asked, 90 % precision guaranteed (fewer than 1,000 are cross-fitted, as an index does by
itself): scores alone, the full evidence of an index, and the distance from which on the calibration
queries are right that often, as one would set it by hand.

Two more ways have no judgement at all: what they say is assumed. A mixture of two normal
distributions is fitted to the calibration queries' nearest distances, or to these normalised by a
cohort (adaptive S-norm, Matejka et al. 2017: in units of the mean and standard deviation of the 100
smallest distances to a cohort, of the query and of the item, averaged; the cohort is up to 1,000
random items of the gallery, for strangers need judgements). The probability is that of the nearer
component; accepted is as much as keeps its mean at 90 %. *Off*: the mean probability of the
likelier half of the queries less the share of these that is right.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial.distance import cdist
from scipy.stats import binomtest, norm
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from benchmarks.plots import Axis, Figure, Series, headed, line_plot, save_figure
from benchmarks.records import (
    figures_of,
    folder_of,
    markdown,
    read_record,
    write_part,
    write_record,
)
from benchmarks.retrieval.few import summarised
from benchmarks.retrieval.measure import K, shuffled
from benchmarks.retrieval.problems import Problem
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.calibration._rule import NAMES
from laplace_metric.errors import FewQueriesWarning, InputError
from laplace_metric.evaluation import auroc
from laplace_metric.plots._style import STYLES

RUNS, SIZES = 2_000, (100, 400, 1_000)
CROSSED, CROSSED_SIZES = 300, (600, 999, 300, 100, 60)
"""Calibrations of each world that compare cross-fitting with halves; fewer than 1,000 queries."""
GRID = np.linspace(-6, 10, 3_201)
STEP = 0.5
"""Between the scores of a world with ties."""
Array = npt.NDArray[np.float64]
RATES = {
    "precision": 0.9,
    "recall": 0.8,
    "fmr": 0.02,
    "fpir": 0.05,
}


@dataclass(frozen=True)
class World:
    """First hits: of ``open`` queries and ``wrong`` mated ones N(0, 1), of the others N(gap, 1)."""

    name: str
    open: float
    wrong: float
    gap: float
    tied: bool = False

    def draw(self, g: np.random.Generator, n: int) -> tuple[Array, Any, Any]:
        """Scores [n, 1], relevant [n, 1], mated [n]."""
        mated = g.random(n) >= self.open
        right = mated & (g.random(n) >= self.wrong)
        score = g.normal(size=n) + self.gap * right
        if self.tied:
            score = np.floor(score / STEP) * STEP
        return score[:, None], right[:, None], mated

    def truth(self, rule: Rule) -> tuple[dict[str, float], float]:
        """The rates of a rule, which accepts from some score on; and its coverage."""
        possible = np.arange(-6, 10, STEP) if self.tied else GRID
        accepted = rule(possible[:, None]).answered
        start = possible[accepted.argmax()] if accepted.any() else np.inf
        false, true = norm.sf(start), norm.sf(start - self.gap)
        right = (1 - self.open) * (1 - self.wrong)
        answered = right * true + (1 - right) * false
        rates = {
            "precision": right * true / answered if answered else 1.0,
            "recall": true,
            "fmr": false,
            "fpir": false,
        }
        return {name: float(rate) for name, rate in rates.items()}, float(answered)


WORLDS = (
    World("apart", 0.3, 0.1, 3.0),
    World("close", 0.3, 0.3, 1.5),
    World("ties", 0.3, 0.1, 3.0, tied=True),
    World("rare errors", 0.02, 0.02, 2.5),
)


HARD = (
    World("flat", 0.0, 0.1001, 0.0),
    World("flat, ties", 0.0, 0.1001, 0.0, tied=True),
    World("faint", 0.0, 0.11, 0.3),
)
"""Nearly every rule is just below a precision of .9."""


def simulated(world: World, n: int, runs: int, cross_fit: int = 0) -> list[dict[str, Any]]:
    """One row a rate: how often it could be guaranteed, was broken, and the coverage."""
    made, broken, covered = (dict.fromkeys(RATES, 0.0) for _ in range(3))
    for run in range(runs):
        score, right, mated = world.draw(np.random.default_rng([n, run]), n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewQueriesWarning)
            try:
                calibration = calibrate_scores(
                    score, right, mated=mated, cross_fit=cross_fit, seed=run
                )
            except InputError:  # all hits of the fitting half are right
                continue
        for name, target in RATES.items():
            try:
                asked: dict[str, Any] = {name: target}
                rule = calibration.guarantee(**asked)
            except InputError:
                continue
            rates, coverage = world.truth(rule)
            least = name in ("precision", "recall")
            made[name] += 1
            covered[name] += coverage
            broken[name] += rates[name] < target - 1e-12 if least else rates[name] > target + 1e-12
    return [
        {"world": world.name, "n": n, "rate": name, "target": target, "runs": runs}
        | {"made": made[name] / runs, "coverage": covered[name] / max(1, made[name])}
        | interval(int(broken[name]), runs)
        for name, target in RATES.items()
    ]


def interval(count: int, runs: int) -> dict[str, float]:
    """Share of the runs, with its exact interval."""
    ends = binomtest(count, runs).proportion_ci(0.95, method="exact")
    return {"broken": count / runs, "low": float(ends.low), "high": float(ends.high)}


def left_out(n: int, miss: float, runs: int) -> dict[str, Any]:
    """Mean share of relevant items that ``keep_relevant`` leaves out, over calibrations."""
    lost, passed = [], []
    for run in range(runs):
        g = np.random.default_rng([n, run, 1])
        score, relevant = lists(g, n + 200)
        try:
            calibration = calibrate_scores(score[:n], relevant[:n], cross_fit=0, seed=run)
            kept = calibration.keep_relevant(score[n:], miss)
        except InputError:
            continue
        rank, known = np.arange(score.shape[1]), relevant[n:].any(1)
        missed = (relevant[n:] & (rank >= kept[:, None])).sum(1)[known] / relevant[n:].sum(1)[known]
        lost.append(float(missed.mean()))
        passed.append(float(kept.mean()))
    error = 1.96 * float(np.std(lost, ddof=1)) / len(lost) ** 0.5
    found = {"n": n, "miss": miss, "runs": runs, "made": len(lost) / runs}
    mean = float(np.mean(lost))
    return found | {"left out": mean, "low": mean - error, "high": mean + error,
                    "passed on": float(np.mean(passed))}  # fmt: skip


def lists(g: np.random.Generator, n: int, k: int = 10) -> tuple[Array, Any]:
    """Ten hits of each query, of which up to four are relevant, sorted by their scores."""
    relevant = np.arange(k) < g.integers(0, 5, n)[:, None]
    score = g.normal(size=(n, k)) + 2 * relevant + g.normal(size=(n, 1))
    order = np.argsort(-score, 1)
    return np.take_along_axis(score, order, 1), np.take_along_axis(relevant, order, 1)


def run(options: Namespace) -> None:
    """Every world and size."""
    runs = 20 if options.size == "smoke" else RUNS
    rows = [row for world in WORLDS for n in SIZES for row in simulated(world, n, runs)]
    kept = [left_out(n, 0.1, runs // 4) for n in SIZES]
    write_record("decisions", {"rates": rows, "keep relevant": kept}, folder_of(options))


def run_crossed(options: Namespace) -> None:
    """Every world, cross-fitted and by halves; each number of queries is a part of the record."""
    runs = 5 if options.size == "smoke" else CROSSED
    for n in CROSSED_SIZES:
        rows: dict[str, list[Any]] = {"halves": [], "cross-fitted": []}
        for world in (*WORLDS, *HARD):
            for way, folds in (("halves", 0), ("cross-fitted", 5)):
                rows[way] += simulated(world, n, runs, folds)
        write_part("crossed", f"{n}", rows, folder_of(options))
        print(n, flush=True)


# Real problems.

TARGET, CALIBRATE, ASKED, HITS = 0.9, 1_000, 2_000, 10
COHORT, ADAPTED = 1_000, 100


def compared(problem: Problem, splits: int, queries: int) -> dict[str, Any]:
    """Means of every number over the splits."""
    x, y = shuffled(problem.pool, queries)
    index = problem.embedder.index(*problem.gallery, progress=False)
    index.learn_classes()
    judged = index.labelled_hits(x, y, problem.depth)
    gallery, asked = (problem.embedder(of).mean.numpy() for of in (problem.gallery[0], x))
    normed = normed_by_cohort(gallery, asked, judged.hits.positions[:, 0])
    n = min(CALIBRATE, len(judged) // 2)
    rows = [one_split(judged, normed, len(index), n, seed) for seed in range(splits)]
    facts = {"problem": problem.name, "queries": n, "splits": splits}
    return facts | {"right": float(judged.match[:, 0].mean())} | summarised(rows)


def one_split(
    judged: LabelledHits, normed: Array, n_items: int, n: int, seed: int
) -> dict[str, float]:
    """Kept, answered, AUROC, and how far off, of every way."""
    generator = torch.Generator().manual_seed(seed)
    order = drawn(len(judged), generator)
    ours, test = judged.take(order[:n]), judged.take(order[n : n + ASKED])
    right, distance = test.match[:, 0], test.hits.distance[:, 0]
    scores = calibrate_scores(
        ours.hits.distance[:, :HITS],
        ours.match[:, :HITS],
        kind="distance",
        mated=ours.known,
    )
    full = calibrated(ours, K, n_items, drawn(n, generator))
    p = {
        "scores": scores.probability(test.hits.distance[:, :HITS])[:, 0],
        "all": full.assess(test.hits).match_probability[:, 0],
        "by hand": -distance,
    }
    unjudged = {"mixture": -judged.hits.distance[:, 0], "cohort": normed}
    assumed = {name: mixture(values[order[:n]]) for name, values in unjudged.items()}
    p |= {name: assumed[name](values[order[n : n + ASKED]]) for name, values in unjudged.items()}
    thresholds = {"by hand": -by_hand(ours.hits.distance[:, 0], ours.match[:, 0])}
    for name, of in (("scores", scores.guarantee), ("all", partial(full.guarantee, of="match"))):
        try:
            thresholds[name] = of(precision=TARGET).value
        except InputError:
            thresholds[name] = np.inf
    for name, scores_of in unjudged.items():
        likelier = np.sort(assumed[name](scores_of[order[:n]]))[::-1]
        enough = np.flatnonzero(np.cumsum(likelier) / np.arange(1, n + 1) >= TARGET)
        thresholds[name] = likelier[enough[-1]] if len(enough) else np.inf
    row = {}
    for name, values in p.items():
        answered = values >= thresholds[name]
        row[f"{name}: given"] = float(np.isfinite(thresholds[name]))
        row[f"{name}: answered"] = float(answered.mean())
        row[f"{name}: kept"] = float(not answered.any() or right[answered].mean() >= TARGET)
        row[f"{name}: auroc"] = auroc(-values[right], -values[~right])
        if name != "by hand":
            half = np.argsort(-values, kind="stable")[: len(values) // 2]
            row[f"{name}: off"] = float(values[half].mean() - right[half].mean())
    return row


def normed_by_cohort(gallery: Array, queries: Array, nearest: npt.NDArray[np.intp]) -> Array:
    """Scores [n] of the nearest items in units of the nearest of a cohort."""
    g = np.random.default_rng(0)
    cohort = gallery[g.permutation(len(gallery))[: min(COHORT, len(gallery) // 2)]]
    items = gallery[nearest]
    distance = np.linalg.norm(queries - items, axis=1)
    parts = []
    for points in (queries, items):
        near = np.partition(cdist(points, cohort), ADAPTED, 1)[:, :ADAPTED]
        parts.append((near.mean(1) - distance) / near.std(1))
    return np.asarray(sum(parts) / 2)


def mixture(scores: Array) -> Callable[[Array], Array]:
    """Probability of the component with the larger mean."""
    fitted = GaussianMixture(2, n_init=3, random_state=0).fit(scores[:, None])
    larger = int(fitted.means_[:, 0].argmax())
    return lambda new: np.asarray(fitted.predict_proba(new[:, None])[:, larger])


def by_hand(distance: Array, right: npt.NDArray[np.bool_], target: float = TARGET) -> float:
    """The largest distance up to which the share of right ones is as wanted."""
    order = np.argsort(distance)
    share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(share >= target)
    return float(distance[order][enough[-1]]) if len(enough) else -np.inf


def run_scores(options: Namespace) -> None:
    """Every problem."""
    how = options.splits, options.queries
    record_rows(options, "scores", lambda problem: compared(problem, *how))


# The picture of the page: its digits.


def share_figure() -> Figure:
    """Precision of a rule over the share of open-set queries: known before, and measured."""
    x, y = load_digits(return_X_y=True)
    g = np.random.default_rng(0)
    gallery = g.permutation(np.flatnonzero(y < 8))[:500]
    rest = g.permutation(np.setdiff1d(np.arange(len(x)), gallery))
    distance, rows = NearestNeighbors(n_neighbors=10).fit(x[gallery]).kneighbors(x[rest])
    relevant, mated = y[gallery][rows] == y[rest][:, None], y[rest] < 8
    ours, new = slice(0, 800), slice(800, None)
    rule = calibrate_scores(
        distance[ours], relevant[ours], kind="distance", mated=mated[ours], cross_fit=0
    ).guarantee(precision=0.95)
    accepted, right = rule(distance[new]).answered, relevant[new, 0]
    shares, points = np.linspace(0, 0.9, 91), np.linspace(0, 0.9, 10)
    expected, bound = rule.precision_at(shares)
    known, strange = (np.flatnonzero(mated[new] == kind) for kind in (True, False))
    measured, below, above = [], [], []
    for share in points:
        n = min(len(known) / (1 - share), len(strange) / share if share else np.inf)
        drawn_rows = np.r_[known[: round(n * (1 - share))], strange[: round(n * share)]]
        kept = right[drawn_rows][accepted[drawn_rows]]
        low, high = binomtest(int(kept.sum()), len(kept)).proportion_ci(0.95, method="exact")
        measured.append(float(kept.mean()))
        below.append(measured[-1] - low)
        above.append(high - measured[-1])
    figure = line_plot(
        [
            Series("expected", STYLES[0], shares.tolist(), expected.tolist()),
            Series("its lower bound", STYLES[1], shares.tolist(), bound.tolist()),
            Series(
                "new queries", STYLES[2], points.tolist(), measured,
                [below, above], [1.0] * len(points),
            ),
            Series("guaranteed", None, [0, 0.9], [0.95, 0.95]),
            Series("of the calibration", None, [1 - mated[ours].mean()] * 2, [0.5, 1], line="--"),
        ],
        Axis("queries without a match", (0, 0.92), True),
        Axis("precision of the answers", (0.5, 1.01), True),
    )  # fmt: skip
    note = "Digits 0 to 7 are in the collection, 8 and 9 are not.\nBound and bars: 95 % confidence."
    return headed(figure, "What becomes of a guarantee of 95 %?", note)


def run_share(options: Namespace) -> None:
    """The figure, from data that scikit-learn holds."""
    save_figure(share_figure(), figures_of(options) / "decisions.png")


# Tables.


def rates_table() -> str:
    """Worst and usual share of broken guarantees, by rate and number of queries."""
    header = ["rate", "guaranteed", "queries", "given", "answered", "broken, of 5 %", "worst world"]
    rows, lines = read_record("decisions")["rates"], []
    for name, target in RATES.items():
        for n in SIZES:
            found = [row for row in rows if row["rate"] == name and row["n"] == n]
            worst = max(found, key=lambda row: row["broken"])
            made = [row["made"] for row in found]
            answered = [row["coverage"] for row in found if row["made"]]
            lines.append([
                NAMES.get(name, name),
                f"{target:g}",
                f"{n:,}",
                f"{min(made):.0%} to {max(made):.0%}",
                f"{min(answered):.0%} to {max(answered):.0%}" if answered else "",
                f"{worst['broken']:.1%} ({worst['low']:.1%} to {worst['high']:.1%})",
                worst["world"] if worst["broken"] else "",
            ])  # fmt: skip
    return markdown(header, lines)


def crossed_table() -> str:
    """Halves and cross-fitting: given, and the worst share that is broken, over all worlds."""
    header, lines = ["rate", "queries"], []
    for way in ("halves", "cross-fitted"):
        header += [f"{way}: given", "answered", "broken, of 5 %, worst"]
    record = read_record("crossed")
    for name in RATES:
        for n in sorted(int(part) for part in record if part != "environment"):
            cells = [NAMES.get(name, name), f"{n}"]
            for way in ("halves", "cross-fitted"):
                rows = [row for row in record[f"{n}"][way] if row["rate"] == name]
                made = [row["made"] for row in rows]
                answered = [row["coverage"] * row["made"] for row in rows]
                worst = max(rows, key=lambda row: row["broken"])
                cells += [f"{np.mean(made):.0%}", f"{np.mean(answered):.0%}"]
                cells.append(f"{worst['broken']:.1%} ({worst['low']:.1%} to {worst['high']:.1%})")
            lines.append(cells)
    return markdown(header, lines)


def scores_table() -> str:
    """Scores alone, the full evidence and a threshold by hand, on every problem."""
    header, lines = ["problem", "nearest right", "calibration queries"], []
    for name in ("scores", "all", "by hand"):
        header += [f"{name}: given", "not broken", "answered", "AUROC"]
    for row in read_record("scores")["rows"]:
        cells = [row["problem"], f"{row['right']:.3f}", f"{row['queries']:,}"]
        for name in ("scores", "all", "by hand"):
            mean = {what: row[f"{name}: {what}"]["mean"] for what in ("given", "kept", "answered")}
            cells += [f"{mean['given']:.0%}", f"{mean['kept']:.0%}", f"{mean['answered']:.1%}"]
            area = row[f"{name}: auroc"]
            cells.append(f"{area['mean']:.3f} ± {area['half']:.3f}")
        lines.append(cells)
    return markdown(header, lines)


def assumed_table() -> str:
    """Probabilities without judgements beside the labelled one, by scores alone."""
    ways = {"scores": "labelled", "mixture": "mixture", "cohort": "cohort, mixture"}
    header, lines = ["problem"], []
    for title in ways.values():
        header += [f"{title}: AUROC", "off"]
    header += [f"{ways[way]}: not broken" for way in ("mixture", "cohort")]
    for row in read_record("scores")["rows"]:
        cells = [row["problem"]]
        for way in ways:
            area, off = row[f"{way}: auroc"], row[f"{way}: off"]["mean"]
            cells += [f"{area['mean']:.3f} ± {area['half']:.3f}", f"{off:+.3f}"]
        cells += [f"{row[f'{way}: kept']['mean']:.0%}" for way in ("mixture", "cohort")]
        lines.append(cells)
    return markdown(header, lines)


TABLES = {
    "retrieval-assumed": assumed_table,
    "retrieval-decisions": rates_table,
    "retrieval-scores": scores_table,
    "retrieval-crossed": crossed_table,
}
