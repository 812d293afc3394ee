"""What a guard holds, and what its curvature is once its eigenvectors are held in float32."""

from __future__ import annotations

import gc
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.search import _cross_fit as cross_fit

N, D = 300, 128


def clusters(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 6
    x = torch.randn(6, D, generator=g)[y] + 3 * torch.randn(N, D, generator=g)
    return x.to(dtype), y


def held(value: Any) -> dict[int, int]:
    """Bytes of each piece of memory that tensors and arrays reachable from a value have."""
    memory, seen, left = dict[int, int](), dict[int, Any](), [value]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, str, int, float)):
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            memory[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, np.ndarray):
            while isinstance(one.base, np.ndarray):
                one = one.base
            memory[one.__array_interface__["data"][0]] = one.nbytes
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            left.extend(one)
        elif isinstance(one, MethodType):
            left.append(one.__self__)
        elif isinstance(one, FunctionType):
            left.extend(cell.cell_contents for cell in one.__closure__ or ())
        left.extend(getattr(one, "__dict__", {}).values())
    return memory


def test_a_guard_holds_its_vectors_four_times_and_ten_square_matrices():
    x, y = clusters()
    guard = Guard(x, y, precision=0.5)
    vectors, square = x.nbytes, D * D * x.element_size()
    sampled = 2 * 2**14 * x.element_size()  # of the head, by two that compare its weights
    found = [sum(held(guard).values()) - sampled]
    guard.ask(x[:3] + 0.1)
    found.append(sum(held(guard).values()) - sampled)
    # means, head inputs, points of the fit and the same whitened; the weights twice, Q_S, Q_A, two
    # roots, the variances, the class model, and eigenvalues in float64; the triangle of the traces
    # class means, the calibration, labels, shares of 20 labels a query, of which levels are made
    small = 2 * square + 30 * 8 * len(x)
    assert found[0] < 4 * vectors + 11 * square + small
    # the first query makes the vectors about their centre, which FAISS searches
    assert found[1] < 5 * vectors + 11 * square + small


def test_rows_of_all_items_are_let_go_of_while_folds_are_fitted(monkeypatch):
    """And the guard holds two: means and head inputs; the vectors themselves are the caller's."""
    n, d = 2_700, 8  # more than the points that a fit keeps
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(3, d, generator=g)[y] + torch.randn(n, d, generator=g)
    fold, own, seen = cross_fit.cross_labelled_hits, x.untyped_storage().data_ptr(), list[int]()

    def rows_held() -> int:
        storages = [
            one.untyped_storage()
            for one in gc.get_objects()
            if type(one) is torch.Tensor and one.ndim == 2 and len(one) == n and one.shape[1] == d
        ]
        sizes = {one.data_ptr(): one.nbytes() for one in storages if one.data_ptr() != own}
        return sum(size >= x.nbytes for size in sizes.values())

    def watched(*arguments: Any, **settings: Any) -> Any:
        gc.collect()
        seen.append(rows_held() - before)
        return fold(*arguments, **settings)

    monkeypatch.setattr(cross_fit, "cross_labelled_hits", watched)
    gc.collect()
    before = rows_held()
    guard = Guard(x, y, precision=0.5)
    assert seen == [0]
    gc.collect()
    assert rows_held() - before == 2
    encoded = guard.index.items.encoded
    assert guard.index.engine.vectors is encoded.mean
    again = guard.index.encoder(x)
    torch.testing.assert_close(encoded.mean, again.mean)
    torch.testing.assert_close(encoded.basis_inputs, again.basis_inputs)


def test_what_is_held_once_is_counted_once():
    x = torch.ones(4, 5)
    assert sum(held([x, x.mT, {"a": (x[1:], np.ones(3))}]).values()) == 4 * 20 + 8 * 3


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_a_curvature_with_float32_eigenvectors_is_read_in_float64(structure):
    x, y = clusters()
    model = torch.nn.Linear(8, 3)
    fits = []
    for dtype in (torch.float32, torch.float64):
        embedder = LaplaceEmbedder(model.to(dtype), structure=structure)
        fits.append(embedder.fit([(x[:, :8].to(dtype), y)], progress=False).hessian_)
    single, double = fits
    scale = double.diagonal().max()
    for ours, exact in zip(
        (single.diagonal(), single.to_dense()), (double.diagonal(), double.to_dense()), strict=True
    ):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours / scale, exact / scale, rtol=0, atol=1e-5)
