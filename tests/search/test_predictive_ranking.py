"""Search by the posterior predictive: what is found, when it is chosen, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.laplace._predictive_vectors import PredictiveVectors
from laplace_metric.search import HNSW, IVF, Flat, Index, Predictive
from laplace_metric.search._encoder import Encoder
from laplace_metric.search.rank._chosen_ranking import PRIORS, SHARES
from laplace_metric.search.rank._rankings import NOISE, PredictiveRanking

D, Z, N = 8, 2, 240
ENGINES = {"flat": Flat(), "ivf": IVF(lists=6, probes=6), "hnsw": HNSW(ef=400)}
"""Settings with which every engine is exact on these points."""
EVERY = 99
"""A rank that keeps all coordinates."""


def data(n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes that differ in the last six head inputs; the first two are noise of their own."""
    centres = 3 * torch.randn(6, D, generator=torch.Generator().manual_seed(9)).double()
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    x = centres[y] + torch.randn(n, D, generator=g, dtype=torch.float64)
    x[:, :2] = 4 * torch.randn(n, 2, generator=g, dtype=torch.float64)
    return x, y


def blind(
    distance: str = "euclidean",
    structure: str = "diag",
    fitted: tuple[Tensor, Tensor] | None = None,
) -> LaplaceEmbedder:
    """A head that sees the noise alone, so that its posterior is unsure about the classes."""
    head = nn.Linear(D, Z).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        head.weight[:, :2] = torch.eye(2)
        head.weight[:, 2:] = 0.01 * torch.randn(Z, D - 2, generator=g)
        head.bias.fill_(0.1)
    how = {"distance": distance, "structure": structure, "hessian": "positives"}
    return LaplaceEmbedder(head, **how).fit([fitted or data(60, seed=5)], progress=False)


def vectors(embedder: LaplaceEmbedder, index: Index, x: Tensor) -> Tensor:
    """Predictive vectors of inputs at the temperature of an index that keeps all coordinates."""
    temperature = embedder.fitted_.predictive_posterior.temperature * index.ranking.factor
    return embedder.predictive_vectors(x, temperature=temperature)


def recall(index: Index, queries: Tensor, labels: Tensor) -> float:
    nearest = index.search(queries, k=1).labels[:, 0]
    return float((nearest == labels.numpy()).mean())


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_a_search_is_brute_force_over_predictive_vectors(distance, structure, share):
    embedder, (x, y), (queries, _) = blind(distance, structure), data(), data(30, seed=2)
    index = embedder.index(x, y, rank_by=Predictive(share, EVERY), progress=False)
    assert index.rank_by == "predictive"
    v, q = vectors(embedder, index, x), vectors(embedder, index, queries)
    wanted = torch.cdist(q, v).sort(dim=1, stable=True)
    found = index.search(queries, k=9)
    assert torch.equal(found.positions, wanted.indices[:, :9])
    torch.testing.assert_close(found.distance, wanted.values[:, :9])
    plain = embedder.index(x, y, rank_by="mean", progress=False).search(queries, k=9)
    assert not torch.equal(plain.positions, found.positions)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_the_share_is_that_of_the_posterior_in_the_squared_length_of_the_items(structure):
    embedder, (x, y) = blind("euclidean", structure), data()
    for share in (0.1, 0.5, 0.9):
        index = embedder.index(x, y, rank_by=Predictive(share, EVERY), progress=False)
        squares = vectors(embedder, index, x).square()
        own, whole = squares[:, Z:].sum(), squares.sum()
        assert float(own / whole) == pytest.approx(share)
        assert index.ranking.share == share
        assert index.ranking.lost == pytest.approx(0, abs=1e-12)


