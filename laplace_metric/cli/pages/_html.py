"""A report as one HTML page, with its figures and images inside."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from laplace_metric import plots
from laplace_metric.cli.pages._rows import Report, Section, table_rows
from laplace_metric.datasets import ImageSet
from laplace_metric.evaluation import MethodResult
from laplace_metric.plots import Figure, inline_svg

SHOWN = 5
"""Queries shown at each end."""


@dataclass(frozen=True)
class Picture:
    """One image as a data URI, its class, and whether it is the query's (None: the query)."""

    uri: str
    label: str
    right: bool | None


@dataclass(frozen=True)
class Strip:
    """A query and its neighbours, nearest first."""

    uncertainty: str
    pictures: tuple[Picture, ...]


def gallery(result: MethodResult, images: ImageSet) -> tuple[list[Strip], list[Strip]]:
    """The most certain queries and the least certain ones, most extreme first."""
    return strips(result.queries.uncertainty, result.neighbours.indices, images, SHOWN)


def strips(
    uncertainty: Tensor, neighbours: Tensor, images: ImageSet, shown: int
) -> tuple[list[Strip], list[Strip]]:
    """Up to ``shown`` queries from both ends of uncertainty [Q], with neighbours [Q, k] (rows)."""
    order = uncertainty.argsort(stable=True).cpu()
    shown = min(shown, len(order) // 2)
    certain, unsure = (
        [strip(f"{float(uncertainty[row]):.3g}", row, neighbours[row], images) for row in end]
        for end in (order[:shown].tolist(), order.flip(0)[:shown].tolist())
    )
    return certain, unsure


def strip(caption: str, query: int, neighbours: Tensor, images: ImageSet) -> Strip:
    """A query (a row of ``images``) and its neighbours [k] (rows), with a caption beside them."""
    labels, names = images.labels, images.class_names
    pictures = [
        Picture(
            data_uri(images.pixels(slice(row, row + 1))[0]),
            names[int(labels[row])],
            None if place == 0 else bool(labels[row] == labels[query]),
        )
        for place, row in enumerate([query, *neighbours.cpu().tolist()])
    ]
    return Strip(caption, tuple(pictures))


def data_uri(image: Tensor) -> str:
    """A PNG of an image [C, H, W] in [0, 1], C = 1 or 3.

    Examples
    --------
    >>> data_uri(torch.zeros(1, 2, 2))[:22]
    'data:image/png;base64,'
    """
    pixels = (image.detach().cpu() * 255).round().clamp(0, 255).to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Chart:
    """A figure as SVG, and its title."""

    title: str
    svg: Markup


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
    """Templates of these folders, and the styles and macros that pages share."""
    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _panel(section: Section, prefix: str, highlight: str) -> dict[str, Any]:
    """A section as the template takes it."""
    results = section.first
    certain, unsure = gallery(results[highlight], section.images)

    def chart(title: str, figure: Figure, key: str) -> Chart:
        return Chart(title, inline_svg(figure, f"{prefix}-{key}", title))

    roc, uncertainty = [], []
    for i, out in enumerate(next(iter(results.values())).ood):
        rocs = {_area(name, r, out): r.ood[out].roc for name, r in results.items()}
        roc.append(chart(out, plots.roc_plot(rocs, legend_below=True), f"roc{i}"))
    for i, (name, result) in enumerate(results.items()):
        others = {out: numbers.uncertainty for out, numbers in result.ood.items()}
        figure = plots.uncertainty_plot(result.queries.uncertainty, others)
        uncertainty.append(chart(name, figure, f"hist{i}"))
    curves = {name: result.sparsification for name, result in results.items()}
    votes = {name: result.calibration for name, result in results.items()}
    return {
        "title": section.title,
        "intro": section.intro,
        "methods": list(results),
        "rows": table_rows(section.results),
        "roc": roc,
        "uncertainty": uncertainty,
        "sparsification": [
            chart("Sparsification", plots.sparsification_plot(curves, highlight), "sparse")
        ],
        "reliability": [chart("Reliability", plots.reliability_plot(votes), "reliable")],
        "certain": certain,
        "unsure": unsure,
    }


def _area(name: str, result: MethodResult, out: str) -> str:
    """A method with its AUROC and 95 % interval, for a legend."""
    area = result.ood[out].auroc
    return f"{name} {area.estimate:.2f} [{area.low:.2f}, {area.high:.2f}]"
