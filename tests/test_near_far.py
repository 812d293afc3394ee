"""near, far, local and epistemic: per-point oracles, the Laplace family, what a user sees."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve
from scipy.optimize import minimize
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from laplace_metric import Embedding, LaplaceEmbedder
from laplace_metric.curvature._structures import FullCurvature
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError, NotFittedError
from laplace_metric.familiarity._cross_fitted import left_one_out
from laplace_metric.familiarity._fit_set import FitSet
from laplace_metric.familiarity._label_model import LabelModel
from laplace_metric.familiarity._leave_one_out import OwnRows, removed_within
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.familiarity._novelty import novelty_weights, varies
from laplace_metric.familiarity._scatter import CentredSums, Scatter
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.laplace import Posterior
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.models._feature_store import FeatureStore
from tests.blocks import of_rows
from tests.calibration import test_calibration
from tests.search import test_class_model, test_class_weights

C, N, D = 5, 60, 6


def features(n=N, d=D, n_classes=C, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % n_classes
    h = 1 + torch.randn(n_classes, d, generator=g)[labels] + torch.randn(n, d, generator=g)
    return (h * (0.1 + torch.rand(n, 1, generator=g))).to(dtype), labels


def near_far(h, y, dtype=torch.float64, batch=None, use_lengths=True):
    """Fitted as ``fit`` does it, with batches of a size."""
    store = FeatureStore()
    for part, labels in zip(h.split(batch or len(h)), y.split(batch or len(h)), strict=True):
        store.append(part, labels, where="h")
    blocks, classes = store.blocks(), store.classes
    return NearFar.of(blocks, classes, len(store), dtype, use_lengths=use_lengths)


def scatter(u, y):
    """mu, m_c, T, W and e, point by point."""
    u, y = np.asarray(u), np.asarray(y)
    mean, classes = u.mean(0), np.unique(y)
    means = np.stack([u[y == c].mean(0) for c in classes])
    total = sum(np.outer(v - mean, v - mean) for v in u) / len(u)
    gaps = [v - means[list(classes).index(c)] for v, c in zip(u, y, strict=True)]
    within = sum(np.outer(v, v) for v in gaps) / (len(u) - len(classes))
    return mean, means, total, within, np.trace(within) / len(mean)


def oracle(u, y, queries, points=None):
    """near, far, cosine and local [Q, 4] by scipy's solver, one point after the other."""
    mean, means, total, within, e = scatter(u, y)
    eye = np.eye(len(mean))
    points = np.asarray(u if points is None else points)

    def squared(gap, matrix):
        return float(gap @ solve(matrix + e * eye, gap, assume_a="pos"))

    rows = []
    for q in np.asarray(queries):
        far, near = squared(q - mean, total), min(squared(q - m, within) for m in means)
        cosine = min(float((q - v) @ (q - v)) for v in points)
        rows.append([near - far, far, cosine, min(squared(q - v, within) for v in points)])
    return np.array(rows)


def unit(h):
    return h / h.norm(dim=1, keepdim=True)


def close(a, b, rel=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=rel, atol=rel)


def test_near_far_cosine_and_local_are_those_of_a_per_point_oracle():
    h, y = features()
    q = features(seed=1)[0]
    close(near_far(h, y).score(q)[:, :4], oracle(unit(h), y, unit(q)))


def without(u, y, row):
    """The other points: without a row and its copies."""
    kept = (u - u[row]).abs().amax(1) > 1e-9
    return u[kept], y[kept]


def refitted(u, y):
    """Scores [N, 4] of each point by a fit to the others."""
    return np.concatenate([oracle(*without(u, y, i), u[i : i + 1]) for i in range(len(u))])


def classes_left_out(u, y, points=None, groups=5):
    """Scores [N, 4] by the other classes: T of them, W of all points but the one that is scored."""
    order = torch.randperm(C, generator=torch.Generator().manual_seed(0)) % groups
    points, rows = u if points is None else points, []
    for i in range(len(points)):
        others = u[(u - points[i]).abs().amax(1) > 1e-9]
        labels = y[(u - points[i]).abs().amax(1) > 1e-9]
        own = int(y[(u - points[i]).abs().amax(1) <= 1e-9][0])
        *_, within, e = scatter(others, labels)
        kept = order[y] != order[own]
        mean, means, total, spread, _ = scatter(u[kept], y[kept])
        n, n_classes = int(kept.sum()), len(means)
        total = total + (n - n_classes) / n * (_pooled(u, y, points[i]) - spread)
        eye, q = np.eye(u.shape[1]), points[i].numpy()
        whole = scatter(u, y)[-1]
        far = float((q - mean) @ solve(total + whole * eye, q - mean))
        near = min(float((q - m) @ solve(within + e * eye, q - m)) for m in means)
        mates = order[_labels_of(u, y, points)] == order[own]
        v = q - points[~mates].numpy()
        local = min(float(x @ solve(within + e * eye, x)) for x in v)
        rows.append([near - far, far, float((v * v).sum(1).min()), local])
    return np.array(rows)


def _pooled(u, y, point):
    """W of all points, without the part of one of them, with the degrees of all."""
    means = scatter(u, y)[1]
    own = int(y[(u - point).abs().amax(1) <= 1e-9][0])
    n = int((y == own).sum())
    x = point.numpy() - means[own]
    return scatter(u, y)[3] - n / (n - 1) * np.outer(x, x) / (len(u) - len(means))


def _labels_of(u, y, points):
    return y[torch.cdist(points, u).argmin(1)]


