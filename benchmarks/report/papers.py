"""Numbers over methods: what foretells errors on new classes, and what no paper prints.

``proxies``: which number foretells the R-AUROC on new classes (URL, sections 4.5 and 4.6). A
method's number is its mean over the seeds; the 95 % interval resamples methods (2,000 times), as if
they were independent, which variants of one method are not: it is too narrow rather than too wide.
The match probability, which reads the labels of the gallery, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from benchmarks.engine.statistics import mean_and_standard_error, spearman
from benchmarks.records import RESULTS, markdown, read_record, thousandths
from benchmarks.report.three_numbers import MATCH
from benchmarks.variants import transfer
from benchmarks.variants.views import NOISES

Array = npt.NDArray[np.float64]
RESAMPLES = 2_000


class Number(NamedTuple):
    """A metric of a task in a record."""

    protocol: str
    task: str
    metric: str


class Proxy(NamedTuple):
    """What might foretell, what is foretold, and what the paper prints."""

    title: str
    proxy: Number
    target: Number
    printed: str = ""


URL = {"cifar10-unseen": "CIFAR-10", "cub": "birds"}
HUMAN = {"cifar10h-soft": "soft labels"}
R_AUROC, RECALL, PEOPLE = "r_auroc", "recall@1", "entropy rank"


def of_new_classes(metric: str, title: str, printed: str = "") -> list[Proxy]:
    """A number of the new classes themselves beside their R-AUROC."""
    return [
        Proxy(
            f"{title}: {name}", Number("url", task, metric), Number("url", task, R_AUROC), printed
        )
        for task, name in URL.items()
    ]


def of_people(metric: str, title: str, printed: str) -> list[Proxy]:
    """A number of CIFAR-10H beside the R-AUROC of its queries."""
    return [
        Proxy(
            f"{title}: {n}", Number("human", task, metric), Number("human", task, R_AUROC), printed
        )
        for task, n in HUMAN.items()
    ]


PROXIES = (
    *of_new_classes("crop more uncertain", "crops more uncertain", ".71"),
    *of_new_classes("crop rank", "crop rank"),
    *of_new_classes(RECALL, "recall@1"),
    *of_people(PEOPLE, "people's entropy", ".80"),
    *of_people("crop rank", "crop rank, CIFAR-10H", ".71"),
)  # fmt: skip


def means(number: Number) -> dict[str, float]:
    """Method -> its mean over the seeds, of those that have the number."""
    values: dict[str, list[float]] = {}
    for row in read_record(number.protocol, RESULTS / "small")["rows"]:
        value = row["metrics"].get(number.metric, {}).get("value")
        kept = row["method"] != MATCH
        if row["task"] == number.task and kept and value is not None:
            values.setdefault(row["method"], []).append(float(value))
    return {method: mean_and_standard_error(of).mean for method, of in values.items()}


def interval(x: Array, y: Array) -> tuple[float, float]:
    """95 % of Spearman's correlation over resampled methods."""
    rows = np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))
    ranks = [rankdata(of[rows], axis=1) for of in (x, y)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    each = (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))
    low, high = np.quantile(each, (0.025, 0.975))
    return float(low), float(high)


def proxies() -> str:
    """A line a proxy and task."""
    lines = []
    for title, proxy, target, printed in PROXIES:
        first, second = means(proxy), means(target)
        methods = [name for name in first if name in second]
        x, y = (np.array([of[name] for name in methods]) for of in (first, second))
        low, high = interval(x, y)
        cells = [thousandths(spearman(x, y)), f"{thousandths(low)} to {thousandths(high)}"]
        lines.append([title, str(len(methods)), *cells, printed])
    return markdown(["proxy", "methods", "rank correlation", "95 %", "printed"], lines)


def seeds(values: Sequence[float]) -> str:
    """Mean ± standard error; a single seed stands without one."""
    summary = mean_and_standard_error(values)
    error = f" ± {thousandths(summary.standard_error)}" if summary.n > 1 else ""
    return thousandths(summary.mean) + error


def of_method(protocol: str, task: str, method: str, *metrics: str) -> str:
    """Numbers of a method in a record, over its seeds."""
    rows = [
        row
        for row in read_record(protocol, RESULTS / "small")["rows"]
        if (row["task"], row["method"]) == (task, method)
    ]
    return " / ".join(
        seeds([row["metrics"][name]["value"] for row in rows if name in row["metrics"]])
        for name in metrics
    )


def of_pairs(*lines: str, kinds: Sequence[str] = ("severity",)) -> str:
    """Minus the rank correlation of severity and uncertainty: that of severity and kappa."""
    rows = read_record("views")["rows"]
    own = [[row for row in rows if row["line"] == line] for line in lines]
    return " / ".join(seeds([-fmean(row[kind] for kind in kinds) for row in of]) for of in own)


def of_own_images() -> str:
    """Rank correlation of R-AUROC by own images and by labels, over the settings of all methods."""
    rows = [row for row in read_record("transfer")["rows"] if row["method"] != transfer.MANY]
    kinds = dict.fromkeys((row["method"], row["trial"]) for row in rows)
    of = [[row for row in rows if (row["method"], row["trial"]) == kind] for kind in kinds]
    x, y = (
        np.array([fmean(row[name] for row in own) for own in of])
        for name in ("own r_auroc", R_AUROC)
    )
    low, high = interval(x, y)
    return f"{thousandths(spearman(x, y))} ({thousandths(low)} to {thousandths(high)})"


UNPRINTED: tuple[tuple[str, Callable[[], str], str, str], ...] = (
    ("URL, A.6: R-AUROC by own images and by labels, rank correlation", of_own_images,
     "transfer", "24 settings of six methods, birds; 95 %"),
    ("LAM, G.1: birds against other photographs, default / diagonal as there, AUROC",
     lambda: " / ".join(of_method("lam", "cub", f"laplace{x}", "auroc photographs")
                        for x in ("", ", diagonal")),
     "small/lam", "Cars196 is not at hand"),
    ("Explicit concentration, figure 3: the four noises of MCInfoNCE, without / with noise in the "
     "views, severity and kappa",
     lambda: of_pairs("mcinfonce: views", "mcinfonce: views, noise", kinds=NOISES),
     "views", "frozen features, 30 rounds"),
)  # fmt: skip
"""What the papers ask without a number: what, ours, record, and conditions."""


def unprinted() -> str:
    """What the papers ask and print no number of."""
    lines = [[what, ours(), f"`{record}`", why] for what, ours, record, why in UNPRINTED]
    return markdown(["what", "ours", "record", "conditions"], lines)
