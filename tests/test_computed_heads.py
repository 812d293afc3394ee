"""Heads whose weights are computed before each call: weight_norm, spectral_norm, pruning and so on.

The posterior is over the weights as the layer uses them, as if they had been written out.
"""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.errors import FileFormatError, HeadError, WeightsChangedError

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 4


class Symmetric(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, w):
        return w.triu() + w.triu(1).mT


def old_spectral_norm(layer: nn.Module) -> nn.Module:
    return nn.utils.spectral_norm(layer)


def pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def pruned_twice(layer: nn.Module) -> nn.Module:
    prune.random_unstructured(layer, "weight", 0.2)
    return pruned(layer)


def scaled_and_normed(layer: nn.Module) -> nn.Module:
    """Two parametrisations, of two tensors."""
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    return parametrizations.weight_norm(layer)


def symmetric(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


KINDS = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm, old": nn.utils.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm, old": old_spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": pruned,
    "pruned twice": pruned_twice,
    "two parametrisations": scaled_and_normed,
    "of one's own": symmetric,
}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*curvature was negative")


def network(kind: str = "", where: int = 2) -> nn.Sequential:
    """Random layers, one of which computes its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4))
    if kind:
        KINDS[kind](model[where])
        with torch.no_grad():  # trained on: what training mode would estimate anew has not settled
            for parameter in model[where].parameters():
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def plain(model: nn.Sequential) -> nn.Sequential:
    """The same network with its weights written out by hand."""
    with torch.no_grad():
        model.eval()(X)
        layers = []
        for layer in model:
            if isinstance(layer, nn.Linear):
                weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
                layer = nn.Linear(*weight.mT.shape)
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            layers.append(layer)
    return nn.Sequential(*layers)


def fit(model: nn.Module, **settings) -> LaplaceEmbedder:
    return LaplaceEmbedder(model, **settings).fit([(X, Y)], progress=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_computed_head_is_that_of_its_weights_written_out(kind, training, tmp_path):
    model = network(kind).train(training)
    before = copy.deepcopy(model.state_dict())
    embedder, expected = fit(model), fit(plain(network(kind)))
    for _ in range(3):  # what training mode would move stays where it was
        embedded = embedder(X)
    torch.testing.assert_close(embedded.mean, expected(X).mean)
    torch.testing.assert_close(embedded.variance, expected(X).variance, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(embedder.posterior_.mean, expected.posterior_.mean)
    assert embedder.draw(2, 0)(X).shape == (2, 60, 4)
    torch.testing.assert_close(embedder.draw(2, 0)(X), expected.draw(2, 0)(X), rtol=1e-2, atol=1e-3)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert [part.training for part in model.modules()] == [training] * len(list(model.modules()))
    embedder.save(tmp_path / "posterior")
    again = network(kind)
    again.load_state_dict(model.state_dict())
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", again)
    assert torch.equal(loaded(X).variance, embedder(X).variance)
    assert torch.equal(loaded.posterior_.mean, embedder.posterior_.mean)
    embedder.fit([(X, Y)], progress=False)
    assert torch.equal(loaded.fit([(X, Y)], progress=False)(X).variance, embedder(X).variance)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_head_is_computed_from_is_a_weight(kind, tmp_path):
    model = network(kind)
    embedder = fit(model)
    embedder.save(tmp_path / "posterior")
    embedder(X)
    source = next(p for name, p in model[2].named_parameters() if "bias" not in name)
    with torch.no_grad():
        source += 0.1 * torch.randn_like(source)
    with pytest.raises(WeightsChangedError, match=r"'2\..*has other values.*fit again"):
        embedder(X)
    with pytest.raises(FileFormatError, match="head '2'.*sha256"):
        LaplaceEmbedder.load(tmp_path / "posterior", model)


def test_a_model_that_was_moved_is_named():
    model = network("weight_norm")
    embedder = fit(model)
    model.double()
    with pytest.raises(WeightsChangedError, match="'2'.*type"):
        embedder(X.double())


@pytest.mark.parametrize("kind", KINDS)
def test_computed_weights_below_the_head_raise_no_alarm(kind, tmp_path):
    model = network()
    model[0] = KINDS[kind](nn.Linear(8, 8 if kind == "of one's own" else 4))
    if kind == "of one's own":
        model[2] = nn.Linear(8, 4)
    for mode in (True, False):
        embedder = fit(model.train(mode))
        for _ in range(3):
            embedder(X)
        index = embedder.index(X, Y, progress=False)
        assert index.search(X[:2], k=1).ids.tolist() == [[0], [1]]
        embedder.save(tmp_path / f"{mode}")
        LaplaceEmbedder.load(tmp_path / f"{mode}", model)(X)
    if "spectral" in kind:  # their buffers move when the user trains on
        model.train()(X)
        with pytest.raises(WeightsChangedError, match=r"buffer '0\."):
            embedder(X)


def test_chains_convolutions_and_modules_of_ones_own_hold_computed_layers():
    class Projector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.last = nn.Linear(4, 6), parametrizations.weight_norm(nn.Linear(6, 3))

        def forward(self, x):
            return self.last(torch.relu(self.mlp(x)))

    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), KINDS["weight_norm"](nn.Linear(6, 3)))
    maps = nn.Sequential(
        nn.Unflatten(1, (8, 1, 1)), KINDS["spectral_norm"](nn.Conv2d(8, 3, 1)), nn.Flatten()
    )
    projector = nn.Sequential(nn.Linear(8, 4), Projector())
    for model, head in ((chain, chain[:]), (maps, None), (projector, projector[1])):
        embedder = fit(model, head=head)
        assert embedder.head_.source is not None
        z = embedder.fitted_.jacobian.forward(embedder.activations(X).features)
        torch.testing.assert_close(z, embedder.activations(X).raw)
        assert bool((embedder(X).variance > 0).all())
        embedder.fit([(X, Y)], progress=False)(X)


def test_exported_and_copied_and_indexed_it_is_the_same(tmp_path):
    embedder = fit(network("weight_norm"))
    expected = embedder(X)
    mean, _, uncertainty = embedder.as_module()(X)
    torch.testing.assert_close(mean, expected.mean)
    torch.testing.assert_close(uncertainty, expected.uncertainty, rtol=1e-4, atol=1e-6)
    copied = copy.deepcopy(embedder)
    assert torch.equal(copied(X).variance, expected.variance)
    index = embedder.cross_index(X, Y, progress=False, folds=3)
    assert index.search(X[:2], k=1).ids.tolist() == [[0], [1]]
    graph = embedder.export(tmp_path / "embedder.pt2", "torch", example=X[:2])
    torch.testing.assert_close(torch.export.load(graph.path).module()(X)[0], expected.mean)


def test_weights_of_an_unknown_hook_are_refused_by_name():
    class Halved:
        def __call__(self, module, _inputs):
            module.weight = module.original / 2

    model = network()
    layer = model[2]
    layer.original = nn.Parameter(layer.weight.detach().clone())
    del layer.weight
    layer.weight = layer.original / 2
    layer.register_forward_pre_hook(Halved())
    with pytest.raises(HeadError, match=r"head '2'.*a parameter.*Halved.*Parameter"):
        fit(model)
    assert fit(model, head="append")(X).mean.shape == (60, 4)


class Adapted(nn.Module):
    """A linear layer and a low-rank change of it, as LoRA has."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A, self.lora_B = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_an_adapter_is_a_head_where_it_is_named_and_an_error_where_it_is_not():
    model = network()
    model[2] = Adapted(model[2])
    with pytest.raises(HeadError, match=r"adapter.*head='2'"):
        fit(model)
    embedder = fit(model, head="2")
    assert len(embedder.posterior_.mean) == 4 * 4 + 4 + 2 * 4 * 2
    embedder(X)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_computed_is_not_trained_online(kind):
    with pytest.raises(HeadError, match=r"computed.*remove_parametrizations"):
        OnlineLaplace(network(kind)).fit([(X, Y)], ContrastiveLoss(), epochs=1, progress=False)
