"""Every structure x head x Jacobian against dense float64 autograd over all pairs."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from torch import nn

from laplace_metric.curvature import (
    ContrastiveLoss,
    _nearest_kronecker,
    _structures,
    by_class,
)
from laplace_metric.curvature._all_pairs import AllPairs, all_pairs_curvature, curvature_passes
from laplace_metric.curvature._layer_sums import LeftOf
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature._nearest_kronecker import TOLERANCE, nearest_kronecker
from laplace_metric.curvature._passes import ClassSumsPass, execute, next_pass
from laplace_metric.errors import HeadError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._feature_store import FeatureStore
from tests.blocks import of_rows
from tests.contrastive.oracle import all_pair_weights, dense_ggn

D, Z = 3, 2
KINDS = list(itertools.product(["euclidean", "arccos"], [False, True]))
HESSIANS = ["full", "positives", "fixed"]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
HEADS = {
    "linear": lambda: nn.Linear(D, Z),
    "no bias": lambda: nn.Linear(D, Z, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, Z)),
    "gelu no bias": lambda: nn.Sequential(
        nn.Linear(D, 4, bias=False), nn.GELU(), nn.Dropout(0.5), nn.Linear(4, Z, bias=False)
    ),
    "three layers": lambda: nn.Sequential(
        nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, 2), nn.SiLU(), nn.Identity(), nn.Linear(2, Z)
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(D, Z), nn.BatchNorm1d(Z)),
}
LAYERED = [name for name in HEADS if name != "batch norm"]


@cache
def make_head(name: str) -> nn.Module:
    torch.manual_seed(0)
    head = HEADS[name]().double()
    if name == "batch norm":
        head[1].running_mean.normal_()
        head[1].running_var.uniform_(0.5, 2)
    return head.eval()


def features() -> torch.Tensor:
    return torch.randn(6, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@cache
def oracle(name: str, distance: str, normalized: bool, hessian: str, margin: float | None):
    h, head = features(), make_head(name)
    z = head(h).detach()
    f = z / z.norm(dim=1, keepdim=True) if normalized or distance == "arccos" else z
    targets = all_pair_weights(LABELS, f, margin)
    if hessian == "positives":
        targets = targets.clamp_min(0)
    cross = hessian != "fixed"
    return dense_ggn(h, head, targets, distance=distance, normalized=normalized, cross=cross)


def close(ours: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> None:
    assert ours.shape == expected.shape
    assert float((ours - expected).norm()) <= 1e-9 * float(scale.norm()) + 1e-15


def measured(name, distance, normalized, hessian, margin, structure, backend="auto"):
    head = jacobian_of(make_head(name), Z, backend)
    loss = ContrastiveLoss.of(distance, hessian, normalized=normalized, margin=margin)
    store = FeatureStore.of(features(), LABELS)
    return all_pairs_curvature(store, head, loss, structure)


@pytest.mark.parametrize("margin", [None, 0.9])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
@pytest.mark.parametrize("name", HEADS)
def test_diagonal_and_dense(name, distance, normalized, hessian, margin, monkeypatch):
    monkeypatch.setattr(by_class, "MANY_OUTPUTS", 2 if margin is None else 512)  # padded, or not
    case = (name, distance, normalized, hessian, margin)
    expected = oracle(*case)
    close(measured(*case, "diag").values, expected.diagonal(), expected)
    close(measured(*case, "full").matrix, expected, expected)


@pytest.mark.parametrize("backend", ["torch.func", "backpack"])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
@pytest.mark.parametrize("name", ["linear", "relu", "batch norm"])
def test_other_backends(name, distance, normalized, hessian, backend):
    if backend == "backpack":
        pytest.importorskip("backpack", reason="the extra 'backpack' is not installed")
    case = (name, distance, normalized, hessian, 0.9)
    expected = oracle(*case)
    close(measured(*case, "diag", backend).values, expected.diagonal(), expected)
    close(measured(*case, "full", backend).matrix, expected, expected)


def blocks_of(matrix: torch.Tensor, layouts: tuple[Layout, ...]) -> list[torch.Tensor]:
    """Diagonal blocks [O, A, O, A] of each layer."""
    blocks, start = [], 0
    for layout in layouts:
        part = slice(start, start + layout.n_parameters)
        start = part.stop
        rows = layout.fold(matrix[part, part])  # [P, O, A]
        folded = layout.fold(rows.permute(1, 2, 0))  # [O, A, O, A]
        blocks.append(folded)
    return blocks


def pairs_of(name, distance, normalized, hessian):
    """The pairs, the head, K, and what runs a program on them."""
    head = jacobian_of(make_head(name), Z)
    loss = ContrastiveLoss.of(distance, hessian, normalized=normalized)
    store, space = FeatureStore.of(features(), LABELS), loss.geometry
    sums = ClassSumsPass(head, space).collect(store).by_class
    pairs = AllPairs(head, loss, sums)
    return pairs, head, loss, lambda schedule: execute(schedule, store)


def nearest_products(blocks, factors):
    """Assert that each product is as near to its block [O, A, O, A] as any product is.

    Up to 2 % of what is left, or three thousandths of the square that the best one explains: the
    iteration stops where a step adds one thousandth of it.
    """
    for block, f in zip(blocks, factors, strict=True):
        rearranged = block.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)  # [O^2, A^2]
        sigma = torch.linalg.svdvals(rearranged)
        gap = (rearranged - f.left.flatten()[:, None] * f.right.flatten()).square().sum()
        best = sigma[1:].square().sum()
        allowed = max((1.02**2 - 1) * float(best), 3 * TOLERANCE * float(sigma[0].square()))
        assert float(gap - best) <= allowed


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize(("distance", "normalized"), KINDS)
@pytest.mark.parametrize("name", LAYERED)
def test_kronecker_is_the_nearest_product_with_the_best_diagonal(
    name, distance, normalized, hessian
):
    expected = oracle(name, distance, normalized, hessian, None)
    pairs, head, loss, run_on = pairs_of(name, distance, normalized, hessian)
    blocks = blocks_of(expected, head.layouts)
    right = [torch.randn(x.n_columns, x.n_columns).double() for x in head.layouts]
    right = [(a + a.mT) for a in right]
    left = [
        b.permute(0, 2, 1, 3).flatten(2) @ a.flatten() for b, a in zip(blocks, right, strict=True)
    ]
    for ours, theirs in zip(
        run_on(pairs.totals(LayeredTerm(head, loss.geometry.spherical, list(map(LeftOf, right))))),
        left,
        strict=True,
    ):
        close(ours.expand_as(theirs) * torch.eye(Z) if len(ours) == 1 else ours, theirs, theirs)
    result = run_on(nearest_kronecker(pairs.totals, head, loss))
    nearest_products(blocks, result.factors)
    basis, spectrum = result.refined
    q = basis.to_eigenbasis(torch.eye(len(expected), dtype=torch.float64))
    close(spectrum, (q.mT @ expected @ q).diagonal(), expected)


@pytest.mark.parametrize(("tolerance", "n_steps"), [(1e9, 1), (5e-4, 2), (-1.0, 3)])
def test_a_fit_stops_when_the_next_half_step_would_grow_little(tolerance, n_steps, monkeypatch):
    """One step is two passes, after class sums and <H, I>."""
    monkeypatch.setattr(_nearest_kronecker, "TOLERANCE", tolerance)
    monkeypatch.setattr(_nearest_kronecker, "MAX_STEPS", 3)
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 8
    h = torch.randn(8, 20, generator=g)[labels] + 0.5 * torch.randn(400, 20, generator=g)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    torch.manual_seed(0)
    schedule = curvature_passes(jacobian_of(nn.Linear(20, 5), 5), loss, "kron")
    store, names = FeatureStore.of(h, labels), []
    task, _ = next_pass(schedule, None)
    while task is not None:
        names.append(str(task.term))
        task, _ = next_pass(schedule, task.finish(task.read(store)))
    step = ["RightOf", "Diagonal and LeftOf"]
    assert names == ["None", "LeftOf", *(n_steps * step)]


@pytest.mark.parametrize(("memory", "runs"), [(2**29, 5), (300 * 8 * 4 + 64 * 4 * 5, 9), (0, 10)])
def test_directions_are_computed_once_a_fit(memory, runs, monkeypatch):
    """Of the five blocks' all, one or none are kept for the second pass."""
    h = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    labels, calls, forward = torch.arange(300) % 3, [], LinearJacobian.forward
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    head = jacobian_of(nn.Linear(8, 4), 4)
    expected = all_pairs_curvature(FeatureStore.of(h, labels), head, loss, "diag").values
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(64))
    counted = lambda self, x: calls.append(1) or forward(self, x)  # noqa: E731
    monkeypatch.setattr(LinearJacobian, "forward", counted)
    store = FeatureStore.of(h, labels)
    store._memory_bytes = memory
    torch.testing.assert_close(all_pairs_curvature(store, head, loss, "diag").values, expected)
    assert len(calls) == runs
    other = jacobian_of(nn.Linear(8, 4), 4)  # what is kept is that of one head
    torch.testing.assert_close(
        all_pairs_curvature(store, other, loss, "diag").values,
        all_pairs_curvature(FeatureStore.of(h, labels), other, loss, "diag").values,
    )


