"""Sparsification, risk, reliability, ROC curves and histograms of the first seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.report.draw.chart import Chart
from benchmarks.report.draw.frame import Frame
from benchmarks.report.draw.histogram import histogram
from benchmarks.report.draw.lines import Series, line_chart
from benchmarks.report.draw.marks import DOTTED
from benchmarks.report.draw.scale import Axis
from benchmarks.report.reading import Part, known, summary
from laplace_metric.plots import Style

Styles = Mapping[str, Style]
DISTRIBUTIONS, ALIKE = 4, "laplace, tuned"
UNIT = (0.0, 1.0, True)


def curves(part: Part, styles: Styles, kind: str) -> dict[str, Any]:
    """Method -> its curve of a kind, of those that are shown and have it."""
    found = {name: rows[0].get("curves", {}).get(kind) for name, rows in part.methods.items()}
    return {name: found[name] for name in styles if found.get(name)}


def own_errors(part: Part, styles: Styles) -> list[Chart]:
    """What removing the least certain queries leaves, and whether confidence is honest."""
    makers: tuple[Callable[[Part, Styles], list[Chart]], ...] = (sparse, risk, reliable)
    return [chart for make in makers for chart in make(part, styles)]


def sparse(part: Part, styles: Styles) -> list[Chart]:
    """Sparsification, with the bounds of the first method shown."""
    found = curves(part, styles, "sparsification")
    if not found:
        return []
    first = next(iter(found))
    bounds = [
        Series(f"{kind}, {first}", None, found[first]["fractions"], found[first][kind], dash=dash)
        for kind, dash in (("oracle", ""), ("random", DOTTED))
    ]
    lines = [Series(name, styles[name], c["fractions"], c["curve"]) for name, c in found.items()]
    low = min(min(one.y) for one in (*lines, *bounds))
    x = Axis("least certain queries removed", *UNIT)
    frame = Frame(x, Axis("recall@1 of the rest", max(0.0, low - 0.04), 1.01, True))
    chart = line_chart("Sparsification", f"{part.task}: sparsification", frame, [*bounds, *lines])
    return [replace(
        chart,
        how="The least certain queries are removed from left to right. The thin lines remove "
        "exactly the errors (solid, the oracle) or at random (dotted).",
        good="a steep climb, close to the oracle.",
    )]  # fmt: skip


def risk(part: Part, styles: Styles) -> list[Chart]:
    """Share of wrong answers among those given."""
    found = curves(part, styles, "risk")
    if not found:
        return []
    lines = [Series(name, styles[name], c["coverage"], c["risk"]) for name, c in found.items()]
    high = max((value for one in lines for value in one.y if known(value)), default=1.0)
    frame = Frame(
        Axis("queries answered", *UNIT), Axis("wrong among them", 0.0, 1.05 * high or 1.0, True)
    )
    chart = line_chart("Risk and coverage", f"{part.task}: risk and coverage", frame, lines)
    how = "Only the most certain share of the queries is answered; up is the share of errors."
    return [replace(chart, how=how, good="low, and lowest at the left.")]


def reliable(part: Part, styles: Styles) -> list[Chart]:
    """Accuracy of votes against their confidence."""
    found = curves(part, styles, "reliability")
    if not found:
        return []
    lines = [Series("honest", None, [0.0, 1.0], [0.0, 1.0])]
    for name, c in found.items():
        sizes = [0.15 + 3 * n / sum(c["count"]) for n in c["count"]]
        sizes = [size if size > 0.2 else 0.1 for size in sizes]  # rare bins: small, not joined
        lines.append(Series(name, styles[name], c["confidence"], c["accuracy"], sizes=sizes))
    axes = Axis("votes for the winner", -0.02, 1.04, True), Axis("right", -0.02, 1.04, True)
    chart = line_chart("Reliability", f"{part.task}: reliability of votes", Frame(*axes), lines)
    how = "Sampled embeddings vote on each query; larger marks hold more queries."
    good = "points on the dotted diagonal; below it a method is too sure."
    return [replace(chart, how=how, good=good)]


def strange(part: Part, styles: Styles) -> list[Chart]:
    """A ROC chart for each strange set, then histograms."""
    rocs = curves(part, styles, "roc")
    sets = dict.fromkeys(name for found in rocs.values() for name in found)
    return [roc(part, styles, rocs, name) for name in sets] + histograms(part, styles)


def roc(part: Part, styles: Styles, rocs: Mapping[str, Any], name: str) -> Chart:
    """Of one strange set; the legend has the mean AUROC over the seeds."""
    lines = [Series("guessing", None, [0.0, 1.0], [0.0, 1.0])]
    for method, found in rocs.items():
        area = summary(part.methods[method], f"auroc {name}").mean
        if name in found:
            words = f"{method} {area:.2f}" if known(area) else method
            curve = found[name]
            lines.append(Series(words, styles[method], curve["fpr"], curve["tpr"]))
    frame = Frame(Axis("queries flagged", *UNIT), Axis("strange inputs flagged", *UNIT))
    chart = line_chart(f"ROC, {name}", f"{part.task}: ROC curves against {name}", frame, lines)
    how = "Flagging from the least certain on; beside the names the mean AUROC."
    return replace(chart, how=how, good="towards the upper left; the diagonal is guessing.")


def histograms(part: Part, styles: Styles) -> list[Chart]:
    """Of the first few methods shown."""
    found = curves(part, styles, "histograms")
    charts = [
        histogram(f"Uncertainty, {name}", f"{part.task}: uncertainties of {name}", curve)
        for name, curve in found.items()
        if name != ALIKE and len(curve["shares"]) > 1
    ][:DISTRIBUTIONS]
    how = "Where queries and strange inputs fall, on the method's own scale."
    good = "strange inputs to the right, with little overlap."
    return [replace(chart, how=how, good=good) for chart in charts]
