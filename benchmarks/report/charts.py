"""All charts of a task, by the question they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.plots import (
    Axis,
    CostPoint,
    Series,
    cost_plot,
    forest_plot,
    histogram_plot,
    line_plot,
)
from benchmarks.report.cells import query_ms
from benchmarks.report.families import growth
from benchmarks.report.reading import Part, described, known, summary
from benchmarks.report.series import Block, Chart, Styles, chosen, curves, group_style

FIRST = "(first seed)"
DISTRIBUTIONS, ALIKE = 4, "laplace, tuned"
UNIT = (0.0, 1.0)
Curves = dict[str, Any]


def blocks(part: Part, main: str) -> list[Block]:
    """Those for which the record has something to show."""
    styles = chosen(part, main)
    questions = {
        "Laplace beside the others": [*differences(part, main), *costs(part, main)],
        f"Does it know which answers are wrong? {FIRST}": own_errors(part, styles),
        f"Does it notice what is out of distribution? {FIRST}": ood(part, styles),
        f"How does it grow with severity? {FIRST}": growth(part, styles),
    }
    return [Block(title, charts) for title, charts in questions.items() if charts]


def differences(part: Part, key: str) -> list[Chart]:
    """Laplace minus the others, in the main metric."""
    intervals = part.differences(key)
    if not intervals:
        return []
    kind = described(key)
    direction = -1 if kind.direction < 0 else 1
    figure = forest_plot(intervals, f"difference in {kind.name}", direction)
    side = "left" if direction < 0 else "right"
    return [Chart(
        f"{kind.name}: laplace minus …", figure,
        f"{part.task}: paired differences in {kind.name}, Laplace minus each other method",
        "The same queries and seeds, resampled together; lines are 95 % intervals.",
        f"{side} of the solid zero line Laplace is better. Circles: clearly better; squares: "
        "clearly worse; diamonds: the line holds zero, the data cannot tell.",
    )]  # fmt: skip


def costs(part: Part, key: str) -> list[Chart]:
    """Quality against the time of a query."""
    points = cost_points(part, key)
    if not points:
        return []
    name = described(key).name
    return [Chart(
        f"{name} against cost",
        cost_plot({part.task: points}, "CPU ms per query (log scale)", name),
        f"{part.task}: {name} of each method against the CPU time of a query",
        "Shape and colour show the family; vertical lines are standard errors over seeds.",
        "up and to the left: better answers for less time.",
    )]  # fmt: skip


def cost_points(part: Part, key: str) -> list[CostPoint]:
    """Cost and quality of the methods that have both."""
    points = []
    for name, rows in part.methods.items():
        group, quality = rows[0]["group"], summary(rows, key)
        cost, style = query_ms(rows), group_style(group)
        points.append(CostPoint(name, style, cost, quality.mean, group, quality.error))
    return [one for one in points if known(one.cost) and one.cost > 0 and known(one.quality)]


def own_errors(part: Part, styles: Styles) -> list[Chart]:
    """What removing the least certain queries leaves, and whether confidence is honest."""
    makers: dict[str, Callable[[str, Curves, Styles], Chart]] = {
        "sparsification": sparse, "risk": risk, "reliability": reliable,
    }  # fmt: skip
    of_kinds = {kind: curves(part, styles, kind) for kind in makers}
    return [makers[kind](part.task, of, styles) for kind, of in of_kinds.items() if of]


def sparse(task: str, of_methods: Curves, styles: Styles) -> Chart:
    """Sparsification, with the bounds of the first method shown."""
    first, curve = next(iter(of_methods.items()))
    series = [
        Series(f"{kind}, {first}", None, curve["fractions"], curve[kind], line=line)
        for kind, line in (("oracle", "-"), ("random", ":"))
    ]
    series += [Series(n, styles[n], c["fractions"], c["curve"]) for n, c in of_methods.items()]
    low = min(min(one.y) for one in series)
    y = Axis("recall@1 of the rest", (max(0.0, low - 0.04), 1.01), True)
    return Chart(
        "Sparsification", line_plot(series, Axis("least certain queries removed", UNIT, True), y),
        f"{task}: sparsification",
        "The least certain queries are removed from left to right. The thin lines remove "
        "exactly the errors (solid, the oracle) or at random (dotted).",
        "a steep climb, close to the oracle.",
    )  # fmt: skip


def risk(task: str, of_methods: Curves, styles: Styles) -> Chart:
    """Share of wrong answers among those given."""
    series = [Series(n, styles[n], c["coverage"], c["risk"]) for n, c in of_methods.items()]
    high = max((value for one in series for value in one.y if known(value)), default=1.0)
    y = Axis("wrong among them", (0.0, 1.05 * high or 1.0), True)
    return Chart(
        "Risk and coverage", line_plot(series, Axis("queries answered", UNIT, True), y),
        f"{task}: risk and coverage",
        "Only the most certain share of the queries is answered; up is the share of errors.",
        "low, and lowest at the left.",
    )  # fmt: skip


def reliable(task: str, of_methods: Curves, styles: Styles) -> Chart:
    """Accuracy of votes against their confidence."""
    series = [Series("honest", None, [0.0, 1.0], [0.0, 1.0])]
    for name, c in of_methods.items():
        sizes = [0.15 + 3 * n / sum(c["count"]) for n in c["count"]]
        sizes = [size if size > 0.2 else 0.1 for size in sizes]  # rare bins: small, not joined
        series.append(Series(name, styles[name], c["confidence"], c["accuracy"], sizes=sizes))
    limits = (-0.02, 1.04)
    axes = Axis("votes for the winner", limits, True), Axis("right", limits, True)
    return Chart(
        "Reliability", line_plot(series, *axes), f"{task}: reliability of votes",
        "Sampled embeddings vote on each query; larger marks hold more queries.",
        "points on the dotted diagonal; below it a method is too sure.",
    )  # fmt: skip


def ood(part: Part, styles: Styles) -> list[Chart]:
    """A ROC chart for each out-of-distribution set, then histograms of the first few methods."""
    rocs = curves(part, styles, "roc")
    sets = dict.fromkeys(name for of_sets in rocs.values() for name in of_sets)
    histograms = [
        Chart(
            f"Uncertainty, {name}", histogram_plot(**{**c, "logarithmic": bool(c["logarithmic"])}),
            f"{part.task}: uncertainties of {name}",
            "Where queries and OOD inputs fall, on the method's own scale.",
            "OOD inputs to the right, with little overlap.",
        )
        for name, c in curves(part, styles, "histograms").items()
        if name != ALIKE and len(c["shares"]) > 1
    ]  # fmt: skip
    return [roc(part, styles, rocs, name) for name in sets] + histograms[:DISTRIBUTIONS]


def roc(part: Part, styles: Styles, rocs: Curves, name: str) -> Chart:
    """Of one out-of-distribution set; the legend has the mean AUROC over the seeds."""
    series = [Series("guessing", None, [0.0, 1.0], [0.0, 1.0])]
    for method, of_sets in rocs.items():
        area = summary(part.methods[method], f"auroc {name}").mean
        if name in of_sets:
            label = f"{method} {area:.2f}" if known(area) else method
            curve = of_sets[name]
            series.append(Series(label, styles[method], curve["fpr"], curve["tpr"]))
    axes = Axis("queries flagged", UNIT, True), Axis("OOD inputs flagged", UNIT, True)
    return Chart(
        f"ROC, {name}", line_plot(series, *axes), f"{part.task}: ROC curves against {name}",
        "Flagging from the least certain on; beside the names the mean AUROC.",
        "towards the upper left; the diagonal is guessing.",
    )  # fmt: skip
