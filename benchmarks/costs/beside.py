"""A guard beside packages for search, sets and outliers: ``costs --pieces beside``.

FashionMNIST by a frozen EfficientNet: n items, 500 queries to calibrate, 1,000 to ask, and 500 of
KMNIST, which nobody has seen. Every way has the same vectors; each row in a process of its own,
CPU seconds of one thread. A way answers a query, or abstains:

- FAISS: the label of the nearest item, always.
- cleanlab: the same, unless its outlier score is among the lowest 5 % of the calibration queries.
- crepes, MAPIE: the label of a logistic regression where their set at 90 % coverage has one label.
  Coverage is of all queries, not of those that are answered.
- laplace_metric: a guard at 90 % precision of what it answers, calibrated by the same 500 queries,
  or by its items alone.

Packages are timed where they are installed; ``RIVALS`` of ``benchmarks.whole_run`` says how.
"""

from __future__ import annotations

import statistics
import warnings
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

import faiss
import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.costs.cpu import cpu_seconds
from benchmarks.posterior.frozen import features
from benchmarks.records import write_shown
from benchmarks.timing import in_own_process
from laplace_metric import Guard

ITEMS, N_CALIBRATION, N_ASKED, N_FOREIGN = (1_200, 6_000), 500, 1_000, 500
PRECISION, ALPHA = 0.9, 0.05
K, SINGLE, BATCH, ROUNDS, NEAREST = 10, 100, 100, 3, 1
Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Ask = Callable[[Array], tuple[Array, Flags]]
"""Queries [Q, D] -> labels [Q], and which are answered [Q]."""
Pair = tuple[Array, Array]
Fit = Callable[[Pair, Pair], Ask]
"""Items and calibration queries, each with labels -> what answers."""


def by_faiss(items: Pair, held: Pair) -> Ask:
    """Answer with the label of the nearest item."""
    index = faiss.IndexFlatL2(items[0].shape[1])
    index.add(items[0])

    def ask(queries: Array) -> tuple[Array, Flags]:
        nearest = index.search(queries, K)[1][:, 0]
        return items[1][nearest], np.ones(len(queries), bool)

    return ask


def by_cleanlab(items: Pair, held: Pair) -> Ask:
    """Answer likewise, but for the outliers that cleanlab finds by distances."""
    from cleanlab.outlier import OutOfDistribution

    outliers, nearest = OutOfDistribution(), by_faiss(items, held)
    outliers.fit_score(features=items[0], verbose=False)
    least = np.quantile(outliers.score(features=held[0]), ALPHA)

    def ask(queries: Array) -> tuple[Array, Flags]:
        return nearest(queries)[0], outliers.score(features=queries) >= least

    return ask


def _classifier(items: Pair) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1_000)).fit(*items)


def by_crepes(items: Pair, held: Pair) -> Ask:
    """Answer with the only label of its prediction set."""
    from crepes import WrapClassifier

    classifier = WrapClassifier(_classifier(items))
    classifier.calibrate(*held)

    def ask(queries: Array) -> tuple[Array, Flags]:
        sets = classifier.predict_set(queries, labels=False, confidence=PRECISION, smoothing=False)
        return classifier.learner.classes_[sets.argmax(1)], sets.sum(1) == 1

    return ask


def by_mapie(items: Pair, held: Pair) -> Ask:
    """Answer with the only label of its prediction set."""
    from mapie.classification import SplitConformalClassifier

    learner = _classifier(items)
    sets_of = SplitConformalClassifier(learner, confidence_level=PRECISION, prefit=True)
    sets_of.conformalize(*held)

    def ask(queries: Array) -> tuple[Array, Flags]:
        sets = sets_of.predict_set(queries)[1][:, :, 0]
        return learner.classes_[sets.argmax(1)], sets.sum(1) == 1

    return ask


def _by_guard(calibrated_by: Literal["held out", "items"]) -> Fit:
    def fit(items: Pair, held: Pair) -> Ask:
        held_out = held if calibrated_by == "held out" else None
        guard = Guard(*items, precision=PRECISION, trained_on_items=False, held_out=held_out)

        def ask(queries: Array) -> tuple[Array, Flags]:
            answers = guard.ask(queries)
            return answers.label, answers.answered

        return ask

    return fit


WAYS: dict[str, tuple[Fit, str]] = {
    "FAISS": (by_faiss, "faiss"),
    "cleanlab": (by_cleanlab, "cleanlab"),
    "crepes": (by_crepes, "crepes"),
    "MAPIE": (by_mapie, "mapie"),
    "guard, 500 queries": (_by_guard("held out"), "laplace_metric"),
    "guard, items alone": (_by_guard("items"), "laplace_metric"),
}
"""Name -> what fits it, and the module that it needs."""
PACKAGES = {
    "faiss": "faiss-cpu", "cleanlab": "cleanlab", "crepes": "crepes", "mapie": "MAPIE",
}  # fmt: skip
"""Module -> the package that has it."""


def cost(way: str, items: Pair, held: Pair, asked: Pair, foreign: Array) -> dict[str, Any]:
    """Return CPU seconds of a fit, of one query and of each of 100; and what is answered."""
    warnings.simplefilter("ignore")  # in a process of its own
    faiss.omp_set_num_threads(1)
    fit, _ = WAYS[way]
    made: list[Ask] = []
    taken = [cpu_seconds(lambda: made.append(fit(items, held))) for _ in range(ROUNDS)]
    ask, (queries, truth) = made[-1], asked
    starts = range(0, len(queries) - BATCH + 1, BATCH)
    batches = [cpu_seconds(lambda i=i: ask(queries[i : i + BATCH])) for i in starts]  # type: ignore[misc]
    alone = [cpu_seconds(lambda i=i: ask(queries[i : i + 1])) for i in range(SINGLE)]  # type: ignore[misc]
    label, answered = ask(queries)
    right = np.asarray(label[answered] == truth[answered])
    return {
        "way": way, "n": len(items[1]), "d": queries.shape[1],
        "fit": statistics.median(taken), "one": statistics.median(alone),
        "of_batch": statistics.median(batches) / BATCH,
        "answered": float(answered.mean()), "right": float(right.mean()),
        "foreign": float(ask(foreign)[1].mean()),
    }  # fmt: skip


def run(options: Namespace) -> None:
    """Encode once, and measure each row in a process of its own."""
    x, y = features("fashion-mnist", max(ITEMS) + N_CALIBRATION + N_ASKED, options.data)
    vectors, labels = x.numpy(), y.numpy()
    foreign = features("kmnist", N_FOREIGN, options.data)[0].numpy()
    held, asked = slice(0, N_CALIBRATION), slice(N_CALIBRATION, N_CALIBRATION + N_ASKED)
    pairs = [(vectors[part], labels[part]) for part in (held, asked)]
    there = [way for way, (_, module) in WAYS.items() if find_spec(module)]
    rows = []
    for n in ITEMS:
        part = slice(asked.stop, asked.stop + n)
        items = vectors[part], labels[part]
        rows += [in_own_process(cost, way, items, *pairs, foreign) for way in there]
    made = [{"package": x, "version": version(x)} for m, x in PACKAGES.items() if find_spec(m)]
    write_shown("beside", {"rows": rows, "versions": made}, options)
