"""Exact tests and bounds of the share of successes among n independent trials."""

from __future__ import annotations

import numpy as np

from laplace_metric.calibration._arrays import Array, Counts, Flags


def lower_bound(successes: int, n: int, delta: float) -> float:
    """Return Clopper & Pearson's bound: ``P(Bin(n, bound) >= successes) = delta``."""
    from scipy.special import betaincinv

    return 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, delta))


def binomial_p_values(successes: Counts, n: Counts, target: float) -> Array:
    """Return ``P(Bin(n, target) >= successes)``, elementwise; 1 without a trial."""
    from scipy.special import bdtrc

    found = bdtrc(np.maximum(successes - 1, 0), np.maximum(n, 1), target)
    return np.where(successes > 0, found, 1.0)


def run_of(flags: Flags) -> int:
    """Return the length of the run of true values at the beginning."""
    return len(flags) if flags.all() else int(np.argmin(flags))
