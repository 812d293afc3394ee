"""New classes next to similar ones: ``python -m benchmarks retrieval --pieces new_classes``.

The protocol is in ``docs/decisions.md``, written before the first run. A false positive
identification rate is guaranteed by one query a class (``with_new_classes``) and, for comparison,
by all queries without a match. Two worlds with known truth, then birds and Omniglot.

absent  classes with a score of their own, N(a, 1) with a ~ N(0, 1): none is in the collection
taken   clusters in eight dimensions, five items each in the collection; every class is taken out in
        turn, new ones come to the whole collection
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm

from benchmarks.datasets import load
from benchmarks.records import folder_of, markdown, read_record, write_record
from benchmarks.retrieval.decisions import interval
from benchmarks.retrieval.problems import Source
from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.errors import InputError

RATE = "fpir"
WAYS = ("classes", "queries")
K, RUNS, TAKEN, SPLITS = 10, 300, 60, 40
Array = npt.NDArray[Any]


def rules(near: Array, relevant: Array, without: Array, classes: Array, target: float, kind: str,
          seed: int) -> dict[str, Rule | None]:  # fmt: skip
    """The rule that counts classes and the one that counts queries; None where it is refused."""
    n = len(classes)
    ours = calibrate_scores(near, relevant, kind=kind, cross_fit=0, seed=seed)
    scores, right = np.concatenate([near, without]), np.r_[relevant, np.zeros(without.shape, bool)]
    mated = np.repeat([1, 0], (len(near), n))
    pretended = calibrate_scores(scores, right, kind=kind, mated=mated, cross_fit=0, seed=seed)
    found: dict[str, Rule | None] = {}
    for way, of in zip(WAYS, (ours.with_new_classes(without, classes), pretended), strict=True):
        try:
            found[way] = of.guarantee(fpir=target)
        except InputError:
            found[way] = None
    return found


def nearest(distance: Array) -> tuple[Array, Array]:
    """Distances and columns of the K nearest of [Q, N]."""
    rows = np.argpartition(distance, K, 1)[:, :K]
    order = np.argsort(np.take_along_axis(distance, rows, 1), 1, kind="stable")
    rows = np.take_along_axis(rows, order, 1)
    return np.take_along_axis(distance, rows, 1), rows


def squared(x: Array, y: Array) -> Array:
    """Squared distances [Q, N]."""
    return np.asarray(((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T).clip(min=0))


# Known truth.


def absent(g: np.random.Generator, n: int, target: float, seed: int) -> dict[str, Any]:
    """True FPIR of the rules, of n classes that no collection holds, ten queries each."""
    classes = np.repeat(np.arange(n), 10)
    without = g.normal(size=n)[classes] + g.normal(size=10 * n)
    right = g.random(800) < 0.9
    near = g.normal(size=800) + 4 * right
    made = rules(near[:, None], right[:, None], without[:, None], classes, target, "score", seed)
    grid = np.linspace(-6, 12, 3_601)
    rates = {}
    for way, rule in made.items():
        if rule is not None:
            accepted = rule(grid[:, None]).answered
            start = grid[accepted.argmax()] if accepted.any() else np.inf
            rates[way] = float(norm.sf(start / 2**0.5))
    return rates


def taken(g: np.random.Generator, n: int, target: float, seed: int) -> dict[str, Any]:
    """FPIR of the rules among 2,000 new classes; n classes taken out in turn calibrate."""
    centre = 2 * g.normal(size=(n + 2_000, 8))
    labels = np.repeat(np.arange(n), 5)
    items = centre[labels] + g.normal(size=(5 * n, 8))
    asked = centre[labels] + g.normal(size=(5 * n, 8))
    distance = squared(asked, items) ** 0.5
    near, rows = nearest(distance)
    own = labels[:, None] == labels
    without = nearest(np.where(own, np.inf, distance))[0]
    relevant = labels[rows] == labels[:, None]
    made = rules(near, relevant, without, labels, target, "distance", seed)
    new = nearest(squared(centre[n:] + g.normal(size=(2_000, 8)), items) ** 0.5)[0]
    return {way: float(rule(new).answered.mean()) for way, rule in made.items() if rule is not None}


def simulated(world: Any, n: int, target: float, runs: int) -> Iterator[dict[str, Any]]:
    """One row a way of counting."""
    found = [world(np.random.default_rng([n, run]), n, target, run) for run in range(runs)]
    for way in WAYS:
        rates = [rate[way] for rate in found if way in rate]
        broken = sum(rate > target for rate in rates)
        row = {"world": world.__name__, "classes": n, "target": target, "counted": way}
        mean = float(np.mean(rates)) if rates else None
        yield {**row, "runs": runs, "made": len(rates) / runs, "mean": mean} | interval(
            broken, runs
        )


# Birds and Omniglot.


def images(name: str, source: Source) -> tuple[Array, Array, Array, Array]:
    """Features, classes, whether an image may be an item, and the group (alphabet) of each."""
    if name == "birds":
        parts = [source.whole("cub", split) for split in ("train", "test")]
        x, y = (torch.cat(both).numpy() for both in zip(*parts, strict=True))
        return x, y, np.arange(len(y)) < len(parts[0][1]), y
    features, labels = source.features("omniglot", "test")
    extras = load("omniglot", "test", source.data, size=64).extras
    drawer, alphabet = (extras[name].numpy() for name in ("drawer", "alphabet"))
    return features.numpy(), labels.numpy(), drawer <= 10, alphabet


def one_split(
    name: str, images: tuple[Array, Array, Array, Array], distance: Array, new: Array, seed: int
) -> Iterator[dict[str, Any]]:
    """One row a target, with what each way of counting gives."""
    _, y, item, _ = images
    strange = np.isin(y, new)
    gallery, asked = np.flatnonzero(item & ~strange), np.flatnonzero(~item & ~strange)
    ours, test = np.array_split(np.random.default_rng(seed).permutation(asked), 2)
    near, rows = nearest(distance[np.ix_(ours, gallery)])
    relevant = y[gallery][rows] == y[ours][:, None]
    own = y[ours][:, None] == y[gallery]
    without = nearest(np.where(own, np.inf, distance[np.ix_(ours, gallery)]))[0]
    known, of_known = nearest(distance[np.ix_(test, gallery)])
    unknown = np.flatnonzero(strange)
    others = nearest(distance[np.ix_(unknown, gallery)])[0]
    right = y[gallery][of_known[:, 0]] == y[test]
    for target in TARGETS[name]:
        row: dict[str, Any] = {"target": target}
        for way, rule in rules(near, relevant, without, y[ours], target, "distance", seed).items():
            if rule is not None:
                let_in, answered = rule(others).answered, rule(known).answered
                each = [let_in[y[unknown] == c].mean() for c in new]
                row[way] = [np.mean(each), np.max(each), answered.mean(), (answered & right).mean()]
        yield row


TARGETS = {"birds": (0.1, 0.05), "omniglot": (0.05, 0.01), "omniglot, alphabets": (0.05, 0.01)}
NEW = {"birds": 20, "omniglot": 159, "omniglot, alphabets": 5}


def measured(name: str, source: Source, splits: int) -> list[dict[str, Any]]:
    """Rows of a problem: mean FPIR of new classes, and the splits where it is above the target."""
    of = images(name.partition(",")[0], source)
    x, y, _, groups = of
    distance = squared(x, x) ** 0.5
    among = groups if "alphabets" in name else y
    found = []
    for seed in range(splits):
        some = np.random.default_rng([seed, 1]).permutation(np.unique(among))[: NEW[name]]
        found += list(one_split(name, of, distance, np.unique(y[np.isin(among, some)]), seed))
    rows = []
    for target in TARGETS[name]:
        for way in WAYS:
            here = [row[way] for row in found if row["target"] == target and way in row]
            rows.append({"problem": name, "target": target, "counted": way, "splits": splits,
                         "made": len(here) / splits})  # fmt: skip
            if here:
                rate, worst, answered, right = np.mean(here, 0).tolist()
                above = float(np.mean([row[0] > target for row in here]))
                rows[-1] |= {"mean": rate, "above": above, "worst class": worst,
                             "known, answered": answered, "known, right": right}  # fmt: skip
    return rows


def run(options: Namespace) -> None:
    """Both worlds, then the images."""
    smoke = options.size == "smoke"
    worlds: list[dict[str, Any]] = []
    for n, target in ((29, 0.1), (100, 0.1), (100, 0.05), (300, 0.01)):
        worlds += simulated(absent, n, target, 5 if smoke else RUNS)
    for n, target in ((40, 0.1), (100, 0.05)):
        worlds += simulated(taken, n, target, 2 if smoke else TAKEN)
    rows: list[dict[str, Any]] = []
    write_record("new_classes", {"worlds": worlds, "rows": rows}, folder_of(options))
    for name in TARGETS:
        rows += measured(name, Source(options.data, options.cache), 2 if smoke else SPLITS)
        write_record("new_classes", {"worlds": worlds, "rows": rows}, folder_of(options))
        print(rows[-4:], flush=True)


def worlds_table() -> str:
    """Broken guarantees by the classes that calibrate."""
    header = ["world", "classes", "FPIR", "counted", "given", "mean FPIR", "broken, of 5 %"]
    lines = []
    for row in read_record("new_classes")["worlds"]:
        mean = "" if row["mean"] is None else f"{row['mean']:.1%}"
        lines.append([row["world"], f"{row['classes']}", f"{row['target']:.0%}", row["counted"],
                      f"{row['made']:.0%}", mean,
                      f"{row['broken']:.1%} ({row['low']:.1%} to {row['high']:.1%})"])  # fmt: skip
    return markdown(header, lines)


def table() -> str:
    """Real images."""
    header = ["problem", "FPIR", "counted", "given", "mean FPIR of new classes", "splits above",
              "worst class", "known: answered", "and right"]  # fmt: skip
    lines = []
    for row in read_record("new_classes")["rows"]:
        cells = [row["problem"], f"{row['target']:.0%}", row["counted"], f"{row['made']:.0%}"]
        names = ("mean", "above", "worst class", "known, answered", "known, right")
        lines.append([*cells, *(f"{row[x]:.1%}" if x in row else "" for x in names)])
    return markdown(header, lines)


TABLES = {"retrieval-new-classes-known": worlds_table, "retrieval-new-classes": table}
