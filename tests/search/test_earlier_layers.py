"""Earlier layers in a search: which are read, what ranks by them, and what is kept of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.datasets import load
from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._earlier_layers import MOST_READ, WIDEST
from laplace_metric.heads._locate import locate_head
from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.models import PrecomputedLayers
from laplace_metric.models._compared_rows import compared_rows
from laplace_metric.search import Index, Predictive
from laplace_metric.search._encoder import Encoder
from laplace_metric.search.classes._class_model import ClassModel, inputs_of
from laplace_metric.search.rank import _chosen_ranking
from laplace_metric.search.rank._chosen_ranking import _tried_on, exploring, layers_asked

N = 180


def data(n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Six classes that differ in the last six numbers."""
    centres = 3 * torch.randn(6, 8, generator=torch.Generator().manual_seed(9)).double()
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    x = centres[y] + torch.randn(n, 8, generator=g, dtype=torch.float64)
    x[:, :2] = 4 * torch.randn(n, 2, generator=g, dtype=torch.float64)
    return x, y


def deaf() -> nn.Sequential:
    """Two layers, of which the second leaves out what tells the classes apart."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(8))
        model[1].weight.copy_(torch.eye(4, 8))
        model[1].weight[2:] = 0.01
    return model


def fitted(distance: str = "euclidean", structure: str = "kron") -> LaplaceEmbedder:
    how = {"distance": distance, "structure": structure, "hessian": "positives"}
    return LaplaceEmbedder(deaf(), **how).fit(*data(60, seed=5), progress=False)


def index_of(embedder: LaplaceEmbedder, rank_by: str | Predictive = "auto") -> Index:
    return embedder.index(*data(), rank_by=rank_by, progress=False)


# ---------------------------------------------------------------- which layers are read


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, stride=2), nn.Conv2d(4, 6, 3, stride=2)
        self.wide, self.head = nn.Linear(6 * 36, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        return self.head(self.wide(x.flatten(1)).relu())


class Tokens(nn.Module):
    """Layers over tokens, of numbers or of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(9, 5), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else self.words(x)
        return self.head(self.mix(x).mean(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(x).relu()))


def read(model: nn.Module, x: Tensor, head: str | None = None) -> dict[str, Tensor]:
    found, _ = locate_head(model, x, head)
    return dict(capture(model, found, x, None).earlier)


def test_maps_are_averaged_and_flat_inputs_are_as_they_are():
    model, x = Convolutional().eval(), torch.rand(4, 1, 28, 28)
    rows = read(model, x)
    assert list(rows) == ["wide", "second", "first"]
    maps = model.first(x).relu()
    torch.testing.assert_close(rows["second"], maps.mean((2, 3)))
    torch.testing.assert_close(rows["wide"], model.second(maps).relu().flatten(1))
    torch.testing.assert_close(rows["first"], x.mean((2, 3)))


def test_behind_an_appended_head_the_last_layer_of_the_model_counts_too():
    rows = read(Convolutional().eval(), torch.rand(4, 1, 28, 28), "append")
    assert list(rows) == ["head", "wide", "second"]


def test_tokens_are_averaged_where_their_number_is_that_of_the_input():
    model = Tokens().eval()
    x = torch.rand(3, 7, 5)
    torch.testing.assert_close(read(model, x)["mix"], x.mean(1))
    assert read(model, torch.randint(9, (3, 7))) == {}


def test_a_layer_that_runs_twice_is_not_one_layer():
    assert read(Twice().eval(), torch.rand(3, 5)) == {}


def test_what_enters_the_head_is_no_earlier_layer():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            self.other(h)
            return self.head(h)

    assert list(read(Two().eval(), torch.rand(3, 4))) == ["body"]


@given(st.integers(WIDEST + 1, 3_000), st.integers(0, 99))
def test_wide_inputs_keep_their_distances(width, seed):
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(seed)).double()
    model = nn.Sequential(nn.Linear(width, 3), nn.Linear(3, 2)).double()
    (rows,) = read(model, x).values()
    assert rows.shape == (2, WIDEST)
    ratio = float((rows[0] - rows[1]).norm() / (x[0] - x[1]).norm())
    assert abs(ratio - 1) < 6 * (2 * WIDEST) ** -0.5


