"""Every number of an evaluation, with its 95 % interval and of how many it is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplace_metric.cli.report._verdict import promised
from laplace_metric.cli.report._words import SPACE, Share, percent
from laplace_metric.errors import UndefinedMetricWarning
from laplace_metric.evaluation import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    r_auroc,
    sparsification,
)
from laplace_metric.search import IndexReport

RESAMPLES = 200


@dataclass(frozen=True)
class NumberRow:
    """A heading has a name alone."""

    name: str
    value: str = ""
    interval: str = ""
    n: str = ""


def number_rows(measures: IndexReport) -> list[NumberRow]:
    """Headings, and numbers below them."""
    rows = [NumberRow("Answers"), *_answers(measures)]
    if measures.match_probability is not None:
        rows += [NumberRow("Honest probabilities"), *_honesty(measures)]
        rows += [NumberRow("Sets and unknown queries"), *_sets(measures)]
    rows += [NumberRow("Wrong answers look less sure (R-AUROC; 0.5: guessing)")]
    rows += [
        _resampled(name, r_auroc, score, measures.right) for name, score in measures.scores.items()
    ]
    rows += [NumberRow("Right answers while the least sure are left out (AUSC)")]
    rows += [
        _resampled(name, lambda u, y: sparsification(u, y).ausc, score, measures.right)
        for name, score in measures.scores.items()
    ]
    rows.append(NumberRow("the best possible", f"{measures.ausc_oracle:.3f}", "", rows[-1].n))
    return rows + _strangers(measures)


def _answers(measures: IndexReport) -> list[NumberRow]:
    n, known = measures.queries, Share.of(measures.known_share, measures.queries)
    rows = [
        _share("nearest item is a match", Share.of(measures.answers_right, n)),
        _share("queries with a match in the index", known),
        _share("nearest item is a match, of those", Share.of(measures.recall_at_1, known.k)),
    ]
    if measures.label_accuracy is not None:
        rows.append(_share("label answered is right", Share.of(measures.label_accuracy, n)))
    return rows


def _honesty(measures: IndexReport) -> list[NumberRow]:
    p = measures.match_probability
    assert p is not None
    right, mean = measures.right, measures.mean_match_probability or 0.0

    def error(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    def brier(p: Tensor, y: Tensor) -> float:
        return float((p.double() - y.double()).square().mean())

    return [
        NumberRow("mean match probability of the nearest item", percent(mean), "", f"{len(p):,}"),
        _resampled("calibration error (ECE; 0: honest)", error, p, right),
        _resampled("Brier score (0: certain and right)", brier, p, right),
    ]


def _sets(measures: IndexReport) -> list[NumberRow]:
    sets, unknown = measures.retrieval_sets, measures.unknown
    assert sets is not None
    assert unknown is not None
    n_known = round(measures.known_share * measures.queries)
    name = f"retrieval sets with a match, {percent(sets.promised)} promised"
    rows = [NumberRow(name, sets.explanation or "")]
    if sets.explanation is None:
        size = NumberRow("items in such a set", f"{sets.mean_size or 0:.1f}")
        rows = [_share(name, Share.of(sets.coverage, n_known)), size]
    return [
        *rows,
        _share(
            f"called unknown, though they have a match (5{SPACE}% by design)",
            Share.of(unknown["of_known"], n_known),
        ),
        _share(
            "called unknown, of those without a match",
            Share.of(unknown["of_others"], measures.queries - n_known),
        ),
        NumberRow("smallest p-value of unknown", f"{measures.smallest_p_value:.3f}"),
    ]


def _strangers(measures: IndexReport) -> list[NumberRow]:
    ood = measures.ood
    if ood is None:
        return []
    rows = [NumberRow("Strangers look less sure (AUROC; 0.5: guessing)")]
    for name, theirs in measures.ood_scores.items():
        rows.append(_resampled(name, auroc, measures.scores[name], theirs, paired=False))
    if ood.unknown is not None:
        rows.append(_share("strangers called unknown", Share.of(ood.unknown, ood.items)))
    promise = promised(measures)
    if promise is not None:
        name = f"strangers answered at {percent(promise.promised)} precision"
        rows.append(_share(name, Share.of(promise.ood, ood.items)))
    return rows


def _share(name: str, share: Share) -> NumberRow:
    return NumberRow(name, share.percent, share.interval, f"{share.n:,}")


def _resampled(
    name: str, metric: Callable[[Tensor, Tensor], float], *arrays: Tensor, paired: bool = True
) -> NumberRow:
    data: list[Any] = [x.detach().cpu().to(torch.float64) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        found = bootstrap_interval(metric, *data, n=RESAMPLES, paired=paired)
    n = f"{len(data[0]):,}" if paired else f"{len(data[0]):,} and {len(data[1]):,}"
    if math.isnan(found.estimate):
        return NumberRow(name, "n/a", "", n)
    return NumberRow(name, f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}", n)
