"""Columns of databases and data sets, empty batches, and lists of single items."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import EmptyLoaderError, InputError, LabelError

N = 80
Y = torch.arange(N) % 4
X = 2 * torch.eye(8)[Y] + torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
NAMES = [f"class {y}" for y in Y.tolist()]


class Lazy(Sequence):
    """A column of a Hugging Face data set, which reads its rows when it is asked."""

    def __init__(self, rows) -> None:
        self.rows = rows

    def __getitem__(self, key):
        return self.rows[key]

    def __len__(self) -> int:
        return len(self.rows)


Lazy.__module__ = "datasets.arrow_dataset"
VECTORS = {
    "lazy": Lazy(X.tolist()),
    "lazy tensors": Lazy(X),
    "decimals": [[Decimal(str(v)) for v in row] for row in X.tolist()],
    "an array of decimals": np.array([[Decimal(str(v)) for v in row] for row in X.tolist()]),
    "objects": X.numpy().astype(object),
}
LABELS = {
    "lazy": Lazy(Y.tolist()),
    "objects": np.array(Y.tolist(), dtype=object),
    "objects of NumPy": np.array(list(Y.numpy()), dtype=object),
    "decimals": [Decimal(y) for y in Y.tolist()],
    "lazy names": Lazy(NAMES),
}


try:
    import pyarrow
except ImportError:  # which comes with other packages
    pyarrow = None
else:
    flat = pyarrow.array(X.flatten().tolist())
    VECTORS["arrow"] = pyarrow.array(X.tolist())
    VECTORS["arrow of one size"] = pyarrow.FixedSizeListArray.from_arrays(flat, 8)
    VECTORS["arrow in chunks"] = pyarrow.chunked_array([X[:30].tolist(), X[30:].tolist()])
    LABELS["arrow"] = pyarrow.array(Y.tolist())
    LABELS["arrow in chunks"] = pyarrow.chunked_array([Y[:30].tolist(), Y[30:].tolist()])
    LABELS["names of arrow"] = pyarrow.array(NAMES)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def fit(x, y) -> LaplaceEmbedder:
    return LaplaceEmbedder(network()).fit(x, y, progress=False)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", VECTORS)
def test_vectors_of_any_column_are_those_of_an_array(kind):
    column, expected = VECTORS[kind], fit(X, Y)
    torch.testing.assert_close(fit(column, Y).posterior_.variance, expected.posterior_.variance)
    torch.testing.assert_close(expected(column).mean, expected(X).mean)
    of_vectors = LaplaceEmbedder.from_embeddings(column, Y)
    torch.testing.assert_close(of_vectors(column).mean.float(), X)
    assert expected.index(column, Y, progress=False).search(column, k=1).ids[:, 0].tolist() == [
        *range(N)
    ]
    assert (
        Guard(column, Y, precision=0.3).ask(column).label.tolist()
        == Guard(X, Y, precision=0.3).ask(X).label.tolist()
    )


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_column_are_those_of_a_list(kind):
    column, expected = LABELS[kind], NAMES if "names" in kind else Y.tolist()
    embedder = fit(X, column)
    torch.testing.assert_close(embedder.posterior_.variance, fit(X, expected).posterior_.variance)
    assert embedder.index(X, column, progress=False).labels.tolist() == expected
    assert Guard(X, column, precision=0.3).index.labels.tolist() == expected
    held_out = Guard(X, expected, held_out=(X + 0.1, column), precision=0.3)
    assert held_out.index.labels.tolist() == expected


@pytest.mark.skipif(pyarrow is None, reason="pyarrow is not installed")
def test_what_is_missing_in_a_column_is_named():
    with pytest.raises(LabelError, match="missing.*row 3"):
        fit(X, pyarrow.array([*NAMES[:3], None, *NAMES[4:]]))
    with pytest.raises(InputError, match="row 3|unequal"):
        fit(pyarrow.array([*X[:3].tolist(), None, *X[4:].tolist()]), Y)


def test_an_empty_batch_has_empty_answers():
    for embedder, width in ((fit(X, Y), 4), (LaplaceEmbedder.from_embeddings(X, Y), 8)):
        for nothing in (X[:0], X[:0].numpy()):
            found = embedder(nothing)
            assert found.mean.shape == found.variance.shape == (0, width)
            for name in ("uncertainty", "epistemic", "ambiguity"):
                assert getattr(found, name).shape == (0,)
                assert embedder.uncertainties([nothing], kind=name).shape == (0,)
            assert embedder.sample(nothing, 3).shape == (3, 0, width)
            assert embedder.distance(nothing, nothing).mean.shape == (0,)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fit(X[:0], Y[:0]), "no batch: pass at least one"),
        (lambda: fit([], []), "no batch: pass at least one"),
        (lambda: LaplaceEmbedder.from_embeddings(X[:0], Y[:0]), "embeddings is empty"),
    ],
)
def test_nothing_to_fit_is_told(call, told):
    with pytest.raises(EmptyLoaderError, match=told):
        call()


def test_no_labels_at_all_are_counted():
    with pytest.raises(LabelError, match="labels.*0 entries"):
        fit(X, np.array([]))


class OfImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maps, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.maps(images).mean((2, 3)))


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_list_of_images_is_told_how_to_become_a_batch(kind):
    images = [torch.randn(3, 8 + i % 3, 8) for i in range(N)]
    of_one_size = [torch.randn(3, 8, 8) for i in range(N)]
    if kind == "arrays":
        images, of_one_size = ([x.numpy() for x in some] for some in (images, of_one_size))
    model = LaplaceEmbedder(OfImages())
    with pytest.raises(InputError, match=r"size, \(3, 8, 8\) .*\(3, 9, 8\).*Resize"):
        model.fit(images, Y, progress=False)
    with pytest.raises(InputError, match=r"list.*as batches: pass.*torch.stack"):
        model.fit(of_one_size, Y, progress=False)
    fitted = model.fit(torch.randn(N, 3, 8, 8), Y, progress=False)
    with pytest.raises(InputError, match="unequal size.*no batch.*Resize"):
        fitted(images)
    with pytest.raises(InputError, match="list.*as batches"):
        fitted.index(images, Y, progress=False)


def test_batches_of_one_row_each_are_batches():
    fit([x[None] for x in X], Y)


def test_a_loader_of_three_is_told_at_a_guard():
    batches = [(X, Y, torch.arange(N))]
    with pytest.raises(LabelError, match=r"Of these 3.*first two.*for x, y,"):
        Guard(batches, model=fit(X, Y), trained_on_items=False)


MODELS = {
    "scripted or traced": lambda: torch.jit.script(network().eval()),
    "a graph": lambda: torch.fx.symbolic_trace(network().eval()),
    "is quantised": lambda: torch.ao.quantization.quantize_dynamic(
        network().eval(), {nn.Linear}, dtype=torch.qint8
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_without_layers_are_called_what_they_are(kind):
    if kind == "a graph":  # of torch.fx, whose linear layers are modules still
        LaplaceEmbedder(MODELS[kind]()).fit(X, Y, progress=False)
        return
    model = MODELS[kind]()
    with pytest.raises(Exception, match=f"{kind}.*pass the model .*head='append'"):
        LaplaceEmbedder(model).fit(X, Y, progress=False)
    embedder = LaplaceEmbedder(model, head="append").fit(X, Y, progress=False)
    torch.testing.assert_close(embedder(X).mean, nn.functional.normalize(model(X), dim=1))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda e: e.fit(X, Y, metric="cosine"), "distance='arccos'"),
        (lambda e: e.fit(X=X, y=Y), "the first argument"),
        (lambda e: e.fit(X, Y, epochs=3), "reads the data once"),
        (lambda e: e.fit(X, Y, random_state=3), "pass seed="),
        (lambda e: LaplaceEmbedder(network(), prior=3), "prior_precision="),
        (lambda e: LaplaceEmbedder(network(), layer="2"), "head="),
        (lambda e: e.sample(X, n_samples=3), "pass n="),
    ],
)
def test_keywords_of_other_libraries_are_told_ours(call, told):
    with pytest.raises(TypeError, match=f"unexpected keyword argument .*{told}"):
        call(LaplaceEmbedder(network()))


@pytest.mark.parametrize("name", ["predict", "score", "transform", "encode", "search", "ask"])
def test_methods_of_other_libraries_are_told_ours(name):
    embedder = LaplaceEmbedder(network())
    assert not hasattr(embedder, name)
    with pytest.raises(AttributeError, match=f"no '{name}'.*call "):
        getattr(embedder, name)
