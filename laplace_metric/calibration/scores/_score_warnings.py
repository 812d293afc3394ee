"""Warnings of judged scores: relevant hits that score lower, and ties in the order of relevance."""

from __future__ import annotations

import warnings

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Judged
from laplace_metric.calibration.probability._match_probability import FOLDS
from laplace_metric.errors import FewQueriesWarning, ScoresWarning, callers_line

WRONG_WAY = 1e-3
"""p-value below which relevant hits score lower than others."""
ORDERED = 0.9
"""Share of tied hits of which the relevant one stands first, that no search has by chance."""


def warn_of_scores(value: Array, judged: Judged) -> None:
    """Warn of few queries of a kind, and of relevant hits that score lower than others [Q, k]."""
    from scipy.special import ndtr

    first = {"a relevant": judged[:, 0] == 1, "an irrelevant": judged[:, 0] == 0}
    (few, least), (other, most) = sorted(
        ((kind, int(those.sum())) for kind, those in first.items()), key=lambda pair: pair[1]
    )
    if least < FOLDS:
        warnings.warn(
            f"only {least} of the {len(judged)} queries that fit the probability have {few} first "
            f"hit, and {most} have {other} one: at least {FOLDS} of both are needed. Calibrate on "
            "more queries.",
            FewQueriesWarning,
            stacklevel=callers_line(),
        )
    right, wrong = value[judged == 1], np.sort(value[judged == 0])
    if not len(right) or not len(wrong):
        return
    below = np.searchsorted(wrong, right) + np.searchsorted(wrong, right, side="right")
    auroc, n, m = below.mean() / (2 * len(wrong)), len(right), len(wrong)
    if ndtr((auroc - 0.5) * (12 * n * m / (n + m + 1)) ** 0.5) < WRONG_WAY:  # Mann & Whitney 1947
        warnings.warn(
            f"scores: by this kind= relevant hits rank below others (AUROC {auroc:.2f}). "
            "Similarities and distances taken for each other look like that.",
            ScoresWarning,
            stacklevel=callers_line(),
        )


def warn_of_ties(values: Array, judged: Judged) -> None:
    """Warn if, among hits with equal scores [Q, k, S], the relevant ones always come first.

    No search knows which are relevant. Of each query the first such pair of hits counts.
    """
    from scipy.special import bdtrc

    front, behind = judged[:, :-1], judged[:, 1:]
    equal = (values[:, :-1] == values[:, 1:]).all(2)
    mixed = equal & (np.minimum(front, behind) == 0) & (np.maximum(front, behind) == 1)
    rows = mixed.any(1)
    n, at = int(rows.sum()), mixed.argmax(1) if mixed.shape[1] else np.zeros(len(mixed), int)
    first = int((np.take_along_axis(judged, at[:, None], 1)[rows, 0] == 1).sum())
    if first > ORDERED * n and bdtrc(first - 1, n, 0.5) < WRONG_WAY:
        warnings.warn(
            f"scores: of relevant and irrelevant hits with equal scores, in {first:,} of {n:,} "
            "queries the relevant one stands first. If the lists were ordered by relevance, no "
            "guarantee holds: keep the order of the search.",
            ScoresWarning,
            stacklevel=callers_line(),
        )