def test_as_many_coordinates_as_asked_for_and_those_that_matter_most():
    embedder, (x, y) = blind("euclidean", "diag"), data()
    lost = []
    for rank in (1, 2, 5, 9, EVERY):
        index = embedder.index(x, y, rank_by=Predictive(0.5, rank), progress=False)
        assert index.engine.vectors.shape == (N, Z + min(rank, D + 1))
        squares = vectors(embedder, index, x).square().mean(0)[Z:].sort(descending=True).values
        assert index.ranking.lost == pytest.approx(
            float(squares[rank:].sum() / squares.sum()), abs=1e-9
        )
        lost.append(index.ranking.lost)
    assert lost == sorted(lost, reverse=True)
    index = embedder.index(x, y, rank_by=Predictive(0.5), progress=False)
    assert index.ranking.lost <= 0.01
    fewer = Predictive(0.5, len(index.ranking.columns) - 1)
    assert embedder.index(x, y, rank_by=fewer, progress=False).ranking.lost > 0.01


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_no_unit_inside_a_network_changes_what_is_found(distance, unit):
    """Head inputs in another unit, with weights that make up for it."""
    (x, y), (queries, _) = data(), data(30, seed=2)
    found = []
    for scale in (1.0, unit):
        head = nn.Linear(D, Z, bias=False).double()
        with torch.no_grad():
            head.weight.copy_(torch.randn(Z, D, generator=torch.Generator().manual_seed(0)) / scale)
        embedder = LaplaceEmbedder(head, distance=distance, hessian="positives")
        embedder.fit([(scale * x[:60], y[:60])], progress=False)
        index = embedder.index(scale * x, y, rank_by=Predictive(0.5, EVERY), progress=False)
        found.append(index.search(scale * queries, k=5))
    assert torch.equal(found[0].positions, found[1].positions)
    torch.testing.assert_close(found[0].distance, found[1].distance, rtol=1e-6, atol=0)


# ---------------------------------------------------------------- when it is chosen


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_it_is_chosen_where_head_inputs_separate_classes_that_embeddings_do_not(
    distance, structure
):
    embedder, (x, y), (queries, labels) = blind(distance, structure), data(), data(200, seed=2)
    index = embedder.index(x, y, progress=False)
    assert index.rank_by == "predictive"
    before, after = index.ranking.gain
    assert after > before + 0.3
    assert "rank_by='predictive'" in str(index)
    assert f"nearest right  {after:.1%} of items, by 'mean' {before:.1%}\n" in f"{index}\n"
    plain = embedder.index(x, y, rank_by="mean", progress=False)
    assert recall(index, queries, labels) == pytest.approx(after, abs=0.1)
    assert recall(plain, queries, labels) == pytest.approx(before, abs=0.1)
    asked = embedder.index(x, y, rank_by="predictive", progress=False)
    assert asked.ranking.share == index.ranking.share
    assert asked.ranking.gain == index.ranking.gain


def test_the_gain_is_counted_by_leaving_out_one_item_at_a_time():
    embedder, (x, y) = blind(), data()
    index = embedder.index(x, y, rank_by=Predictive(0.5, EVERY), progress=False)
    shares = []
    for v in (embedder(x).mean, vectors(embedder, index, x)):
        apart = torch.cdist(v, v).fill_diagonal_(torch.inf)
        shares.append(float((y[apart.argmin(1)] == y).double().mean()))
    assert index.ranking.gain == pytest.approx(shares)


@pytest.mark.parametrize("seed", range(5))
def test_means_rank_where_labels_are_noise(seed):
    embedder, (x, y) = blind(), data()
    shuffled = y[torch.randperm(N, generator=torch.Generator().manual_seed(seed))]
    assert embedder.index(x, shuffled, progress=False).rank_by == "mean"


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_means_rank_where_they_find_everything(distance):
    x, y = data()
    head = nn.Linear(D, D - 2, bias=False).double()
    with torch.no_grad():
        head.weight.zero_()[:, 2:] = torch.eye(D - 2)
    embedder = LaplaceEmbedder(head, distance=distance, hessian="positives")
    embedder.fit([(x[:60], y[:60])], progress=False)
    assert embedder.index(x, y, progress=False).rank_by == "mean"


def test_means_rank_without_labels_or_classes_of_two():
    embedder, (x, _) = blind(), data()
    assert embedder.index(x, progress=False).rank_by == "mean"
    assert embedder.index(x, torch.arange(N), progress=False).rank_by == "mean"