def bounded_logistic(known, new):
    """Ridge logistic regression with weights of 0 and more, by SciPy."""
    x = np.concatenate([known, new])
    side = np.repeat([-1, 1], [len(known), len(new)])
    share = np.repeat([0.5 / len(known), 0.5 / len(new)], [len(known), len(new)])

    def loss(t):
        return share @ np.logaddexp(0, -side * (x @ t[:3] + t[3])) + 1e-3 * t[:3] @ t[:3]

    bounds = [(0, None)] * 3 + [(None, None)]
    return minimize(loss, np.ones(4), bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10}).x[:3]


def test_epistemic_is_cross_fitted_and_weighted_by_classes_left_out():
    h, y = features()
    fitted, u = near_far(h, y), unit(h)
    scores, new = refitted(u, y), classes_left_out(u, y)
    centre, scale = scores.mean(0), scores.std(0, ddof=1)
    # of 60 points, a first order of what the ridge loses is right up to some 1e-5
    close(fitted.centre[:4], centre, rel=3e-5)
    close(fitted.scale[:4], scale, rel=3e-5)
    z, z_new = (scores - centre) / scale, (new - centre) / scale
    weights = bounded_logistic(z[:, [0, 2, 3]], z_new[:, [0, 2, 3]])
    close(fitted.weights, weights, rel=3e-3)
    weights = fitted.weights.numpy()
    novelty = z[:, [0, 2, 3]] @ weights
    centre, scale = np.append(centre, novelty.mean()), np.append(scale, novelty.std(ddof=1))
    s = np.log(np.linalg.norm(h, axis=1))
    w = abs(s - s.mean()) / s.std(ddof=1)

    def total(z, novelty, w):
        number = (novelty - centre[4]) / scale[4]
        return number + np.maximum(z[:, 3] - 1, 0) + np.maximum(w - 2.5, 0)

    number = total(z, novelty, w)
    close(fitted.centre, np.append(centre, number.mean()), rel=3e-5)
    close(fitted.scale, np.append(scale, number.std(ddof=1)), rel=3e-5)
    centre, scale = fitted.centre[:5].numpy(), fitted.scale[:5].numpy()
    q = features(seed=1)[0] * torch.logspace(-1, 1, len(h))[:, None]
    z = (oracle(u, y, unit(q)) - centre[:4]) / scale[:4]
    w = abs(np.log(np.linalg.norm(q, axis=1)) - s.mean()) / s.std(ddof=1)
    close(fitted.score(q)[:, 4], w)
    assert 5 < (w > 2.5).sum() < 55
    number = total(z, z[:, [0, 2, 3]] @ weights, w)
    close(fitted.epistemic(q), (number - float(fitted.centre[5])) / float(fitted.scale[5]))
    parts = fitted.parts(q)
    close(torch.stack([parts.near, parts.far, parts.local], 1), z[:, [0, 1, 3]])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_novelty_weights_are_those_of_a_bounded_optimiser(seed, sign):
    rng = np.random.default_rng(seed)
    known, new = rng.normal(size=(200, 3)), rng.normal(size=(80, 3)) * 1.5
    new += sign * np.array([1.5, -0.4, 0.3 * seed])
    found = novelty_weights(torch.from_numpy(known), torch.from_numpy(new))
    close(found, bounded_logistic(known, new), rel=1e-4)


def test_fewer_than_three_classes_have_equal_weights():
    h, y = features(n_classes=2)
    assert near_far(h, y).weights.tolist() == [1, 1, 1]
    assert near_far(h, torch.arange(N)).weights.tolist() == [0, 1, 1]


def test_classes_that_are_left_out_leave_the_covariance_of_the_others():
    """Members outside the sample have a part in W, their means and numbers are gone."""
    h, y = features(300)
    u, gone = unit(h), torch.tensor([False, True, False, False, True])
    sums = CentredSums.zeros(C, u)
    sums.add_(u, y, torch.ones(len(u), dtype=torch.bool))
    whole = sums.scatter()
    rest = whole.without_classes(gone)
    n, kept = int(rest.counts.sum()), ~torch.isin(y, gone.nonzero()[:, 0])
    assert rest.counts.tolist() == [60, 0, 60, 60, 0]
    close(rest.within / (n - 3), whole.within / (len(u) - C))
    close(rest.mean, u[kept].mean(0))
    between = sum(60 * torch.outer(m - rest.mean, m - rest.mean) for m in whole.means[~gone])
    close(rest.total - rest.within, between)


def fit_set_of(h, y):
    store = FeatureStore.of(h, y)
    return FitSet.read(store.blocks(), store.classes, len(y))


def scored(h, y):
    """The fit set, and its points as statistics without them see them."""
    found = fit_set_of(h, y)
    return found, left_one_out(found, found.scatter.factors().gaussians())


@pytest.mark.parametrize("n_classes", [2, 3, 20])
@pytest.mark.parametrize("copies", ["none", "of a class", "of two classes"])
def test_leaving_a_row_out_is_a_fit_to_the_others(n_classes, copies):
    h, y = features(60, n_classes=n_classes)
    if copies != "none":
        moved = int(copies == "of two classes")
        h = torch.cat([h, h[:20], 3 * h[:10]])
        y = torch.cat([y, (y[:20] + moved) % n_classes, y[:10]])
    found, seen = scored(h, y)
    u, rows = unit(h), found.sample
    for i in range(len(rows.u)):
        others, labels = without(u, y, int((u - rows.u[i]).abs().amax(1).argmin()))
        q = rows.u[i : i + 1].numpy()
        want = oracle(others, labels, q)[0]
        close(seen.scores[i, 1:3], want[1:3], rel=1e-3)
        close(seen.scores[i, :2].sum(), want[:2].sum(), rel=1e-3)
        close(seen.scores[i, 3], want[3], rel=0.1)  # to the nearest point by W of all points
        _, means, _, within, e = scatter(others, labels)
        left = np.unique(labels)
        d = [float((q[0] - m) @ solve(within + e * np.eye(D), q[0] - m)) for m in means]
        close(seen.distances[i, left], np.array(d), rel=1e-3)
        assert seen.distances[i].isfinite().sum() == len(left)
        assert bool(seen.known[i]) == (int(rows.labels[i]) in left)


