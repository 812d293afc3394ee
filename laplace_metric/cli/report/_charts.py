"""The figures of a page, each with what it shows and of how many queries."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric import plots
from laplace_metric.cli.pages import Chart
from laplace_metric.cli.report._words import SPACE, percent
from laplace_metric.plots import Figure, inline_svg
from laplace_metric.search import DISTANCE, MATCH, UNCERTAINTY, IndexReport


@dataclass(frozen=True)
class ExplainedChart:
    """A figure, how to read it, and what is good."""

    chart: Chart
    about: str
    good: str


def charts(measures: IndexReport) -> list[ExplainedChart]:
    """Two, and a third where there are match probabilities."""
    n = f"{measures.queries:,}"
    found = [_answering(measures, n)]
    if measures.reliability is not None:
        figure = plots.reliability_plot({MATCH: measures.reliability})
        about = (
            f"The match probability of the nearest items of {n} queries, in ten bins, and the "
            "share that are a match; larger marks hold more queries, small ones may be chance."
        )
        good = "points on the dotted line. Below it the probability is too sure."
        found.append(_explained("Is the match probability honest?", figure, about, good))
    figure, sizes = _histogram(measures)
    strange = "" if measures.ood is None else ", and strangers,"
    good = f"wrong nearest items{strange} lie to the right."
    about = f"Uncertainty, the expected squared error of an embedding: {sizes}."
    found.append(_explained("Where do the uncertain ones fall?", figure, about, good))
    return found


def _answering(measures: IndexReport, n: str) -> ExplainedChart:
    first = MATCH if MATCH in measures.scores else UNCERTAINTY
    made = [p for p in (measures.largest_promise, *measures.promises) if p is not None]
    marks = {percent(p.promised): 1 - p.threshold for p in made if p.threshold is not None}
    shown = {name: measures.scores[name] for name in (first, DISTANCE)}
    if measures.called_unknown is not None:  # which no threshold answers
        shown[first] = shown[first] + measures.called_unknown.to(shown[first])
    figure = plots.answering_plot(shown, measures.right, marks=marks)
    last = "" if measures.called_unknown is None else ", unknown ones last"
    about = (
        f"{n} queries, answered from the surest on{last}, and how often the "
        f"answers are right; the band is a 95{SPACE}% interval"
        f"{', circles are the promises' if marks else ''}."
    )
    good = f"a curve that begins near 100{SPACE}%, falls late, and lies above that of the distance."
    return _explained("What does abstaining gain?", figure, about, good)


def _histogram(measures: IndexReport) -> tuple[Figure, str]:
    others, sizes = {}, [f"{measures.queries:,} queries"]
    wrong = measures.uncertainty[~measures.right]
    if len(wrong):
        others["nearest item wrong"] = wrong
        sizes.append(f"{len(wrong):,} with a wrong nearest item")
    if measures.ood_uncertainty is not None:
        others["strangers"] = measures.ood_uncertainty
        sizes.append(f"{len(measures.ood_uncertainty):,} strangers")
    return plots.uncertainty_plot(measures.uncertainty, others), ", ".join(sizes)


def _explained(title: str, figure: Figure, about: str, good: str) -> ExplainedChart:
    prefix = title.split()[-1].strip("?").lower()
    return ExplainedChart(Chart(title, inline_svg(figure, prefix, title)), about, good)
