"""Share s of open-set queries among new ones, estimated from their scores; what it changes.

Let the probability of the first hit be distributed as F_1 where a query has a match and as F_0
where it has none. If only their shares move (label shift), new queries have (1 - s) F_1 + s F_0.
With q, a, b the shares of new, mated and open-set queries in each of B bins,

    X^2(s) = d' V^-1 d,    d = q - (1 - s) a - s b,    V the covariance of d

over B - 1 bins: three multinomials. Its minimum is at the estimate (minimum chi-square, Neyman
1949; asymptotically the maximum of the likelihood that the EM of Saerens, Latinne & Decaestecker
2002 climbs). The upper bound is the largest s with X^2(s) <= min X^2 + z^2. Under label shift
min X^2 is chi-square with B - 2 degrees of freedom, which tests it. Bounds and test are asymptotic.

At a share s, w_1 = (1 - s) / (1 - s_0) and w_0 = s / s_0 weigh the queries of a calibration with
share s_0, and with g = P(open-set | first hit) a probability p becomes

    p w_1 / ((1 - g) w_1 + g w_0)

A precision at s is tested on a stratified sample of that mixture: of N held-out queries s N,
rounded up, are open-set ones, drawn without replacement. (Drawing the kinds, too, would give the
test the luck of one draw, which is the same for all calibrations with as many queries.) N is so
small that kinds drawn with P(open-set) = s would run out with probability 1e-3 at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import check_share
from laplace_metric.calibration._array_namespace import Array, Flags, Judged
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._test_sequences import lower_bound
from laplace_metric.calibration.probability._calibrators import fit_calibrator
from laplace_metric.errors import InputError

CONFIDENCE, LEVEL, RUN_OUT = 0.99, 0.01, 1e-3
"""Of the upper bound; of the test of label shift; that queries of a kind run out."""
BINS, A_BIN, LEAST = 10, 10, 30
"""At most; queries of the smallest sample in each; queries of each sample at least."""
STEPS = np.linspace(0, 1, 2_001)[1:-1]


@dataclass(frozen=True)
class OpenSetFraction:
    """Estimated share of the queries with a hit that have no match in the collection.

    Parameters
    ----------
    estimate : float
        Estimate of the share.
    upper : float
        Upper bound of the share, with 99 % confidence.
    p_value : float
        Statistical p-value of "only the share of open-set queries moved": small if the new queries
        are not a mixture of those of the calibration.
    n : int
        Number of new queries.
    """

    estimate: float
    upper: float
    p_value: float
    n: int


Fraction = float | OpenSetFraction


def point_of(fraction: Fraction) -> float:
    """Return an estimate, or a share that is given."""
    if isinstance(fraction, OpenSetFraction):
        return fraction.estimate
    return check_share("open_set_fraction", fraction)


def level_at_fraction(fraction: Fraction, delta: float) -> tuple[float, float]:
    """Return the share at which a precision is tested, and what is left of ``delta`` for it.

    Raises
    ------
    InputError
        Where the test rejects label shift, and where nothing is left.
    """
    share, left = point_of(fraction), delta - RUN_OUT
    if isinstance(fraction, OpenSetFraction):
        share, left = fraction.upper, left - (1 - CONFIDENCE)
        if fraction.p_value < LEVEL:
            raise InputError(
                f"open_set_fraction: the {fraction.n:,} new queries are no mixture of those of the "
                f"calibration (p = {fraction.p_value:.2g}): more than the share of open-set "
                "queries moved. Judge some of them and calibrate again."
            )
    if left <= 0:
        raise InputError(f"confidence={1 - delta:g} is too high for open_set_fraction=: pass less.")
    return share, left


def estimated_fraction(new: Array, mated: Array, open_set: Array) -> OpenSetFraction:
    """Return the share of open-set queries among ``new``, of first-hit probabilities [n] each.

    Raises
    ------
    InputError
        For fewer than 30 numbers of a kind, and too few different ones.

    Examples
    --------
    >>> g = np.random.default_rng(0)
    >>> high, low = g.beta(5, 1, 900), g.beta(1, 3, 600)
    >>> found = estimated_fraction(np.r_[high[:300], low[:100]], high[300:], low[100:])
    >>> abs(found.estimate - 0.25) < 0.05 < found.p_value, found.upper > 0.25
    (True, True)
    """
    from scipy.stats import chi2, norm

    samples = {"new": new, "mated held-out": mated, "open-set held-out": open_set}
    for name, sample in samples.items():
        if len(sample) < LEAST:
            raise InputError(f"{len(sample)} {name} queries: a share takes at least {LEAST}.")
    bins = int(np.clip(min(map(len, samples.values())) // A_BIN, 3, BINS))
    even = np.linspace(0, 1, 200)
    both = np.concatenate([np.quantile(mated, even), np.quantile(open_set, even)])
    edges = np.unique(np.quantile(both, np.arange(1, bins) / bins))
    if len(edges) < 2:
        raise InputError("scores: the probabilities of first hits have too few different values.")
    q, a, b = (_shares(sample, edges) for sample in samples.values())
    s = STEPS[:, None]
    d = (q - (1 - s) * a - s * b)[:, :-1]
    weight = (1 - s)[:, None] ** 2, s[:, None] ** 2
    v = _covariance(q, len(new)) + weight[0] * _covariance(a, len(mated))
    v = v + weight[1] * _covariance(b, len(open_set))
    x2 = np.einsum("sb,sb->s", d, np.linalg.solve(v, d[..., None])[..., 0])
    upper = STEPS[x2 <= x2.min() + norm.isf(1 - CONFIDENCE) ** 2].max()
    p_value = float(chi2.sf(x2.min(), len(edges) - 1))
    return OpenSetFraction(float(STEPS[x2.argmin()]), float(upper), p_value, len(new))


def _shares(sample: Array, edges: Array) -> Array:
    """Return the share of each bin, with half a query more in each."""
    counts = np.bincount(np.searchsorted(edges, sample, side="right"), minlength=len(edges) + 1)
    return (counts + 0.5) / (counts + 0.5).sum()


def _covariance(share: Array, n: int) -> Array:
    """Return the covariance of all multinomial shares but the last."""
    return ((np.diag(share) - np.outer(share, share)) / n)[:-1, :-1]


def at_fraction(p: Array, fraction: Fraction, first: Array, has_hit: Flags, mated: Judged) -> Array:
    """Correct probabilities p [Q, k] for a share, by the first hits of held-out queries [n].

    Parameters
    ----------
    p : [Q, k]
        Probabilities of hits.
    fraction : float in (0, 1) or OpenSetFraction
        Share of all queries that have no match; or an estimate, of those that have a hit.
    first, has_hit, mated : [n]
        Probability of the first hit of held-out queries, whether there is one, and whether there
        is a match (1, 0, or -1 where it is not known).

    Raises
    ------
    InputError
        Without held-out queries of both kinds.
    """
    known = has_hit & (mated >= 0)
    y = (mated[known] == 1).astype(np.float64)
    if not 0 < y.sum() < len(y):
        raise InputError("open_set_fraction: calibrate on queries with and without a match.")
    counted = known if isinstance(fraction, OpenSetFraction) else mated >= 0
    held, fraction = float((mated[counted] == 0).mean()), point_of(fraction)
    has_match = fit_calibrator("beta", _log_odds(first[known]), y, np.ones_like(y))(
        _log_odds(p[:, :1])
    )
    of_mated, of_open = (1 - fraction) / (1 - held), fraction / held
    has_match = np.maximum(has_match, p)  # a match is a match in the collection
    return np.asarray(p * of_mated / (has_match * of_mated + (1 - has_match) * of_open))


def _log_odds(p: Array) -> Array:
    from scipy.special import logit

    return np.asarray(logit(p.clip(1e-9, 1 - 1e-9)))


def rows_at_fraction(mated: Judged, fraction: float) -> npt.NDArray[np.intp]:
    """Return rows of held-out queries that are a sample with this share of open-set ones.

    Raises
    ------
    InputError
        If there are too few queries of a kind.
    """
    g = np.random.default_rng(0)
    with_match, without = (g.permutation(np.flatnonzero(mated == kind)) for kind in (1, 0))
    n = min(_draws(len(with_match), 1 - fraction), _draws(len(without), fraction))
    if n == 0:
        raise InputError(
            f"open_set_fraction={fraction:g}: the tested half has {len(with_match)} queries with a "
            f"match and {len(without)} without one, too few for that share."
        )
    m = min(math.ceil(n * fraction), len(without))
    return np.concatenate([without[:m], with_match[: n - m]])


def _draws(available: int, share: float) -> int:
    """Return the most draws of which more than ``available`` are of a kind with chance 5e-4."""
    from scipy.stats import nbinom

    return available + int(nbinom.ppf(RUN_OUT / 2, available + 1, share))


def precision_of_mixture(
    share: Array, value: float, p: Array, relevant: Judged, mated: Judged, delta: float
) -> tuple[Array, Array]:
    """Return precision and its lower bound where ``share`` of the queries has no match.

    With a the share of the mated queries whose first hit p [n] is accepted and right, w accepted
    and wrong, and f the share of the others whose first hit is accepted,

        ((1 - s) a) / ((1 - s) (a + w) + s f)

    Queries without a hit count with those of their kind: they are not accepted.

    The bound has those of a, w and f, each at delta / 3 (Clopper & Pearson 1934).

    Raises
    ------
    InputError
        Without queries of both kinds.
    """
    first, right = (p >= value) & (relevant != NO_HIT), relevant == 1
    known, other = (mated == 1) & (relevant != -1), mated == 0
    n, m = int(known.sum()), int(other.sum())
    if not n or not m:
        raise InputError(f"{n} held-out queries have a match and {m} have none: calibrate on both.")
    a, w = int((first & right)[known].sum()), int((first & ~right)[known].sum())
    f = int(first[other].sum())

    def mixed(a: float, w: float, f: float) -> Array:
        answered = (1 - share) * (a + w) + share * f
        return np.asarray((1 - share) * a / np.where(answered > 0, answered, 1.0))

    third = delta / 3
    least = lower_bound(a, n, third)
    most_wrong, most_false = 1 - lower_bound(n - w, n, third), 1 - lower_bound(m - f, m, third)
    return mixed(a / n, w / n, f / m), mixed(least, most_wrong, most_false)