@pytest.mark.parametrize(("n", "few", "error"), [(400, 2_000, 2e-5), (400, 0, 3e-3)])
def test_what_the_ridge_loses_with_a_row_is_of_order_one_over_n(n, few, error, monkeypatch):
    monkeypatch.setattr("laplace_metric.familiarity._cross_fitted.FEW", few)
    h, y = features(n)
    found, seen = scored(h, y)
    u = unit(h)
    gaps = []
    for i in range(0, n, 7):
        q = found.sample.u[i : i + 1]
        row = int((u - q).abs().amax(1).argmin())
        want = torch.from_numpy(oracle(*without(u, y, row), q.numpy())[0])
        gaps.append((seen.scores[i, 1] - want[1]).abs() / want[1])
    largest = float(torch.stack(gaps).max())
    assert largest < error
    assert few or largest > 1e-4


@pytest.mark.parametrize("sampled", [200, 80])
def test_a_class_that_is_left_out_is_unknown_to_its_sampled_members(sampled, monkeypatch):
    """Its mean, its number and its points are gone; of W only the point's own part is."""
    monkeypatch.setattr("laplace_metric.familiarity._fit_set.SAMPLED", sampled)
    h, y = features(200)
    found, seen = scored(h, y)
    want = classes_left_out(unit(h), y, found.sample.u)
    close(seen.left_out[:, 1:3], want[:, 1:3])
    close(seen.left_out[:, :2].sum(1), want[:, :2].sum(1), rel=1e-4)
    same = np.isclose(seen.left_out[:, 3], want[:, 3], rtol=1e-4)  # where the nearest point is
    assert same.mean() > 0.97


def test_many_points_are_scored_by_a_sample(monkeypatch):
    h, y = features(400)
    exact = near_far(h, y)
    monkeypatch.setattr("laplace_metric.familiarity._fit_set.SAMPLED", 200)
    sampled = near_far(h, y)
    assert torch.equal(exact.within_root, sampled.within_root)
    assert ((exact.centre - sampled.centre).abs() < 0.5 * exact.scale)[:2].all()
    assert not torch.equal(exact.centre, sampled.centre)
    assert (len(exact.points), len(sampled.points)) == (400, 200)
    q = features(seed=1)[0]
    held = (sampled.points + sampled.mean).numpy()
    close(sampled.score(q)[:, :4], oracle(unit(h), y, unit(q), held))


# The identities of docs/mathematics.md


def regression(second, n, precision=1e-10):
    """``N(0, (n G + lam I)^-1)`` over the weights of [h; 1] -> 1."""
    d = len(second) - 1
    head = jacobian_of(nn.Linear(d, 1).double(), 1)
    posterior = Posterior(head.parameters, FullCurvature(second).decompose(), n, precision)
    return lambda h: covariance(head, posterior, h).diagonal()[:, 0].detach()


def with_ones(h):
    return torch.cat([h, torch.ones_like(h[:, :1])], 1)


def test_laplace_with_a_bias_and_an_isotropic_likelihood_is_regression_leverage():
    h, q = features()[0], features(seed=1)[0]
    a = with_ones(h)
    variance = regression(a.T @ a / N, N)(q)
    sigma = np.cov(h.T.numpy(), bias=True)
    gaps = q.numpy() - h.numpy().mean(0)
    leverage = [1 / N + gap @ solve(sigma, gap) / N for gap in gaps]
    close(variance, leverage, rel=1e-7)


def test_far_is_the_posterior_variance_under_the_total_curvature():
    h, y = features()
    u, q = unit(h), unit(features(seed=1)[0])
    a, e = with_ones(u), scatter(u, y)[-1]
    ridge = e * torch.eye(D + 1, dtype=torch.float64)
    ridge[-1, -1] = 0  # the bias has no prior
    variance = regression(a.T @ a / N + ridge, N)(q)
    close(near_far(h, y).score(q)[:, 1], N * variance - 1, rel=1e-6)


def positives(h, y, **options):
    model = nn.Linear(h.shape[1], 1, bias=False).double()
    how = {"distance": "euclidean", "hessian": "positives", "structure": "full", **options}
    return LaplaceEmbedder(model, **how).fit([(h, y)], progress=False)


@pytest.mark.parametrize("counts", [[4, 4, 4], [2, 9, 4]])
def test_the_curvature_of_positive_pairs_is_the_within_class_scatter(counts):
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    h = features(len(y), 4, 3)[0]
    groups = [h[y == c] for c in range(3)]
    n_pairs = sum(n * n for n in counts)
    weighted = sum(len(g) * (g - g.mean(0)).T @ (g - g.mean(0)) for g in groups)
    curvature = positives(h, y).hessian_.to_dense()
    close(curvature, 2 / n_pairs * weighted)
    if len(set(counts)) == 1:  # n_c = n for every class
        within = torch.as_tensor(scatter(h, y)[3])
        close(curvature, 2 * (len(y) - 3) / len(y) * within)


