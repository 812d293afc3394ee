"""Sizes of tiles, strips and blocks change no number: beyond each, the plain formula in float64.

Sizes that need more than one function to be seen are held where the function is tested: in
``contrastive`` (``test_margin_columns``, ``test_scale``, ``test_structures``), ``test_traces``,
``test_distances``, ``features/test_store``, ``search`` (``test_compact``, ``test_neighbours``,
``test_suspicious_labels``, ``test_index``, ``test_open_set``, ``test_class_model``, ``test_flat``),
``calibration`` (``test_votes``, ``test_calibration``) and ``image_text`` (``test_gaussians``,
``test_search``, ``test_curvature``, ``test_posterior``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric._utils.blocks import block_rows
from laplace_metric.curvature import ContrastiveLoss, by_class
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._margin_pairs import MarginPairWeights
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature._nearest_kronecker import mirrored
from laplace_metric.curvature.by_class import upper_gram
from laplace_metric.evaluation._shortlists import block_candidates
from laplace_metric.familiarity import _triangles
from laplace_metric.familiarity._label_model import LabelModel
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.familiarity._nearest import nearest_distance
from laplace_metric.familiarity._triangles import times_upper
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._factors import OrthogonalFactor, columnwise
from laplace_metric.image_text.towers._encoder_features import encode_all
from laplace_metric.inputs import read_items
from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.models._fingerprints import in_fit, row_fingerprints
from laplace_metric.search.estimators import batches_of
from laplace_metric.search.rank._neighbours import _distances


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gram() -> tuple[torch.Tensor, torch.Tensor]:
    x, q = numbers(9, 300), numbers(9, 1, seed=1)
    return mirrored(upper_gram(q * x, x)), x.mT @ (q * x)


def triangle() -> tuple[torch.Tensor, torch.Tensor]:
    x, upper = numbers(5, 300), numbers(300, 300, seed=1).triu()
    return times_upper(x, upper), x @ upper


def nearest() -> tuple[torch.Tensor, torch.Tensor]:
    a, means = numbers(200, 3), numbers(17, 3, seed=1)
    return nearest_distance(a, means, means.square().sum(1)), torch.cdist(a, means).square().amin(1)


def by_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Everything that goes through rows a few at a time, against one row after the other."""
    labels = torch.arange(200) % 17
    h = 3 + numbers(17, 6)[labels] + 0.2 * numbers(200, 6, seed=1)
    fitted = NearFar.of(FeatureStore.of(h, labels).blocks(), labels.unique(), 200, torch.float64)
    assert fitted is not None
    found, rows = torch.stack(nearest()), [fitted.ambiguity(row[None]) for row in h]
    scores = torch.cat([fitted.score(row[None]) for row in h])
    whole = torch.cat([found[0], fitted.ambiguity(h), fitted.score(h).flatten()])
    return whole, torch.cat([found[1], *rows, scores.flatten()])


def columns() -> tuple[torch.Tensor, torch.Tensor]:
    b, w = numbers(3, 40, 40), numbers(40, 7, seed=1)
    b = b + b.mT
    return columnwise(b, w), torch.einsum("yo,nyz,zo->no", w, b, w)


def stored(n: int, width: int = 3) -> FeatureStore:
    return FeatureStore.of(numbers(n, width), (torch.arange(n) * 7) % 23)


def classes() -> tuple[torch.Tensor, torch.Tensor]:
    return stored(200).classes, torch.arange(23)


def blocks() -> tuple[torch.Tensor, torch.Tensor]:
    found = [block.features for block in stored(300, 4_096).blocks()]
    assert len(found) in (3, 5)  # with the size as it is, and with the fewest rows
    return torch.cat(found), numbers(300, 4_096)


def fingerprints() -> tuple[np.ndarray, np.ndarray]:
    found = stored(300).fingerprints()
    assert found is not None
    return found, np.unique(row_fingerprints(numbers(300, 3)))


def fitted() -> tuple[np.ndarray, np.ndarray]:
    known = row_fingerprints(numbers(300, 3))
    asked = np.concatenate([known[::3], row_fingerprints(numbers(50, 3, seed=1))])
    return in_fit(np.sort(known), asked), np.isin(asked, known)


def label_model() -> tuple[torch.Tensor, torch.Tensor]:
    """Fewer points where classes are many: those of the first rows."""
    d, y = numbers(300, 4).square(), torch.arange(300) % 4
    cut, plain = (LabelModel.fit(d[:n], y[:n], y.bincount()) for n in (300, 120))
    return torch.cat([cut.strength, *cut.channel]), torch.cat([plain.strength, *plain.channel])


def means() -> tuple[torch.Tensor, torch.Tensor]:
    items, queries = numbers(20, 3), numbers(11, 3, seed=1)
    positions = torch.arange(11 * 4).view(11, 4) % 20
    found = _distances(queries, items, positions)
    return found, (queries[:, None] - items[positions]).norm(dim=2)


