"""Conformal p-values and the bets against them: by definition, and by simulation."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from scipy import stats

from laplace_metric.calibration._martingale import (
    EDGES,
    KINDS,
    LOG_DENSITIES,
    REGIONS,
    STAKES,
    Martingale,
    log_share,
)
from laplace_metric.monitor._stream import rank_p_values


def factors(p):
    """f of each bet [m, bets] by its definition."""
    return np.array(
        [
            [
                1 - s + s / (high - low) * (low <= x < high)
                for _, low, high in REGIONS
                for s in STAKES
            ]
            for x in p
        ]
    )


def test_every_bet_is_fair():
    lengths = np.diff([0.0, *EDGES, 1.0])
    np.testing.assert_allclose(lengths @ np.exp(LOG_DENSITIES), 1.0, rtol=1e-12)


def test_shares_of_all_times_sum_to_one():
    t = np.arange(1, 2001)
    shares = np.exp([log_share(int(n)) for n in t])
    np.testing.assert_allclose(1 - shares.cumsum(), 1 / np.log2(t + 2), rtol=1e-10)


def test_value_and_start_by_definition():
    r = np.random.default_rng(0)
    p = np.concatenate([r.random(60), r.random(25) ** 4])
    martingale = Martingale("x", np.log(50.0))
    gains = []
    for t in range(1, len(p) + 1):
        f = factors(p[:t])
        money = np.array(
            [np.exp(log_share(k)) / len(KINDS) * f[k - 1 :].prod(0) for k in range(1, t + 1)]
        )
        value = money.sum() + 1 / np.log2(t + 2)
        np.testing.assert_allclose(martingale.update(p[t - 1 : t]), np.log(value), rtol=1e-9)
        gains.append(value)
        if martingale.alarm is not None and martingale.alarm.at == t:
            gain = np.array([f[k:].prod(0) for k in range(t)])
            start, bet = np.unravel_index(gain.argmax(), gain.shape)
            assert martingale.alarm.since == start + 1
            assert martingale.alarm.kind == KINDS[bet] == "large"
    assert martingale.alarm is not None
    assert martingale.alarm.at == 1 + int((np.array(gains) >= 50).argmax()) > 60


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda u: 0.1 * u, "large"),
        (lambda u: 1 - 0.1 * u, "small"),
        (lambda u: 0.4 + 0.2 * u, "middling"),
    ],
)
def test_what_there_is_too_much_of_and_since_when(change, kind):
    u = np.random.default_rng(1).random(2100)
    martingale = Martingale("x", np.log(100.0))
    martingale.update(np.concatenate([u[:2000], change(u[2000:])]))
    alarm = martingale.alarm
    assert alarm is not None
    assert alarm.kind == kind
    assert 2000 < alarm.at < 2080
    assert abs(alarm.since - 2001) < 20


def test_a_long_quiet_stream_costs_little():
    martingale = Martingale("x", np.log(100.0))
    value = martingale.update(np.random.default_rng(4).random(20_000))
    assert value > -np.log(np.log2(20_002)) - 1e-9
    assert martingale.alarm is None
    martingale.update(0.05 * np.random.default_rng(5).random(40))
    assert martingale.alarm is not None


def by_definition(reference, values, draws):
    seen, found = list(reference), []
    for value, draw in zip(values, draws, strict=True):
        seen.append(value)
        above, equal = (
            sum(test) for test in ([x > value for x in seen], [x == value for x in seen])
        )
        found.append((above + draw * equal) / len(seen))
    return np.array(found)


@pytest.mark.parametrize("levels", [5, 10**9], ids=["ties", "no ties"])
def test_definition(levels):
    r = np.random.default_rng(0)
    x, draws = r.integers(levels, size=150 + 90).astype(float), r.random(90)
    found = rank_p_values(array("d", sorted(x[:150])), x[150:], draws)
    np.testing.assert_array_equal(found, by_definition(x[:150], x[150:], draws))


@pytest.mark.parametrize("levels", [3, 10**9], ids=["ties", "no ties"])
def test_independent_and_uniform(levels):
    """The reference is small and shared by all p-values of a stream: they must not show it."""
    r = np.random.default_rng(2)
    streams = []
    for _ in range(1500):
        x = np.floor(r.random(20) ** 3 * levels)
        streams.append(rank_p_values(array("d", sorted(x[:10])), x[10:], r.random(10)))
    p = np.array(streams)
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.01
    correlation = np.corrcoef(p.T)[~np.eye(10, dtype=bool)]
    assert np.abs(correlation).max() < 4.5 / np.sqrt(len(p))
    assert abs(p.mean(1).std() * np.sqrt(12 * 10) - 1) < 0.06  # sharing widens this