def test_near_and_far_together_and_local_are_shared_weight_variances_of_a_difference():
    h, y = features()
    u, q = unit(h), unit(features(seed=1)[0])
    _, means, _, _, e = scatter(u, y)
    options = {
        "n_effective": N / (2 * (N - C)),
        "prior_precision": float(e),
        "temperature": 1.0,
    }
    embedder, means = positives(u, y, **options), torch.as_tensor(means)

    def variance(others):
        gap = embedder.embed([(q, y)], progress=False)[0].mean - embedder(others).mean
        distance = embedder.distance(q, others, shared_weights=True)
        return (distance.mean - gap.square().sum(1)).detach()  # E |d|^2 = |m|^2 + tr C

    near, far, cosine, local, _ = near_far(h, y).score(q).unbind(1)
    close(near + far, torch.stack([variance(m.expand_as(q)) for m in means]).amin(0), rel=1e-7)
    close(local, torch.stack([variance(v.expand_as(q)) for v in u]).amin(0), rel=1e-7)
    strong = positives(u, y, **options | {"prior_precision": 1e9})
    close(cosine, (1e9 * torch.stack([_spread(strong, q, v) for v in u])).amin(0), rel=1e-6)


def _spread(embedder, q, v):
    """Variance of the difference, whose mean is nearly 0 under a strong prior."""
    others = v.expand_as(q)
    gap = embedder(q).mean - embedder(others).mean
    return (embedder.distance(q, others, shared_weights=True).mean - gap.square().sum(1)).detach()


# Any shape, any scale


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 8),
    n_classes=st.integers(1, 40),
    size=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
    copies=st.integers(1, 3),
    batch=st.integers(1, 50),
)
def test_any_shape_and_scale(n, d, n_classes, size, copies, batch):
    h, y = features(n, d, n_classes)
    h, y = h.repeat(copies, 1), y.repeat(copies)
    fitted = near_far(h, y)
    scaled = near_far((h * size).float(), y, batch=batch)
    if fitted is None or scaled is None:
        return
    assert all(tensor.isfinite().all() for tensor in scaled.tensors().values())
    scores = scaled.score((h * size).float())
    assert scores.isfinite().all()
    assert (scores[:, 1:] >= 0).all()
    near, far = scores[:, 0], scores[:, 1]
    if len(scaled.class_means):
        assert (near + far >= -1e-6 * far.max()).all()
    assert scaled.epistemic(h.float()).isfinite().all()
    assert scaled.epistemic(h.float()).shape == (len(h),)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_float32_gives_the_number_of_float64(scale, offset):
    h, y = features(300, 24)
    h = ((h + offset) * scale).float()
    exact, fast = near_far(h.double(), y), near_far(h, y, torch.float32)
    q = h[:50] + scale * torch.randn(50, 24, generator=torch.Generator().manual_seed(3))
    a, b = exact.epistemic(q.double()), fast.epistemic(q)
    assert (a - b).abs().max() < 1e-3 * a.abs().max()


@pytest.mark.parametrize(("width", "collapsed"), [(4, False), (64, True)])
def test_classes_collapse_earlier_in_more_dimensions(width, collapsed):
    """The rounding of a distance grows with the root of the number of coordinates."""
    eye, counts = torch.eye(width, dtype=torch.float64), torch.tensor([5, 5])
    means = torch.zeros(2, width, dtype=torch.float64)
    ratio = 2e-4 / torch.finfo(torch.float32).eps
    found = Scatter(counts, means, means[0], eye, ratio * eye, 0.0, len(eye))
    assert found.collapsed(torch.float32) is collapsed
    assert not found.collapsed(torch.float64)