def test_rows_that_are_appended_between_two_fits_count():
    h = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    labels, head = torch.arange(100) % 3, jacobian_of(nn.Linear(8, 4), 4)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    store = FeatureStore.of(h[:60], labels[:60])
    all_pairs_curvature(store, head, loss, "diag")
    store.append(h[60:], labels[60:], where="h")
    expected = all_pairs_curvature(FeatureStore.of(h, labels), head, loss, "diag").values
    torch.testing.assert_close(all_pairs_curvature(store, head, loss, "diag").values, expected)


def test_raw_euclidean_positives_is_exactly_kronecker():
    for name in ("linear", "no bias"):
        expected = oracle(name, "euclidean", False, "positives", None)
        result = measured(name, "euclidean", False, "positives", None, "kron")
        close(result.decompose().to_dense(), expected, expected)
        assert len(result.factors[0].left) == Z


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("name", ["linear", "relu", "three layers"])
def test_miner_tuples_in_every_structure(name, hessian, structure):
    h, head = features(), jacobian_of(make_head(name), Z)
    indices = tuple(torch.tensor(i) for i in ([0, 1, 3], [1, 2, 4], [0, 2, 5], [3, 4, 1]))
    targets = torch.zeros(6, 6, dtype=torch.float64)
    for (a1, p), weight in zip((indices[:2], indices[2:]), (1 / 3, -1 / 3), strict=True):
        if weight > 0 or hessian != "positives":
            targets.index_put_((a1, p), targets.new_tensor(weight), accumulate=True)
    expected = dense_ggn(
        h, make_head(name), targets, distance="arccos", normalized=False, cross=hessian != "fixed"
    )
    loss = ContrastiveLoss.of("arccos", hessian, normalized=False)
    ours = batch_curvature(h, head, loss, structure, indices_tuple=indices)
    if structure == "diag":
        close(ours.values, expected.diagonal(), expected)
    elif structure == "full":
        close(ours.matrix, expected, expected)
    else:
        nearest_products(blocks_of(expected, head.layouts), ours.factors)
        basis, spectrum = ours.refined
        q = basis.to_eigenbasis(torch.eye(len(expected), dtype=torch.float64))
        close(spectrum, (q.mT @ expected @ q).diagonal(), expected)


