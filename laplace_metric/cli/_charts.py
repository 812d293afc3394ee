"""Figures of a report, as SVG inside its page."""

from __future__ import annotations

from torch import Tensor

from laplace_metric import plots
from laplace_metric.cli._share import percent
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from laplace_metric.plots import Figure
from laplace_metric.search import IndexReport
from laplace_metric.search._report import DISTANCE, EPISTEMIC


def charts(measures: IndexReport) -> dict[str, Figure]:
    """Draw two figures, and a third where there are match probabilities."""
    first = measures.ranked_by
    made = [p for p in (measures.largest_guarantee, *measures.guarantees) if p is not None]
    texts: dict[float, list[str]] = {}  # of precisions with one threshold, at one point
    for p in sorted(made, key=lambda one: one.guaranteed):
        if p.threshold is not None:
            texts.setdefault(1 - p.threshold, []).append(percent(p.guaranteed))
    marks = {", ".join(dict.fromkeys(some)): limit for limit, some in texts.items()}
    shown = {name: measures.scores[name] for name in (first, DISTANCE)}
    if measures.called_unknown is not None:  # which no threshold answers
        shown[first] = shown[first] + measures.called_unknown.to(shown[first])
    figures = {"gain": plots.answering_plot(shown, measures.right, marks=marks)}
    if measures.reliability is not None:
        figures["honest"] = plots.reliability_plot({first: measures.reliability})
    epistemic, others = measures.scores[EPISTEMIC], {}
    if len(wrong := epistemic[~measures.right]):
        others["answer wrong"] = _within(wrong)
    if EPISTEMIC in measures.ood_scores:
        others["open-set"] = _within(measures.ood_scores[EPISTEMIC])
    figures["fall"] = plots.uncertainty_plot(
        _within(epistemic), others, name=f"{EPISTEMIC} (standard deviations)"
    )
    return figures


def _within(epistemic: Tensor) -> Tensor:
    """Leave out inputs of zeros, whose stand-in of 1e6 hides all others."""
    there = epistemic[epistemic < NOTHING_ENTERS]
    return there if len(there) else epistemic