def test_one_point_does_not_vary_and_says_so_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not varies(torch.ones(1))
    assert not varies(torch.ones(3))
    assert varies(torch.arange(3.0))


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("spread", [1e-2, 1e-4])
def test_float32_keeps_classes_that_have_collapsed(sort, spread):
    """Members far closer to each other than classes are: sums about one mean would cancel."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 8
    h = (torch.randn(8, 24, generator=g)[y] + spread * torch.randn(400, 24, generator=g)).float()
    order = y.argsort(stable=True) if sort else slice(None)
    exact, fast = near_far(h.double()[order], y[order]), near_far(h[order], y[order], torch.float32)
    q = (torch.randn(8, 24, generator=g)[y] + spread * torch.randn(400, 24, generator=g)).float()
    for x in (h, q):
        a, b = exact.epistemic(x.double()), fast.epistemic(x)
        assert (a - b).abs().max() < 2e-3 * a.abs().max()
    torch.testing.assert_close(fast.centre, exact.centre, rtol=1e-3, atol=1e-3)


def test_batches_and_blocks_of_any_size_give_one_number(monkeypatch):
    h, y = features(200)
    one = near_far(h, y)
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(37))
    many = near_far(h, y, batch=7)
    close(one.epistemic(h), many.epistemic(h))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_of_float64_may_overflow(scale):
    h, y = features()
    close(near_far(h, y).epistemic(h), near_far(h * scale, y).epistemic(h * scale))


@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_that_hardly_differ_say_nothing(spread, dtype):
    h, y = features()
    g = torch.Generator().manual_seed(1)
    h = (unit(h) * (1 + spread * torch.randn(len(h), 1, generator=g))).to(dtype)
    fitted = near_far(h, y, dtype)
    assert len(fitted.length) == 0
    close(fitted.epistemic(h), fitted.epistemic(100 * h), rel=1e-3)


def test_a_foreign_length_is_unfamiliar_in_a_known_direction():
    h, y = features(400, 24)
    fitted = near_far(h, y)
    for factor in (1e-9, 1e9):
        assert fitted.epistemic(factor * h).min() > fitted.epistemic(h).max()
    shorter = near_far(torch.cat([h, h / 2]), torch.cat([y, y]))  # equal directions, both lengths
    assert float(shorter.length[0]) < float(fitted.length[0]) - 0.3


def test_the_sample_of_few_directions_has_the_lengths_of_all():
    g = torch.Generator().manual_seed(0)
    s = 0.3 * torch.randn(20_000, generator=g, dtype=torch.float64)
    k = torch.arange(20_000) % 8
    m, v = near_far(torch.eye(8).double()[k] * s.exp()[:, None], k // 2).length
    assert abs(m - s.mean()) < 0.02
    assert abs(v - s.std()) < 0.02


def test_one_extreme_length_leaves_foreign_inputs_apart():
    h, y = features(1_000)
    h = unit(h)
    h[0] *= 1_000
    fitted, foreign = near_far(h, y), -h[1:]
    assert fitted.scale[5] < 2
    assert fitted.epistemic(foreign).median() > fitted.epistemic(h[1:]).quantile(0.99)


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_direction_of_an_array_is_as_familiar_at_any_length(distance):
    h, y = features(dtype=torch.float32)
    embedder = LaplaceEmbedder.from_embeddings(h, y, distance=distance)
    a, b = (embedder(f * h).epistemic for f in (1, 99))
    assert torch.allclose(a, b, atol=1e-3) == (distance == "arccos")
    head = LaplaceEmbedder(nn.Linear(D, 4), distance=distance).fit([(h, y)], progress=False)
    assert head(99 * h).epistemic.median() > head(h).epistemic.median() + 1


def test_without_usable_labels_near_is_unknown():
    h, _ = features()
    y = torch.arange(N)
    fitted = near_far(h, y)
    u = unit(h).numpy()
    total = np.cov(u.T, bias=True)
    matrix = total + np.trace(total) / D * np.eye(D)
    q = unit(features(seed=1)[0]).numpy()
    squared = lambda gap: gap @ solve(matrix, gap)  # noqa: E731
    far = [squared(gap) for gap in q - u.mean(0)]
    cosine = [min((v - p) @ (v - p) for p in u) for v in q]
    local = [min(squared(v - p) for p in u) for v in q]
    close(fitted.score(torch.from_numpy(q))[:, :4], np.stack([np.zeros(N), far, cosine, local], 1))
    assert fitted.parts(h).near is None
    e = LaplaceEmbedder.from_embeddings(unit(h), y, hessian="full", positivity="absolute")(unit(h))
    assert e.epistemic.isfinite().all()
    with pytest.raises(NotFittedError, match="near needs classes"):
        _ = e.near


def test_classes_whose_members_are_alike_say_nothing():
    n, g = 20_000, torch.Generator().manual_seed(0)
    h = 5 + torch.randn(n, 3, generator=g).double()
    one_pair = torch.cat([h, h[:1]]), torch.cat([torch.arange(n), torch.tensor([0])])
    assert near_far(*one_pair).parts(h).near is None  # W is 0, and 3e-13 by rounding
    assert near_far(h.repeat(2, 1), torch.arange(n).repeat(2)).parts(h).near is None


@pytest.mark.parametrize("h", [torch.ones(30, 4), torch.ones(1, 4), torch.zeros(9, 4)])
def test_too_few_or_all_alike_is_none(h):
    assert near_far(h.double(), torch.arange(len(h)) % 3) is None


def test_rows_of_zeros_do_not_count():
    h, y = features()
    padded, labels = torch.cat([h, torch.zeros(1, D).double()]), torch.cat([y, y[:1]])
    plain, other = near_far(h, y), near_far(padded, labels)
    close(plain.within_root, other.within_root)
    close(plain.total_root, other.total_root)


def test_a_fitted_point_is_compared_with_the_others():
    h, y = features()
    u, fitted = unit(h), near_far(h, y)
    scores, i = fitted.score(3 * h), 7
    others = np.delete(np.asarray(u), i, 0)
    close(scores[i, 2:4], oracle(u, y, u[i : i + 1], others)[0, 2:])
    same = near_far(h, y, torch.float32).score(h.float())
    close(same.double()[:, :4], scores[:, :4], rel=1e-3)


# What a user sees


@pytest.fixture(params=["linear", "chain", "append", "normalised"])
def embedder(request, model, loader):
    head = {"chain": model[-3:], "append": "append"}.get(request.param)
    if request.param == "normalised":
        model = nn.Sequential(model, Unit())
    return LaplaceEmbedder(model, head=head).fit(loader, progress=False)


class Unit(nn.Module):
    def forward(self, z):
        return nn.functional.normalize(z, dim=-1)


def test_epistemic_is_of_what_enters_the_head(embedder, data, loader):
    x, y = data
    h, e = embedder.activations(x).features, embedder(x)
    own = embedder.head_.name != "append"  # the other embeddings are directions of h itself
    expected = near_far(h.double(), y, use_lengths=own).epistemic(h.double())
    torch.testing.assert_close(e.epistemic.double(), expected, rtol=1e-3, atol=1e-3)
    assert e.epistemic.shape == (len(x),)
    assert torch.equal(
        embedder.uncertainties([x], kind="epistemic", progress=False), embedder(x).epistemic
    )


def test_epistemic_survives_selection_and_concatenation(embedder, data):
    x = data[0]
    whole = embedder(x)
    both = Embedding.concatenate([embedder(x[:7]), embedder(x[7:])])
    torch.testing.assert_close(both.epistemic, whole.epistemic, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole[2:5].epistemic, whole.epistemic[2:5], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole[[3, 1]].far, whole.far[[3, 1]], rtol=1e-4, atol=1e-4)
    assert "_parts" not in vars(embedder(x))


def test_it_survives_another_prior_and_saving(embedder, data, tmp_path):
    x = data[0]
    before = embedder(x).epistemic
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    assert torch.equal(loaded(x).epistemic, before)
    for name, tensor in embedder.fitted_.near_far.tensors().items():
        assert torch.equal(loaded.fitted_.near_far.tensors()[name], tensor)
    embedder.tune_prior(bounds=(1e-3, 1e3))
    assert torch.equal(embedder(x).epistemic, before)


def test_half_precision_and_autocast(model, loader, data):
    embedder = LaplaceEmbedder(model).fit(loader, progress=False)
    exact = embedder(data[0]).epistemic
    e = embedder(data[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(e.epistemic, exact)
    halves = [(x.bfloat16(), y) for x, y in loader]
    half = LaplaceEmbedder(model.bfloat16()).fit(halves, progress=False)(data[0].bfloat16())
    assert half.epistemic.dtype == torch.float32
    assert (half.epistemic - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("how", ["spilled", "checkpointed"])
def test_features_on_disk_give_the_same_number(how, model, loader, data, tmp_path):
    plain = LaplaceEmbedder(model).fit(loader, progress=False)
    options = {"memory_bytes": 0} if how == "spilled" else {"checkpoint_dir": tmp_path / "fit"}
    stored = LaplaceEmbedder(model).fit(loader, progress=False, **options)
    assert torch.equal(plain(data[0]).epistemic, stored(data[0]).epistemic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.nan, NonFiniteError, "1 of 3 head"),
        (torch.inf, NonFiniteError, "NaN or infinity"),
        (0, InputError, "1 of 3 head inputs.*all zeros"),
    ],
)
def test_rows_that_have_no_direction(value, error, message, dtype):
    fitted, h = near_far(*features()), features()[0][:3].to(dtype)
    h[1] = value
    with pytest.raises(error, match=message):
        fitted.score(h)


def test_pairs_of_batches_have_none_and_say_so(model, loader, data):
    e = LaplaceEmbedder(model, pairs="batch").fit(loader, progress=False)(data[0])
    assert e.variance.isfinite().all()
    for name in ("epistemic", "near", "far", "local"):
        with pytest.raises(NotFittedError, match="pairs='all'"):
            getattr(e, name)


def test_parts_of_several_fits_have_none(model, loader, data):
    parts = [LaplaceEmbedder(model).fit(loader, progress=False)(data[0]) for _ in range(2)]
    with pytest.raises(NotFittedError, match="several fits"):
        _ = Embedding.concatenate(parts).epistemic


def test_wider_than_the_limit_is_none(monkeypatch):
    monkeypatch.setattr("laplace_metric.familiarity._fit_set.WIDEST", D - 1)
    assert near_far(*features()) is None


def test_new_classes_are_near_and_foreign_inputs_far():
    g = torch.Generator().manual_seed(0)
    means, d = torch.eye(12)[:9], 12
    draw = lambda c: means[c] + 0.05 * torch.randn(len(c), d, generator=g)  # noqa: E731
    known = torch.arange(240) % 8
    fitted = near_far(draw(known).double(), known)
    test, new = fitted.parts(draw(known)), fitted.parts(draw(torch.full((50,), 8)))
    foreign = fitted.parts(-draw(known))
    assert new.near.min() > test.near.max()
    assert foreign.far.median() > test.far.max()
    assert foreign.local.min() > test.local.max()
    assert new.epistemic.min() > test.epistemic.max()
    assert foreign.epistemic.min() > test.epistemic.max()


def test_the_page_names_tests_that_exist():
    page = Path(__file__).parent.parent / "docs" / "mathematics.md"
    names = re.findall(r"`(test_\w+)`", page.read_text())
    assert len(names) == 12
    assert set(names) <= {
        *globals(),
        *vars(test_class_model),
        *vars(test_class_weights),
        *vars(test_calibration),
    }


# Ambiguity by the classes of the fit set


def planted(n=4_000, rate=0.4, seed=0):
    """Four Gaussian classes on the sphere; a share of class 0 is labelled 1."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % 4
    centres = 4 * torch.eye(6, dtype=torch.float64)[:4] + 1
    h = centres[truth] + torch.randn(n, 6, generator=g, dtype=torch.float64)
    flips = (truth == 0) & (torch.rand(n, generator=g) < rate)
    return h, truth, torch.where(flips, 1, truth)


