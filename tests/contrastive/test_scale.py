"""Properties that need more points than an oracle of all pairs can take."""

from __future__ import annotations

import itertools

import pytest
import torch

from laplace_metric.curvature import ContrastiveLoss, _layered_term, _passes
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import InputError
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._feature_store import FeatureStore
from tests.blocks import of_rows

KINDS = list(itertools.product(["euclidean", "arccos"], [False, True]))
HESSIANS = ["full", "positives", "fixed"]


def clusters(n: int, d: int, n_classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=g)
    centres = 2 * torch.randn(n_classes, d, generator=g, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=g, dtype=torch.float64), labels


def head(z: int, d: int, dtype=torch.float64) -> LinearJacobian:
    g = torch.Generator().manual_seed(9)
    weight = torch.randn(z, d, generator=g, dtype=torch.float64)
    return LinearJacobian(weight.to(dtype), torch.zeros(z, dtype=dtype))


def curvature(h, labels, the_head, distance, hessian, normalized, margin=None, **options):
    loss = ContrastiveLoss.of(distance, hessian, normalized=normalized, margin=margin)
    return all_pairs_curvature(FeatureStore.of(h, labels), the_head, loss, **options)


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
def test_block_sizes_do_not_matter(distance, normalized, hessian, monkeypatch):
    h, labels = clusters(500, 6, 5)
    one_block = [
        curvature(h, labels, head(4, 6), distance, hessian, normalized, m).values
        for m in (None, 0.9)
    ]
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(37))
    monkeypatch.setattr(_passes, "blocks", of_rows(3))
    monkeypatch.setattr(_layered_term, "CACHE_BYTES", 1)
    monkeypatch.setattr(_layered_term, "PROJECTED_BYTES", 9000)
    monkeypatch.setattr("laplace_metric.curvature._margin_pairs.blocks", of_rows(40))
    many = [
        curvature(h, labels, head(4, 6), distance, hessian, normalized, m).values
        for m in (None, 0.9)
    ]
    for a, b in zip(one_block, many, strict=True):
        assert float((a - b).norm() / a.norm().clamp_min(1e-30)) < 1e-10


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
def test_one_batch_is_the_data_set(distance, normalized, hessian):
    h, labels = clusters(40, 5, 3)
    loss = ContrastiveLoss.of(distance, hessian, normalized=normalized, margin=1.3)
    batch = batch_curvature(h, head(3, 5), loss, labels=labels).values
    whole = curvature(h, labels, head(3, 5), distance, hessian, normalized, 1.3).values
    assert torch.equal(batch, whole)


@pytest.mark.parametrize("hessian", ["full", "fixed"])
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
def test_reference_subset_is_unbiased_with_an_honest_standard_error(distance, normalized, hessian):
    h, labels = clusters(400, 5, 4)
    arguments = (h, labels, head(3, 5), distance, hessian, normalized, 1.0)
    exact = curvature(*arguments).values
    draws = [
        curvature(*arguments, reference=80, seed=torch.Generator().manual_seed(seed))
        for seed in range(60)
    ]
    values = torch.stack([draw.values for draw in draws])
    errors = torch.stack([draw.standard_error for draw in draws])
    spread = values.std(0)
    varies = spread > 1e-9 * exact.abs().max()  # raw, full: the bias has no curvature at all
    z = ((values.mean(0) - exact) / (spread / len(draws) ** 0.5))[varies]
    assert float(z.abs().mean()) < 1.3  # E|N(0,1)| = 0.80; entries share their draws
    ratio = float((errors.square().mean(0).sqrt() / spread)[varies].mean())
    assert 0.8 < ratio < 1.25


def test_every_point_as_reference_is_exact():
    h, labels = clusters(64, 5, 4)
    arguments = (h, labels, head(3, 5), "arccos", "full", False, 1.0)
    result = curvature(*arguments, reference=64, seed=torch.Generator().manual_seed(0))
    torch.testing.assert_close(result.values, curvature(*arguments).values)
    assert float(result.standard_error.max()) == 0


def test_reference_is_reproducible_and_checked():
    h, labels = clusters(64, 5, 4)
    arguments = (h, labels, head(3, 5), "arccos", "fixed", False, 1.0)
    a, b = (
        curvature(*arguments, reference=32, seed=torch.Generator().manual_seed(3)).values
        for _ in range(2)
    )
    assert torch.equal(a, b)
    for reference in (3, 65):
        with pytest.raises(InputError, match="reference="):
            curvature(*arguments, reference=reference)


def test_a_margin_that_holds_the_whole_sphere_is_no_margin():
    assert ContrastiveLoss.of("arccos", "fixed", normalized=False, margin=2.0).margin is None
    assert ContrastiveLoss.of("euclidean", "fixed", normalized=True, margin=2.5).margin is None
    assert ContrastiveLoss.of("euclidean", "fixed", normalized=False, margin=2.5).margin == 2.5


def test_equality_is_inside_the_margin():
    h = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]], dtype=torch.float64)
    labels, identity = torch.tensor([0, 1, 1]), LinearJacobian(torch.eye(2, dtype=torch.float64))
    values = [
        curvature(h, labels, identity, "euclidean", "full", False, m).values for m in (5.0, 4.999)
    ]
    extra = values[0] - values[1]  # the two ordered pairs (0, 1) at distance 5: -2/M h h^T
    torch.testing.assert_close(extra[:2], -2 / 4 * torch.tensor([9.0, 16.0], dtype=torch.float64))


def test_class_sums_merge_like_the_whole_in_any_order():
    h, labels = clusters(90, 4, 6)
    whole = ClassSums.of(labels, h)
    for order in itertools.permutations(range(3)):
        parts = [ClassSums.of(labels[i::3], h[i::3]) for i in order]
        merged = parts[0] + parts[1] + parts[2]
        assert torch.equal(merged.classes, whole.classes)
        assert torch.equal(merged.counts, whole.counts)
        torch.testing.assert_close(merged.sums, whole.sums, rtol=1e-12, atol=1e-12)
    lonely = ClassSums.of(torch.tensor([50]), h[:1]) + whole
    assert lonely.n_points == 91
    assert int(lonely.counts[-1]) == 1


def test_a_zero_embedding_has_no_direction():
    h, labels = torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    with pytest.raises(InputError, match="exactly zero"):
        curvature(h, labels, head(2, 3), "arccos", "fixed", False)


def test_tuples_or_labels_not_both():
    h, labels = clusters(5, 3, 2)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    with pytest.raises(InputError, match="exactly one"):
        batch_curvature(h, head(2, 3), loss)
    with pytest.raises(InputError, match="2 index vectors"):
        batch_curvature(h, head(2, 3), loss, indices_tuple=(labels, labels))
