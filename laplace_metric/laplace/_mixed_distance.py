"""The squared distance under one of several posteriors, each as likely as any other.

E d = mean_m E d_m        Var d = mean_m Var d_m + mean_m (E d_m - E d)^2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from laplace_metric.laplace._squared_distance import Distance


def mixed_distance(distances: Sequence[Distance]) -> Distance:
    """Return the moments of the mixture; pairs that are infinitely far stay so.

    Examples
    --------
    >>> near, far = (Distance(torch.tensor([m]), torch.tensor([0.5])) for m in (1.0, 3.0))
    >>> mixed_distance([near, far]).variance
    tensor([1.5000])
    """
    means = torch.stack([distance.mean for distance in distances])
    variances = torch.stack([distance.variance for distance in distances])
    mean = means.mean(0)
    between = (means - mean).square().mean(0).where(mean.isfinite(), 0.0)
    return Distance(mean, variances.mean(0) + between)