def overlapping(n_classes=60):
    """Many classes of a few members each: EM has not converged when its rounds are over."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(6 * n_classes) % n_classes
    means = 1.5 * torch.randn(n_classes, 6, generator=g, dtype=torch.float64)
    return means[y] + torch.randn(len(y), 6, generator=g, dtype=torch.float64), y, y


@pytest.mark.parametrize("points", [lambda: planted(300), overlapping], ids=["4", "60"])
def test_the_label_model_is_that_of_a_point_by_point_em(points):
    h, _, y = points()
    n = int(y.max()) + 1
    d = torch.cdist(h, torch.stack([h[y == c].mean(0) for c in range(n)])).square()
    model = LabelModel.fit(d, y, y.bincount())
    pi, t, channel = np.bincount(y) / len(y), 1.0, 0.9 * np.eye(n) + 0.1 / n
    for _ in range(30):
        p = np.stack([softmax(-t / 2 * row + np.log(pi)) for row in d.numpy()])
        r = np.stack([p[i] * channel[:, y[i]] for i in range(len(y))])
        r /= r.sum(1, keepdims=True)
        slope = sum(p[i] @ d[i].numpy() - r[i] @ d[i].numpy() for i in range(len(y))) / 2
        bend = sum(np.cov(d[i], aweights=p[i], ddof=0) for i in range(len(y))) / 4
        slope, bend = slope + 1 / t - 1, bend + 1 / t**2
        channel = np.eye(n)
        for i, label in enumerate(y.tolist()):
            channel[:, label] += r[i]
        channel /= channel.sum(1, keepdims=True)
        t = min(max(t + slope / bend, t / 2), 2 * t)
    close(model.strength, [t], rel=1e-7)
    close(model.channel, channel, rel=1e-7)
    expected = [entropy(softmax(-t / 2 * row + np.log(pi)) @ channel) for row in d.numpy()]
    close(model.ambiguity(d), np.array(expected), rel=1e-6)


def test_without_label_noise_the_label_is_that_of_discriminant_analysis():
    h, truth, _ = planted(200)
    fitted, u = near_far(h, truth), unit(h).numpy()
    plain = replace(fitted, strength=torch.ones(1), channel=torch.eye(4).double())
    _, means, _, within, e = scatter(u, truth)
    lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=EmpiricalCovariance())
    lda.fit(u, truth)
    inverse = np.linalg.inv(within + e * np.eye(6))
    lda.coef_ = means @ inverse
    lda.intercept_ = -np.sum(means @ inverse * means, 1) / 2 + np.log(0.25)
    close(plain.ambiguity(h), entropy(lda.predict_proba(u), axis=1), rel=1e-7)


def test_ambiguity_finds_planted_label_noise_and_does_not_shrink_with_data():
    h, truth, y = planted()
    few, many = near_far(h[:400], y[:400]), near_far(h, y)
    a, b = few.ambiguity(h), many.ambiguity(h)
    of_class = [float(b[truth == c].mean()) for c in range(4)]
    assert of_class[0] == pytest.approx(entropy([0.4, 0.6]), abs=0.08)
    assert max(of_class[1:]) < 0.2
    assert float(a.mean()) == pytest.approx(float(b.mean()), rel=0.25)
    clean = near_far(h, truth).ambiguity(h)
    assert float(clean.mean()) < 0.5 * float(b.mean())
    close(many.channel.sum(1), torch.ones(4).double())


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(4, 60),
    d=st.integers(1, 6),
    n_classes=st.integers(1, 20),
    size=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_ambiguity_of_any_shape_and_scale(n, d, n_classes, size):
    h, y = features(n, d, n_classes)
    fitted = near_far((h * size).float(), y)
    if fitted is None or (ambiguity := fitted.ambiguity((h * size).float())) is None:
        return
    assert (ambiguity >= 0).all()
    assert (ambiguity <= np.log(len(fitted.log_share)) + 1e-5).all()


def test_float32_ambiguity_is_that_of_float64():
    h, _, y = planted()
    h = h.float().double()  # other values would be another sample
    exact, fast = near_far(h, y), near_far(h.float(), y, torch.float32)
    assert (exact.ambiguity(h) - fast.ambiguity(h.float())).abs().max() < 1e-4


def test_ambiguity_is_read_saved_and_refused(tmp_path: Path):
    h, _, y = planted(200)
    embedder = LaplaceEmbedder.from_embeddings(h.float(), y)
    embedding = embedder(h.float())
    fitted = embedder.fitted_.near_far
    assert fitted is not None
    close(embedding.ambiguity, fitted.ambiguity(h.float()))
    numbers = embedder.uncertainties([h[:90].float(), h[90:].float()], kind="ambiguity")
    close(numbers, embedding.ambiguity, rel=1e-5)
    close(embedding[3:5].ambiguity, embedding.ambiguity[3:5], rel=1e-5)
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    assert torch.equal(loaded(h.float()).ambiguity, embedding.ambiguity)
    alike = LaplaceEmbedder.from_embeddings(h.float().repeat(2, 1), torch.arange(200).repeat(2))
    with pytest.raises(NotFittedError, match="a class with several members"):
        _ = alike(h.float()).ambiguity
    with pytest.raises(NotFittedError, match="no ambiguity here"):
        _ = Embedding(embedding.distribution).ambiguity


@pytest.mark.parametrize("unseen", [0, 7, 40])
def test_a_channel_by_columns_is_the_whole_one(unseen, monkeypatch):
    h, y, _ = overlapping(50)
    order = y.sub(unseen).sign().argsort(stable=True) if unseen else torch.arange(len(y))
    kept = order[y[order] >= unseen]  # EM sees no point of the first classes
    d = torch.cdist(h, torch.stack([h[y == c].mean(0) for c in range(50)])).square()
    counts = y.bincount()
    whole = LabelModel.fit(d[kept], y[kept], counts)
    monkeypatch.setattr("laplace_metric.familiarity._label_model.SQUARE", 49)
    columns = LabelModel.fit(d[kept], y[kept], counts)
    assert (whole.channel.shape, columns.channel.shape) == ((50, 50), (50, 50 - unseen))
    assert torch.equal(columns.told, torch.arange(unseen, 50))
    close(columns.probabilities(d), whole.probabilities(d), rel=1e-12)
    close(columns.probabilities(d).sum(1), torch.ones(len(d)).double())


def test_many_classes_have_an_ambiguity_that_is_saved(tmp_path, monkeypatch):
    h, _, y = planted(200)
    square = LaplaceEmbedder.from_embeddings(h.float(), y)
    monkeypatch.setattr("laplace_metric.familiarity._label_model.SQUARE", 3)
    embedder = LaplaceEmbedder.from_embeddings(h.float(), y)
    fitted = embedder.fitted_.near_far
    assert fitted is not None
    assert len(fitted.told) == 4
    close(embedder(h.float()).ambiguity, square(h.float()).ambiguity, rel=1e-5)
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    assert torch.equal(loaded(h.float()).ambiguity, embedder(h.float()).ambiguity)
    columns = fitted.channel[:, :3]
    replace(fitted, told=torch.arange(3), channel=columns).check_saved()
    for told in (torch.arange(2, 5), torch.arange(2), torch.arange(0)):
        with pytest.raises(FileFormatError, match=r"near_far/(told|channel)"):
            replace(fitted, told=told, channel=columns).check_saved()


def test_a_channel_reads_few_points_of_many_classes():
    h, y = features(300, 6, 150)
    n = len(y.unique())
    found = fit_set_of(h, y)
    whole = left_one_out(found, found.scatter.factors().gaussians())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("laplace_metric.familiarity._label_model.CELLS", n)
        patch.setattr("laplace_metric.familiarity._label_model.FEWEST", 20)
        patch.setattr("laplace_metric.familiarity._cross_fitted.LEAST_ROWS", 1)
        patch.setattr("laplace_metric.familiarity._cross_fitted.CACHE_BYTES", 1)
        few = left_one_out(found, found.scatter.factors().gaussians())
    assert int(few.known[: len(few.distances)].sum()) == 20
    read = whole.distances[: len(few.distances)]
    assert torch.equal(few.distances.isinf(), read.isinf())
    finite = read.isfinite()
    close(few.distances[finite], read[finite], rel=1e-6)
    close(few.scores, whole.scores, rel=1e-6)


def test_classes_of_one_member_count_neither_for_near_nor_for_labels():
    h, y = features(57, 6, 5)
    q = features(seed=1)[0]
    alone, y_alone = torch.cat([h, q[:2]]), torch.cat([y, torch.tensor([5, 6])])
    fitted, u = near_far(alone, y_alone), unit(alone)
    scores = refitted(u, y_alone)[:57, 0]
    close(fitted.centre[0], scores.mean(), rel=1e-4)
    assert fitted.channel.shape == (7, 7)


def test_a_class_of_zeros_alone_is_no_class():
    h, _, y = planted(200)
    zeros = torch.zeros(3, 6, dtype=h.dtype)
    fitted = near_far(torch.cat([zeros, h]), torch.cat([torch.zeros(3).long(), y + 1]))
    assert fitted.channel.shape == (4, 4)
    assert len(fitted.class_means) == 4
    close(fitted.ambiguity(h), near_far(h, y).ambiguity(h))


@pytest.mark.parametrize("sizes", [(2, 1, 1), (2, 2, 1), (3, 3, 3)])
def test_the_covariance_within_classes_is_divided_by_points_less_classes(sizes):
    labels = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    n, g = len(labels), torch.Generator().manual_seed(0)
    u = torch.randn(n, 2, generator=g, dtype=torch.float64)
    sums = CentredSums.zeros(3, u)
    sums.add_(u, labels, torch.ones(n, dtype=torch.bool))
    found = sums.scatter().factors()
    means = torch.stack([u[labels == c].mean(0) for c in range(3)])
    gaps = u - means[labels]
    within = gaps.mT @ gaps / (n - 3)
    ridge = within.trace() / 2  # e of the mean variance
    torch.testing.assert_close(
        found.within @ found.within.mT, within + ridge * torch.eye(2, dtype=torch.float64)
    )


def test_wide_inputs_have_all_numbers():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = torch.randn(4, 2_049, generator=g)[y] + torch.randn(80, 2_049, generator=g)
    known, new = x[:60], torch.randn(20, 2_049, generator=g)
    embedder = LaplaceEmbedder(nn.Linear(2_049, 3)).fit([(known, y[:60])], progress=False)
    assert embedder(new).epistemic.min() > embedder(x[60:]).epistemic.max()
    assert embedder(new).ambiguity.shape == (20,)


@pytest.mark.parametrize(("n", "n_classes"), [(4, 2), (60, 5)])
def test_the_ridge_without_a_row_is_that_of_the_others(n, n_classes):
    h, y = features(n, n_classes=n_classes)
    found, u = fit_set_of(h, y), unit(h)
    sample = found.sample
    own = OwnRows.of(sample.equal, sample.labels, sample.copies)
    x = sample.u[:, None] - found.scatter.means[own.classes]
    _, ridges, degrees = removed_within(found.scatter, own, x.square().sum(2))
    for i, q in enumerate(sample.u):
        others, labels = without(u, y, int((u - q).abs().amax(1).argmin()))
        close(ridges[i], scatter(others, labels)[-1])
        assert degrees[i] == n - 1 - n_classes


def test_scores_that_differ_by_rounding_alone_are_no_epistemic_number():
    labels = torch.arange(200) % 4
    codes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6)
    codes = codes[codes.sum(1) == 3]
    for x, y in ((torch.eye(4)[labels], labels), (codes, codes[:, 0].long())):
        with pytest.raises(NotFittedError):
            _ = LaplaceEmbedder.from_embeddings(x, y)(x[:3] + 0.5).epistemic
    close_by = torch.eye(4)[labels] + 1e-4 * torch.randn(200, 4)  # a spread of its own
    found = LaplaceEmbedder.from_embeddings(close_by, labels)(close_by).epistemic
    assert float(found.abs().max()) < 20
