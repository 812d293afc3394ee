"""A 1x1 convolution under average pooling is a linear layer on mean features: same posterior."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError, WeightsChangedError
from laplace_metric.heads._locate import find_head
from laplace_metric.heads._pointwise import PointwiseHead

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
G = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.randn(24, 3, 6, 5, generator=G).double(), torch.arange(24) % 4


class Normalize(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x, dim=-1)


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).double()


def convolutional(*after, bias=True):
    torch.manual_seed(1)
    return nn.Sequential(body(), nn.Conv2d(8, 5, 1, bias=bias).double(), *after)


POOLED = (nn.AdaptiveAvgPool2d(1), nn.Flatten())


def linear_twin(model, normalized=False):
    """Pooling first, then the linear layer with the weights of the convolution."""
    conv = model[1]
    twin = nn.Linear(8, 5, bias=conv.bias is not None).double()
    with torch.no_grad():
        twin.weight.copy_(conv.weight[:, :, 0, 0])
        if conv.bias is not None:
            twin.bias.copy_(conv.bias)
    return nn.Sequential(model[0], *POOLED, twin, *([Normalize()] if normalized else []))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_posterior_is_that_of_the_linear_twin(bias, normalized, structure, distance):
    after = (*POOLED, Normalize()) if normalized else POOLED
    model = convolutional(*after, bias=bias)
    how = {"structure": structure, "distance": distance, "hessian": "positives"}
    conv = LaplaceEmbedder(model, **how).fit([(IMAGES, LABELS)], progress=False)
    line = LaplaceEmbedder(linear_twin(model, normalized), **how)
    line.fit([(IMAGES, LABELS)], progress=False)
    assert (conv.head_.name, line.head_.name) == ("1", "3")
    assert conv.head_.normalized == normalized
    close(conv.posterior_.mean, line.posterior_.mean)
    close(conv.hessian_.diagonal(), line.hessian_.diagonal())
    a, b = conv(IMAGES[:7]), line(IMAGES[:7])
    for name in ("mean", "variance", "uncertainty", "epistemic", "ambiguity"):
        close(getattr(a, name), getattr(b, name))
    close(conv.sample(IMAGES[:3], 4, 0), line.sample(IMAGES[:3], 4, 0))
    distances = [e.distance(IMAGES[:4], IMAGES[4:8]) for e in (conv, line)]
    close(distances[0].variance, distances[1].variance)


@given(
    dims=st.integers(1, 3),
    places=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    seed=st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_the_jacobian_is_that_of_autograd_through_the_map(dims, places, sizes, seed):
    """d (mean over the map of the convolution) / d theta, by autograd, for maps of any shape."""
    torch.manual_seed(seed)
    d, z = sizes
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](d, z, 1).double()
    maps = torch.randn(2, d, *places[:dims]).double()
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1](1)
    model = nn.Sequential(conv, pool, nn.Flatten())
    embedder = LaplaceEmbedder(model, hessian="positives", distance="euclidean")
    batch = (torch.cat([maps, maps]), torch.tensor([0, 1, 0, 1]))
    embedder.fit([batch], progress=False)
    h = embedder.activations(maps).features
    found = embedder.fitted_.jacobian.jacobian(h)
    for i, j in [(i, j) for i in range(2) for j in range(z)]:
        gradients = torch.autograd.grad(model(maps)[i, j], [*conv.parameters()])
        close(found[i, j], torch.cat([g.flatten() for g in gradients]))


@pytest.mark.parametrize("backend", ["analytic", "torch.func"])
def test_every_general_backend_knows_it(backend):
    model = convolutional(*POOLED)
    auto = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    other = LaplaceEmbedder(model, backend=backend).fit([(IMAGES, LABELS)], progress=False)
    close(other(IMAGES).mean, auto(IMAGES).mean)
    if backend == "analytic":
        close(other(IMAGES).variance, auto(IMAGES).variance)


def test_a_map_of_one_place_is_flattened():
    torch.manual_seed(0)
    model = nn.Sequential(body(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten())
    model = model.double()
    assert find_head(model, IMAGES).name == "2"
    embedder = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    close(embedder(IMAGES).mean, nn.functional.normalize(model(IMAGES), dim=-1))


def test_a_linear_layer_at_the_end_goes_before_convolutions():
    model = nn.Sequential(*convolutional(*POOLED), nn.Linear(5, 4).double())
    assert find_head(model, IMAGES).name == "4"


def test_a_linear_layer_in_the_middle_does_not_hide_the_convolution():
    class Excited(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.excite, self.head = body(), nn.Linear(8, 8), nn.Conv2d(8, 5, 1)
            self.double()

        def forward(self, x):
            h = self.body(x)
            h = h * self.excite(h.mean((2, 3)))[..., None, None].sigmoid()
            return self.head(h).mean((2, 3))

    assert find_head(Excited(), IMAGES).name == "head"


def test_the_head_by_name_module_and_after_a_fit():
    model = convolutional(*POOLED)
    for head in ("1", model[1]):
        assert find_head(model, IMAGES, head).name == "1"
    embedder = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    assert isinstance(embedder.head_.module, PointwiseHead)
    again = LaplaceEmbedder.from_fitted(model, embedder.settings, embedder.fitted_)
    assert again.fit([(IMAGES, LABELS)], progress=False).head_.name == "1"


class Weighted(nn.Conv2d):
    """Not what its weights say."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, 2 * weight, bias)


