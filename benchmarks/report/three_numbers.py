"""The three numbers beside every other method, task by task: the tables of the front page.

A task's number is a mean over its seeds, of OOD inputs over its OOD sets too. ``best other`` is the
method with the best mean of all but the three numbers and their parts, on the same network; the
variance of the posterior (``laplace``) is one of the others. **Bold**: the paired difference of the
two over the seeds is significant (Student's t, 95 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from benchmarks.methods import METHODS
from benchmarks.records import RESULTS, markdown, read_record, thousandths

Row = dict[str, Any]
EPISTEMIC, AMBIGUITY, MATCH = "laplace, epistemic", "laplace, ambiguity", "laplace, match"
NEAR, FAR = "laplace, near", "laplace, far"
OURS = (EPISTEMIC, NEAR, FAR, AMBIGUITY, MATCH)
OF_ERRORS = ("loss prediction, frozen",)
"""Post-hoc methods that foretell errors, and no foreign inputs."""
DETECTORS = tuple(
    name for name, entry in METHODS.items() if entry.group == "detector" and name not in OF_ERRORS
)


class Case(NamedTuple):
    """One task: which record, what it is called, and whether defaults were chosen on it."""

    protocol: str
    task: str
    title: str
    chose: bool


CASES = (
    Case("lam", "fashion-mnist", "FashionMNIST, trained network", True),
    Case("lam", "cub", "birds, unseen species, head on EfficientNet", True),
    Case("pretrained", "pretrained-cub-unseen", "birds, 50 of 100 species fitted", True),
    Case("pretrained", "pretrained-cifar10", "CIFAR-10, EfficientNet as it is", True),
    Case("pretrained", "pretrained-text", "texts, MiniLM as it is", False),
)


class Values(NamedTuple):
    """A method's number for each seed."""

    method: str
    of: dict[int, float]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(list(self.of.values())))

    @property
    def text(self) -> str:
        """Mean ± standard error."""
        x = np.array(list(self.of.values()))
        return f"{thousandths(self.mean)} ± {thousandths(x.std(ddof=1) / len(x) ** 0.5)}"


def rows_of(case: Case) -> list[Row]:
    """The runs of a task."""
    record = read_record(case.protocol, RESULTS / "small")
    return [row for row in record["rows"] if row["task"] == case.task]


def ood_metrics(rows: Sequence[Row]) -> list[str]:
    """Names of the AUROC of each OOD set."""
    return [name for name in rows[0]["metrics"] if name.startswith("auroc ")]


def values(rows: Sequence[Row], metrics: Sequence[str]) -> dict[str, Values]:
    """Method -> mean of the metrics, seed by seed; only methods with every seed."""
    of: dict[str, dict[int, float]] = {}
    for row in rows:
        measured = [row["metrics"].get(name, {}).get("value") for name in metrics]
        if all(value is not None for value in measured):
            of.setdefault(row["method"], {})[row["seed"]] = float(np.mean(measured))
    most = max(map(len, of.values()))
    return {name: Values(name, seeds) for name, seeds in of.items() if len(seeds) == most}


def best_other(of: dict[str, Values]) -> Values:
    """Return the best of the other methods."""
    others = [one for name, one in of.items() if name not in OURS]
    return max(others, key=lambda one: one.mean)


def significant(a: Values, b: Values) -> bool:
    """Whether the paired difference over the seeds is."""
    apart = np.array([a.of[seed] - b.of[seed] for seed in a.of])
    n = len(apart)
    return abs(apart.mean()) > student.ppf(0.975, n - 1) * apart.std(ddof=1) / n**0.5


def pair(ours: Values, other: Values) -> list[str]:
    """Both numbers, the better bold where that is significant, and who the other is."""
    clear, ahead = significant(ours, other), ours.mean > other.mean
    cells = [
        f"**{one.text}**" if clear and ahead == (one is ours) else one.text for one in (ours, other)
    ]
    return [cells[0], f"{cells[1]} ({other.method})"]


def front() -> str:
    """A task a line: is the nearest neighbour wrong, and is the input unlike anything known."""
    header = ["task", "chosen on", "R-AUROC of the match probability", "best other"]
    header += ["OOD AUROC of `epistemic`", "best other"]
    lines = []
    for case in CASES:
        rows = rows_of(case)
        wrong, ood = values(rows, ["r_auroc"]), values(rows, ood_metrics(rows))
        lines.append(
            [
                case.title,
                "yes" if case.chose else "",
                *pair(wrong[MATCH], best_other(wrong)),
                *pair(ood[EPISTEMIC], best_other(ood)),
            ]
        )
    return markdown(header, lines)


def pairs() -> str:
    """Every OOD set: the epistemic number, and detectors from the best to the worst."""
    lines = []
    for case in CASES:
        rows = rows_of(case)
        for metric in ood_metrics(rows):
            of = values(rows, [metric])
            ours = of[EPISTEMIC]
            found = [of[name] for name in DETECTORS if name in of]
            best = max(found, key=lambda one: one.mean)
            others = (of.get(name) for name in SHOWN)
            lines.append(
                [
                    f"{case.title}: {metric.removeprefix('auroc ')}",
                    "yes" if case.chose else "",
                    ours.text,
                    *(thousandths(of[name].mean) for name in (NEAR, FAR)),
                    f"{ours.mean - best.mean:+.3f}",
                    f"{of[FAR].mean - best.mean:+.3f}",
                    *(thousandths(one.mean) if one else "n/a" for one in others),
                ]
            )
    header = ["OOD AUROC", "chosen on", "epistemic", "near", "far"]
    header += ["epistemic less the best", "far less the best"]
    return markdown([*header, *SHOWN], lines)


SHOWN = ("laplace", *DETECTORS)
