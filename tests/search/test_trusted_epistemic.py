"""How often the epistemic number counts in the test for unfamiliar queries, by fit and gallery."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder, LaplaceEnsemble
from laplace_metric.calibration.probability._features import TRUSTED
from laplace_metric.search import Index
from tests.search.conftest import CLASSES


def weight(index: Index, queries, labels) -> int | None:
    """Calibrate, and return the weight."""
    return index.calibrate(queries, labels).epistemic_weight


def test_it_is_trusted_in_a_gallery_of_all_classes_of_the_fit(points, embedder):
    x, y = points
    index = embedder.index(x[200:400], y[200:400], progress=False)
    assert weight(index, x[400:], y[400:]) == TRUSTED
    names = np.array([f"class {label}" for label in y])
    named = embedder.index(x[200:400], names[200:400], progress=False)
    assert weight(named, x[400:], names[400:]) == TRUSTED
    crossed = embedder.cross_index(x[:200], y[:200], progress=False)
    assert crossed.calibration.epistemic_weight == TRUSTED


def test_it_is_not_where_the_fit_knows_a_class_that_no_item_has(points, embedder):
    """A query of that class is familiar to the fit, and has no match."""
    x, y = points
    kept = y[200:400] < CLASSES - 1
    index = embedder.index(x[200:400][kept], y[200:400][kept], progress=False)
    assert weight(index, x[400:], y[400:]) == 1


def test_it_is_not_where_queries_are_far_from_the_fit(points, embedder):
    x, y = points
    far = embedder.index(-x[200:400], y[200:400], progress=False)
    assert weight(far, -x[400:], y[400:]) == 1


def test_it_is_not_without_labels(points, embedder):
    x, y = points
    index = embedder.index(x[200:400], progress=False)
    matches = [np.flatnonzero(y[200:400] == label).tolist() for label in y[400:]]
    assert index.calibrate(x[400:], matches=matches).epistemic_weight == 1


def test_it_is_not_of_several_fits(points):
    x, y = points
    torch.manual_seed(0)
    members = [LaplaceEmbedder(nn.Linear(6, 4)).fit(x[:200], y[:200]) for _ in range(2)]
    index = LaplaceEnsemble(members).index(x[200:400], y[200:400], progress=False)
    assert weight(index, x[400:], y[400:]) == 1
