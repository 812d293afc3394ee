"""Texts that find images and images that find texts, through the index of everything else."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.errors import (
    FileFormatError,
    FittedQueriesWarning,
    InputError,
    NotFittedError,
    UnknownNameError,
)
from laplace_metric.image_text import ImageTextEmbedder, csd
from laplace_metric.image_text.towers._towers import IndependentPairs
from laplace_metric.models import Precomputed
from laplace_metric.search import Index
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._encoder import Encoder
from tests.image_text.conftest import features, make_embedder, make_pairs
from tests.thread_table import hammered

QUICK = {"epochs": 2, "batch_size": 30, "progress": False, "seed": 0}
QUIET = {"progress": False}


def encoded(n: int, d: int, g: torch.Generator) -> Encoded:
    mean = torch.randn(n, d, generator=g, dtype=torch.float64)
    variance = torch.rand(n, d, generator=g, dtype=torch.float64)
    return Encoded(mean, variance.sum(1), variance.sum(1), variance)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**16))
def test_moments_of_pairs_are_those_of_the_definition(q, n, d, seed):
    """A chi-square a coordinate: E = V + d^2, Var = 2 V^2 + 4 d^2 V."""
    g = torch.Generator().manual_seed(seed)
    queries, items = encoded(q, d, g), encoded(n, d, g)
    positions = torch.randint(-1, n, (q, 3), generator=g)
    ours = IndependentPairs()(queries, items, positions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("laplace_metric._utils.blocks.BLOCK_BYTES", 1)  # a row at once
        parts = IndependentPairs()(queries, items, positions)
    assert torch.equal(ours.mean, parts.mean)
    assert torch.equal(ours.variance, parts.variance)
    for i in range(q):
        for j, at in enumerate(positions[i].tolist()):
            if at < 0:
                assert ours.mean[i, j] == ours.variance[i, j] == torch.inf
                continue
            difference = queries.mean[i] - items.mean[at]
            v = queries.basis_inputs[i] + items.basis_inputs[at]
            mean = sum(float(x**2 + w) for x, w in zip(difference, v, strict=True))
            spread = sum(float(2 * w**2 + 4 * x**2 * w) for x, w in zip(difference, v, strict=True))
            assert float(ours.mean[i, j]) == pytest.approx(mean)
            assert float(ours.variance[i, j]) == pytest.approx(spread)


def both_ways(fitted, pairs, **how):
    """Index of one side, queries of the other, embeddings of both, matches of the queries."""
    image, text = fitted.embed_image(pairs.images), fitted.embed_text(pairs.texts)
    images = fitted.index_images(pairs.images, **how, **QUIET)
    texts = fitted.index_texts(pairs.texts, **how, **QUIET)
    return [
        (images, pairs.texts, text, image, pairs.images_of_texts()),
        (texts, pairs.images, image, text, pairs.texts_of_images()),
    ]


@pytest.mark.parametrize("rank_by", [None, "mean", "expected"])
def test_a_search_is_brute_force_over_the_other_side(rank_by, fitted):
    for index, inputs, query, item, matches in both_ways(fitted, make_pairs(9), rank_by=rank_by):
        result = index.search(inputs, k=5)
        s = query.mean @ item.mean.T
        if rank_by != "mean":
            s = fitted.similarity(query, item)
        assert index.rank_by == rank_by or (rank_by is None and index.rank_by == "expected")
        best = s.topk(5)
        torch.testing.assert_close(s.gather(1, result.positions), best.values)
        expected = csd(
            query.mean[:, None],
            query.variance.log()[:, None],
            item.mean[result.positions],
            item.variance.log()[result.positions],
        )
        asked, _ = index.query_encoder.all(
            index.query_encoder.read("queries", inputs), progress=False
        )
        squared = index.encoder.pairs(asked, index.items.encoded, result.positions)
        torch.testing.assert_close(squared.mean, expected)
        torch.testing.assert_close(result.uncertainty, query.ambiguity)
        torch.testing.assert_close(result.epistemic, query.weight_variance)
        torch.testing.assert_close(query.ambiguity, query.variance.sum(1))
        hits = index.labelled_hits(inputs, k=len(index), matches=matches)
        wanted = torch.zeros_like(s, dtype=torch.bool)
        for i, own in enumerate(matches):
            wanted[i, own] = True
        rows = torch.from_numpy(hits.hits.positions)
        assert np.array_equal(hits.match, wanted.gather(1, rows))


def held_out_images(fitted):
    """An index of the texts, calibrated with images that were not in the fit."""
    pairs = make_pairs(seed=101)
    index = fitted.index_texts(pairs.texts, **QUIET)
    index.calibrate(pairs.images, matches=pairs.texts_of_images(), k=4)
    return index


def test_a_calibrated_index_knows_matches_and_open_set_queries(fitted):
    index, pairs = held_out_images(fitted), make_pairs(seed=10)
    result = index.search(pairs.images, k=4)
    match = index.labelled_hits(pairs.images, k=4, matches=pairs.texts_of_images()).match
    p = result.match_probability
    assert float(p[match].mean()) > float(p[~match].mean()) + 0.4
    report = index.evaluate(pairs.images, matches=pairs.texts_of_images())
    assert report.ece < 0.15
    assert report.retrieval_sets.coverage > 0.8
    g = torch.Generator().manual_seed(3)
    foreign = index.search(6 * torch.randn(60, 12, generator=g), k=4)
    assert float(foreign.unknown.float().mean()) > 0.2
    assert float(result.unknown.float().mean()) < 0.2
    assert len(index.retrieval_sets(pairs.images)) == 60


def test_a_saved_index_answers_as_before(fitted, tmp_path):
    index, images = held_out_images(fitted), features(seed=10)
    wanted = index.search(images, k=3)
    index.save(tmp_path / "texts")
    fitted.save(tmp_path / "embedder")
    embedder = ImageTextEmbedder.load(tmp_path / "embedder", Precomputed(), Precomputed())
    loaded = [Index.load(tmp_path / "texts", embedder, mmap=mapped) for mapped in (False, True)]
    for other in (*loaded, copy.deepcopy(index)):
        result = other.search(images, k=3)
        assert torch.equal(result.positions, wanted.positions)
        torch.testing.assert_close(result.match_probability, wanted.match_probability)
        assert torch.equal(result.p_value, wanted.p_value)
    fitted.index_images(images, **QUIET).save(tmp_path / "images")
    back = Index.load(tmp_path / "images", embedder)
    assert len(back) == 60
    assert back.search(make_pairs().texts, k=2).ids.shape == (8, 2)
    other = make_embedder().fit(make_pairs(), **QUICK)
    with pytest.raises(FileFormatError, match="another embedder"):
        Index.load(tmp_path / "images", other)


@pytest.mark.parametrize("objective", ["siglip", "clip"])
def test_without_variances_there_are_only_means(objective, pairs, tmp_path):
    embedder = make_embedder(objective).fit(pairs, **QUICK)
    index = embedder.index_texts(pairs.texts, **QUIET)
    assert index.rank_by == "mean"
    held = make_pairs(seed=9)
    index.calibrate(held.images, matches=held.texts_of_images(), k=4)
    result = index.search(held.images, k=3)
    assert bool((result.uncertainty == 0).all())
    assert bool((result.distance_sd == 0).all())
    assert bool(result.match_probability.isfinite().all())
    with pytest.raises(NotFittedError, match="image"):
        _ = embedder.embed_image(held.images).ambiguity
    if objective == "siglip":
        torch.testing.assert_close(
            result.epistemic, embedder.embed_image(held.images).weight_variance
        )
    index.save(tmp_path / "saved")
    again = Index.load(tmp_path / "saved", embedder, mmap=True).search(held.images, k=3)
    torch.testing.assert_close(again.match_probability, result.match_probability)
    for name in ("expected", "shared", "luck"):
        with pytest.raises(UnknownNameError, match=f"rank_by='{name}'"):
            embedder.index_images(pairs.images, rank_by=name)


def test_images_of_the_fit_are_warned_of_also_after_loading(fitted, pairs, tmp_path):
    fitted.save(tmp_path / "saved")
    loaded = ImageTextEmbedder.load(tmp_path / "saved", Precomputed(), Precomputed())
    for embedder in (fitted, loaded):
        index = embedder.index_texts(pairs.texts, **QUIET)
        with pytest.warns(FittedQueriesWarning, match="100%"):
            index.calibrate(pairs.images, matches=pairs.texts_of_images())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            held = make_pairs(seed=9)
            index.labelled_hits(held.images, matches=held.texts_of_images())
            images = embedder.index_images(pairs.images, **QUIET)
            images.labelled_hits(pairs.texts, matches=pairs.images_of_texts())  # texts recur


def test_what_is_refused(fitted, pairs):
    with pytest.raises(NotFittedError, match="not fitted"):
        make_embedder().index_images(pairs.images)
    with pytest.raises(InputError, match="two sides.*index_images.*index_texts"):
        Encoder.of(fitted)
    index = fitted.index_images(pairs.images, **QUIET)
    with pytest.raises(InputError, match="features.*size 12.*was 7"):
        index.search(pairs.images, k=1)
    with pytest.raises(InputError, match="queries is empty"):
        index.search([], k=1)
    with pytest.raises(InputError, match="queries"):
        index.search(pairs.texts.to_sparse(), k=1)


def test_searches_from_eight_threads_are_right(fitted):
    index = held_out_images(fitted)

    def answer(x):
        result = index.search(x, k=4)
        return torch.cat([result.match_probability, result.distance_sd.double()], 1)

    inputs = [features(seed=20 + i)[: 5 + i] for i in range(12)]
    outcome = hammered(answer, inputs, 8, 12)
    assert (outcome.calls, outcome.errors, outcome.wrong) == (96, 0, 0), outcome.first_error


def test_an_index_keeps_the_heads_that_it_was_built_with(pairs):
    embedder = make_embedder().fit(pairs, **QUICK)
    index = embedder.index_images(pairs.images, **QUIET)
    before = index.search(pairs.texts, k=3)
    embedder.fit(pairs, epochs=1, progress=False, seed=5)
    assert torch.equal(index.search(pairs.texts, k=3).distance, before.distance)
    assert not torch.equal(
        embedder.index_images(pairs.images, **QUIET).search(pairs.texts, k=3).distance,
        before.distance,
    )
