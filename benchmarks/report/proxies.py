"""Which number foretells the R-AUROC on new classes: rank correlations over methods (URL 4.5, 4.6).

A method's number is its mean over the seeds; the 95 % interval resamples methods (2,000 times), as
if they were independent, which variants of one method are not: it is too narrow rather than too
wide. The match probability, which reads the labels of the gallery, is left out, and so is what is
put on the network of InfoNCE.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from benchmarks.engine.statistics import mean_and_standard_error, spearman
from benchmarks.records import RESULTS, markdown, read_record, thousandths
from benchmarks.report.three_numbers import INFONCE, MATCH

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


URL = {"omniglot": "Omniglot", "cifar10-unseen": "CIFAR-10", "cub": "birds"}
HUMAN = {"cifar10h-soft": "soft labels", "cifar10h-hard": "hard labels"}
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
    Proxy("R-AUROC in the closed set: CIFAR-10", Number("lam", "cifar10", R_AUROC),
          Number("url", "cifar10-unseen", R_AUROC), ".09"),
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
        kept = row["method"] != MATCH and not row["method"].endswith(INFONCE)
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


def table() -> str:
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
