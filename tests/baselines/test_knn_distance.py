from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from baselines import KNNDistance
from baselines.base import neighbours
from laplace_metric.errors import InputError
from tests.baselines.contract import MethodContract


class TestKNNDistance(MethodContract):
    needs_two_classes = False

    def make(self, model):
        return KNNDistance(model)


class TestFractionOfFeatures(MethodContract):
    needs_two_classes = False

    def make(self, model):
        return KNNDistance(model, k=3, fraction=0.5, on="features")


@pytest.mark.parametrize("block", [7, 65_536])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_against_scikit_learn(model, loader, data, k, block, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    method = KNNDistance(model, k=k).fit(loader, progress=False)
    x = normalize(model(data[0]).detach().numpy())
    new = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    queries = normalize(model(new).detach().numpy())
    distances, _ = NearestNeighbors(n_neighbors=k).fit(x).kneighbors(queries)
    np.testing.assert_allclose(method(new).uncertainty.numpy(), distances[:, -1], atol=1e-6)


def test_a_training_input_is_at_distance_0(model, loader, data):
    method = KNNDistance(model, k=1).fit(loader, progress=False)
    assert float(method(data[0]).uncertainty.max()) < 1e-6


def test_fraction(model, loader, data):
    method = KNNDistance(model, k=5, fraction=0.25).fit(loader, progress=False)
    stored = method.parts["memory"].vectors
    assert stored.shape == (15, 4)
    everything = torch.nn.functional.normalize(model(data[0]).detach(), dim=1)
    assert bool((stored @ everything.T > 1 - 1e-5).any(1).all())
    method.generator = torch.Generator().manual_seed(5)
    other = method.fit(loader, progress=False).parts["memory"].vectors
    assert not torch.equal(stored, other)


def test_bad_input(model, loader):
    with pytest.raises(InputError, match="k=61, but only 60 of 60"):
        KNNDistance(model, k=61).fit(loader, progress=False)
    with pytest.raises(InputError, match="k=50, but only 30 of 60"):
        KNNDistance(model, fraction=0.5).fit(loader, progress=False)
    with pytest.raises(InputError, match="k=0"):
        KNNDistance(model, k=0)
    for wrong in (0.0, 1.5):
        with pytest.raises(InputError, match="fraction="):
            KNNDistance(model, fraction=wrong)
