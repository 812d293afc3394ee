"""Squared distances against derivatives by autograd, Gaussian moments and joint draws."""

from __future__ import annotations

import pytest
import torch
from mpmath import gamma, hyp2f1, mp, mpf
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.distributions import DenseCovariance, DiagonalCovariance
from laplace_metric.distributions._covariance import RotatedCovariance
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs, in_shared_basis
from laplace_metric.laplace.distance._squared_distance import squared_distance

B, Z = 6, 4


def pair(spread: float, *, shared: bool) -> tuple[EmbeddingPairs, torch.Tensor]:
    """Random pairs and the joint covariance [B, 2Z, 2Z] of (z_x, z_y)."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(B, 2 * Z, 2 * Z, generator=g, dtype=torch.float64)
    joint = spread * root @ root.mT
    if not shared:
        joint[:, :Z, Z:] = 0
        joint[:, Z:, :Z] = 0
    x, y = torch.randn(2, B, Z, generator=g, dtype=torch.float64)
    blocks = joint[:, :Z, :Z], joint[:, Z:, Z:], joint[:, :Z, Z:]
    xx, yy, xy = (DenseCovariance(block) for block in blocks)
    return EmbeddingPairs(x, y, xx, yy, xy if shared else None), joint


def f(spherical: bool):
    def squared(z):
        x, y = z[:Z], z[Z:]
        return ((x / x.norm() - y / y.norm()) if spherical else x - y).square().sum()

    return squared


def delta(pairs: EmbeddingPairs, joint: torch.Tensor, spherical: bool):
    """f, ``1/2 tr(H C)``, ``g^T C g`` and ``1/2 tr(H C H C)`` of each pair by autograd."""
    z = torch.cat([pairs.x, pairs.y], 1)
    value = torch.stack([f(spherical)(row) for row in z])
    g = torch.stack([torch.func.grad(f(spherical))(row) for row in z])
    hc = torch.stack([torch.func.hessian(f(spherical))(row) for row in z]) @ joint
    trace = lambda m: m.diagonal(dim1=1, dim2=2).sum(1)  # noqa: E731
    return value, trace(hc) / 2, torch.einsum("bi,bij,bj->b", g, joint, g), trace(hc @ hc) / 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 100.0])
def test_raw_moments_are_exact(spread, shared):
    pairs, joint = pair(spread, shared=shared)
    value, second, first_variance, second_variance = delta(pairs, joint, False)
    ours = squared_distance(pairs, spherical=False)
    torch.testing.assert_close(ours.mean, value + second)
    torch.testing.assert_close(ours.variance, first_variance + second_variance)
    torch.testing.assert_close(ours.standard_deviation, ours.variance.sqrt())


@pytest.mark.parametrize("shared", [True, False])
def test_on_the_sphere_it_is_the_delta_method_to_second_order(shared):
    pairs, joint = pair(1e-6, shared=shared)
    value, second, first_variance, _ = delta(pairs, joint, True)
    ours = squared_distance(pairs, spherical=True)
    torch.testing.assert_close(ours.mean - value, second, rtol=1e-3, atol=1e-10)
    torch.testing.assert_close(ours.variance, first_variance, rtol=1e-3, atol=0)


def test_the_same_point_seen_independently_has_the_second_order_variance():
    pairs, joint = pair(1e-6, shared=False)
    same = EmbeddingPairs(pairs.x, pairs.x, pairs.xx, pairs.xx, None)
    joint = joint.clone()
    joint[:, Z:, Z:] = joint[:, :Z, :Z]
    _, second, first_variance, second_variance = delta(same, joint, True)
    assert float(first_variance.max()) < 1e-20
    ours = squared_distance(same, spherical=True)
    torch.testing.assert_close(ours.mean, second, rtol=1e-3, atol=0)
    torch.testing.assert_close(ours.variance, second_variance, rtol=1e-3, atol=0)


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e4])
def test_distances_on_the_sphere_stay_in_range(spread):
    ours = squared_distance(pair(spread, shared=True)[0], spherical=True)
    assert bool(((ours.mean >= 0) & (ours.mean <= 4)).all())
    assert bool((ours.variance >= 0).all())
    assert bool((ours.variance <= ours.mean * (4 - ours.mean)).all())


def test_blocks_of_pairs_are_the_pairs(monkeypatch):
    pairs, _ = pair(0.1, shared=True)
    whole = squared_distance(pairs, spherical=True)
    monkeypatch.setattr("laplace_metric.laplace.distance._squared_distance.LARGE_BYTES", 1)
    torch.testing.assert_close(squared_distance(pairs, spherical=True).mean, whole.mean)
    one = DiagonalCovariance(torch.ones(B, Z, dtype=torch.float64))
    plain = squared_distance(EmbeddingPairs(pairs.x, pairs.y, one, one, None), spherical=False)
    gap = (pairs.x - pairs.y).square().sum(1)
    torch.testing.assert_close(plain.mean, gap + 2 * Z)
    torch.testing.assert_close(plain.variance, 8 * gap + 8 * Z)


@pytest.mark.parametrize("how", ["raw", "sphere", "exact"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 50.0])
def test_a_shared_basis_gives_what_dense_matrices_give(how, shared, rotated, spread):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, B, Z, generator=g, dtype=torch.float64)
    left, right = torch.rand(2, B, Z, generator=g, dtype=torch.float64) * spread
    cross = (left * right).sqrt() * (2 * torch.rand(B, Z, generator=g, dtype=torch.float64) - 1)
    basis = torch.linalg.qr(torch.randn(Z, Z, generator=g, dtype=torch.float64)).Q
    of = (lambda v: RotatedCovariance(basis, v)) if rotated else DiagonalCovariance
    xy = of(cross) if shared else None
    pairs = EmbeddingPairs(x, y, of(left), of(right), xy)
    assert in_shared_basis(pairs) is not None
    dense = [None if c is None else DenseCovariance(c.dense()) for c in (pairs.xx, pairs.yy, xy)]
    assert in_shared_basis(EmbeddingPairs(x, y, *dense)) is None
    kind = {"spherical": how != "raw", "exact": how == "exact"}
    ours = squared_distance(pairs, **kind)
    theirs = squared_distance(EmbeddingPairs(x, y, *dense), **kind)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_shared_weights_are_those_of_joint_draws(distance, structure, loader, data):
    torch.manual_seed(0)
    settings = {"distance": distance, "structure": structure, "hessian": "positives"}
    model = nn.Linear(5, 6)
    embedder = LaplaceEmbedder(model, prior_precision=300.0, **settings)
    embedder.fit(loader, progress=False)
    keep = model(data[0]).norm(dim=1) > 0.8
    x, y = data[0][keep][:20], data[0][keep][-20:]
    draw = embedder.draw(20_000, torch.Generator().manual_seed(0))
    sampled = (draw(x) - draw(y)).square().sum(-1)
    ours = embedder.distance(x, y)
    tolerance = 0.02 if distance == "euclidean" else 0.05
    torch.testing.assert_close(ours.mean, sampled.mean(0), rtol=tolerance, atol=0.002)
    torch.testing.assert_close(ours.standard_deviation, sampled.std(0), rtol=0.15, atol=0.002)
    nothing = embedder.distance(x, x)
    assert float(nothing.mean.abs().max()) < 1e-5
    assert float(nothing.variance.abs().max()) < 1e-9
    alone = embedder.distance(x, x, shared_weights=False)
    expected = 2 * embedder(x).uncertainty
    torch.testing.assert_close(alone.mean, expected, rtol=0.1, atol=0)


def chord(pairs):
    return squared_distance(pairs, spherical=True, exact=True)


@pytest.mark.parametrize("size", [2, 3, 8, 40])
def test_the_chord_of_two_directions_without_preference_is_exact(size):
    """``c`` of two uniform directions has mean 0 and variance 1 / Z."""
    zero, one = torch.zeros(1, size).double() + 1e-9, torch.ones(1, size).double()
    spread = DiagonalCovariance(one)
    ours = chord(EmbeddingPairs(zero, -zero, spread, spread, None))
    tolerance = {2: 0.03, 3: 0.01}.get(size, 1e-3)  # six points in w, where lengths vary much
    assert float(ours.mean) == pytest.approx(2, rel=1e-6)
    assert float(ours.variance) == pytest.approx(4 / size, rel=tolerance)


def correlated(size: int, gap: float) -> tuple[float, float]:
    """Mean and s.d. of ``2 - 2 c`` of two zero-mean vectors, correlation ``sqrt(1 - gap^2)``.

    ``c`` is then the correlation of a sample of ``size`` (Muirhead 1982, section 5.1.3).
    """
    with mp.workdps(30):
        half, rho = mpf(size) / 2, (1 - mpf(gap) ** 2) ** 0.5
        scale = (gamma(half + 0.5) / gamma(half)) ** 2 / half
        mean = scale * rho * hyp2f1(0.5, 0.5, half + 1, rho**2)
        square = 1 - (1 - 1 / mpf(size)) * mpf(gap) ** 2 * hyp2f1(1, 1, half + 1, rho**2)
        return float(2 - 2 * mean), float(2 * (square - mean**2) ** 0.5)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("gap", [0.5, 0.1, 0.02, 1e-3])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_the_exact_chord_of_near_pairs_is_the_closed_form(size, gap, dense):
    one = torch.ones(1, size, dtype=torch.float64)
    covariances = [DiagonalCovariance(v * one) for v in (1.0, 1.0, (1 - gap**2) ** 0.5)]
    if dense:
        covariances = [DenseCovariance(c.dense()) for c in covariances]
    ours = chord(EmbeddingPairs(1e-9 * one, 1e-9 * one, *covariances))
    mean, deviation = correlated(size, gap)
    tolerance = {2: 0.008, 3: 0.003, 4: 0.0021}.get(size, 6e-4)  # that of six points in w
    assert float(ours.mean) == pytest.approx(mean, rel=tolerance)
    assert float(ours.standard_deviation) == pytest.approx(deviation, rel=tolerance)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("spread", [0.03, 0.3, 3.0])
def test_the_exact_chord_is_that_of_draws(spread, shared):
    pairs, joint = pair(spread / 8, shared=shared)
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(200_000, B, 2 * Z, generator=g, dtype=torch.float64)
    root = torch.linalg.cholesky(joint)
    z = torch.cat([pairs.x, pairs.y], 1) + torch.einsum("bij,nbj->nbi", root, noise)
    x, y = nn.functional.normalize(z[..., :Z], dim=-1), nn.functional.normalize(z[..., Z:], dim=-1)
    drawn = (x - y).square().sum(-1)
    ours = chord(pairs)
    torch.testing.assert_close(ours.mean, drawn.mean(0), rtol=0.015, atol=0)
    torch.testing.assert_close(ours.standard_deviation, drawn.std(0), rtol=0.015, atol=0)


@pytest.mark.parametrize("dense", [True, False])
def test_one_wide_side_is_enough_for_the_quadrature(dense):
    """Either side may be the wide one, and both orders of a pair are one distance."""
    x, y = torch.randn(2, B, Z, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = torch.ones(B, Z, dtype=torch.float64)
    narrow, wide = DiagonalCovariance(1e-9 * one), DiagonalCovariance(0.5 * one)
    if dense:
        narrow, wide = DenseCovariance(narrow.dense()), DenseCovariance(wide.dense())
    there, back = EmbeddingPairs(x, y, narrow, wide, None), EmbeddingPairs(y, x, wide, narrow, None)
    assert not torch.equal(chord(there).mean, squared_distance(there, spherical=True).mean)
    assert not torch.equal(chord(back).mean, squared_distance(back, spherical=True).mean)
    torch.testing.assert_close(chord(there).mean, chord(back).mean, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(chord(there).variance, chord(back).variance, rtol=1e-2, atol=1e-6)


def test_small_spreads_keep_the_second_order_and_meet_the_quadrature():
    for spread, same in ((1e-7, True), (2e-3, False)):
        pairs, _ = pair(spread / 8, shared=True)
        ours, second = chord(pairs), squared_distance(pairs, spherical=True)
        assert torch.equal(ours.variance, second.variance) == same
        torch.testing.assert_close(ours.variance, second.variance, rtol=0.03, atol=0)
    one = DiagonalCovariance(torch.ones(B, Z, dtype=torch.float64))
    x = pairs.x
    still = chord(
        EmbeddingPairs(
            x, 3 * x, one, DiagonalCovariance(9 * one.values), DiagonalCovariance(3 * one.values)
        )
    )
    assert float(still.mean.max()) < 1e-6
    assert float(still.standard_deviation.max()) < 1e-3


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize(("offset", "apart"), [(0.0, 0.01), (100.0, 4.0), (1000.0, 0.01)])
def test_what_both_sides_have_in_common_does_not_drown_a_difference_in_float32(
    structure, offset, apart
):
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 6
    points = 3 * torch.eye(8)[labels] + torch.randn(300, 8, generator=g)
    x = points + offset
    y = x[:50] + apart * torch.nn.functional.normalize(torch.randn(50, 8, generator=g), dim=1)
    single = LaplaceEmbedder.from_embeddings(x, labels, structure=structure, distance="euclidean")
    double = LaplaceEmbedder.from_embeddings(
        x.double(), labels, structure=structure, distance="euclidean"
    )
    ours, right = single.distance(x[:50], y), double.distance(x[:50].double(), y.double())
    torch.testing.assert_close(ours.variance.double(), right.variance, rtol=1e-3, atol=0)
    if offset > 100:  # an index keeps rotated inputs, which are rounded
        return
    index = single.index(y, torch.arange(50), rank_by="mean")
    of_index = index.search(x[:50], k=1)
    own = torch.from_numpy(of_index.ids[:, 0])
    pairs = double.distance(x[:50].double(), y[own].double())
    expected = pairs.variance / (4 * pairs.mean)
    torch.testing.assert_close(
        of_index.distance_sd[:, 0].double().square(), expected, rtol=2e-2, atol=0
    )
