"""A report as one HTML page that asks for nothing from outside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from laplace_metric import plots
from laplace_metric.evaluation_protocol import MethodResult
from laplace_metric.report.content import Report, Section
from laplace_metric.report.pictures import Strip, gallery
from laplace_metric.report.rows import Row, table_rows
from laplace_metric.report.svg import inline_svg


@dataclass(frozen=True)
class Chart:
    """A figure with a title and, where figures of a kind stand side by side, its own name."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Panel:
    """A section as the template takes it."""

    title: str
    intro: str
    methods: tuple[str, ...]
    rows: list[Row]
    roc: list[Chart]
    sparsification: list[Chart]
    reliability: list[Chart]
    uncertainty: list[Chart]
    certain: list[Strip]
    unsure: list[Strip]


def render(report: Report) -> str:
    """The whole page as text, under 1.5 MB for a few sections of small images."""
    panels = [
        _panel(section, f"s{i}", report.highlight) for i, section in enumerate(report.sections)
    ]
    return _template().render(report=report, panels=panels)


@cache
def _template() -> Template:
    return templates().get_template("report.html.j2")


def templates(*folders: Path) -> Environment:
    """Templates of these folders, and the look and the parts that pages share."""
    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _panel(section: Section, prefix: str, highlight: str) -> Panel:
    results = section.first
    certain, unsure = gallery(results[highlight], section.images)

    def chart(title: str, figure: Figure, key: str) -> Chart:
        return Chart(title, inline_svg(figure, f"{prefix}-{key}", title))

    strange = next(iter(results.values())).out
    detections = {
        out: {_area(n, r, out): r.out[out].roc for n, r in results.items()} for out in strange
    }
    curves = {name: result.sparsification for name, result in results.items()}
    votes = {name: result.calibration for name, result in results.items()}
    return Panel(
        section.title,
        section.intro,
        tuple(results),
        table_rows(section.results),
        [
            chart(out, plots.roc_plot(c, legend_below=True), f"roc{i}")
            for i, (out, c) in enumerate(detections.items())
        ],
        [chart("Sparsification", plots.sparsification_plot(curves, highlight), "sparse")],
        [chart("Reliability", plots.reliability_plot(votes), "reliable")],
        [
            chart(
                name,
                plots.uncertainty_plot(
                    result.queries.uncertainty, {k: v.uncertainty for k, v in result.out.items()}
                ),
                f"hist{i}",
            )
            for i, (name, result) in enumerate(results.items())
        ],
        certain,
        unsure,
    )


def _area(name: str, result: MethodResult, out: str) -> str:
    """A method with its AUROC and 95 % interval, for a legend."""
    area = result.out[out].auroc
    return f"{name} {area.estimate:.2f} [{area.low:.2f}, {area.high:.2f}]"
