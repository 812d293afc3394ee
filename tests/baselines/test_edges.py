"""What users run into: appended heads, labels that appear late, small batches, fine-tuning."""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn

from baselines import (
    HIB,
    PFE,
    CrossEntropy,
    DeepEnsemble,
    ExplicitConcentration,
    InfoNCE,
    KNNDistance,
    Mahalanobis,
    MCInfoNCE,
    MetricLearning,
    ViM,
)
from baselines.base import Training
from laplace_metric.errors import FileFormatError, InputError, LabelError

QUICK = Training(epochs=2, learning_rate=0.05)


APPENDED = {
    "metric learning": MetricLearning,
    "mcinfonce": MCInfoNCE,
    "byol": lambda model, **s: ExplicitConcentration(
        model, base="byol", augment=lambda x: x + 0.1, **s
    ),
    "ensemble": lambda model, **s: DeepEnsemble(model, n_members=2, **s),
}


@pytest.fixture
def headless():
    """No linear layer at its end."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh())


@pytest.mark.parametrize("name", APPENDED)
def test_an_appended_head_is_trained_kept_and_saved(name, headless, loader, data, tmp_path):
    x = data[0]
    make = APPENDED[name]
    method = make(headless, head="append", training=QUICK).fit(loader, progress=False)
    before = method(x)
    members = method.parts["members"] if name == "ensemble" else [method.model]
    for network in members:
        layer = [m for m in network.modules() if isinstance(m, nn.Linear)][-1]
        assert layer.weight.shape == (4, 4)
        assert not torch.allclose(layer.weight, torch.eye(4), atol=1e-3)
    if name == "metric learning":
        expected = nn.functional.normalize(method.model(x), dim=-1)
        torch.testing.assert_close(before.mean, expected.detach())
    method.save(tmp_path / "saved")
    loaded = type(method).load(tmp_path / "saved", copy.deepcopy(headless))
    torch.testing.assert_close(loaded(x).mean, before.mean, rtol=0, atol=0)
    torch.testing.assert_close(loaded(x).uncertainty, before.uncertainty, rtol=0, atol=0)


def test_a_label_that_appears_late_is_an_error(model):
    x = torch.randn(6, 5)

    class Late:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield x, torch.tensor([0, 2, 0, 2, 0, 2 if self.passes == 1 else 1])

    with pytest.raises(LabelError, match=r"label 1.*not among"):
        CrossEntropy(model, training=QUICK).fit(Late(), progress=False)


@pytest.mark.parametrize("kind", [Mahalanobis, KNNDistance, PFE])
def test_another_backbone_is_refused(kind, model, loader, tmp_path):
    more = {"k": 3} if kind is KNNDistance else {"training": QUICK} if kind is PFE else {}
    kind(model, **more).fit(loader, progress=False).save(tmp_path / "saved")
    with torch.no_grad():
        model[0].weight.add_(0.1)
    with pytest.raises(FileFormatError, match="weights differ"):
        kind.load(tmp_path / "saved", model)


@pytest.mark.parametrize("kind", [CrossEntropy, MCInfoNCE, DeepEnsemble])
def test_a_trained_method_needs_the_architecture_only(kind, model, loader, data, tmp_path):
    more = {"n_members": 2} if kind is DeepEnsemble else {}
    method = kind(model, training=QUICK, **more).fit(loader, progress=False)
    method.save(tmp_path / "saved")
    fresh = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    loaded = kind.load(tmp_path / "saved", fresh)
    torch.testing.assert_close(loaded(data[0]).mean, method(data[0]).mean, rtol=0, atol=0)


def test_a_loss_with_weights_is_passed_to_load(model, loader, data, tmp_path):
    def loss():
        return ArcFaceLoss(3, 4)

    method = MetricLearning(model, loss=loss(), training=QUICK).fit(loader, progress=False)
    method.save(tmp_path / "saved")
    loaded = MetricLearning.load(tmp_path / "saved", model, loss=loss())
    torch.testing.assert_close(loaded(data[0]).mean, method(data[0]).mean, rtol=0, atol=0)
    torch.testing.assert_close(loaded.parts["loss"].W, method.parts["loss"].W)
    with pytest.raises(FileFormatError, match=r"loss\.W"):
        MetricLearning.load(tmp_path / "saved", model)


@pytest.mark.parametrize("kind", [PFE, HIB])
def test_a_last_batch_of_one_is_explained(kind, model, data):
    x, y = data
    with pytest.raises(InputError, match="drop_last"):
        kind(model, training=QUICK).fit([(x[:9], y[:9]), (x[9:10], y[9:10])], progress=False)


def test_batches_without_pairs_or_negatives_are_explained(model, data):
    x, y = data
    with pytest.raises(LabelError, match="drop_last"):
        InfoNCE(model, training=QUICK).fit([(x[:9], y[:9]), (x[9:10], y[9:10])], progress=False)
    one = torch.zeros(9, dtype=torch.long)
    with pytest.raises(LabelError, match="no negative"):
        InfoNCE(model, training=QUICK).fit([(x[:9], y[:9]), (x[:9], one)], progress=False)


def test_views_need_no_labels_and_do_need_tensors(model, data):
    x = data[0]
    nothing = torch.zeros(len(x), dtype=torch.long)
    method = InfoNCE(model, training=QUICK, augment=lambda a: a + 0.1 * torch.randn_like(a))
    assert len(method.fit([(x, nothing)], progress=False).losses_) == 2
    with pytest.raises(InputError, match="augment.*a tuple"):
        InfoNCE(model, training=QUICK, augment=lambda a: (a,)).fit([data], progress=False)


def test_vim_says_when_nothing_is_left_over(model, data):
    x, y = data
    with torch.no_grad():
        model[0].weight[4:].zero_()
        model[0].bias[4:].fill_(-1.0)  # half of the features are dead
    with pytest.raises(InputError, match="never vary"):
        ViM(model, on="features", dimension=5).fit([(x, y)], progress=False)


def test_two_views_of_an_input_share_their_number(model, data):
    x, y = data
    views, numbers = InfoNCE(model, augment=lambda a: a.clone()).views(x, y)
    assert views.shape == (2 * len(x), 5)
    for k in range(len(x)):
        assert torch.equal(views[numbers == k], x[k].expand(2, -1))
    one, same = CrossEntropy(model, augment=lambda a: a + 1).views(x, y)
    assert torch.equal(one, x + 1)
    assert torch.equal(same, y)


STILL = Training(epochs=1, learning_rate=1e-30)


@pytest.fixture
def pairs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator)
    return [(x, torch.arange(40) % 4)], [(x + 1, torch.arange(40) % 3)]


def test_a_concentration_head_goes_on_and_a_second_fit_does_not(pairs, model):
    first, second = pairs
    method = MCInfoNCE(model, training=Training(epochs=5, learning_rate=0.01))
    method.fit(first, progress=False)
    x = first[0][0]
    before = method(x).concentration
    method.training = STILL
    torch.testing.assert_close(method.fine_tune(second, progress=False)(x).concentration, before)
    fresh = method.fit(second, progress=False)(x).concentration
    assert not torch.allclose(fresh, before, rtol=1e-2)


def test_logits_of_other_classes_start_anew(pairs, model):
    method = CrossEntropy(model, training=STILL).fit(pairs[0], progress=False)
    weights = [p.clone() for p in method.model.parameters()]
    method.fine_tune(pairs[1], progress=False)
    assert len(method.fitted_.classes) == 3
    for before, after in zip(weights, method.model.parameters(), strict=True):
        torch.testing.assert_close(before, after)
