"""How many of the first hits to pass on, so that few relevant items are left out.

Let s_i = max{p_j : j >= i}, which falls along a list, and pass on the hits with s_i >= t. With R(t)
the mean share of the relevant items left out, over n queries that have one, the largest t with

    (n R(t) + 1) / (n + 1) <= miss

keeps E[share left out] <= miss, on average over held-out sets and new queries: conformal risk
control (Angelopoulos, Bates, Fisch, Lei & Schuster 2024, theorem 1). Items that no hit is are left
out at any t.

Where queries come in groups, the groups are exchangeable, and not the queries. Let a group g have
n_g queries with a relevant item, c at most, which lose the shares l_q(t). The sum of l_q(t) - miss
over a group falls with t and is at most c (1 - miss). By the same theorem the largest t with

    n R(t) - n miss + c (1 - miss) <= 0

keeps E[sum of shares lost in a group] <= miss E[n_g]: of new queries as they come, each of the
same weight, the share ``miss`` is lost at most. With c = 1 it is the condition above. It is exact
where c is known, as of groups of one size; elsewhere c is the size of the largest group.
"""

from __future__ import annotations

import math

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Judged
from laplace_metric.errors import InputError


def highest_behind(p: Array) -> Array:
    """Return s [Q, k]: the highest probability of each hit and those behind it."""
    return np.asarray(np.maximum.accumulate(p[:, ::-1], 1)[:, ::-1])


def threshold_of_miss(
    p: Array, relevant: Judged, total: Array, miss: float, largest: int = 0
) -> float:
    """Return the largest t whose expected share of relevant items left out is at most ``miss``.

    Parameters
    ----------
    p, relevant : [n, k]
        Probabilities, and 1 where a hit is relevant.
    total : [n]
        Relevant items of each query; those with 0 are left out.
    miss : float in (0, 1)
        Largest expected share that is left out.
    largest : int
        Number of queries of the largest group. Default: 0, each query is independent.

    Raises
    ------
    InputError
        If no t keeps it.

    Examples
    --------
    >>> p = np.linspace(1, 0, 100)[:, None]
    >>> round(threshold_of_miss(p, np.ones((100, 1), np.int8), np.ones(100), 0.1), 4)
    0.0909
    """
    known = total > 0
    n, of = int(known.sum()), total[known]
    found = relevant[known] == 1
    lost_anyway = 1 - found.sum(1) / of
    budget = miss * n - (1 - miss) * max(largest, 1) - float(lost_anyway.sum()) + 1e-9
    if budget < 0:
        beyond, least = float(lost_anyway.mean()) if n else 0.0, math.ceil(1 / miss) - 1
        takes, more = f"{least:,} queries", "queries"
        if largest:
            takes = f"{least:,} groups as large as the largest, of {largest:,} queries,"
            more = "groups"
        raise InputError(
            f"miss={miss:g} cannot be guaranteed: it takes at least {takes} "
            f"with a relevant item in the tested half, which has {n:,}"
            f"{' such queries' if largest else ''}, and {beyond:.1%} "
            f"of the relevant items are not among the {p.shape[1]} hits. Pass more {more}, "
            "or more hits of each; or a larger miss."
        )
    s = highest_behind(p[known])[found]
    weight = np.broadcast_to(1 / of[:, None], found.shape)[found]
    order = np.argsort(s)
    lost = int(np.searchsorted(np.cumsum(weight[order]), budget, side="right"))
    return float(s[order][lost]) if lost < len(s) else math.inf  # of ties, none is lost