def test_an_attribute_of_the_same_name_is_no_statement():
    model = Convolutional().eval()
    model.earlier_layers = nn.ModuleList([nn.Linear(2, 2)])
    assert list(read(model, torch.rand(2, 1, 28, 28))) == ["wide", "second", "first"]
    model = Convolutional().eval()
    model.earlier_layers = ("second",)
    assert list(read(model, torch.rand(2, 1, 28, 28))) == ["second"]


def test_inputs_that_are_too_wide_are_left_out():
    model = nn.Sequential(nn.Linear(MOST_READ + 1, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    assert list(read(model, torch.rand(2, MOST_READ + 1))) == ["1"]


def test_the_model_is_as_before_and_runs_no_batch_twice():
    model, calls = deaf(), []
    embedder = LaplaceEmbedder(model, distance="euclidean", hessian="positives")
    embedder.fit(*data(60, seed=5), progress=False)
    handle = model.register_forward_pre_hook(lambda _, args: calls.append(len(args[0])))
    index_of(embedder)
    handle.remove()
    assert sum(calls) == N
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_threads_read_their_own_rows():
    embedder = fitted()
    index = index_of(embedder)
    parts = [data(20, seed)[0] for seed in range(8)]
    alone = [index.search(x, 5) for x in parts]
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(alone, pool.map(lambda x: index.search(x, 5), parts), strict=True):
            assert np.array_equal(one.positions, other.positions)
            np.testing.assert_array_equal(one.distance, other.distance)


# ---------------------------------------------------------------- what is found


def by_hand(
    embedder: LaplaceEmbedder, index: Index, x: Tensor, items: Tensor, weight: float
) -> Tensor:
    """Predictive vectors with a layer's unit vectors behind them, from the equations alone."""
    ranking, model = index.ranking, embedder.model
    temperature = embedder.fitted_.predictive_posterior.temperature * ranking.factor
    v, of_items = (embedder.predictive_vectors(a, temperature=temperature) for a in (x, items))
    g, g_items = (model[0](a).detach() for a in (x, items))
    u = g @ torch.linalg.eigh(g_items.mT @ g_items).eigenvectors[:, -128:]
    u = u / u.norm(dim=1, keepdim=True)
    if embedder.spherical:
        return torch.cat([(1 - weight) ** 0.5 * v, weight**0.5 * u], 1)
    unit = (of_items - of_items.mean(0)).square().sum(1).mean()
    return torch.cat([v, (weight / (1 - weight) * unit) ** 0.5 * u], 1)


@pytest.mark.parametrize("weight", [0.25, 0.9])
@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_a_search_is_brute_force_over_both_parts(distance, structure, weight):
    embedder, (x, _), (queries, _) = fitted(distance, structure), data(), data(30, seed=2)
    asked = Predictive(share=0.5, rank=99, layer="1", layer_weight=weight)
    index = index_of(embedder, asked)
    v, q = (by_hand(embedder, index, a, x, weight) for a in (x, queries))
    wanted = torch.cdist(q, v).sort(dim=1, stable=True)
    found = index.search(queries, k=9)
    assert torch.equal(found.positions, wanted.indices[:, :9])
    torch.testing.assert_close(found.distance, wanted.values[:, :9])


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_candidates_are_compared_as_an_index_searches(distance, share):
    embedder, (x, y) = fitted(distance), data()
    asked = Predictive(share=share, rank=99, layer="1", layer_weight=0.5)
    index = index_of(embedder, asked)
    rows = compared_rows(y, _chosen_ranking.MOST)
    v = index.engine.vectors[rows]
    apart = torch.cdist(v, v).fill_diagonal_(torch.inf)
    reader = exploring(asked, N, Encoder.of(embedder))
    encoded, _ = reader.all(reader.read("gallery", x), progress=False)
    tried = _tried_on(replace(index.items, encoded=encoded), y, reader)
    wanted = y[rows][apart.argmin(1)] == y[rows]
    found = tried.right(replace(asked, centred=False))
    different = int((found != wanted).sum())
    assert different <= (2 if distance == "euclidean" else 0)  # s is of the compared items


def test_labels_choose_a_layer_that_tells_them_apart_and_none_where_it_does_not():
    index = index_of(fitted())
    assert index.rank_by == "predictive"
    assert index.ranking.layer.name in ("0", "1")
    before, after = index.ranking.gain
    assert after > before + 0.2
    x, y = data()
    shuffled = y[torch.randperm(N, generator=torch.Generator().manual_seed(3))]
    assert fitted().index(x, shuffled, progress=False).rank_by == "mean"


def test_layers_are_left_out_where_asked_unlabelled_stated_or_of_many_items():
    embedder, (x, _) = fitted(), data()
    assert index_of(embedder, Predictive(layer=False)).ranking.layer is None
    assert index_of(embedder, Predictive(share=0.5)).ranking.layer is None
    assert embedder.index(x, progress=False).rank_by == "mean"
    assert layers_asked("auto", _chosen_ranking.MOST_READ) is None
    assert layers_asked("auto", _chosen_ranking.MOST_READ + 1) == ()
    assert layers_asked(Predictive(layer="0"), _chosen_ranking.MOST_READ + 1) == ["0"]
    assert layers_asked("mean", 3) == ()


def test_only_unit_vectors_of_the_chosen_layer_are_kept():
    index = index_of(fitted())
    earlier = index.items.encoded.earlier
    assert earlier.shape == (N, index.ranking.layer.directions.shape[1])
    torch.testing.assert_close(earlier.norm(dim=1), torch.ones(N).double())
    assert index_of(fitted(), "mean").items.encoded.earlier is None


def test_one_query_or_many_and_added_or_built_are_the_same():
    embedder, (x, y), (queries, _) = fitted(), data(), data(12, seed=2)
    index = index_of(embedder)
    together = index.search(queries, 5)
    for i in range(len(queries)):
        alone = index.search(queries[i : i + 1], 5)
        assert np.array_equal(alone.positions[0], together.positions[i])
    index.add(x[:3], y[:3], ids=[N, N + 1, N + 2])
    assert torch.equal(index.engine.vectors[N:], index.engine.vectors[:3])
    index.remove([0])
    assert len(index.items.encoded.earlier) == len(index) == N + 2


# ---------------------------------------------------------------- calibration and files


@pytest.mark.parametrize("refit", [True, False], ids=["fitted", "not yet"])
def test_items_calibrate_an_index_that_ranks_by_a_layer(refit):
    x, y = data(240)
    embedder = LaplaceEmbedder(deaf(), distance="euclidean", hessian="positives")
    if refit:
        embedder.fit(x, y, progress=False)
    index = embedder.cross_index(x, y, progress=False)
    assert index.ranking.layer is not None
    queries, labels = data(200, seed=7)
    report = index.evaluate(queries, labels)
    plain = embedder.cross_index(x, y, rank_by="mean", progress=False).evaluate(queries, labels)
    assert report.recall_at_1 > plain.recall_at_1 + 0.2


def test_a_guard_is_saved_and_loaded_with_its_layer(tmp_path):
    x, y = data(240)
    guard = Guard(x, y, model=deaf(), distance="euclidean", trained_on_items=False, precision=0.6)
    queries, _ = data(40, seed=3)
    before = guard.ask(queries)
    assert guard.index.ranking.layer is not None
    guard.save(tmp_path / "guard")
    after = Guard.load(tmp_path / "guard", deaf()).ask(queries)
    assert after.label.tolist() == before.label.tolist()
    np.testing.assert_array_equal(after.probability, before.probability)


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_a_file_holds_the_layer(tmp_path, distance):
    embedder, (queries, _) = fitted(distance), data(20, seed=2)
    index = index_of(embedder, Predictive(share=0.25, layer="1", layer_weight=0.75))
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder)
    assert torch.equal(loaded.engine.vectors, index.engine.vectors)
    assert loaded.ranking.settings == index.ranking.settings
    before, after = index.search(queries, 5), loaded.search(queries, 5)
    assert np.array_equal(before.positions, after.positions)
    np.testing.assert_array_equal(before.distance, after.distance)


def test_a_file_that_misses_the_rows_of_its_layer_is_refused(tmp_path, monkeypatch):
    embedder = fitted()
    index = index_of(embedder, Predictive(share=0.25, layer="1"))
    without = replace(index.items, encoded=replace(index.items.encoded, earlier=None))
    index._state = replace(index._state, items=without)
    index.save(tmp_path / "index")
    with pytest.raises(FileFormatError, match="earlier"):
        Index.load(tmp_path / "index", embedder)


# ---------------------------------------------------------------- the class model


def test_the_class_model_reads_the_layer_too():
    """The head does not tell these classes apart, and the layer does."""
    (x, y), (queries, labels) = data(240), data(200, seed=7)
    embedder, right = fitted(), {}
    for name, layer in (("head", False), ("layer", "1")):
        index = embedder.index(x, y, rank_by=Predictive(share=0.25, layer=layer), progress=False)
        index.learn_classes()
        rows, model = inputs_of(index.encoder(queries)), index.class_model
        odds = model.log_odds(rows, torch.arange(6).expand(len(rows), 6))
        right[name] = float((odds.argmax(1) == labels).double().mean())
    assert right["layer"] > right["head"] + 0.2
    encoded = index.items.encoded
    by_hand = torch.cat([nn.functional.normalize(encoded.basis_inputs, dim=1), encoded.earlier], 1)
    torch.testing.assert_close(inputs_of(encoded), by_hand, rtol=0, atol=0)
    assert len(model.mean) == by_hand.shape[1]


def test_a_class_model_of_few_items_counts_the_columns_of_the_layer():
    """Fewer items than columns of the head: the ridge averages over all of both parts."""
    index = index_of(fitted(), Predictive(share=0.25, layer="1"))
    a, p = index.items.encoded.basis_inputs.shape[1], index.items.encoded.earlier.shape[1]
    index.learn_classes(1.0, 1.0, 50 + a)
    codes = index.items.label_codes
    wide = ClassModel.fit(
        inputs_of(index.items.encoded), codes, index.items.classes, 1.0, 1.0, 50 + a + p
    )
    torch.testing.assert_close(index.class_model.root, wide.root, rtol=0, atol=0)


def test_a_file_whose_class_model_reads_other_rows_is_refused(tmp_path):
    embedder = fitted()
    index = index_of(embedder, Predictive(share=0.25, layer="1"))
    index.calibrate(*data(200, seed=7))
    rows, codes = index.items.encoded.basis_inputs, index.items.label_codes
    other = ClassModel.fit(rows, codes, index.items.classes)
    index._state = replace(index._state, class_model=other)
    index.save(tmp_path / "index")
    with pytest.raises(FileFormatError, match="class_model/mean"):
        Index.load(tmp_path / "index", embedder)


# ---------------------------------------------------------------- arrays of several layers


def test_arrays_of_several_layers_are_read_by_name():
    x, y = data()
    given = {"embeddings": x[:, :2].numpy(), "hidden": x.numpy(), "other": x[:, :3].numpy()}
    embedder = LaplaceEmbedder(
        PrecomputedLayers("hidden", "other"), head="append", distance="euclidean"
    ).fit(given, y, progress=False)
    index = embedder.index(given, y, progress=False)
    assert index.ranking.layer.name == "hidden"
    one = {name: rows[:1] for name, rows in given.items()}
    assert index.search(one, 1).positions.tolist() == [[0]]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "at least one"),
        (("embeddings",), "names no layer"),
        (("a b",), "names no layer"),
        (("forward",), "names no layer"),
        ((3,), "names no layer"),
        (("a", "a"), "names no layer"),
    ],
)
def test_names_of_layers_are_words(names, told):
    with pytest.raises(InputError, match=told):
        PrecomputedLayers(*names)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("layer", [True, 3, 0.5, ["0"]])
