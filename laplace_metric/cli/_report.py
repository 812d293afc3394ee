"""``laplace-metric report``: what ``evaluate`` measures, as one page with figures."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from laplace_metric import plots
from laplace_metric._utils.files import write_atomically
from laplace_metric._utils.version import __version__
from laplace_metric.cli._evaluate import measured, require_queries
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._output import reporter_of
from laplace_metric.cli.pages import Chart, templates
from laplace_metric.cli.sources import Source
from laplace_metric.plots import Figure, inline_svg
from laplace_metric.search import DISTANCE, MATCH, UNCERTAINTY, IndexReport


def report(options: Namespace) -> None:
    """Measure and write the page."""
    reporter = reporter_of(options, options.output)
    require_queries(options)
    gallery = load_gallery(options.index, options, reporter)
    measures, queries = measured(gallery, options, reporter)
    numbers = measures.to_json()
    page = (
        templates(Path(__file__).parent)
        .get_template("trust.html.j2")
        .render(
            lines=measures.rows(),
            promises=numbers.get("promises", []),
            charts=charts(measures),
            facts=_facts(gallery, queries, options),
            calibrated=measures.reliability is not None,
        )
    )
    write_atomically(options.output, page)
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**numbers, "output": str(options.output)})


def charts(measures: IndexReport) -> dict[str, Chart]:
    """The figures that there are, by name."""
    first = MATCH if MATCH in measures.sparsification else UNCERTAINTY
    shown = {name: measures.sparsification[name] for name in (first, DISTANCE)}
    found = {
        "answering": _chart("Answering", plots.sparsification_plot(shown, first)),
        "uncertainty": _chart("Uncertainty", _histogram(measures)),
    }
    if measures.reliability is not None:
        figure = plots.reliability_plot({"nearest neighbour": measures.reliability})
        found["reliability"] = _chart("Reliability", figure)
    return found


def _chart(title: str, figure: Figure) -> Chart:
    return Chart(title, inline_svg(figure, title.lower(), title))


def _histogram(measures: IndexReport) -> Figure:
    others = {}
    if not bool(measures.right.all()):
        others["with a wrong answer"] = measures.uncertainty[~measures.right]
    if measures.ood_uncertainty is not None:
        others["out-of-distribution"] = measures.ood_uncertainty
    return plots.uncertainty_plot(measures.uncertainty, others)


def _facts(gallery: LoadedIndex, queries: Source, options: Namespace) -> dict[str, str]:
    origin = "" if gallery.origin.data is None else f" of {gallery.origin.data}"
    settings = gallery.posterior.embedder.settings
    strangers = {} if options.strangers is None else {"Strangers": str(options.strangers)}
    return {
        "Index": f"{options.index}: {len(gallery.index):,} items{origin}",
        "Queries": f"{len(queries):,} items of {options.data}",
        **strangers,
        "Model": gallery.posterior.recipe.model or "none: embeddings",
        "Posterior": f"structure {settings.structure}, hessian {settings.hessian}, distance "
        f"{settings.distance}, prior precision {settings.prior_precision:.3g}",
        "Version": f"laplace-metric {__version__}",
    }
