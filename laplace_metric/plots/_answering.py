"""What is gained by not answering: how often the surest answers are right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.errors import InputError
from laplace_metric.evaluation import share_interval
from laplace_metric.plots._style import FONT, INK, finish, prepare, styles_of

FEW = 0.05
"""A smaller share of the queries does not set the height of the axis."""
Array = npt.NDArray[np.float64]


def answering_plot(
    uncertainty: Mapping[str, ArrayLike],
    correct: ArrayLike,
    *,
    marks: Mapping[str, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Share of right answers among the surest, for every share of queries that is answered.

        coverage(u) = mean 1[u_i <= u],   precision(u) = sum 1[u_i <= u] y_i / sum 1[u_i <= u]

    The first curve has an exact 95 % interval at each share (``share_interval``), not of all shares
    at once. A curve begins at one query: its left end is chance.

    Parameters
    ----------
    uncertainty : mapping of name to array [Q]
        Higher is less certain; of the same queries.
    correct : array [Q]
        Whether each answer is right.
    marks : mapping of text to float, optional
        Largest uncertainties that are answered, on the first curve; a mark without an answer is
        left out.
    axes : Axes, optional
        Where to draw; default: a new figure.

    Raises
    ------
    InputError
        For no score, more than there are styles, answers that are neither right nor wrong, or
        arrays of other shapes.

    Examples
    --------
    >>> figure = answering_plot({"p": [0.1, 0.4, 0.8]}, [1, 1, 0], marks={"90%": 0.5})
    >>> [round(float(y), 2) for y in figure.axes[0].lines[0].get_ydata()]
    [1.0, 1.0, 0.67]
    """
    styles, first, lowest = styles_of(uncertainty), True, 1.0
    axes = prepare(axes, "queries answered, the surest first", "right, of those answered")
    for style, (name, scores) in zip(styles, uncertainty.items(), strict=True):
        values, accepted, good = _counts(name, scores, correct)
        share, precision = accepted / accepted[-1], good / accepted
        axes.plot(share, precision, color=style.colour, ls=style.line, lw=2, label=name)
        if first:
            low, high = share_interval(good, accepted)
            axes.fill_between(share, low, high, color=style.colour, alpha=0.15, lw=0)
            for text, limit in (marks or {}).items():
                _mark(axes, text, int((values <= limit).sum()) - 1, share, precision)
        first, lowest = False, min(lowest, float(precision[share >= FEW].min()))
    axes.set(xlim=(-0.01, 1.01), ylim=(max(-0.01, np.floor(10 * lowest - 1) / 10), 1.02))
    return finish(axes, percent="xy")


def _mark(axes: Axes, text: str, at: int, share: Array, precision: Array) -> None:
    if at < 0:
        return
    axes.plot(share[at], precision[at], "o", ms=6, mfc="none", mec=INK, mew=1.5)
    axes.annotate(text, (share[at], precision[at]), xytext=(0, -14), textcoords="offset points",
                  ha="center", fontsize=FONT - 1, color=INK)  # fmt: skip


def _counts(name: str, uncertainty: ArrayLike, correct: ArrayLike) -> tuple[Array, Array, Array]:
    """Different scores, rising, how many queries have one or less, and how many are right."""
    scores = as_scores(name, uncertainty)
    right = as_rates("correct", correct, scores, name).cpu().numpy()
    if not np.isin(right, (0, 1)).all():
        raise InputError("correct has values between 0 and 1: pass booleans, or 0 and 1.")
    u = scores.cpu().numpy()
    order = np.argsort(u, kind="stable")
    last = np.append(np.diff(u[order]) != 0, True)  # ties are answered together
    accepted = np.arange(1, len(u) + 1, dtype=np.float64)
    return u[order][last], accepted[last], np.cumsum(right[order])[last]
