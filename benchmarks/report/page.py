"""Collected records as one HTML page that asks for nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Template

from benchmarks.recovery import tables as recovery
from benchmarks.report import cells, few_shot, image_compression, run_facts, severity
from benchmarks.report.charts import blocks
from benchmarks.report.glossary import METRICS, RECOVERY, About, Metric, about
from benchmarks.report.reading import Part, Record, described, parts
from benchmarks.report.series import Block, chosen
from laplace_metric.cli.pages import templates

TITLE = "Uncertainty in metric learning, measured"


@dataclass(frozen=True)
class Task:
    """One task as the template takes it."""

    name: str
    anchor: str
    quality: cells.Table
    cost: cells.Table
    heat: severity.Heat | None
    shown: list[str]
    blocks: list[Block]
    galleries: list[image_compression.Gallery]
    trials: list[tuple[str, list[tuple[str, list[str]]]]]


@dataclass(frozen=True)
class Protocol:
    """One record as the template takes it."""

    anchor: str
    about: About
    tasks: list[Task]
    facts: dict[str, str]
    results: list[str]
    plain: tuple[Sequence[str], list[list[str]]] | None = None


def render(records: Sequence[Record], title: str = TITLE) -> str:
    """The whole page as text, a section for each record that has runs."""
    protocols = [protocol(record) for record in records if record.get("rows")]
    return _template().render(title=title, protocols=protocols, meanings=_meanings(records))


@cache
def _template() -> Template:
    return templates(Path(__file__).parent).get_template("page.html.j2")


def protocol(record: Record) -> Protocol:
    """A section; the recovery of known posteriors has a record of its own kind."""
    if "setting" in record["rows"][0]:
        plain = recovery.HEADER, recovery.cells(record["rows"])
        return Protocol("recovery", RECOVERY, [], run_facts.run_facts(record), [], plain)
    name = record["protocol"]
    found = [task(part, f"{name}-{i}") for i, part in enumerate(parts(record))]
    return Protocol(
        name, about(name), found, run_facts.run_facts(record), run_facts.results(record)
    )


def task(part: Part, anchor: str) -> Task:
    """A part of a section."""
    main = about(part.record["protocol"]).main
    coloured = severity.keys(part)
    columns = [key for key in few_shot.ordered(part) if key not in coloured or key == severity.MEAN]
    drawn = blocks(part, main)
    return Task(
        part.task, anchor, cells.quality(part, columns), cells.cost(part), severity.heat(part),
        list(chosen(part, main)), drawn, image_compression.galleries(part),
        run_facts.trials(part),
    )  # fmt: skip


def _meanings(records: Sequence[Record]) -> list[Metric]:
    """Of the metrics that the page shows, one line each."""
    keys = {key for r in records for row in r.get("rows", []) for key in row.get("metrics", {})}
    starts = {described(key).meaning for key in keys}
    return [kind for kind in METRICS.values() if kind.meaning in starts]
