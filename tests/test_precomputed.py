"""Embeddings without a model, and models without a linear layer at their end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, HeadError, InputError, LabelError, NonFiniteError
from laplace_metric.models import Precomputed


@pytest.fixture
def arrays():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 4
    embeddings = torch.randn(80, 6, generator=g) + 2 * torch.eye(6)[labels]
    return nn.functional.normalize(embeddings), labels


class Encoder(nn.Module):
    """Ends in a normalisation, as sentence encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.Tanh())

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=-1)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_arrays_are_a_linear_identity_head(arrays, structure):
    embeddings, labels = arrays
    head = nn.Linear(6, 6, bias=False)
    nn.init.eye_(head.weight)
    how = {"structure": structure, "temperature": 1.0}  # draws in float64 are others
    by_model = LaplaceEmbedder(head, **how).fit([(embeddings, labels)])
    for given in (embeddings, embeddings.numpy(), embeddings.double().numpy()):
        ours = LaplaceEmbedder.from_embeddings(given, labels.numpy(), **how)
        torch.testing.assert_close(ours(given).mean.float(), embeddings)
        torch.testing.assert_close(
            ours(given).variance.float(), by_model(embeddings).variance, rtol=1e-4, atol=1e-7
        )
    assert ours.fitted_.n_points == 80


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_fit_of_arrays_multiplies_by_no_identity(arrays, monkeypatch, distance, dtype):
    """The sums over points are the same, bit for bit, and W h is not computed for them."""
    embeddings, labels = arrays
    given, products = (1.7 * embeddings, labels), []
    forward = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda *a: products.append(a) or forward(*a))

    def fitted():
        hessian = "positives" if distance == "euclidean" else "fixed"
        how = {"distance": distance, "hessian": hessian, "structure": "kron"}
        embedder = LaplaceEmbedder(Precomputed(6), head="append", **how)
        products.clear()
        return embedder.fit([given], progress=False, dtype=dtype).posterior_, len(products)

    shortened, n_short = fitted()
    monkeypatch.setattr("laplace_metric.laplace.fit._fit.is_identity", lambda module: False)
    whole, n_whole = fitted()
    torch.testing.assert_close(shortened.spectrum, whole.spectrum, rtol=0, atol=0)
    assert n_short < n_whole


def test_append_to_a_model_that_ends_in_a_normalisation(arrays, data):
    x, y = data
    encoder = Encoder()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    appended = LaplaceEmbedder(encoder, head="append").fit([(x, y)], progress=False)
    with torch.no_grad():
        z = encoder(x)
    by_arrays = LaplaceEmbedder.from_embeddings(z, y)
    torch.testing.assert_close(appended(x).mean, z)
    torch.testing.assert_close(appended(x).variance, by_arrays(z).variance)
    assert appended.sample(x, 3).shape == (3, 60, 6)
    assert list(encoder.state_dict()) == list(before)


def test_saved_and_loaded_without_a_model(arrays, tmp_path):
    embeddings, labels = arrays
    ours = LaplaceEmbedder.from_embeddings(embeddings, labels, structure="kron")
    ours.save(tmp_path / "saved")
    loaded = LaplaceEmbedder.load(tmp_path / "saved")
    assert torch.equal(loaded(embeddings).variance, ours(embeddings).variance)


@pytest.mark.parametrize("queries", [torch.ones(3, 5), torch.ones(5), [[0.5] * 5]])
def test_queries_of_another_width_are_named(arrays, queries):
    """What is wrong is how many numbers each has, not how many there are."""
    embeddings, labels = arrays
    index = LaplaceEmbedder.from_embeddings(embeddings, labels).index(embeddings, labels)
    with pytest.raises(InputError, match="5 numbers.*6 were fitted.*index"):
        index.search(queries)
    with pytest.raises(InputError, match=r"shape.*\(2, 3, 5\).*\[N, 6\]"):
        index.search(torch.ones(2, 3, 5))


def test_an_appended_head_is_saved_and_loaded(data, tmp_path):
    x, y = data
    encoder = Encoder()
    ours = LaplaceEmbedder(encoder, head="append").fit([(x, y)], progress=False)
    ours.save(tmp_path / "saved")
    assert torch.equal(
        LaplaceEmbedder.load(tmp_path / "saved", encoder)(x).variance, ours(x).variance
    )
    LaplaceEmbedder(nn.Linear(5, 6)).fit([(x, y)], progress=False).save(tmp_path / "saved")
    with pytest.raises(FileFormatError, match="not saved.*embeddings.*the model"):
        LaplaceEmbedder.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "message"),
    [
        (torch.ones(4), [0, 1, 0, 1], InputError, r"shape \(4,\): pass \[N, D\]"),
        ([[1.0], [float("nan")]], [0, 1], NonFiniteError, r"NaN or infinity in row 1 \(1 of 2\)"),
        ([["a"], ["b"]], [0, 1], InputError, "embeddings has dtype <U1: pass a tensor or array"),
        (torch.ones(2, 3), [0], LabelError, "has 2 rows, but labels has 1 entries"),
        (torch.ones(2, 3), None, LabelError, "None"),
        (torch.ones(2, 3), [1, 1], LabelError, "at least two classes"),
    ],
)
def test_bad_arrays_are_named(embeddings, labels, error, message):
    with pytest.raises(error, match=message):
        LaplaceEmbedder.from_embeddings(embeddings, labels)


def test_vectors_of_zeros_have_no_direction():
    with pytest.raises(InputError, match="exactly zero"):
        LaplaceEmbedder.from_embeddings(torch.zeros(2, 3), [0, 1], distance="arccos")


def test_append_needs_vectors(data):
    x, y = data
    with pytest.raises(HeadError, match=r"tensor \[60, 5, 1\].*tensor \[B, Z\]"):
        LaplaceEmbedder(nn.Unflatten(1, (5, 1)), head="append").fit([(x, y)], progress=False)
