"""What a guard holds, and what its curvature is once its eigenvectors are held in float32."""

from __future__ import annotations

import gc
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric._utils import blocks
from laplace_metric.inputs._columns import Column
from laplace_metric.search import _cross_fit as cross_fit
from laplace_metric.search.engines._foreign_engine import ForeignEngine

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


def of_running(x: torch.Tensor, y: torch.Tensor) -> Guard:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x.numpy())
    return Guard.wrap(index, y, precision=0.5)


@pytest.mark.parametrize(
    ("guard_of", "during"),
    # of a FAISS index that runs, its vectors are read once, and it is searched by the means
    [(lambda x, y: Guard(x, y, precision=0.5), 0), (of_running, 2)],
    ids=["vectors", "running"],
)
def test_rows_of_all_items_are_let_go_of_while_folds_are_fitted(monkeypatch, guard_of, during):
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
    guard = guard_of(x, y)
    assert seen == [during]
    gc.collect()
    assert rows_held() - before == 2
    encoded = guard.index.items.encoded
    assert guard.index.engine.vectors is encoded.mean
    again = guard.index.encoder(x)
    torch.testing.assert_close(encoded.mean, again.mean)
    torch.testing.assert_close(encoded.basis_inputs, again.basis_inputs)


def test_hits_of_a_search_elsewhere_are_compared_a_block_of_queries_at_a_time(monkeypatch):
    """All at once were Q x k x d numbers, 27 times the vectors for the folds of 50,000."""
    x, _ = clusters()
    asked, largest = x[:40] + 0.5, list[int]()
    nearest = torch.cdist(asked, x).topk(30, largest=False).indices
    found = nearest[:, torch.randperm(30, generator=torch.Generator().manual_seed(0))].numpy()
    engine = ForeignEngine(x, Column.of("ids", range(N)), lambda queries, k: found[:, :k])

    class Watched(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = function(*args, **kwargs or {})
            if isinstance(made, torch.Tensor):
                largest.append(made.nbytes)
            return made

    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4 * 30 * x[:1].nbytes)
    with Watched():
        rows = engine.search(asked, 30)
    assert rows.equal(nearest)
    assert max(largest) <= 4 * 30 * x[:1].nbytes


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