def candidates() -> tuple[torch.Tensor, torch.Tensor]:
    gallery, queries = numbers(700, 3), numbers(5, 3, seed=1)
    found = block_candidates(gallery, torch.float64)(queries, 9, None)
    return found.indices, torch.cdist(queries, gallery).argsort(1)[:, :9]


def encoded() -> tuple[torch.Tensor, torch.Tensor]:
    x = numbers(30, 3)
    return encode_all(lambda part: part * 2, x, "images", progress=False), 2 * x


def rows() -> tuple[np.ndarray, np.ndarray]:
    x = numbers(30, 3).numpy()
    return np.concatenate(batches_of(x)), x


def margin() -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of 150 points, against the sum over the pairs of one batch."""
    h, y = numbers(150, 4), torch.arange(150) % 5
    head = jacobian_of(nn.Linear(4, 3).double(), 3)
    loss = ContrastiveLoss.of("euclidean", "full", normalized=False, margin=2.0)
    every = all_pairs_curvature(FeatureStore.of(h, y), head, loss, "full")
    return every.matrix, batch_curvature(h, head, loss, "full", labels=y).matrix


Case = Callable[[], tuple[object, object]]
CASES: list[tuple[Any, str, int, Case]] = [
    (upper_gram, "STRIP", 7, gram),
    (times_upper, "STRIP", 7, triangle),
    (block_rows, "BLOCK_BYTES", 1, by_rows),
    (LabelModel, "CELLS", 480, label_model),
    (columnwise, "TILE_ROWS", 3, columns),
    (block_rows, "BLOCK_BYTES", 9 * 8, classes),
    (FeatureStore, "CACHE_BYTES", 0, blocks),
    (FeatureStore, "BLOCK_BYTES", 1, fingerprints),
    (MarginPairWeights, "LARGE_BYTES", 1, margin),
    (block_rows, "BLOCK_BYTES", 1, means),
    (batches_of, "ROWS", 7, rows),
    (in_fit, "COMPARED_AT_ONCE", 7, fitted),
    (block_candidates, "LARGE_BYTES", 1, candidates),
    (read_items, "BATCH", 7, encoded),
]
"""What is defined beside the size, its name, a small value, and what is compared.

Some cases go beyond the size as it is.
"""


@pytest.mark.parametrize(
    ("beside", "name", "size", "compared"),
    CASES,
    ids=[f"{compared.__name__}-{name}" for _, name, _, compared in CASES],
)
@pytest.mark.parametrize("small", [True, False])
def test_beyond_a_tile_is_the_plain_formula(beside, name, size, compared, small, monkeypatch):
    if small or compared is label_model:
        monkeypatch.setattr(inspect.getmodule(beside), name, size)
    found, plain = compared()
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(plain), rtol=1e-10, atol=1e-10
    )


def test_a_basis_seen_in_another_is_their_product():
    """A rotated rotation: no structure of today's rotates twice, so nothing else would notice."""
    first, second = (torch.linalg.qr(numbers(5, 5, seed=i)).Q for i in range(2))
    v, b = numbers(7, 5), numbers(7, 5, 5, seed=2)
    b, factor = b + b.mT, OrthogonalFactor().rotated(first).rotated(second)
    q = first @ second
    torch.testing.assert_close(factor.vjp(v), v @ q)
    torch.testing.assert_close(factor.dense(5), q[None])
    torch.testing.assert_close(factor.quadratic(b), torch.einsum("yo,nyz,zo->no", q, b, q))


def test_below_the_strips_nothing_is_multiplied_and_gradients_pass(monkeypatch):
    for room in (by_class, _triangles):
        monkeypatch.setattr(room, "STRIP", 2)
    gram = upper_gram(torch.ones(3, 5), torch.ones(3, 5))
    assert gram[2:, :2].abs().sum() == gram[4:, 2:4].abs().sum() == 0
    assert times_upper(torch.ones(1, 4), torch.ones(4, 4)).tolist() == [[2, 2, 4, 4]]
    x, upper = numbers(3, 5).requires_grad_(), numbers(5, 5, seed=1).triu()
    assert torch.autograd.gradcheck(lambda x: times_upper(x, upper), x)
    assert torch.autograd.gradcheck(lambda x: mirrored(upper_gram(x, x)), x)


@pytest.mark.parametrize("width", [256, 257, 600])
def test_triangles_of_several_strips_are_whole(width):
    """With the strips as they are, whose columns beyond the first and the second count, too."""
    x, y = numbers(5, width), numbers(5, width, seed=1)
    torch.testing.assert_close(upper_gram(x, y).triu(), (x.mT @ y).triu())
    upper = numbers(width, width, seed=2).triu()
    torch.testing.assert_close(times_upper(x, upper), x @ upper)
