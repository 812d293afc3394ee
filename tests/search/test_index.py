"""An index from every kind of gallery, ranked in every way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LabelError
from laplace_metric.inputs import _inputs
from tests.search.second_order import second_order


def index_of(embedder, gallery, *args, **how):
    return embedder.index(gallery, *args, **how, progress=False)


class Words(nn.Module):
    """Texts -> [B, 4], by the letters in them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(26, 4)

    def forward(self, texts):
        counts = [[text.count(chr(97 + i)) for i in range(26)] for text in texts]
        return self.head(torch.tensor(counts, dtype=torch.float32))


class Two(nn.Module):
    """Two named inputs -> [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(6, 3)

    def forward(self, left, right):
        return self.head(torch.cat([left, right], 1))


def test_arrays_tensors_and_loaders_give_the_same_index(points, embedder, monkeypatch):
    x, y = points
    monkeypatch.setattr(_inputs, "BATCH", 70)
    at_once = index_of(embedder, x[:200], y[:200])
    others = [
        index_of(embedder, x[:200].numpy(), y[:200].numpy()),
        index_of(embedder, [(x[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50)]),
        index_of(embedder, [x[:150], x[150:200]], y[:200].tolist()),
        index_of(
            embedder, ((x[i : i + 40], None) for i in range(0, 200, 40)), list(y[:200].numpy())
        ),
    ]
    expected = at_once.search(x[200:230], k=7)
    for other in others:
        result = other.search([x[200:215], (x[215:230], y[215:230])], k=7)
        assert np.array_equal(result.ids, expected.ids)
        assert np.array_equal(result.labels, expected.labels)
        torch.testing.assert_close(result.distance, expected.distance)
        torch.testing.assert_close(result.uncertainty, expected.uncertainty)
    assert at_once.ids.tolist() == list(range(200))
    torch.testing.assert_close(expected.uncertainty, embedder(x[200:230]).uncertainty)
    assert expected.ids.dtype == expected.labels.dtype == np.int64


def test_labels_next_to_a_loader_are_those_that_it_yields(points, embedder):
    x, y = points
    with pytest.raises(LabelError, match="labels is 100.*row 0.*loader itself"):
        index_of(embedder, [(x[:50], y[:50])], y[:50] + 100)
    index = index_of(embedder, [(x[:50], y[:50])], y[:50])
    assert index.labels.tolist() == y[:50].tolist()
    named = index_of(embedder, [(x[:2], ["a", "b"]), (x[2:3], ("c",))], ids=["x", "", "z"])
    assert named.labels.tolist() == ["a", "b", "c"]
    assert named.search(x[1:2], k=1).ids.tolist() == [[""]]
    assert index_of(embedder, x[:5]).labels is None
    assert index_of(embedder, x[:5]).search(x[:1], k=1).labels is None


def test_texts_are_searched_as_texts(monkeypatch):
    monkeypatch.setattr(_inputs, "BATCH", 2)
    texts = ["abba", "cab", "deed", "feed", "oboe", "booboo"]
    model = Words()
    embedder = LaplaceEmbedder(model).fit(
        [(texts, torch.tensor([0, 0, 1, 1, 2, 2]))], progress=False
    )
    index = index_of(embedder, texts, ["ab", "ab", "de", "de", "ob", "ob"], ids=texts)
    result = index.search(["deed", "booboo"], k=2)
    assert result.ids[0, 0] == "deed"
    assert result.ids[1, 0] == "booboo"
    assert index.search(("abba", "cab"), k=1).ids.tolist() == [["abba"], ["cab"]]
    again = index_of(embedder, [(texts[:3], ["ab", "ab", "de"]), (texts[3:], ["de", "ob", "ob"])])
    assert again.labels.tolist() == index.labels.tolist()


def test_named_inputs_are_one_batch_or_batches():
    g = torch.Generator().manual_seed(0)
    batches = [{"left": torch.randn(5, 2, generator=g), "right": torch.randn(5, 4, generator=g)}]
    batches.append({name: t + 1 for name, t in batches[0].items()})
    y = torch.arange(5) % 2
    embedder = LaplaceEmbedder(Two()).fit([(b, y) for b in batches], progress=False)
    index = index_of(embedder, [(b, y) for b in batches])
    assert index.labels.tolist() == [*y.tolist(), *y.tolist()]
    assert len(index_of(embedder, batches)) == 10
    assert index.search(batches[1], k=1).ids[:, 0].tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("rank_by", ["mean", "expected", "shared"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_each_ranking_is_that_of_brute_force(rank_by, distance, points):
    x, y = points
    settings = {"distance": distance, "hessian": "positives"}
    embedder = LaplaceEmbedder.from_embeddings(x[:200], y[:200], **settings)
    index = index_of(embedder, x[:40], rank_by=rank_by)
    queries, k = x[300:320], 10
    embedded, stored = embedder(queries), embedder(x[:40])
    gaps = torch.cdist(embedded.mean.double(), stored.mean.double())
    if rank_by == "shared":
        pairs = queries.repeat_interleave(40, 0), x[:40].repeat(20, 1)
        score = second_order(embedder, *pairs).mean.view(20, 40)
    elif rank_by == "expected" and distance == "arccos":
        score = -(embedded.mean @ stored.mean.mT) * (1 - stored.uncertainty / 2)  # E cos
    elif rank_by == "expected":
        score = gaps.square() + stored.uncertainty
    else:
        score = gaps
    result = index.search(queries, k=k)
    torch.testing.assert_close(
        score.gather(1, result.positions), score.sort(1).values[:, :k], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(result.distance.double(), gaps.gather(1, result.positions))
    again = second_order(embedder, queries, x[:40][result.positions[:, 3]])
    spread = again.standard_deviation / (2 * again.mean.sqrt())
    torch.testing.assert_close(result.distance_sd[:, 3], spread, rtol=1e-3, atol=1e-5)


def test_the_user_s_model_is_not_touched(points):
    x, y = points
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).train()
    model[0].weight.requires_grad_(False)
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = torch.get_rng_state()
    index = index_of(embedder, x[:200], y[:200])
    first = index.search(x[:20], k=3)
    index.calibrate(x[200:], y[200:], k=3)
    index.retrieval_sets(x[:5], alpha=0.3)
    assert torch.equal(first.distance, index.search(x[:20], k=3).distance), "no dropout"
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert not first.distance.requires_grad
    assert not first.distance_sd.requires_grad
