"""Spread of means and variances in an epoch, at which a collapsed training stops.

Means that all point one way and variances that vanish or explode are the failures that users of
probabilistic heads report. Both show in four numbers a side, over the inputs of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import CollapseError
from laplace_metric.image_text._head import HeadOutput

LEAST_SPREAD = 0.01
"""Of unit means; uniform ones have 1."""
LOG_V = (-25.0, 2.0)
"""Least and largest mean log variance of a coordinate; unit means differ by 2 at most."""
LEAST_VARIATION = 1e-6
"""Of the log trace, a standard deviation."""


@dataclass(frozen=True)
class Spread:
    """Spread of one side in one epoch.

    Parameters
    ----------
    means : float in [0, 1]
        Spread of the unit means, ``1 - |mean of the unit means|^2``: 0 if all are alike.
    log_v : float
        Mean log variance of a coordinate; minus infinity without variances.
    trace : float
        Geometric mean of ``tr S``.
    variation : float
        Standard deviation of ``log tr S`` over inputs.
    """

    means: float
    log_v: float
    trace: float
    variation: float

    def check(self, side: str) -> None:
        """Raise ``CollapseError`` if means or variances have collapsed, or variances exploded."""
        advice = "Lower learning_rate, raise the weight of vib, or check that inputs differ."
        if not self.means >= LEAST_SPREAD:
            raise CollapseError(
                f"the means of the {side} have collapsed: 1 - |their mean|^2 is "
                f"{self.means:.2g}, below {LEAST_SPREAD}. {advice} Encoders that train from "
                "nothing need a first b near the log odds of a match: ProLIP(first_b=-2)."
            )
        if self.log_v == -torch.inf:  # no variances
            return
        if not LOG_V[0] <= self.log_v <= LOG_V[1]:
            what = "exploded" if self.log_v > LOG_V[1] else "collapsed"
            raise CollapseError(
                f"the variances of the {side} have {what}: their mean logarithm is "
                f"{self.log_v:.3g}, outside of {LOG_V}. {advice}"
            )
        if not self.variation >= LEAST_VARIATION:
            raise CollapseError(
                f"the variances of the {side} are all alike: log tr S varies by "
                f"{self.variation:.2g}. {advice}"
            )


class SpreadMonitor:
    """Sums of an epoch of one side, ``title``, and the spreads of finished epochs.

    Examples
    --------
    >>> monitor = SpreadMonitor("images")
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.eye(2) - 3))
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.zeros(2, 2)))
    >>> monitor.finish_epoch()
    >>> monitor.history[0].means
    0.5
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.history: list[Spread] = []
        self._sums: Tensor | None = None  # None between epochs

    @torch.no_grad()
    def add(self, output: HeadOutput) -> None:
        """Add the outputs of a batch."""
        log_trace, log_v = output.trace.double().log(), output.log_v.double().mean(-1)
        n = log_trace.new_tensor(len(log_trace))
        parts = [n, log_v.sum(), log_trace.sum(), log_trace.square().sum()]
        sums = torch.cat([torch.stack(parts), output.mu.double().sum(0)]).cpu()
        self._sums = sums if self._sums is None else self._sums + sums

    def finish_epoch(self) -> None:
        """Append the numbers of the epoch to ``history``.

        Raises
        ------
        CollapseError
            If means or variances have collapsed, or variances have exploded.
        """
        assert self._sums is not None
        n, log_v, log_trace, squares = self._sums[:4].tolist()
        means = 1 - float((self._sums[4:] / n).square().sum())
        variation = max(squares / n - (log_trace / n) ** 2, 0.0) ** 0.5
        trace = float(torch.tensor(log_trace / n).exp())
        self._sums = None
        self.history.append(Spread(means, log_v / n, trace, variation))
        self.history[-1].check(self.title)
