"""What users hold in their hands: arrays, frames, lists, data sets, class names, mappings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import HeadError, InputError, LabelError, NonFiniteError
from laplace_metric.training import train_embedder

pytestmark = [
    pytest.mark.filterwarnings("ignore::laplace_metric.errors.NegativeCurvatureWarning"),
    pytest.mark.filterwarnings("ignore::laplace_metric.errors.FittedQueriesWarning"),
]


class Items(Dataset):
    """One item with its class name at a time."""

    def __init__(self, x, labels):
        self.x, self.labels = x, labels

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]


class Dicts(Items):
    def __getitem__(self, i):
        return {"pixels": self.x[i], "label": self.labels[i]}


class Pixels(nn.Module):
    """As a model of transformers: keywords in, an object out."""

    def __init__(self, layer, field="image_embeds", **others):
        super().__init__()
        self.layer, self.field, self.others = layer, field, others

    def forward(self, pixels):
        return SimpleNamespace(**{self.field: self.layer(pixels)}, **self.others)


def ways(x, y, names):
    frame, array = pd.DataFrame(x.numpy()), x.numpy().astype(np.float64)
    return {
        "arrays of float64": (array, y.numpy()),
        "lists": (x.double().tolist(), y.tolist()),
        "an array of names": (array, np.array(names)),
        "a frame and a series": (frame, pd.Series(names)),
        "a categorical series": (frame, pd.Series(names, dtype="category")),
        "a loader without labels": ([x[:30], x[30:]], names),
        "a data set": (TensorDataset(x, y), None),
        "a data set with names": (Items(x, names), None),
        "batches with names": ([(x[:50], names[:50]), (x[50:], np.array(names[50:]))], None),
    }


WAYS = list(ways(torch.ones(2, 2), torch.arange(2), ["a", "b"]))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_fit_gives_the_posterior_of_a_loader(way, points, names, network):
    x, y = points[0][:300], points[1][:300]
    expected = LaplaceEmbedder(network).fit([(x, y)], progress=False)
    data, labels = ways(x, y, names[:300])[way]
    fitted = LaplaceEmbedder(network).fit(data, labels, progress=False)
    assert fitted.fitted_.n_points == 300
    ours, theirs = fitted(points[0]), expected(points[0])
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(ours.epistemic, theirs.epistemic, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours.ambiguity, theirs.ambiguity, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("way", ["arrays of float64", "lists", "a frame and a series"])
def test_embeddings_may_be_frames_lists_and_names(way, points, names):
    x, y = points
    expected = LaplaceEmbedder.from_embeddings(x.double(), y)
    fitted = LaplaceEmbedder.from_embeddings(*ways(x, y, names)[way])
    torch.testing.assert_close(
        fitted(x).uncertainty.double(), expected(x).uncertainty.double(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("data", [Dicts, lambda x, y: [{"pixels": x, "labels": y}]])
def test_mappings_with_labels_and_output_objects(data, points, names, network):
    x, y = points
    expected = LaplaceEmbedder(network).fit(x, y, progress=False)
    model = Pixels(network, "image_embeds", last_hidden_state=torch.ones(400, 5, 3))
    embedder = LaplaceEmbedder(model).fit(data(x, names), progress=False)
    batch = {"pixels": x, "labels": y}
    torch.testing.assert_close(embedder(batch).variance, expected(x).variance)
    assert embedder.index(batch, progress=False).labels.tolist() == y.tolist()


def test_a_mapping_with_two_kinds_of_labels_is_refused(points, network):
    x, y = points
    with pytest.raises(LabelError, match='"labels" and "label"'):
        LaplaceEmbedder(network).fit([{"x": x, "label": y, "labels": y}], progress=False)


@pytest.mark.parametrize("how", [lambda x: x, lambda x: x.numpy(), lambda x: x.tolist()])
def test_one_item_is_a_batch_of_one(how, points, network, embedder):
    x, y = points
    on_network = LaplaceEmbedder(network).fit(x, y, progress=False)
    for one in (on_network, embedder):
        found = one(how(x[7]))
        torch.testing.assert_close(found.mean, one(x[7:8]).mean)
        torch.testing.assert_close(found.epistemic, one(x[7:8]).epistemic)
        index = one.index(x, progress=False)
        assert index.search(how(x[7]), k=1).ids.tolist() == [[7]]


def test_a_number_for_each_item_is_still_a_batch():
    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, t):
            return self.layer(torch.stack([t.sin(), t.cos()], -1))

    t = torch.linspace(0, 6, 300)
    embedder = LaplaceEmbedder(Angles()).fit([(t, torch.arange(300) % 3)], progress=False)
    assert len(embedder(t)) == 300
    index = embedder.index(t, progress=False)
    assert index.search(t[:5], k=1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("data", "labels", "error", "message"),
    [
        (torch.ones(4, 6), None, LabelError, r"without labels: pass fit\(inputs, labels\)"),
        (torch.ones(4, 6), [0, 1, 0], LabelError, "3 entries for at least 4 inputs"),
        (torch.ones(4, 6), ["a", None, "a", "b"], LabelError, "none missing"),
        (torch.ones(4, 6), pd.array(["a", pd.NA, "a", None]), LabelError, r"rows 1, 3 \(2 of 4\)"),
        (torch.ones(4, 5), [0, 1, 0, 1], InputError, r"cannot take inputs \[4, 5\]"),
        (pd.DataFrame({"name": ["a"] * 4}), [0, 1, 0, 1], HeadError, r"a list \(a str, a str"),
        (Items([torch.ones(2), torch.ones(3)], [0, 1]), None, InputError, "collate_fn"),
    ],
)
def test_bad_data_are_named(data, labels, error, message, network):
    with pytest.raises(error, match=message):
        LaplaceEmbedder(network).fit(data, labels, progress=False)


def test_embeddings_from_elsewhere_are_checked_by_row():
    x, y = torch.randn(20, 6), ["a", "b"] * 10
    broken = x.clone()
    broken[3, 0], broken[7] = torch.nan, torch.inf
    with pytest.raises(NonFiniteError, match=r"rows 3, 7.*2 of 20.*leave.*out"):
        LaplaceEmbedder.from_embeddings(broken, y)
    with pytest.raises(LabelError, match="labels.*missing in row 1 "):
        LaplaceEmbedder.from_embeddings(x, ["a", None, *y[2:]])
    with pytest.raises(LabelError, match="embeddings has 20.*labels has 19"):
        LaplaceEmbedder.from_embeddings(x, y[1:])


def test_a_loss_counts_classes_from_0(points, names, network):
    from pytorch_metric_learning.losses import ContrastiveLoss

    with pytest.raises(LabelError, match="number.*from 0"):
        train_embedder(network, [(points[0], names)], ContrastiveLoss(), epochs=1, progress=False)


BLANK = {
    "fit(X, y)": lambda x, y, e, i: LaplaceEmbedder.from_embeddings(x, y),
    "fit(loader)": lambda x, y, e, i: e.fit([(x, y)], progress=False),
    "index": lambda x, y, e, i: e.index(x, y, progress=False),
    "cross_index": lambda x, y, e, i: e.cross_index(x, y, progress=False),
    "index.add": lambda x, y, e, i: i.add(x, y),
    "calibrate": lambda x, y, e, i: i.calibrate(x, y),
    "evaluate": lambda x, y, e, i: i.evaluate(x, y),
}


@pytest.mark.parametrize("way", BLANK)
def test_a_class_without_a_name_is_refused(way, points, names):
    """A blank cell is a label that is missing."""
    x, blank = points[0][:100], names[:100]
    fitted = LaplaceEmbedder.from_embeddings(x, blank)
    index = fitted.index(x, blank, progress=False)
    blank = ["  " if row in (3, 7) else label for row, label in enumerate(blank)]
    with pytest.raises(LabelError, match=r"empty text.*rows 3, 7.*2 of 100.*leave"):
        BLANK[way](x, blank, fitted, index)


def vector_doors(x, y, network):
    """Every door where vectors come in, as functions of the vectors."""
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    index = embedder.index(x, y, progress=False)
    return {
        "Guard": lambda v: Guard(v, y, precision=0.3),
        "Guard, held out": lambda v: Guard(x, y, held_out=(v, y), precision=0.3),
        "from_embeddings": lambda v: LaplaceEmbedder.from_embeddings(v, y),
        "fit": lambda v: LaplaceEmbedder(network).fit(v, y, progress=False),
        "fit of a loader": lambda v: LaplaceEmbedder(network).fit([(v, y)], progress=False),
        "call": embedder,
        "call of a network": LaplaceEmbedder(network).fit(x, y, progress=False),
        "index": lambda v: embedder.index(v, y, progress=False),
        "cross_index": lambda v: embedder.cross_index(v, y, progress=False),
        "add": lambda v: index.add(v, y),
        "search": lambda v: index.search(v, k=1),
        "classify": lambda v: Guard(x, y, precision=0.3).ask(v),
        "calibrate": lambda v: index.calibrate(v, y),
    }


VECTOR_DOORS = list(vector_doors(torch.randn(40, 6), torch.arange(40) % 2, nn.Linear(6, 3)))


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
@pytest.mark.parametrize("door", VECTOR_DOORS)
def test_sparse_vectors_are_called_sparse(door, points, network):
    x, y = points[0][:80].numpy(), points[1][:80].numpy()
    given = vector_doors(x, y, network)[door]
    for kind in (sparse.csr_matrix, sparse.coo_matrix, sparse.csr_array, sparse.lil_matrix):
        with pytest.raises(InputError, match=rf"sparse matrix \({kind.__name__}\).*toarray"):
            given(kind(x))
    if door not in ("fit of a loader", "call of a network"):  # a linear layer takes those
        with pytest.raises(InputError, match="is a sparse_coo"):
            given(torch.from_numpy(x).to_sparse())


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
@pytest.mark.parametrize("door", VECTOR_DOORS)
def test_a_column_may_have_one_vector_a_cell(door, points, network):
    x, y = points[0][:80].numpy(), points[1][:80].numpy()
    given = vector_doors(x, y, network)[door]
    cells = {
        "arrays": pd.Series(list(x)),
        "lists": pd.Series(x.tolist()),
        "tensors": pd.Series(list(torch.from_numpy(x))),
        "a frame": pd.DataFrame({"vector": list(x)}),
        "tuples": pd.Series([tuple(row) for row in x.tolist()]),
    }
    plain = given(x)
    for column in cells.values():
        found = given(column)
        if hasattr(found, "mean") and isinstance(found.mean, torch.Tensor):
            torch.testing.assert_close(found.mean, plain.mean, check_dtype=False)
        if hasattr(found, "ids"):
            assert np.array_equal(found.ids, plain.ids)
    ragged = pd.Series([*list(x[:7]), x[7, :5], *list(x[8:])])
    with pytest.raises(InputError, match=r"unequal shape.*6,. in row 0.*5,. in row 7.*1 row"):
        given(ragged)
    with pytest.raises(InputError, match="of 2 columns.*column of vectors"):
        given(pd.DataFrame({"id": range(80), "vector": list(x)}))
    gap = pd.Series([*list(x[:7]), None, *list(x[8:])])
    with pytest.raises(InputError, match=r"\(\) in.*row 7"):
        given(gap)
