"""Collected records as one HTML page that asks for nothing from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.confirmation import is_confirmed
from benchmarks.definitions import COMPARISON
from benchmarks.recovery import runs as recovery
from benchmarks.report import cells, families
from benchmarks.report.charts import blocks
from benchmarks.report.glossary import METRICS, RECOVERY, about
from benchmarks.report.reading import Part, Record, described, known, parts
from benchmarks.report.series import chosen
from benchmarks.report.verdict import verdict
from benchmarks.sizes import MEANINGS
from benchmarks.strips import Picture, Strip
from laplace_metric.cli._templates import templates

TITLE = "Uncertainty in metric learning, measured"


def render(records: Sequence[Record], title: str = TITLE) -> str:
    """The whole page as text, a section for each record that has runs."""
    protocols = [_section(record) for record in records if record.get("rows")]
    keys = {key for r in records for row in r.get("rows", []) for key in row.get("metrics", {})}
    shown = {described(key).meaning for key in keys}
    meanings = [kind for kind in METRICS.values() if kind.meaning in shown]
    template = templates(Path(__file__).parent).get_template("page.html.j2")
    return template.render(title=title, protocols=protocols, meanings=meanings)


def _section(record: Record) -> dict[str, Any]:
    """A record as the template takes it; that of known posteriors is of its own kind."""
    section: dict[str, Any] = {
        "facts": run_facts(record),
        "tasks": [],
        "results": [],
        "plain": None,
        "verdict": [],
    }
    if "setting" in record["rows"][0]:
        plain = recovery.HEADER, recovery.cells(record["rows"])
        return {**section, "anchor": "recovery", "about": RECOVERY, "plain": plain}
    name = record["protocol"]
    tasks = [_task(part, f"{name}-{i}") for i, part in enumerate(parts(record))]
    trials = (trial for one in record.get("tuned", []) for trial in one["tried"])
    results = list(dict.fromkeys(key for trial in trials for key in trial if key != "settings"))
    section["verdict"] = verdict(record)
    return {**section, "anchor": name, "about": about(name), "tasks": tasks, "results": results}


def _task(part: Part, anchor: str) -> dict[str, Any]:
    main = about(part.record["protocol"]).main
    coloured = families.severity_keys(part)
    columns = [key for key in part.metrics if key not in coloured or key == families.MEAN]
    return {
        "name": part.task,
        "anchor": anchor,
        "quality": cells.quality(part, columns),
        "cost": cells.cost(part),
        "heat": families.heat(part),
        "shown": list(chosen(part, main)),
        "blocks": blocks(part, main),
        "galleries": _galleries(part),
        "trials": [
            (one["method"], [_trial(trial) for trial in one["tried"]])
            for one in part.record.get("tuned", [])
            if one["task"] == part.task and one["method"] in part.methods
        ],
    }


def run_facts(record: Record) -> dict[str, str]:
    """Size, machine, versions, commits."""
    machine = record.get("environment") or {}
    facts = {"size": str(record.get("size", ""))}
    for key, value in (record.get("settings") or {}).items():
        if key != "name":
            facts[MEANINGS.get(key, key)] = f"{value:,}" if isinstance(value, int) else str(value)
    facts["machine"] = ", ".join(
        [str(machine.get("system", "")), f"{machine.get('cores')} cores",
         f"{machine.get('threads')} threads", str(machine.get("cuda") or "no GPU")]
    )  # fmt: skip
    packages = {"Python": machine.get("python"), **(machine.get("packages") or {})}
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in packages.items())
    commits = record.get("commits") or [machine.get("git")]
    facts["git commits"] = ", ".join(c for c in commits if c) or "not noted"
    if is_confirmed(record, COMPARISON):
        said = record["confirmed"]
        facts["confirmed"] = f"{said['date']}, library {said['version']}: {said['portion']}"
    return {key: value for key, value in facts.items() if value}


def _trial(trial: dict[str, Any]) -> tuple[str, list[str]]:
    settings = ", ".join(f"{key} {_short(value)}" for key, value in trial["settings"].items())
    return settings, [_short(value) for key, value in trial.items() if key != "settings"]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if known(value) else "n/a"
    return value if isinstance(value, str) else json.dumps(value)


STRIP_TITLES = {
    "certain": ("Most certain", "nearest first"),
    "unsure": ("Least certain", "nearest first"),
    "credible": (
        "95 % credible sets: clear queries, then disputed ones",
        "some of the set; right: its angle, and how many images lie in it",
    ),
}


def _galleries(part: Part) -> list[dict[str, Any]]:
    """Of each method with example queries: a title, what stands beside the queries, the strips."""
    return [
        {
            "method": row["method"],
            "strips": [
                (*STRIP_TITLES.get(kind, (kind, "")), [_strip(one) for one in strips])
                for kind, strips in row["pictures"].items()
                if strips
            ],
        }
        for row in part.rows
        if row.get("pictures")
    ]


def _strip(one: dict[str, Any]) -> Strip:
    pictures = tuple(Picture(p["uri"], p["label"], p["right"]) for p in one["pictures"])
    return Strip(one["uncertainty"], pictures)
