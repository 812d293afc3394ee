"""The loss against torch, items that are not their own candidates, and errors that are found."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from baselines import FailurePredictor
from baselines.base import Training
from baselines.failure_predictor import FailureHead, failure_weight, weighted_failure_loss
from laplace_metric.errors import InputError, LabelError, NotFittedError
from tests.baselines.labelled_points import on_vectors

F64 = torch.float64
CROSSED = torch.tensor([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1]])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=12), st.integers(0, 99))
def test_the_loss_item_by_item(failures, seed):
    failed = torch.tensor(failures)
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(failed), generator=g, dtype=F64)
    if failed.all() or not failed.any():
        with pytest.raises(InputError, match="needs both"):
            weighted_failure_loss(logits, failed)
        return
    accuracy = 1 - failed.double().mean()
    weight = math.log(1 + accuracy / (1 - accuracy))
    assert failure_weight(failed) == pytest.approx(weight)
    terms = [
        -weight * math.log(1 / (1 + math.exp(-u))) if f else -math.log(1 / (1 + math.exp(u)))
        for u, f in zip(logits.tolist(), failures, strict=True)
    ]
    assert float(weighted_failure_loss(logits, failed)) == pytest.approx(sum(terms) / len(terms))


def test_the_head_sees_the_input_its_nearest_item_and_the_attention():
    torch.manual_seed(0)
    head = FailureHead(3, 8, inverse_temperature=5.0).double()
    seen = {}
    head.network.register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0]))
    x, items = torch.randn(2, 4, 3, dtype=F64)
    head(x, items, torch.arange(4))
    for i in range(4):
        others = [j for j in range(4) if j != i]
        nearest = min(others, key=lambda j: float((x[i] - items[j]).norm()))
        weights = (5 * items[others] @ x[i]).softmax(0)
        expected = torch.cat([x[i], items[nearest], weights @ items[others]])
        torch.testing.assert_close(seen["x"][i], expected)


@pytest.fixture(scope="module")
def half_mixed():
    """Two classes that are apart where the third number is positive, and mixed elsewhere."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=g)
    clean = x[:, 2] > 0
    labels = torch.where(clean, x[:, 0] > 0, torch.rand(600, generator=g) > 0.5).long()
    x[:, 0] += 2 * x[:, 0].sign() * clean
    return x, labels, clean


def test_it_finds_errors_on_items_of_a_new_gallery(half_mixed):
    x, labels, _ = half_mixed
    method = on_vectors(
        FailurePredictor, x[:400], labels[:400], hidden=32, training=Training(epochs=40)
    )
    assert method.losses_[-1] < method.losses_[0]
    items, queries = slice(400, 500), slice(500, 600)
    searched = method.among([(x[items], labels[items])])
    nearest = torch.cdist(x[queries], x[items]).argmin(1)
    wrong = labels[items][nearest] != labels[queries]
    u = searched(x[queries]).uncertainty
    assert bool(((u > 0) & (u < 1)).all())
    assert roc_auc_score(wrong, u) > 0.75
    assert not torch.equal(u, method(x[queries]).uncertainty)
    # the first one has kept its own items
    assert len(method.parts["candidates"].vectors) == 400


def test_an_item_alone_in_its_class_is_no_failure_to_learn_from(half_mixed):
    x, labels, _ = half_mixed
    alone = torch.cat([labels[:100], torch.tensor([7])])
    method = on_vectors(FailurePredictor, x[:101], alone, hidden=4, training=Training(epochs=1))
    assert len(method.parts["candidates"].vectors) == 101  # but it is a candidate


def test_what_it_refuses(model):
    with pytest.raises(InputError, match="inverse_temperature=0"):
        FailurePredictor(model, inverse_temperature=0)
    apart = torch.eye(2).repeat_interleave(3, 0)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(InputError, match="right for all 6 items"):
        on_vectors(FailurePredictor, apart, labels)
    with pytest.raises(InputError, match="wrong for all 6 items"):
        on_vectors(FailurePredictor, CROSSED, torch.tensor([0, 1, 0, 1, 0, 1]))
    with pytest.raises(LabelError, match="share a class"):
        on_vectors(FailurePredictor, apart, torch.arange(6))
    with pytest.raises(NotFittedError):
        FailurePredictor(model).among([(torch.ones(2, 5), torch.arange(2))])
    with pytest.raises(InputError, match="one number for each item"):
        weighted_failure_loss(torch.zeros(2), torch.tensor([True, False, True]))
