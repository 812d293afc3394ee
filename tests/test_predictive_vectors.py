"""Predictive vectors: one an input, whose inner products are the expected ones of all draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import (
    FileFormatError,
    HeadError,
    InputError,
    LaplaceMetricError,
    WeightsChangedError,
)
from laplace_metric.search._refit import Refits
from tests.saved_files import parts_of, rewrite

D, Z = 5, 3
STRUCTURES = ["diag", "kron", "full"]


def fitted(
    structure: str, distance: str = "euclidean", *, bias: bool = True, **settings
) -> tuple[LaplaceEmbedder, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(D, Z, bias=bias).double()
    g = torch.Generator().manual_seed(1)
    x, y = 1 + torch.randn(40, D, generator=g, dtype=torch.float64), torch.arange(40) % 4
    how = {"hessian": "positives", "structure": structure, "distance": distance, **settings}
    embedder = LaplaceEmbedder(head, **{"temperature": 0.5, **how})
    return embedder.fit([(x, y)], progress=False), x[:9]


def prior_of_vectors(embedder: LaplaceEmbedder) -> float:
    """That of the trained weights, unless a number was given."""
    theta, given = embedder.posterior_.mean, embedder.settings.prior_precision
    return given if not isinstance(given, str) else len(theta) / float(theta.square().sum())


def brute_force(embedder: LaplaceEmbedder, x: Tensor, *, temperature: float) -> Tensor:
    """``z_x' z_y + tr(J_x S J_y')`` for every pair of inputs, with S written out."""
    posterior = embedder.posterior_
    curvature = posterior.curvature.to_dense()
    eye = torch.eye(len(curvature), dtype=torch.float64)
    precision = posterior.n_effective * curvature + prior_of_vectors(embedder) * eye
    s = temperature * torch.linalg.inv(precision)
    jacobians = []
    for row in x:
        one = torch.cat([row, row.new_ones(1)]) if embedder.model.bias is not None else row
        weights = torch.kron(torch.eye(Z, dtype=torch.float64), row[None])  # W row by row, then b
        if embedder.model.bias is not None:
            weights = torch.cat([weights, one[-1] * torch.eye(Z, dtype=torch.float64)], 1)
        jacobians.append(weights)
    with torch.no_grad():
        z = embedder.model(x)
    spread = [[torch.trace(a @ s @ b.mT) for b in jacobians] for a in jacobians]
    return z @ z.mT + torch.tensor(spread, dtype=torch.float64)


def as_wide(embedder: LaplaceEmbedder) -> float:
    """Temperature at which directions without data are as wide as in the posterior."""
    posterior = embedder.posterior_
    return posterior.temperature * prior_of_vectors(embedder) / posterior.prior_precision


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_their_inner_products_are_those_of_the_posterior_written_out(structure, bias):
    embedder, x = fitted(structure, bias=bias)
    v = embedder.predictive_vectors(x)
    assert v.shape == (9, Z + D + bias)
    assert v.dtype == torch.float64
    assert not v.requires_grad
    torch.testing.assert_close(v[:, :Z], embedder(x).mean)
    torch.testing.assert_close(v @ v.mT, brute_force(embedder, x, temperature=as_wide(embedder)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_of_directions_their_cosines_are_those_of_the_expected_products(structure, bias):
    embedder, x = fitted(structure, "arccos", bias=bias)
    v = embedder.predictive_vectors(x)
    torch.testing.assert_close(v.norm(dim=1), torch.ones(9, dtype=torch.float64))
    products = brute_force(embedder, x, temperature=as_wide(embedder))
    lengths = products.diagonal().sqrt()
    torch.testing.assert_close(v @ v.mT, products / lengths[:, None] / lengths)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_their_inner_products_are_means_over_draws_of_the_head(structure, bias):
    """Within four standard errors of every pair."""
    embedder, x = fitted(structure, bias=bias, prior_precision=3.0)
    draws = embedder.sample(x, 40_000, torch.Generator().manual_seed(2))
    products = draws @ draws.mT
    error = products.std(0) / len(draws) ** 0.5
    v = embedder.predictive_vectors(x)
    assert bool(((v @ v.mT - products.mean(0)).abs() < 4 * error).all())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_their_squared_distances_are_the_expected_ones(structure, bias):
    embedder, x = fitted(structure, bias=bias, prior_precision=3.0)
    v = embedder.predictive_vectors(x)
    for shift in range(1, len(x)):
        expected = embedder.distance(x, x.roll(shift, 0)).mean
        torch.testing.assert_close((v - v.roll(shift, 0)).square().sum(1), expected)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("tuned", [False, True])
def test_a_number_is_the_prior_of_both_and_a_word_is_not(structure, tuned):
    auto, x = fitted(structure)
    assert auto.fitted_.predictive_prior == pytest.approx(prior_of_vectors(auto), rel=1e-12)
    other = fitted(structure, prior_precision="auto" if tuned else 3.0)[0]
    if tuned:
        other.tune_prior(bounds=(1e-3, 1e3))
    assert other.fitted_.predictive_prior is None
    assert other.fitted_.predictive_posterior is other.posterior_
    v = other.predictive_vectors(x)
    torch.testing.assert_close(v @ v.mT, brute_force(other, x, temperature=0.5))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_outside_of_the_data_they_are_as_wide_as_the_posterior_and_inside_no_narrower(structure):
    embedder, _ = fitted(structure)
    posterior, vectors = embedder.posterior_, embedder.fitted_.predictive_posterior
    free = posterior.curvature.eigenvalues < 1e-12 * posterior.curvature.eigenvalues.max()
    torch.testing.assert_close(posterior.spectrum[free], vectors.spectrum[free])
    assert bool((vectors.spectrum >= posterior.spectrum * (1 - 1e-12)).all())


def test_heads_that_are_not_one_linear_layer_have_no_second_prior():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, Z))
    x, y = torch.randn(40, D), torch.arange(40) % 4
    whole = LaplaceEmbedder(model, head=model).fit([(x, y)], progress=False)
    assert whole.fitted_.predictive_prior is None


def test_a_file_and_a_part_of_the_items_keep_it(tmp_path):
    embedder, x = fitted("kron")
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", embedder.model)
    assert loaded.fitted_.predictive_prior == embedder.fitted_.predictive_prior
    v = embedder.predictive_vectors(x)
    torch.testing.assert_close(loaded.predictive_vectors(x), v, rtol=0, atol=0)
    y = torch.arange(9) % 3
    part = Refits.of(embedder, x).fit(torch.arange(6), y[:6]).fitted_
    assert part.predictive_prior == embedder.fitted_.predictive_prior
    assert part.posterior.prior_precision == embedder.posterior_.prior_precision
    whole = embedder.fitted_.predictive_posterior.temperature
    assert part.predictive_posterior.temperature == pytest.approx(whole, rel=1e-12)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> nn.Module:
    """Save a posterior to a file whose content is then changed; returns its model."""
    embedder, _ = fitted("kron")
    embedder.save(path)
    (name,) = [name for name, part in parts_of(path).items() if "draws" in part.content]
    rewrite(path, name, lambda content, _: change(content))
    return embedder.model


@pytest.mark.parametrize("bad", [0.0, -1.0, "x"])
def test_a_file_with_a_prior_that_is_no_positive_number_is_refused(tmp_path, bad):
    model = rewritten(tmp_path / "bad", lambda content: content.update(predictive_prior=bad))
    with pytest.raises(FileFormatError, match="predictive_prior"):
        LaplaceEmbedder.load(tmp_path / "bad", model)


def test_a_file_without_it_searches_under_the_prior_of_its_posterior(tmp_path):
    model = rewritten(tmp_path / "old", lambda content: content.pop("predictive_prior"))
    assert LaplaceEmbedder.load(tmp_path / "old", model).fitted_.predictive_prior is None


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("temperature", [1e-3, 0.5, 40.0])
def test_another_temperature_scales_what_the_posterior_adds(structure, temperature):
    embedder, x = fitted(structure)
    v = embedder.predictive_vectors(x, temperature=temperature)
    torch.testing.assert_close(v @ v.mT, brute_force(embedder, x, temperature=temperature))
    given = {"temperature": temperature, "prior_precision": prior_of_vectors(embedder)}
    other = fitted(structure, **given)[0]  # as a fit at this temperature has them
    torch.testing.assert_close(other.predictive_vectors(x), v)
    assert embedder.posterior_.temperature == 0.5


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_no_batch_and_no_block_changes_a_vector(distance, monkeypatch):
    embedder, x = fitted("kron", distance)
    whole = embedder.predictive_vectors(x)
    alone = torch.cat([embedder.predictive_vectors(row[None]) for row in x])
    torch.testing.assert_close(alone, whole)
    monkeypatch.setattr("laplace_metric._utils.blocks.BLOCK_BYTES", 1)
    torch.testing.assert_close(embedder.predictive_vectors(x), whole)


def test_embeddings_without_a_model_have_them():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, D, generator=g), torch.arange(40) % 4
    embedder = LaplaceEmbedder.from_embeddings(x, y, distance="euclidean")
    v = embedder.predictive_vectors(x[:7])
    assert v.shape == (7, 2 * D)  # no bias
    torch.testing.assert_close(v[:, :D].float(), x[:7])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_head_of_several_layers_has_none(structure):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, Z)))
    x, y = torch.randn(40, D), torch.arange(40) % 4
    embedder = LaplaceEmbedder(model, head=model[0], structure=structure)
    embedder.fit([(x, y)], progress=False)
    with pytest.raises(HeadError, match="'0'.*not one linear"):
        embedder.predictive_vectors(x)


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, float("nan"), float("inf"), "x", True])
def test_a_temperature_that_is_no_positive_number_is_refused(temperature):
    embedder, x = fitted("diag")
    with pytest.raises(InputError, match="temperature"):
        embedder.predictive_vectors(x, temperature=temperature)


def test_bad_inputs_and_other_weights_are_named():
    embedder, x = fitted("kron", "arccos")
    with pytest.raises(LaplaceMetricError, match="NaN"):
        embedder.predictive_vectors(x.clone().fill_(torch.nan))
    with torch.no_grad():
        embedder.model.weight.mul_(2)
    with pytest.raises(WeightsChangedError):
        embedder.predictive_vectors(x)