def test_without_labels_the_share_that_is_not_asked_for_is_half():
    embedder, (x, _) = blind(), data()
    for labels in (None, torch.arange(N)):
        index = embedder.index(x, labels, rank_by="predictive", progress=False)
        assert index.ranking.share == 0.5
        assert index.ranking.gain is None


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("prior", [1e6, 10.0, 0.01])
def test_another_prior_is_that_of_another_posterior(structure, prior):
    """Of the same curvature: N(theta, (n H + tau I)^-1) with tau in units of the mean of n H."""
    fitted = blind("arccos", structure).fitted_
    posterior = fitted.posterior
    data = posterior.n_effective * posterior.curvature.eigenvalues
    other = replace(posterior, prior_precision=prior * float(data.mean()), temperature=1.0)
    wanted = PredictiveVectors.of(replace(fitted, posterior=other, predictive_prior=None))
    found = PredictiveVectors.of(fitted).with_prior(prior)
    torch.testing.assert_close(found.variances, wanted.variances * data.mean())
    if prior == NOISE:
        torch.testing.assert_close(found.variances, found.variances[:1].expand(D + 1))


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_centred_cosines_are_those_about_the_mean_of_the_items(structure):
    embedder, (x, y), (queries, _) = blind("arccos", structure), data(), data(30, seed=2)
    asked = Predictive(0.4, EVERY, prior=0.3, centred=True)
    index = embedder.index(x, y, rank_by=asked, progress=False)
    vectors = PredictiveVectors.of(embedder.fitted_)
    (layout,), basis = embedder.fitted_.jacobian.layouts, vectors.basis
    basis = torch.eye(D + 1).double() if basis is None else basis
    root = basis @ vectors.with_prior(0.3).variances.sqrt().diag() @ basis.mT
    head, ones = embedder.model, torch.ones(len(x), 1).double()
    h = torch.cat([x, ones], 1) - torch.cat([x, ones], 1).mean(0)
    q = torch.cat([queries, ones[:30]], 1) - torch.cat([x, ones], 1).mean(0)
    with torch.no_grad():
        z, of_q = (layout.fold(embedder.fitted_.jacobian.parameters) @ part.mT for part in (h, q))
    factor = 0.4 / 0.6 * z.square().sum() / (h @ root).square().sum()
    v, w = (
        nn.functional.normalize(torch.cat([a.mT, factor.sqrt() * b @ root], 1), dim=1)
        for a, b in ((z, h), (of_q, q))
    )
    wanted = torch.cdist(w, v).sort(dim=1, stable=True)
    found = index.search(queries, k=9)
    assert torch.equal(found.positions, wanted.indices[:, :9])
    torch.testing.assert_close(found.distance, wanted.values[:, :9])
    assert isinstance(head, nn.Linear)


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_the_choice_is_the_best_of_what_is_tried_and_contains_its_rivals(distance, structure):
    """Each by its vectors, one by one; the library compares Gram matrices."""
    embedder, (x, y) = blind(distance, structure), data()
    index = embedder.index(x, y, progress=False)
    chosen = index.ranking
    best = replace(chosen.settings, rank=EVERY)
    assert chosen.gain[1] == pytest.approx(right_by(embedder, index, y, best), abs=1e-12)
    for prior in PRIORS:  # noise and whitened h among them
        other = replace(best, prior=prior)
        assert chosen.gain[1] >= right_by(embedder, index, y, other) - 1 / N
    for share in SHARES:
        other = replace(best, share=share)
        assert chosen.gain[1] >= right_by(embedder, index, y, other) - 1 / N


def right_by(embedder: LaplaceEmbedder, index: Index, y: Tensor, asked: Predictive) -> float:
    """Share of items whose nearest other one is of their class, by the vectors."""
    vectors = PredictiveVectors.of(embedder.fitted_)
    ranking = PredictiveRanking.of(vectors, index.items.encoded, asked)
    v = ranking.item_vectors(index.items.encoded).double()
    apart = torch.cdist(v, v).fill_diagonal_(torch.inf)
    return float((y[apart.argmin(1)] == y).double().mean())


