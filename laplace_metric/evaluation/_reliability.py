"""Expected calibration error: a confidence of 80 % should be right in 80 % of the cases.

    ECE = sum_b n_b / N |acc_b - conf_b|               (Naeini et al. 2015; Guo et al. 2017)

over bins b of the confidences of N queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_rates, as_vector, check_count
from laplace_metric.evaluation._orderings import average_ties


@dataclass(frozen=True, repr=False)
class Reliability(Shown):
    """Calibration errors and the reliability curve that they summarise.

    Attributes
    ----------
    ece : float
        Expected calibration error over equally wide bins, in [0, 1].
    adaptive_ece : float
        Expected calibration error over bins of equally many queries.
    edges : Tensor [B + 1]
        Edges of the equally wide bins: ``[e_b, e_{b+1})``, the last one closed.
    bin_confidence, bin_accuracy : Tensor [B]
        Means in each bin; NaN where it is empty.
    bin_count : Tensor [B]
        Queries in each bin, int64.
    """

    ece: float
    adaptive_ece: float
    edges: Tensor
    bin_confidence: Tensor
    bin_accuracy: Tensor
    bin_count: Tensor


def expected_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10
) -> Reliability:
    """Compute the gap between confidence and accuracy, averaged over the queries of each bin.

    The adaptive error (Nixon et al. 2019) has bins of equal size along the sorted confidences,
    sizes differing by one at most; queries of the same confidence share their mean accuracy, so
    that the order of the rows does not matter.

    Parameters
    ----------
    confidence : [N]
        Confidence of each prediction, in [0, 1]. Confidence 1 belongs to the last bin.
    correct : [N]
        Result of each prediction: 1 (or True) if it is right, 0 if not, or the rate at which it is.
    bins : int
        Number of bins. Default: 10; take fewer for a few hundred queries.

    Returns
    -------
    Reliability

    Raises
    ------
    InputError
        Mismatched lengths, or values outside of [0, 1].
    NonFiniteError
        NaN or infinite values.

    Examples
    --------
    >>> result = expected_calibration_error([0.95, 1.0, 0.35, 0.35], [1, 1, 1, 0])
    >>> round(result.ece, 4), result.bin_count.tolist()
    (0.0875, [0, 0, 0, 2, 0, 0, 0, 0, 0, 2])
    """
    bins = check_count("bins", bins)
    scores = as_vector("confidence", confidence)
    rates = as_rates("confidence", scores, scores, "confidence")
    values = as_rates("correct", correct, scores, "confidence")
    edges = torch.arange(bins + 1, dtype=torch.float64, device=scores.device) / bins
    bin_of = torch.bucketize(scores.contiguous(), edges[1:-1].to(scores.dtype), right=True)
    count, conf, acc, ece = _binned(bin_of, rates, values, bins)
    adaptive = _adaptive_error(rates, values, bins)
    return Reliability(ece, adaptive, edges, conf, acc, count)


def _binned(
    bin_of: Tensor, confidence: Tensor, correct: Tensor, bins: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return count, mean confidence and mean accuracy of each bin [B], and their weighted gap."""
    count = torch.bincount(bin_of, minlength=bins)
    conf = torch.zeros(bins, dtype=torch.float64, device=count.device)
    acc = conf.index_add(0, bin_of, correct) / count
    conf = conf.index_add(0, bin_of, confidence) / count
    gap = (count * (acc - conf).abs().nan_to_num()).sum() / len(bin_of)
    return count, conf, acc, float(gap)


def _adaptive_error(confidence: Tensor, correct: Tensor, bins: int) -> float:
    """Return the ECE over bins of equal mass; the first ``N mod bins`` hold one more value."""
    size, larger = divmod(len(confidence), bins)
    sizes = torch.full((bins,), size, device=confidence.device)
    sizes[:larger] += 1
    bin_of = torch.arange(bins, device=confidence.device).repeat_interleave(sizes)
    order = confidence.argsort()
    shared = average_ties(confidence, correct)
    return _binned(bin_of, confidence[order], shared[order], bins)[3]
