"""All charts of a task, by the question they answer."""

from __future__ import annotations

from benchmarks.report import curve_charts, severity, shots
from benchmarks.report.cells import query_ms
from benchmarks.report.draw.chart import Block, Chart
from benchmarks.report.draw.forest import forest
from benchmarks.report.draw.plane import Method, plane
from benchmarks.report.reading import Part, described, known, summary
from benchmarks.report.series import chosen, group_style


def blocks(part: Part, main: str) -> list[Block]:
    """Those for which the record has something to show."""
    styles = chosen(part, main)
    found = [
        Block("Laplace beside the others", [*differences(part, main), *costs(part, main)]),
        Block("Does it know which answers are wrong?", curve_charts.own_errors(part, styles)),
        Block("Does it notice what does not belong?", curve_charts.strange(part, styles)),
        Block("What do a few examples change?", shots.charts(part, styles)),
        Block("How does it grow with severity?", severity.growth(part, styles)),
    ]
    return [block for block in found if block.charts]


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
    points = [
        Method(name, group_style(rows[0]["group"]), query_ms(rows), summary(rows, key).mean)
        for name, rows in part.methods.items()
    ]
    points = [one for one in points if known(one.x) and one.x > 0 and known(one.y)]
    if not points:
        return []
    name = described(key).name
    label = f"{part.task}: {name} of each method against the CPU time of a query"
    chart = plane(
        f"{name} against cost", label, ("CPU ms per query (log scale)", name), points
    )  # fmt: skip
    how = "One number a method; shape and colour show its family."
    good = "up and to the left: better answers for less time."
    return [Chart(chart.title, chart.svg, chart.legend, True, how, good)]
