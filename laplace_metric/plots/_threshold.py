"""Threshold plot: precision and coverage of the accepted answers at every threshold."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laplace_metric._utils.validation import (
    ArrayLike,
    as_rates,
    as_scores,
    check_real,
    check_share,
)
from laplace_metric.plots._accepted_counts import accepted_counts
from laplace_metric.plots._style import INK, finish_figure, prepare, styles_of

# Which probability to accept: precision and coverage at every threshold.


def threshold_plot(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    target: float | None = None,
    threshold: float | None = None,
    abstained: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Plot the share of accepted answers that are right, and of all queries that are accepted.

        precision(t) = sum 1[p_i >= t] y_i / sum 1[p_i >= t],   coverage(t) = mean 1[p_i >= t]

    Parameters
    ----------
    probability : array [Q]
        Probability that the answer to each query is right.
    correct : array [Q]
        True, or 1, if it is right.
    target : float in (0, 1), optional
        Precision that is wanted, drawn as a level. None, the default: no level.
    threshold : float, optional
        Threshold that guarantees it, drawn as a mark. None, the default: no mark.
    abstained : array [Q], optional
        True for queries that no threshold accepts, such as unknown ones. None, the default: there
        are none.
    axes : Axes, optional
        Axes to draw into. None, the default: a new figure.

    Raises
    ------
    InputError
        For arrays of other shapes, a target outside (0, 1), and a threshold that is no number.

    Examples
    --------
    >>> figure = threshold_plot([0.2, 0.6, 0.9], [0, 1, 1], target=0.9, threshold=0.6)
    >>> len(figure.axes[0].lines)
    4
    """
    target = None if target is None else check_share("target", target)
    threshold = None if threshold is None else check_real("threshold", threshold)
    p = as_scores("probability", probability)
    right = as_rates("correct", correct, p, "probability").cpu().numpy()
    values, n = p.cpu().numpy(), len(p)
    if abstained is not None:
        answered = as_rates("abstained", abstained, p, "probability").cpu().numpy() == 0
        values, right = values[answered], right[answered]
    limits, accepted, good = accepted_counts(-values, right)
    x = -limits
    curves = {"right, of those accepted": good / accepted, "accepted, of all queries": accepted / n}
    axes = prepare(axes, "threshold on the probability", "share of held-out queries")
    for style, (name, y) in zip(styles_of(curves), curves.items(), strict=True):
        mark = "o" if len(x) == 1 else ""  # of a single probability, a step has no length
        axes.step(
            x, y, where="post", color=style.colour, ls=style.line, lw=2, marker=mark, label=name
        )
    if target is not None:
        axes.axhline(target, color=INK, lw=1, ls=":", alpha=0.6)
    if threshold is not None:
        label = f"accept from {threshold:.3f}"
        axes.axvline(threshold, color=INK, lw=1.2, alpha=0.8, label=label)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.05))
    return finish_figure(axes, percent="xy")
