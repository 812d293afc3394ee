"""Wherever a generator is asked for, its seed will do, of NumPy's too; so will NumPy's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.curvature._margin_pairs import column_groups
from laplace_metric.laplace.fit._fit_options import FitOptions


def draws(embedder, index, x, names):
    def reference(generator):
        fitted = LaplaceEmbedder(embedder.model, head="append", margin=1.0).fit(
            x, names, reference=np.int64(32), seed=generator, progress=False
        )
        return fitted.hessian_.diagonal()

    return {
        "draw": lambda g: embedder.draw(3, g)(x),
        "sample": lambda g: embedder.sample(x, np.int64(3), g),
        "embedding": lambda g: embedder(x).sample(3, g),
        "posterior": lambda g: embedder.posterior_.sample(3, g),
        "reference points": reference,
        "column groups": lambda g: torch.cat(column_groups(400, "diag", 32, g)),
        "calibration": lambda g: index.calibrate(x, names, np.int64(5), seed=g).probability,
        "loader": lambda g: next(iter(datasets.load("digits").loader(9, True, g)))[1],
    }


@pytest.mark.parametrize("name", draws(None, None, None, None))
@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_a_seed_is_its_generator(name, embedder, points, names):
    x, _ = points
    index = embedder.index(x[100:200], names[100:200], progress=False)
    draw = draws(embedder, index, x, names)[name]
    expected = draw(torch.Generator().manual_seed(7))
    assert np.array_equal(draw(7), expected)
    assert np.array_equal(draw(np.int64(7)), expected)
    assert not np.array_equal(draw(8), expected)


def test_numbers_of_numpy_are_numbers(index, points):
    options = FitOptions(np.int32(20), np.int64(3), np.int64(1000))
    assert (type(options.reference), type(options.memory_bytes)) == (int, int)
    assert options.seed.initial_seed() == 3
    result = index.search(points[0][:3], np.int64(4), alpha=np.float32(0.1))
    assert result.ids.shape == (3, 4)
    if index.calibration is not None:
        assert len(index.ask(points[0][:3], probability=np.float32(0.5))) == 3
