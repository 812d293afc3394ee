"""All charts of a task, by the question they answer."""

from __future__ import annotations

from benchmarks.report import curve_charts, severity, shots
from benchmarks.report.cells import query_ms
from benchmarks.report.draw.chart import Block, Chart
from benchmarks.report.draw.forest import forest
from benchmarks.report.draw.plane import Method, plane
from benchmarks.report.reading import Part, described, known, summary
from benchmarks.report.series import chosen, group_style

FIRST = "(first seed)"


def blocks(part: Part, main: str) -> list[Block]:
    """Those for which the record has something to show."""
    styles = chosen(part, main)
    asked = {
        "Laplace beside the others": [*differences(part, main), *costs(part, main)],
        f"Does it know which answers are wrong? {FIRST}": curve_charts.own_errors(part, styles),
        f"Does it notice what does not belong? {FIRST}": curve_charts.strange(part, styles),
        "What do a few examples change?": shots.charts(part, styles),
        f"How does it grow with severity? {FIRST}": severity.growth(part, styles),
    }
    return [Block(title, charts) for title, charts in asked.items() if charts]


def differences(part: Part, key: str) -> list[Chart]:
    """Laplace minus the others, in the main metric."""
    found = part.differences(key)
    if not found:
        return []
    kind = described(key)
    svg = forest(
        f"{part.task}: paired differences in {kind.name}, Laplace minus each other method",
        f"difference in {kind.name}",
        found,
        -1 if kind.direction < 0 else 1,
    )
    side = "left" if kind.direction < 0 else "right"
    how = "The same queries and seeds, resampled together; lines are 95 % intervals."
    good = (
        f"{side} of the solid zero line Laplace is better. Circles: clearly better; squares: "
        "clearly worse; diamonds: the line holds zero, the data cannot tell."
    )
    return [Chart(f"{kind.name}: laplace minus …", svg, how=how, good=good)]


def costs(part: Part, key: str) -> list[Chart]:
    """Quality against the time of a query."""
    found = points(part, key)
    if not found:
        return []
    name = described(key).name
    label = f"{part.task}: {name} of each method against the CPU time of a query"
    chart = plane(
        f"{name} against cost", label, ("CPU ms per query (log scale)", name), found
    )  # fmt: skip
    how = "One number a method; shape and colour show its family."
    good = "up and to the left: better answers for less time."
    return [Chart(chart.title, chart.svg, chart.legend, True, how, good)]


def points(part: Part, key: str) -> list[Method]:
    """Cost and quality of the methods that have both."""
    found = [
        Method(name, group_style(rows[0]["group"]), query_ms(rows), summary(rows, key).mean)
        for name, rows in part.methods.items()
    ]
    return [one for one in found if known(one.x) and one.x > 0 and known(one.y)]