def test_a_layer_is_a_name(layer):
    with pytest.raises(InputError, match="layer"):
        Predictive(layer=layer)


@pytest.mark.parametrize("weight", [0, 1, -0.5, float("nan"), "x"])
def test_a_weight_is_between_0_and_1(weight):
    with pytest.raises(InputError, match="layer_weight"):
        Predictive(layer="0", layer_weight=weight)


def test_a_layer_that_is_not_there_names_those_that_are():
    with pytest.raises(InputError, match=r"layer='nope' .* '0', '1', '2'"):
        index_of(fitted(), Predictive(share=0.5, layer="nope"))


def test_a_compact_index_reads_no_layer():
    x, y = data()
    with pytest.raises(InputError, match="compact"):
        fitted().index(x, y, rank_by=Predictive(layer="0"), compact=True, progress=False)


def test_a_layer_without_one_row_an_input_is_refused():
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.head = nn.Linear(3, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.odd(torch.ones(5, 3))
            return self.head(x)

    x, y = torch.randn(40, 4), torch.arange(40) % 4
    embedder = LaplaceEmbedder(Transposed()).fit(x, y, progress=False)
    with pytest.raises(InputError, match="layer 'odd'"):
        embedder.index(x, y, rank_by=Predictive(layer="odd"), progress=False)
    assert embedder.index(x, y, progress=False).rank_by in ("mean", "predictive")


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_unit_vectors_have_length_1_or_0(n, width, seed):
    x = torch.randn(n, width, generator=torch.Generator().manual_seed(seed)).double()
    x[0] = 0
    u = EarlierLayer.of("a", 0.5, 1.0, x)(x)
    assert float(u[0].norm()) == 0
    torch.testing.assert_close(u[1:].norm(dim=1), torch.ones(n - 1).double())
    torch.testing.assert_close(
        u[1:] @ u[1:].mT, nn.functional.normalize(x[1:]) @ nn.functional.normalize(x[1:]).mT
    )


def test_the_leading_directions_are_kept():
    """Of 200 numbers, those of ten vary a thousand times as much as the others."""
    g = torch.Generator().manual_seed(0)
    strong = torch.randn(300, 10, generator=g).double() @ torch.randn(10, 200, generator=g).double()
    x = strong + 1e-3 * torch.randn(300, 200, generator=g)
    layer = EarlierLayer.of("a", 0.5, 1.0, x)
    assert layer.directions.shape == (200, 128)
    u, whole = layer(x), nn.functional.normalize(x, dim=1)
    torch.testing.assert_close(u @ u.mT, whole @ whole.mT, rtol=0, atol=1e-4)


# ---------------------------------------------------------------- real images


def test_foreign_classes_are_found_by_an_earlier_layer(real_data):
    """A network of clothes searches handwritten characters that it was not trained on."""
    clothes = load("fashion-mnist", "test", real_data)
    characters = load("kmnist", "test", real_data)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 16))
    x = torch.as_tensor(clothes.images[:2_000]).float().reshape(-1, 784) / 255
    y = torch.as_tensor(clothes.labels[:2_000]).long()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(60):
        rows = torch.randint(len(x), (256,))
        z = nn.functional.normalize(model(x[rows]), dim=1)
        apart, same = 1 - z @ z.mT, y[rows][:, None] == y[rows]
        loss = (apart * same).mean() + ((0.5 - apart).clamp_min(0) * ~same).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    embedder = LaplaceEmbedder(model).fit(x, y, progress=False)
    g = torch.as_tensor(characters.images[:1_800]).float().reshape(-1, 784) / 255
    labels = torch.as_tensor(characters.labels[:1_800]).long()
    found = {
        name: embedder.index(g[:1_200], labels[:1_200], rank_by=how, progress=False)
        .evaluate(g[1_200:], labels[1_200:])
        .recall_at_1
        for name, how in (("last", Predictive(layer=False)), ("auto", "auto"), ("mean", "mean"))
    }
    assert found["auto"] > found["last"] + 0.03 > found["mean"] + 0.06
