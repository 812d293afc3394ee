"""Maps from scores to probabilities against scikit-learn and direct maximum likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from sklearn.isotonic import IsotonicRegression

from laplace_metric.calibration.probability._calibrators import Calibrator, fit_calibrator

CURVES = {
    "steep": lambda x: 2.5 * x - 1,
    "skewed": lambda x: np.where(x < 0, 3 * x, 0.3 * x),
    "other skew": lambda x: np.where(x > 0, 3 * x, 0.3 * x),
    "falling": lambda x: -1.5 * x,
    "falling to the left": lambda x: -np.abs(x) + 0.5,
}
"""True log odds as functions of the score."""


def scores(curve: str, n: int = 3000):
    rng = np.random.default_rng(0)
    logit = rng.normal(0, 2, n)
    return logit, (rng.random(n) < expit(CURVES[curve](logit))).astype(float)


def loss(numbers, logit, match) -> float:
    """Negative log posterior of the beta map, a match: N(1, 1/4) of a and b, Jeffreys of c."""
    a, b, c = numbers
    eta = -a * np.logaddexp(0, -logit) + b * np.logaddexp(0, logit) + c
    prior = norm(1, 0.5).logpdf([a, b]).sum() + np.log(expit(c) * expit(-c)) / 2
    return float(np.mean(np.logaddexp(0, eta) - match * eta) - prior / len(logit))


@pytest.mark.parametrize("curve", CURVES)
def test_beta_is_the_posterior_mode_under_its_constraints(curve):
    logit, match = scores(curve)
    bounds = [(0, None), (0, None), (None, None)]
    best = minimize(loss, [1, 1, 0], (logit, match), bounds=bounds, options={"ftol": 1e-14})
    fitted = fit_calibrator("beta", logit, match, np.ones(len(match))).numbers[0]
    assert (fitted[:2] >= 0).all()
    assert loss(fitted, logit, match) == pytest.approx(best.fun, abs=1e-6)
    p = Calibrator("beta", np.stack([best.x, 0 * best.x]))(logit)
    ours = fit_calibrator("beta", logit, match, np.ones(len(match)))(logit)
    np.testing.assert_allclose(ours, p, atol=3e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, 20), st.floats(0, 20), st.floats(-30, 30), st.lists(st.floats(-60, 60), min_size=2)
)
def test_beta_never_falls(a, b, c, logit):
    numbers = np.array([[a, b, c], [0, 0, 0]])
    p = Calibrator("beta", numbers)(np.array(sorted(logit)))
    assert np.isfinite(p).all()
    assert (np.diff(p) >= -1e-12).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["beta", "isotonic"]))
def test_no_fitted_map_falls_whatever_the_labels(seed, name):
    rng = np.random.default_rng(seed)
    logit, match = rng.normal(0, 3, 60), rng.integers(0, 2, 60).astype(float)
    match[:2] = 0, 1
    p = fit_calibrator(name, logit, match, np.ones(len(match)))(np.linspace(-30, 30, 200))
    assert (np.diff(p) >= -1e-12).all()


@pytest.mark.parametrize("curve", CURVES)
def test_isotonic_is_that_of_sklearn_kept_off_the_edges(curve):
    logit, match = scores(curve, 200)
    low, high = 1 / 202, 201 / 202
    fit = IsotonicRegression(y_min=low, y_max=high, out_of_bounds="clip").fit(logit, match)
    asked = np.concatenate([logit, np.linspace(-20, 20, 501)])
    ours = fit_calibrator("isotonic", logit, match, np.ones(len(match)))(asked)
    np.testing.assert_allclose(ours, fit.predict(asked), atol=1e-12)
    assert float(ours.min()) >= low
    assert float(ours.max()) <= high


def test_isotonic_edges_are_one_more_observation():
    match = np.repeat([0.0, 1.0], 4)
    p = fit_calibrator("isotonic", np.arange(8.0), match, np.ones(8))(np.arange(8.0))
    assert p.tolist() == pytest.approx([0.1] * 4 + [0.9] * 4)


def test_logistic_is_the_sigmoid():
    x = np.linspace(-40, 40, 81).reshape(9, 9)
    p = fit_calibrator("logistic", np.zeros(3), np.ones(3), np.ones(3))(x)
    np.testing.assert_allclose(p, expit(x), rtol=1e-14)
