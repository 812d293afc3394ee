"""Quality of a probability: Brier score, calibration error, reliability."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import ArrayLike, as_scores
from laplace_metric.evaluation._bootstrap import BootstrapInterval, bootstrap_interval
from laplace_metric.evaluation._reliability import Reliability, expected_calibration_error

# Quality of a probability: Brier score, calibration error, reliability.


@dataclass(frozen=True, repr=False)
class Quality(Shown):
    """Quality of the match probability of the nearest neighbours of held-out queries.

    Parameters
    ----------
    brier : BootstrapInterval
        Mean squared gap between probability and match, in [0, 1]; 95 % interval over queries.
    ece : BootstrapInterval
        Expected calibration error over ten bins. Resampling adds noise to its bins, so that the
        interval lies too high where the error is small.
    reliability : Reliability
        Reliability curve, to be drawn by ``plots.reliability_plot``.
    """

    brier: BootstrapInterval
    ece: BootstrapInterval
    reliability: Reliability

    def _sentence(self) -> str:
        return str(self)

    def _shown_rows(self) -> Rows:
        return in_rows({"queries": int(self.reliability.bin_count.sum())}.items())

    def __str__(self) -> str:
        ends = [f"{x.estimate:.3f} [{x.low:.3f}, {x.high:.3f}]" for x in (self.brier, self.ece)]
        return f"Brier score {ends[0]}, ECE {ends[1]}"


def quality(probability: ArrayLike, match: ArrayLike, *, n: int = 500) -> Quality:
    """Measure the quality of match probabilities.

    Parameters
    ----------
    probability : [Q]
        Match probability of the nearest neighbour of each query, in [0, 1].
    match : [Q]
        True, or 1, if it was a match.
    n : int
        Number of bootstrap resamples. Default: 500.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 200)
    >>> measured = quality(p, p > 0.5, n=100)
    >>> round(measured.brier.estimate, 4), round(measured.ece.estimate, 3)
    (0.0829, 0.249)
    """
    p, y = as_scores("probability", probability), as_scores("match", match)

    def ece(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    return Quality(
        bootstrap_interval(_brier, p, y, n=n),
        bootstrap_interval(ece, p, y, n=n),
        expected_calibration_error(p, y),
    )


def _brier(p: Tensor, y: Tensor) -> float:
    return float((p - y).square().mean())