MAX = (nn.AdaptiveMaxPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (convolutional(), r"average its maps with torch.nn.Sequential\(model"),
        (convolutional(*MAX), "nothing but average pooling"),
        (convolutional(nn.Flatten()), "nothing but average pooling"),
        (convolutional(nn.ReLU(), *POOLED), "nothing but average pooling"),
        (nn.Sequential(body(), *POOLED), "no nn.Linear and no 1x1 convolution"),
        (nn.Sequential(body(), Weighted(8, 5, 1).double(), *POOLED), "no 1x1 convolution"),
        (nn.Sequential(body(), nn.Conv2d(8, 4, 1, groups=2).double(), *POOLED), "no 1x1"),
        (nn.Sequential(body(), nn.Conv2d(8, 4, 1, stride=2).double(), *POOLED), "no 1x1"),
        (nn.Sequential(body(), nn.Conv2d(8, 4, 1, padding=1).double(), *POOLED), "no 1x1"),
    ],
    ids=["map", "max", "flat", "relu", "none", "subclass", "groups", "stride", "padding"],
)
def test_anything_else_is_named(model, message):
    with pytest.raises(HeadError, match=message):
        LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)


def test_saved_loaded_exported_and_searched(tmp_path):
    model = convolutional(*POOLED)
    embedder = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    embedder.save(tmp_path / "saved")
    loaded = LaplaceEmbedder.load(tmp_path / "saved", copy.deepcopy(model))
    close(loaded(IMAGES).variance, embedder(IMAGES).variance)
    numbers = embedder.as_module()(IMAGES)
    close(numbers.uncertainty, embedder(IMAGES).uncertainty)
    close(numbers.mean, embedder(IMAGES).mean)
    index = embedder.cross_index(IMAGES, LABELS, folds=2, progress=False)
    assert index.search(IMAGES[:2], k=3).ids[:, 0].tolist() == [0, 1]


def test_other_weights_are_noticed_and_the_model_is_left_alone():
    model = convolutional(*POOLED).train()
    before = copy.deepcopy(model.state_dict())
    embedder = LaplaceEmbedder(model).fit([(IMAGES, LABELS)], progress=False)
    embedder(IMAGES)
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with torch.no_grad():
        model[1].weight[0, 0] += 1
    with pytest.raises(WeightsChangedError, match="'1' changed"):
        embedder(IMAGES)
    model[1].weight = nn.Parameter(before["1.weight"])
    embedder(IMAGES)


def test_online_training_draws_the_convolution():
    from pytorch_metric_learning.losses import ContrastiveLoss

    from laplace_metric import OnlineLaplace

    model = convolutional(*POOLED)
    before = model[1].weight.clone()
    online = OnlineLaplace(model, samples=2)
    embedder = online.fit([(IMAGES, LABELS)], ContrastiveLoss(), epochs=2, seed=0, progress=False)
    assert not torch.equal(model[1].weight, before)
    assert embedder(IMAGES).variance.shape == (24, 5)
