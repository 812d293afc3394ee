"""What the papers print beside what is measured here.

``proxies``: which number foretells the R-AUROC on new classes (URL, sections 4.5 and 4.6). A
method's number is its mean over the seeds; the 95 % interval resamples methods (2,000 times), as if
they were independent, which variants of one method are not: it is too narrow rather than too wide.
The match probability, which reads the labels of the gallery, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from benchmarks.engine.statistics import mean_and_standard_error, spearman
from benchmarks.records import RESULTS, markdown, read_record, thousandths
from benchmarks.report.three_numbers import MATCH
from benchmarks.variants import people, transfer
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


def of_recovery(setting: str, *losses: str, keys: Sequence[str] = ("certainty",)) -> str:
    """Rank correlations of known posteriors and those that were recovered."""
    rows = [row for row in read_record("recovery")["rows"] if row["setting"] == setting]
    return " / ".join(
        seeds([row[key]["rank"] for row in rows if row["loss"] == loss])
        for loss in losses
        for key in keys
    )


def of_pairs(*lines: str, kinds: Sequence[str] = ("severity",)) -> str:
    """Minus the rank correlation of severity and uncertainty: that of severity and kappa."""
    rows = read_record("views")["rows"]
    own = [[row for row in rows if row["line"] == line] for line in lines]
    return " / ".join(seeds([-fmean(row[kind] for kind in kinds) for row in of]) for of in own)


def of_crops(labels: str, model: str = people.CHOSEN) -> str:
    """Entropy and crop of MCInfoNCE with kappa = c |z|."""
    rows = [
        row
        for row in read_record("people")["rows"]
        if (row["labels"], row["concentration"], row["model"]) == (labels, "norm", model)
    ]
    return " / ".join(seeds([row[name] for row in rows]) for name in (PEOPLE, "crop rank"))


def of_settings() -> str:
    """How many methods have a negative rank correlation over their settings."""
    rows = read_record("transfer")["rows"]
    of = [[row for row in rows if row["method"] == name] for name in transfer.ASKED]
    means = [fmean(transfer.by_seed(own, RECALL, R_AUROC)) for own in of]
    return f"{sum(mean < 0 for mean in means)} of {len(means)}"


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


def of_many_shots() -> str:
    """R-AUROC and recall@1."""
    rows = [row for row in read_record("transfer")["rows"] if row["method"] == transfer.MANY]
    return " / ".join(seeds([row[name] for row in rows]) for name in (R_AUROC, RECALL))


def of_pair_of_heads(record: str, method: str, *paths: tuple[str, ...]) -> str:
    """Numbers of heads of images and texts, over their seeds."""
    rows = [row for row in read_record(record)["rows"] if row["method"] == method]
    return " / ".join(seeds([_at(row, path) for row in rows]) for path in paths)


def _at(row: Any, path: tuple[str, ...]) -> float:
    for key in path:
        row = row[key]
    return float(row)


PROLIP = "prolip, as printed"
RANKS = ("location", "certainty")
SHORT = "2,200 steps, 32 draws at most (there 100,000 and 512)"
FORMER = "not in the run: measured at 0.3.0"
SMALL_HEAD = "a head on frozen features, birds alone, 40 species"
CLOSING: tuple[tuple[str, str, Callable[[], str], str], ...] = (
    ("URL, section 4.3: R-AUROC of MCInfoNCE (ResNet-50)", ".569",
     lambda: of_method("url", "cub", "mcinfonce", R_AUROC), SMALL_HEAD),
    ("URL, section 4.3: R-AUROC of loss prediction (ViT)", ".568",
     lambda: of_method("url", "cub", "loss prediction", R_AUROC), SMALL_HEAD),
    ("URL, its published runs: HET-XL, class entropy / determinant", ".511 / .500",
     lambda: " / ".join(of_method("url", "cifar10-unseen", f"het-xl{x}", R_AUROC)
                        for x in (", class entropy", "")),
     "three new classes, a head on frozen features"),
    ("the same on birds", ".511 / .500",
     lambda: " / ".join(of_method("url", "cub", f"het-xl{x}", R_AUROC)
                        for x in (", class entropy", "")), SMALL_HEAD),
    ("the same on Omniglot", ".511 / .500", lambda: ".618 ± .007 / .594 ± .007",
     f"characters, a small network from nothing; {FORMER}"),
    ("URL, section 4.2 and C.1: trained on the classes asked, R-AUROC / R@1", ".68 / .54",
     of_many_shots, "50 species, half of their images; a head on frozen features"),
    ("URL, figures 7 and 8: methods whose settings trade recall for R-AUROC", "15 of 22",
     of_settings, "four settings of each, birds, ten rounds"),
    ("URL, A.6, no number: R-AUROC by own images and by labels, rank correlation", "",
     of_own_images, "24 settings of six methods, birds; 95 %"),
    ("URL, C.6: cross-entropy, two images of each class asked", "about .6",
     lambda: ".611 ± .008", f"50 classes; three rounds of training; {FORMER}"),
    ("the same on Omniglot", "about .6", lambda: ".619 ± .009",
     f"659 characters; three rounds of training; {FORMER}"),
    ("URL, section 4.5: closed set foretells new classes", ".09", lambda: ".346",
     f"25 methods, not settings of each; {FORMER}"),
    ("URL, section 4.6: people foretell errors", ".80",
     lambda: correlation(next(p for p in PROXIES if p.title.startswith("people"))),
     "methods on one data set, not five"),
    ("LAM, G.1: birds against other photographs, default / diagonal as there, AUROC", "",
     lambda: " / ".join(of_method("lam", "cub", f"laplace{x}", "auroc photographs")
                        for x in ("", ", diagonal")),
     "Cars196 is not at hand; its supplement prints no number"),
    ("MCInfoNCE, table 1: ranks of known locations / kappas", ".99 / .82",
     lambda: of_recovery("ambiguous", "mcinfonce", keys=RANKS), SHORT),
    ("MCInfoNCE, table 8: the same with a shared backbone", ".99 / .87",
     lambda: of_recovery("ambiguous", "mcinfonce, shared backbone", keys=RANKS), SHORT),
    ("MCInfoNCE, figure 4: ranks of kappas, encoders of 8 / 32 numbers for 10", "above .6",
     lambda: of_recovery("ambiguous", *(f"mcinfonce, encoder of {n}" for n in (8, 32))),
     SHORT),
    ("MCInfoNCE, figure 2: ranks of locations / kappas in 2 dimensions", "1.00 / .82",
     lambda: of_recovery("published pairs, 2 dimensions", "mcinfonce", keys=RANKS),
     SHORT),
    ("MCInfoNCE, figure 7: ranks of locations / kappas in 40 dimensions", "worse than in 10",
     lambda: of_recovery("published pairs, 40 dimensions", "mcinfonce", keys=RANKS),
     SHORT),
    ("MCInfoNCE, CIFAR-10H: entropy / crop", ".29 / .68",
     lambda: of_method("human", "cifar10h-soft", "mcinfonce", PEOPLE, "crop rank"),
     "there the whole network learns"),
    ("the same, kappa by the norm and the model that crops choose", ".29 / .68",
     lambda: of_crops("soft"), "a head on frozen features at 64 pixels"),
    ("MCInfoNCE, table 5: majority labels, entropy / crop", ".24 / .64",
     lambda: of_crops("majority"), "the same"),
    ("Explicit concentration, table 1: MCInfoNCE, severity and kappa", "-.743",
     lambda: of_pairs("mcinfonce: labels"), "pairs of a class in place of two views"),
    ("the same with two views of an image, as there", "-.743",
     lambda: of_pairs("mcinfonce: views"), "frozen features, 30 rounds"),
    ("Explicit concentration, table 1: its method", "-.876",
     lambda: of_pairs("explicit concentration: views"),
     "frozen features, 30 rounds: kappa is nearly constant"),
    ("Explicit concentration, figure 3: its method, four noises without / with noise in the views",
     "below 0 / above 0",
     lambda: of_pairs("explicit concentration: views", "explicit concentration: views, noise",
                      kinds=NOISES), "frozen features, 30 rounds"),
    ("the same of MCInfoNCE, which it does not show", "",
     lambda: of_pairs("mcinfonce: views", "mcinfonce: views, noise", kinds=NOISES), "the same"),
    ("Explicit concentration, table 8: its method, weight of kappa^2 .0005 / .04",
     "constant / -.853",
     lambda: of_pairs(*(f"explicit concentration, regularize {w}: views" for w in (0.0005, 0.04))),
     "the same"),
    ("ProLIP, table 3: prompt weights without labels, less all prompts", "+.0012",
     lambda: difference(PROLIP, "weights, 0 shots", "all prompts"),
     "ten prompts, CIFAR-10, heads of emoji"),
    ("ProLIP, section 4.2: mean variance less variance of the mean", "+.0007",
     lambda: difference(PROLIP, "all prompts, mean variance", "all prompts"),
     "ten prompts, CIFAR-10, heads of emoji"),
    ("ProLIP, C.7: bins of uncertainty and accuracy, MNIST / ImageNet", "-.98 / +.98",
     lambda: of_pair_of_heads("image_text", PROLIP, ("subgroups", "bins: spearman"),
                              ("cifar10", "bins: spearman")),
     "subgroups of emoji / CIFAR-10, trained on 2,100 drawings"),
    ("ProLIP, table 2: precision / R@1 [ROOT], 1.28B pairs", ".359 / .153",
     lambda: of_pair_of_heads(
         "image_text", PROLIP,
         *(("hierarcaps", "csd, inclusion of the caption", x) for x in ("precision", "root"))),
     "trained on keywords of emoji: the transfer fails"),
)  # fmt: skip
"""What is printed and where, the number, ours, and why they differ."""


def correlation(of: Proxy) -> str:
    """Spearman's correlation over methods."""
    first, second = means(of.proxy), means(of.target)
    methods = [name for name in first if name in second]
    return thousandths(spearman(*([x[name] for name in methods] for x in (first, second))))


def difference(method: str, way: str, less: str) -> str:
    """Accuracy on CIFAR-10 of one way of using the prompts less another's, seed by seed."""
    rows = [row for row in read_record("image_text")["rows"] if row["method"] == method]
    return seeds([row["cifar10"][way] - row["cifar10"][less] for row in rows])


def closing() -> str:
    """Printed, ours, and the reason for the difference."""
    lines = [[title, printed, ours(), reason] for title, printed, ours, reason in CLOSING]
    return markdown(["what", "printed", "ours", "why they differ"], lines)
