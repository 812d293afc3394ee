"""Intervals of the numbers of a report, by resampling its queries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from laplace_metric.errors import UndefinedMetricWarning
from laplace_metric.evaluation import auroc, bootstrap_interval, r_auroc, sparsification
from laplace_metric.evaluation._bootstrap import BootstrapInterval
from laplace_metric.evaluation._probability_quality import quality
from laplace_metric.search import IndexReport

# Numbers whose intervals are resampled: value, 95 % interval and of how many, as they are shown.


RESAMPLES = 200
Cells = tuple[str, str, str]


def resampled(measures: IndexReport) -> dict[str, dict[str, Cells]]:
    """Compute the cells of each score (AUROC, AUSC), and of the probability of the answers."""
    right, scores, n = measures.right, measures.scores, f"{measures.queries:,}"

    def ausc(unsure: Tensor, y: Tensor) -> float:
        return sparsification(unsure, y).ausc

    def against(metric: Callable[[Tensor, Tensor], float]) -> dict[str, Cells]:
        intervals = {name: _interval(metric, score, right) for name, score in scores.items()}
        return {name: _cells(interval, n) for name, interval in intervals.items()}

    found = {"r_auroc": against(r_auroc), "ausc": against(ausc), "auroc": {}, "honesty": {}}
    for name, strange in measures.ood_scores.items():
        interval = _interval(auroc, scores[name], strange, paired=False)
        found["auroc"][name] = _cells(interval, f"{n} and {len(strange):,}")
    if measures.probability is not None:
        honest = quality(measures.probability, right, n=RESAMPLES)
        found["honesty"] = {"ece": _cells(honest.ece, n), "brier": _cells(honest.brier, n)}
    return found


def _interval(
    metric: Callable[[Tensor, Tensor], float], *arrays: Tensor, paired: bool = True
) -> BootstrapInterval:
    data = [x.detach().cpu().to(torch.float64) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        return bootstrap_interval(metric, *data, n=RESAMPLES, paired=paired)


def _cells(found: BootstrapInterval, n: str) -> Cells:
    if math.isnan(found.estimate):
        return "n/a", "", n
    return f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}", n
