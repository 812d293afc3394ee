"""Inputs that a model has seen enter it no second time, and everything comes out the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.heads._locate import find_head

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.NegativeCurvatureWarning")
BATCH = 16


class Unit(nn.Module):
    def forward(self, z):
        return nn.functional.normalize(z, dim=-1)


def network(kind):
    torch.manual_seed(0)
    body = [nn.Linear(6, 12), nn.ReLU()]
    last = {
        "plain": [nn.Linear(12, 5)],
        "unit": [nn.Linear(12, 5), Unit()],
        "append": [nn.Linear(12, 5)],
    }
    return nn.Sequential(*body, *last[kind])


@pytest.fixture(params=["plain", "unit", "append"])
def both(request):
    """An embedder, batches of inputs with labels, and the same batches as they were seen."""
    model = network(request.param)
    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
    y = torch.arange(80) % 4
    head = find_head(model, x[:2], "append" if request.param == "append" else None)
    pairs = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    seen = [(SeenInputs(head, BATCH, lambda b=b: capture(model, head, b)), c) for b, c in pairs]
    return LaplaceEmbedder(model, head.name), pairs, seen


def test_a_fit_is_the_same_to_the_bit(both, tmp_path):
    embedder, pairs, seen = both
    plain = embedder.fit(pairs, progress=False).posterior_
    again = LaplaceEmbedder(embedder.model, embedder.head)
    assert torch.equal(again.fit(seen, progress=False).posterior_.spectrum, plain.spectrum)
    assert torch.equal(again.posterior_.mean, plain.mean)
    kept = again.fit(seen, progress=False, checkpoint_dir=tmp_path / "c").posterior_
    assert torch.equal(kept.spectrum, plain.spectrum)
    again.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    assert torch.equal(loaded(pairs[0][0]).uncertainty, embedder(pairs[0][0]).uncertainty)


def test_so_is_all_that_is_asked_of_it(both):
    embedder, pairs, seen = both
    embedder.fit(pairs, progress=False)
    calls = []
    handle = embedder.model[0].register_forward_hook(lambda *_: calls.append(1))
    given = [(s.head, s.n, s.look()) for s, _ in seen]
    known = [SeenInputs(head, n, lambda a=a: a) for head, n, a in given]
    calls.clear()
    ours = embedder(known[0])
    index = embedder.index(known[:3], progress=False)
    found = index.search([known[4]], k=3)
    numbers = embedder.uncertainties(known, progress=False)
    assert not calls
    handle.remove()
    theirs = embedder(pairs[0][0])
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.variance, theirs.variance)
    assert torch.equal(ours.epistemic, theirs.epistemic)
    plain = embedder.index([b for b, _ in pairs[:3]], progress=False).search([pairs[4][0]], k=3)
    assert (found.ids == plain.ids).all()
    assert torch.equal(found.distance_sd, plain.distance_sd)
    assert torch.equal(numbers, embedder.uncertainties([b for b, _ in pairs], progress=False))


def test_what_was_seen_at_another_head_is_refused(both):
    embedder, pairs, _ = both
    embedder.fit(pairs, progress=False)
    other = find_head(nn.Sequential(*list(embedder.model)[:1]), pairs[0][0])
    foreign = SeenInputs(other, BATCH, lambda: capture(embedder.model, other, pairs[0][0]))
    with pytest.raises(HeadError, match="seen at.*head '0'.*not"):
        embedder(foreign)