def test_kron_needs_linear_layers():
    with pytest.raises(HeadError, match="structure='diag' or 'full'"):
        measured("batch norm", "arccos", False, "fixed", None, "kron")


def clusters(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(4)
    labels = torch.randint(5, (n,), generator=g)
    centres = 2 * torch.randn(5, d, generator=g, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=g, dtype=torch.float64), labels


def as_matrix(value) -> torch.Tensor:
    """The positive part of H, written out."""
    return value.decompose().to_dense()


@pytest.mark.parametrize("margin", [None, 0.9])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("name", ["linear", "relu"])
def test_float32_and_any_block_size(name, structure, hessian, margin, monkeypatch):
    h, labels = clusters(60, D)
    before = h.clone()
    module = make_head(name)
    loss = ContrastiveLoss.of("arccos", hessian, normalized=False, margin=margin)
    arguments = (jacobian_of(module, Z), loss, structure)
    exact = as_matrix(all_pairs_curvature(FeatureStore.of(h, labels), *arguments))
    assert torch.equal(h, before)
    single_module = HEADS[name]()
    single_module.load_state_dict(module.state_dict())
    single = jacobian_of(single_module, Z)
    ours = all_pairs_curvature(FeatureStore.of(h.float(), labels), single, loss, structure)
    assert float((as_matrix(ours) - exact).norm() / exact.norm()) <= 1e-3
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(37))
    monkeypatch.setattr("laplace_metric.curvature._layered_term.CACHE_BYTES", 1)
    monkeypatch.setattr("laplace_metric.curvature._layered_term.PROJECTED_BYTES", 2_000)
    monkeypatch.setattr("laplace_metric.heads._jacobian.JACOBIAN_BYTES", 5_000)
    small = as_matrix(all_pairs_curvature(FeatureStore.of(h, labels), *arguments))
    assert float((small - exact).norm() / exact.norm()) <= 1e-9


@pytest.mark.parametrize(("largest_gap", "dtype"), [(1e-5, torch.float32), (0.0, torch.float64)])
def test_eigenvectors_of_large_factors_are_as_exact_as_they_are_orthogonal(
    largest_gap, dtype, monkeypatch
):
    monkeypatch.setattr(_structures, "LARGE", 40)
    monkeypatch.setattr(_structures, "ORTHOGONAL", largest_gap)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 50, generator=g, dtype=torch.float64) * torch.logspace(0, -3, 50)
    matrix = 1e-30 * x.mT @ x
    values, vectors = _structures.eigenvectors(matrix, torch.float32)
    assert torch.equal(vectors, vectors.to(dtype).double())
    assert bool((vectors.float() != vectors).any()) is (dtype == torch.float64)
    rebuilt = vectors * values @ vectors.mT
    eps = 50 * torch.finfo(dtype).eps
    assert (rebuilt - matrix).norm() < eps * matrix.norm()
    assert (vectors.mT @ vectors - torch.eye(50)).abs().max() < 1e-5
    exact = _structures.eigenvectors(matrix, torch.float64)
    assert (values - exact[0]).abs().max() < eps * exact[0].max()
    zero, basis = _structures.eigenvectors(torch.zeros(50, 50).double(), torch.float32)
    assert not zero.any()
    assert (basis.mT @ basis - torch.eye(50)).abs().max() < 1e-5
