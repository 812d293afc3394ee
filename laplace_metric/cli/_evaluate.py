"""``laplace-metric evaluate``: how much the answers of an index can be trusted, as numbers."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._measures import ALPHA_UNKNOWN, Measures
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli.sources import Source

DEPTH = 50
"""Neighbours of each query, unless a calibration sets their number."""


def evaluate(options: Namespace) -> None:
    """Measure and print."""
    reporter = reporter_of(options)
    numbers = measured(load_gallery(options.index, options, reporter), options, reporter)[
        0
    ].numbers()
    reporter.say("\n".join(f"{name:<52}{value}" for name, value in lines(numbers)))
    reporter.numbers(numbers)


def measured(
    gallery: LoadedIndex, options: Namespace, reporter: Reporter
) -> tuple[Measures, Source]:
    """Measures of the data that options name, and the queries that they are of."""
    queries = gallery.queries(options.data, options, reporter)
    queries.require_classes("evaluation")
    built = gallery.index
    k = DEPTH if built.calibration is None else built.calibration.depth
    loader = reporter.watch("Evaluating", queries.inputs(options.batch_size))
    with reporter.warnings():
        judged = built.judge(loader, queries.classes, k)
        strangers = None
        if options.strangers is not None:
            other = gallery.posterior.source(options.strangers, options, reporter)
            loader = reporter.watch("Out-of-distribution", other.inputs(options.batch_size))
            strangers = built.search(loader, min(k, len(built))).hits
    if built.calibration is None:
        reporter.note(f"{options.index} is not calibrated: build it with --calibrate or --holdout")
    return Measures(judged, built.calibration, strangers), queries


def lines(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """What each number is, and the number as text."""
    found = [
        ("queries", f"{numbers['queries']:,}"),
        ("whose class the index has", percent(numbers["known_share"])),
        ("recall@1 of those", percent(numbers["recall_at_1"])),
    ]
    for name, value in numbers["r_auroc"].items():
        found.append((f"R-AUROC, wrong answers by {name}", _plain(value)))
    for name, value in numbers["ausc"].items():
        found.append((f"AUSC by {name}", _plain(value)))
    found.append(("AUSC, the best possible", _plain(numbers["ausc_oracle"])))
    if "ece" in numbers:
        found += _calibrated(numbers)
    for name, value in numbers.get("strangers", {}).get("auroc", {}).items():
        found.append((f"AUROC, out-of-distribution by {name}", _plain(value)))
    if "unknown" in numbers.get("strangers", {}):
        found.append(
            ("out-of-distribution called unknown", percent(numbers["strangers"]["unknown"]))
        )
    return found


def percent(value: float | None) -> str:
    """A share; n/a for None."""
    return "n/a" if value is None else f"{value:.1%}"


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _calibrated(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    found = [
        ("match probability: calibration error (ECE)", _plain(numbers["ece"])),
        ("match probability: Brier score", _plain(numbers["brier"])),
    ]
    for promise in numbers["promises"]:
        told = f"obtained {percent(promise['obtained'])}, answers {percent(promise['answered'])}"
        kept = promise["words"] if promise["threshold"] is None else told
        found.append((f"precision promised {promise['promised']:.0%}", kept))
    sets = numbers["retrieval_sets"]
    told = f"{percent(sets['coverage'])} with {sets['mean_size'] or 0:.1f} items"
    promised = f"sets with a match, promised {sets['promised']:.0%}"
    found.append((promised, sets.get("words", told)))
    allowed = f"called unknown, of known queries ({ALPHA_UNKNOWN:.0%} by design)"
    found.append((allowed, percent(numbers["unknown"]["of_known"])))
    found.append(
        ("called unknown, of queries of other classes", percent(numbers["unknown"]["of_others"]))
    )
    return found
