"""Sizes of tiles, strips and blocks change no number: beyond each, the plain formula in float64.

Every such constant of the package has a case here, another test that sets it, or a reason.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import laplace_metric
from laplace_metric.curvature import ContrastiveLoss, by_class
from laplace_metric.curvature._ggn import all_pairs_curvature, batch_curvature, mirrored
from laplace_metric.curvature.by_class import upper_gram
from laplace_metric.evaluation._candidates import block_candidates
from laplace_metric.familiarity import _class_gaussians
from laplace_metric.familiarity._class_gaussians import nearest_distance, times_upper
from laplace_metric.familiarity._near_far import LabelModel, NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import OrthogonalFactor, columnwise
from laplace_metric.image_text._pairs import encode_all
from laplace_metric.models._store import FeatureStore, row_fingerprints
from laplace_metric.search._columns import Encoded
from laplace_metric.search._labelled import in_fit
from laplace_metric.search._neighbours import _distances_of_means
from laplace_metric.search.estimators import batches_of

PACKAGE, TESTS = Path(laplace_metric.__file__).parent, Path(__file__).parent
ROOMS = (
    *("curvature", "laplace", "heads", "familiarity", "models", "search", "calibration"),
    *("evaluation", "distributions", "distributed", "image_text", "monitor", "online"),
)
WORDS = {"TILE", "STRIP", "CHUNK", "BLOCK", "BATCH", "BYTES", "ROWS", "CELLS", "ONCE"}


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
    return nearest_distance(a, means), torch.cdist(a, means).square().amin(1)


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
    assert len(found) == 3
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
    cut, plain = (LabelModel.fit(d[:n], y[:n], y.bincount()) for n in (300, 50))
    return torch.cat([cut.strength, *cut.channel]), torch.cat([plain.strength, *plain.channel])


def means() -> tuple[torch.Tensor, torch.Tensor]:
    items, queries = numbers(20, 3), numbers(11, 3, seed=1)
    positions = torch.arange(11 * 4).view(11, 4) % 20
    of = [Encoded(m, m[:, 0], m[:, 0], m) for m in (queries, items)]
    found = _distances_of_means(*of, positions)
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
CASES: dict[str, tuple[int, Case]] = {
    "curvature.by_class.STRIP": (7, gram),
    "familiarity._class_gaussians.STRIP": (7, triangle),
    "familiarity._class_gaussians.AT_ONCE": (1, by_rows),
    "familiarity._near_far.CELLS": (200, label_model),
    "heads._jacobian.TILE_ROWS": (3, columns),
    "models._store.LABELS_AT_ONCE": (9, classes),
    "models._store.BLOCK_BYTES": (0, blocks),
    "models._store.FINGERPRINT_BYTES": (1, fingerprints),
    "curvature._margin.COLUMN_BYTES": (1, margin),
    "search._neighbours.MEAN_BYTES": (1, means),
    "search.estimators.ROWS": (7, rows),
    "search._labelled.BLOCK": (7, fitted),
    "evaluation._candidates.WORK_BYTES": (1, candidates),
    "image_text._pairs.BLOCK": (7, encoded),
}
"""A small value, and what is compared; some go beyond the constant as it is."""

ELSEWHERE = {
    "curvature._margin.CPU_BLOCK": "contrastive/test_margin_columns.py",
    "curvature._passes.CHUNK_BYTES": "contrastive/test_scale.py",
    "curvature._terms.TILE_BYTES": "contrastive/test_scale.py",
    "curvature._terms.PAIR_BYTES": "contrastive/test_scale.py",
    "laplace._traces.STRIP": "test_traces.py",
    "laplace._traces.CACHED_BYTES": "test_traces.py",
    "laplace._posterior.JACOBIAN_BYTES": "test_traces.py",
    "laplace._distances.BLOCK_BYTES": "test_distances.py",
    "heads._jacobian.JACOBIAN_BYTES": "contrastive/test_structures.py",
    "models._reading.CHECKS_AT_ONCE": "features/test_store.py",
    "search._columns.LARGE_BYTES": "search/test_compact.py",
    "search._neighbours.PAIR_BYTES": "search/test_neighbours.py",
    "search._index.BLOCK": "search/test_suspicious_labels.py",
    "search._encoding.BATCH": "search/test_index.py",
    "search._neighbours.COMPACT_BYTES": "search/test_compact.py",
    "search._faiss.CELLS": "search/test_open_set.py",
    "search._class_model.BLOCK_CELLS": "search/test_class_model.py",
    "search._class_model.CELLS": "search/test_class_model.py",
    "search._class_model.CACHED_CELLS": "search/test_class_model.py",
    "calibration._hits.BLOCK_CELLS": "calibration/test_votes.py",
    "calibration._labels.BLOCK_CELLS": "calibration/test_calibration.py",
    "evaluation._candidates.BLOCK_BYTES": "search/test_flat.py",
    "image_text._gaussians.BLOCK_BYTES": "image_text/test_gaussians.py",
    "image_text._towers.PAIR_BYTES": "image_text/test_search.py",
    "image_text._curvature.ROWS": "image_text/test_curvature.py",
    "image_text._gaussians.BLOCK": "image_text/test_posterior.py",
}
"""Tests that set the constant and compare with a plain formula."""

NO_TILE = {
    "curvature._margin.DEVICE_BLOCK": "CPU_BLOCK of an accelerator",
    "curvature._structures.DENSE_LIMIT_BYTES": "a limit that raises",
    "laplace._traces.OTHER_BYTES": "CACHED_BYTES of an accelerator",
    "models._reading.BATCH_OF_ITEMS": "rows of a loader's batch, by default",
    "models._reading.BATCH_OF_IMAGES": "rows of a loader's batch, by default",
}
"""Names that are no size of a tile, or one that no CPU uses."""


def constants() -> set[str]:
    """Constants of the numeric packages whose name has one of ``WORDS`` and that are numbers."""
    found = set()
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            place = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                for name in (n for n in names if n.isupper() and WORDS & set(n.split("_"))):
                    value = getattr(importlib.import_module(f"laplace_metric.{place}"), name)
                    if isinstance(value[0] if isinstance(value, tuple) else value, int):
                        found.add(f"{place}.{name}")
    return found


@pytest.mark.parametrize("place", CASES)
@pytest.mark.parametrize("small", [True, False])
def test_beyond_a_tile_is_the_plain_formula(place, small, monkeypatch):
    size, compared = CASES[place]
    if small or compared is label_model:
        monkeypatch.setattr(f"laplace_metric.{place}", size)
    found, plain = compared()
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(plain), rtol=1e-10, atol=1e-10
    )


def test_every_constant_has_a_case_or_a_reason():
    known = {*CASES, *ELSEWHERE, *NO_TILE}
    assert constants() == known


def test_a_basis_seen_in_another_is_their_product():
    """A rotated rotation: no structure of today's rotates twice, so nothing else would notice."""
    first, second = (torch.linalg.qr(numbers(5, 5, seed=i)).Q for i in range(2))
    v, b = numbers(7, 5), numbers(7, 5, 5, seed=2)
    b, factor = b + b.mT, OrthogonalFactor().rotated(first).rotated(second)
    q = first @ second
    torch.testing.assert_close(factor.vjp(v), v @ q)
    torch.testing.assert_close(factor.dense(5), q[None])
    torch.testing.assert_close(factor.quadratic(b), torch.einsum("yo,nyz,zo->no", q, b, q))


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_other_tests_set_it(place):
    name, module = place.split(".")[-1], place.split(".")[-2]
    text = (TESTS / ELSEWHERE[place]).read_text()
    assert module.strip("_") in text or module in text
    assert any("setattr" in line and name in line for line in text.splitlines())


def test_below_the_strips_nothing_is_multiplied_and_gradients_pass(monkeypatch):
    for room in (by_class, _class_gaussians):
        monkeypatch.setattr(room, "STRIP", 2)
    gram = upper_gram(torch.ones(3, 5), torch.ones(3, 5))
    assert gram[2:, :2].abs().sum() == gram[4:, 2:4].abs().sum() == 0
    assert times_upper(torch.ones(1, 4), torch.ones(4, 4)).tolist() == [[2, 2, 4, 4]]
    x, upper = numbers(3, 5).requires_grad_(), numbers(5, 5, seed=1).triu()
    assert torch.autograd.gradcheck(lambda x: times_upper(x, upper), x)
    assert torch.autograd.gradcheck(lambda x: mirrored(upper_gram(x, x)), x)