def test_a_centre_is_chosen_where_a_common_offset_hides_directions():
    found = []
    for seed in range(8):
        embedder = LaplaceEmbedder.from_embeddings(*frozen(seed + 50)[:2])
        x, y, *_ = frozen(seed)
        index = embedder.index(x, y, rank_by="predictive", progress=False)
        best = replace(index.ranking.settings, rank=EVERY)
        found.append(best.centred)
        assert index.ranking.gain[1] == pytest.approx(right_by(embedder, index, y, best), abs=0.01)
    assert any(found)


def frozen(seed: int, n: int = 300) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Directions of a frozen encoder: a common offset, and noise in few directions."""
    g = torch.Generator().manual_seed(seed)
    centres, width = torch.randn(10, 24, generator=g), torch.randn(24, generator=g).exp()
    y = torch.randint(10, (n + 400,), generator=g)
    x = 0.8 * centres[y] + width * torch.randn(n + 400, 24, generator=g) + 3
    x = nn.functional.normalize(x, dim=1)
    return x[:n], y[:n], x[n:], y[n:]


def test_a_frozen_encoder_finds_more_by_its_curvature():
    """Noise is no rival here: it adds the same numbers again."""
    gained = []
    for seed in range(4):
        x, y, queries, labels = frozen(seed)
        embedder = LaplaceEmbedder.from_embeddings(x, y)
        auto, mean = (embedder.index(x, y, rank_by=r, progress=False) for r in ("auto", "mean"))
        gained.append(recall(auto, queries, labels) - recall(mean, queries, labels))
    assert min(gained) >= 0
    assert float(np.mean(gained)) > 0.04


def test_items_of_the_fit_choose_by_a_fit_to_others(monkeypatch):
    x, y, *_ = frozen(0)
    seen = []
    refitted = Encoder.refitted

    def spy(self, items, codes, others):
        seen.append((items, others, refitted(self, items, codes, others)))
        return seen[-1][2]

    monkeypatch.setattr(Encoder, "refitted", spy)
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    embedder.index(x, y, progress=False)
    (items, others, found), *rest = seen
    assert not rest
    assert found is not None
    assert len(items) == len(x) // 2
    assert not (torch.cdist(items, others) == 0).any(), "nothing fits and chooses"
    new = frozen(5)
    embedder.index(new[0], new[1], progress=False)
    assert seen[-1][2] is None, "items that were in no fit choose by the fit"


def test_labels_that_say_nothing_choose_the_mean_though_they_made_the_curvature():
    left = 0
    for seed in range(40):
        x, y, *_ = frozen(seed, 200)
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
        left += LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False).rank_by != "mean"
    assert left <= 2  # .01 each: 3 or more have a probability of .008


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_centre_of_a_file_is_finite_and_as_wide_as_the_head(value, tmp_path):
    embedder, (x, y) = blind("arccos", "kron"), data()
    index = embedder.index(x, y, rank_by=Predictive(0.3, centred=True), progress=False)
    centre = index.ranking.vectors.centre
    for forged in (torch.full_like(centre, value), centre[:-1]):
        ranking = replace(index.ranking, vectors=index.ranking.vectors.about(forged))
        state = replace(index._state, ranking=ranking)
        path = tmp_path / f"index{len(forged)}"
        Index(index.encoder, state, index.query_encoder).save(path)
        with pytest.raises(FileFormatError, match="index/centre"):
            Index.load(path, embedder)


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "rank_by", ["predictive", Predictive(0.3, 4), Predictive(0.3, 4, 0.5, True)], ids=str
)
def test_what_is_saved_is_what_is_loaded(rank_by, name, mmap, tmp_path):
    embedder, (x, y), (queries, _) = blind("arccos", "kron"), data(), data(30, seed=2)
    made = embedder.index(x, y, engine=ENGINES[name], rank_by=rank_by, progress=False)
    made.calibrate(*data(150, seed=3))
    made.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder, mmap=mmap)
    assert loaded.rank_by == "predictive"
    assert str(loaded.ranking) == str(made.ranking)
    assert loaded.ranking.factor == made.ranking.factor
    assert torch.equal(loaded.ranking.columns, made.ranking.columns)
    ours, theirs = (i.search(queries, k=7).columns() for i in (made, loaded))
    assert list(ours) == list(theirs)
    for column, values in ours.items():
        if mmap and values.dtype.kind == "f":  # products may round by where a file is mapped
            np.testing.assert_allclose(values, theirs[column], rtol=1e-5, atol=1e-7, err_msg=column)
        else:
            assert np.array_equal(values, theirs[column]), column


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_the_same(name):
    embedder, (x, y), (queries, _) = blind("arccos", "kron"), data(), data(30, seed=2)
    how = {"rank_by": Predictive(0.5, EVERY), "progress": False}
    exact = embedder.index(x, y, **how).search(queries, k=5)
    found = embedder.index(x, y, engine=ENGINES[name], **how).search(queries, k=5)
    assert torch.equal(found.positions, exact.positions)
    torch.testing.assert_close(found.distance, exact.distance)


@pytest.mark.parametrize("name", ENGINES)
def test_items_that_come_and_go_leave_the_index_of_the_others(name):
    """With the ranking of its first items: its numbers are not chosen again."""
    embedder, (x, y), (queries, _) = blind("euclidean", "kron"), data(), data(30, seed=2)
    index = embedder.index(
        x[:150], y[:150], engine=ENGINES[name], rank_by=Predictive(0.5, EVERY), progress=False
    )
    ranking = index.ranking
    index.remove([3, 77, 149])
    index.add(x[150:], y[150:])
    index.remove([0, 200])
    assert index.ranking is ranking
    ids = np.delete(np.arange(N), [0, 3, 77, 149, 200])
    assert np.array_equal(index.ids, ids)
    v, q = vectors(embedder, index, x[ids]), vectors(embedder, index, queries)
    torch.testing.assert_close(
        index.engine.vectors, index.ranking.item_vectors(index.items.encoded)
    )
    wanted = torch.cdist(q, v).sort(dim=1, stable=True)
    found = index.search(queries, k=6)
    assert np.array_equal(found.ids, ids[wanted.indices[:, :6].numpy()])
    torch.testing.assert_close(found.distance, wanted.values[:, :6])


def test_an_index_of_folds_ranks_as_the_whole():
    x, y = data()
    crossed = blind("arccos", "kron", (x, y)).cross_index(x, y, progress=False)
    assert crossed.rank_by == "predictive"
    queries, labels = data(200, seed=2)
    assert recall(crossed, queries, labels) > 0.8
    answers = crossed.ask(queries, probability=0.3)
    right = answers.label[answers.answered] == labels.numpy()[answers.answered]
    assert answers.answered.mean() > 0.3
    assert right.mean() > 0.8


# ---------------------------------------------------------------- lengths that mean nothing


def scaled(n: int = 600, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Directions of eight classes, at lengths that say nothing of them."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(8, (n,), generator=g)
    x = torch.nn.functional.one_hot(y, 40) + 0.3 * torch.randn(n, 40, generator=g)
    return (x * torch.exp(1.5 * torch.randn(n, 1, generator=g))).double(), y


def test_labels_choose_cosines_where_lengths_mean_nothing(tmp_path):
    (x, y), (queries, labels) = scaled(), scaled(300, 1)
    embedder = LaplaceEmbedder.from_embeddings(x[:150], y[:150], distance="euclidean")
    index = embedder.index(x, y, progress=False)
    assert index.ranking.directions
    assert "directions" in str(index.ranking)
    plain = embedder.index(x, y, rank_by="mean", progress=False)
    assert recall(index, queries, labels) > recall(plain, queries, labels) + 0.05
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder)
    assert loaded.ranking.settings == index.ranking.settings
    assert torch.equal(loaded.query_vectors(queries), index.query_vectors(queries))
    lengths = index.engine.vectors.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(600).double())


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_cosines_of_vectors_are_those_by_hand(share):
    embedder, (x, y), (queries, _) = blind("euclidean", "diag"), data(), data(30, seed=2)
    asked = Predictive(share, EVERY, directions=True)
    index = embedder.index(x, y, rank_by=asked, progress=False)
    if share:
        v, q = vectors(embedder, index, x), vectors(embedder, index, queries)
    else:
        v, q = embedder(x).mean, embedder(queries).mean
    cosine = nn.functional.normalize(q, dim=1) @ nn.functional.normalize(v, dim=1).mT
    wanted = cosine.sort(dim=1, descending=True, stable=True).indices[:, :9]
    assert torch.equal(index.search(queries, k=9).positions, wanted)


def test_lengths_that_tell_classes_apart_stay():
    x = torch.linspace(1, 20, N)[:, None].double() * torch.ones(1, 4).double()
    x += 0.01 * torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(N) // 40
    index = LaplaceEmbedder.from_embeddings(x[::2], y[::2], distance="euclidean").index(x, y)
    assert index.rank_by == "mean" or not index.ranking.directions


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("share", [1, 1.0, -0.1, 1.5, float("nan"), float("inf"), "x", True])
def test_a_share_is_from_0_and_below_1(share):
    with pytest.raises(InputError, match="Predictive: share"):
        Predictive(share=share)


@pytest.mark.parametrize("rank", [0, -1, 1.5, float("nan"), "x", True])
def test_a_rank_is_a_whole_number_from_1(rank):
    with pytest.raises(InputError, match="Predictive: rank"):
        Predictive(rank=rank)


@pytest.mark.parametrize("prior", [0, -1.0, float("nan"), float("inf"), "x", True])
def test_a_prior_is_above_0(prior):
    with pytest.raises(InputError, match="Predictive: prior"):
        Predictive(prior=prior)


@pytest.mark.parametrize("centred", [2, "yes", float("nan")])
def test_centred_is_a_flag(centred):
    with pytest.raises(InputError, match="Predictive: centred"):
        Predictive(centred=centred)


def test_a_full_posterior_has_no_other_prior():
    embedder, (x, _) = blind("arccos", "full"), data()
    vectors = PredictiveVectors.of(embedder.fitted_)
    assert not vectors.takes_priors
    encoded = embedder.index(x, progress=False).items.encoded
    with pytest.raises(InputError, match="Predictive: prior=2.*diagonal.*Kronecker"):
        PredictiveRanking.of(vectors, encoded, Predictive(0.5, prior=2.0))


@pytest.mark.parametrize("asked", ["predictive", Predictive(0.5)], ids=str)
def test_a_compact_index_has_no_head_inputs_to_rank_by(asked):
    embedder, (x, y) = blind(), data()
    with pytest.raises(InputError, match="rank_by='predictive'.*head inputs.*items"):
        embedder.index(x, y, rank_by=asked, compact=True, progress=False)
    assert embedder.index(x, y, compact=True, progress=False).rank_by == "mean"


def chain(structure: str) -> LaplaceEmbedder:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, Z))).double()
    return LaplaceEmbedder(model, head=model[0], structure=structure)


@pytest.mark.parametrize("asked", ["predictive", Predictive(0.5)], ids=str)
@pytest.mark.parametrize("kind", ["several layers", "full"])
def test_heads_and_structures_without_it_are_named_and_auto_ranks_by_means(kind, asked):
    x, y = data()
    embedder = blind("arccos", "full")
    words = "structure"
    if kind == "several layers":
        embedder, words = chain("diag").fit([(x, y)], progress=False), "one linear layer"
    with pytest.raises(InputError, match=f"rank_by='predictive'.*{words}"):
        embedder.index(x, y, rank_by=asked, progress=False)
    assert embedder.index(x, y, progress=False).rank_by == "mean"


def test_a_search_of_ones_own_ranks_by_means():
    embedder, (x, y) = blind(), data()
    index = embedder.index(x, y, progress=False)
    assert index.rank_by == "predictive"
    with pytest.raises(InputError, match="Build.*with rank_by='mean'"):
        index.searched_by(lambda vectors, k: torch.zeros(len(vectors), k, dtype=torch.int64))
