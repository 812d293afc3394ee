"""A prior precision of each layer: against the dense matrix, in files, in folds and by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import DegenerateCurvatureWarning, InputError, UnknownNameError
from laplace_metric.heads._layout import Layout
from laplace_metric.laplace._prior_precision import of_layers, of_one_observation
from laplace_metric.search._refit import Refits


def points(n: int = 90) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 5
    return torch.randn(5, 6, generator=g).double()[y] + torch.randn(n, 6, generator=g), y


def chain() -> nn.Module:
    """A head of two layers, the second one with ten times smaller weights."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        head[2].weight.mul_(0.1)
        head[2].bias.mul_(0.1)
    return head


def fitted(structure: str = "kron", **settings: object) -> LaplaceEmbedder:
    x, y = points()
    model = chain()
    settings = {"prior_precision": "layerwise", "temperature": 1.0, **settings}
    embedder = LaplaceEmbedder(model, head=model, structure=structure, **settings)
    return embedder.fit([(x, y)], progress=False)


def dense(embedder: LaplaceEmbedder) -> tuple[Tensor, Tensor]:
    """Return the prior's diagonal and the posterior precision, written out."""
    posterior, curvature, prior = embedder.posterior_, embedder.hessian_.to_dense(), []
    for diagonal in curvature.diagonal().split([6 * 4 + 4, 4 * 3 + 3]):
        prior.append(torch.full_like(diagonal, float(diagonal.sum()) / len(diagonal)))
    prior = torch.cat(prior)
    return prior, posterior.n_effective * curvature + prior.diag()


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_variance_and_evidence_are_those_of_the_dense_matrix(structure):
    embedder = fitted(structure)
    posterior = embedder.posterior_
    prior, precision = dense(embedder)
    torch.testing.assert_close(
        posterior.variance, precision.inverse().diagonal(), rtol=1e-9, atol=0
    )
    theta = posterior.mean
    expected = 0.5 * (prior.log().sum() - (prior * theta.square()).sum() - precision.logdet())
    told = posterior.log_prior_and_determinant(posterior.prior_precision)
    assert told == pytest.approx(float(expected), rel=1e-10)
    determined = torch.eye(len(theta)) - precision.inverse() @ prior.diag()
    assert posterior.n_effective_parameters == pytest.approx(float(determined.trace()), rel=1e-9)
    assert prior[-1] > 10 * prior[0]  # layers differ


def test_another_precision_keeps_the_ratio_of_layers():
    embedder = fitted()
    before = embedder.posterior_
    embedder.tune_prior()
    after = embedder.posterior_
    torch.testing.assert_close(after.prior_weights, before.prior_weights)
    assert after.prior_precision != before.prior_precision
    assert embedder.settings.prior_precision == after.prior_precision


def test_a_file_and_a_refit_keep_it(tmp_path):
    embedder, (x, y) = fitted(), points()
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    torch.testing.assert_close(loaded(x).variance, embedder(x).variance, rtol=0, atol=0)
    again = Refits.of(embedder, x).fit(torch.arange(len(y)), y).fitted_.posterior
    torch.testing.assert_close(again.variance, embedder.posterior_.variance, rtol=1e-9, atol=0)


def test_one_layer_has_the_prior_of_auto():
    x, y = points()
    pair = [
        LaplaceEmbedder(nn.Linear(6, 3).double(), prior_precision=prior, temperature=1.0)
        for prior in ("auto", "layerwise")
    ]
    pair[1].model.load_state_dict(pair[0].model.state_dict())
    one, other = (embedder.fit([(x, y)], progress=False).posterior_ for embedder in pair)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-12, atol=0)
    first, second = (embedder.fitted_.predictive_prior for embedder in pair)
    assert first == second is not None


def test_a_loss_that_vanishes_leaves_every_layer_the_prior_of_its_weights():
    """Of unbalanced classes its curvature is not zero."""
    x, y = points()
    some = torch.arange(len(y)) > len(y) // 4
    model = chain()
    how = {"distance": "euclidean", "hessian": "fixed", "prior_precision": "layerwise"}
    embedder = LaplaceEmbedder(model, head=model, **how)
    with pytest.warns(DegenerateCurvatureWarning):
        embedder.fit([(x[some], y[some])], progress=False)
    assert float(embedder.hessian_.eigenvalues.max()) > 0
    found = embedder.posterior_.prior()
    for layer, prior in zip((model[0], model[2]), found.split([28, 15]), strict=True):
        theta = torch.cat([p.detach().flatten() for p in layer.parameters()])
        expected = torch.full_like(theta, len(theta) / float(theta.square().sum()))
        torch.testing.assert_close(prior, expected, rtol=1e-9, atol=0)


def test_a_layer_that_the_data_do_not_determine_has_the_prior_of_its_weights():
    layers = [Layout(2, 1, bias=False), Layout(1, 1, bias=False)]
    mean, eigenvalues = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([0.0, 1e-9, 3.0])
    for n_effective, first in ((10, 1.0), (1e4, 5e-10)):  # 1e-5 is more than a millionth of 1
        weights = of_layers(mean, eigenvalues, n_effective, layers)
        found = weights * of_one_observation(mean, eigenvalues, n_effective)
        torch.testing.assert_close(found, torch.tensor([first, first, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_heads_without_layers_and_what_couples_them_are_refused(structure):
    x, y = points()
    head = chain() if structure == "full" else nn.Sequential(*chain(), nn.LayerNorm(3).double())
    model = head
    embedder = LaplaceEmbedder(model, head=model, structure=structure, prior_precision="layerwise")
    with pytest.raises(InputError, match='prior_precision="layerwise".*head of linear'):
        embedder.fit([(x, y)], progress=False)


def test_words_that_are_none_are_refused():
    with pytest.raises(UnknownNameError, match="'layers'.*auto.*layerwise.*number above 0"):
        LaplaceEmbedder(nn.Linear(2, 2), prior_precision="layers")
    with pytest.raises(UnknownNameError, match="temperature"):
        LaplaceEmbedder(nn.Linear(2, 2), temperature="layerwise")
