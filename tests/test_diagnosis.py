from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import (
    DegenerateCurvatureWarning,
    InputError,
    LaplaceMetricWarning,
    NegativeCurvatureWarning,
    PriorAtEdgeWarning,
)


def fit(model, loader, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        return LaplaceEmbedder(model, **settings).fit(loader, progress=False)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_numbers_are_those_of_the_posterior(model, loader, data, structure):
    embedder = fit(model, loader, structure=structure, hessian="positives")
    d = embedder.diagnose(data[0])
    gained = embedder.posterior_.n_effective * embedder.hessian_.eigenvalues
    tau = embedder.posterior_.prior_precision
    assert d.prior_precision == tau
    assert d.n_parameters == 36
    assert d.n_effective_parameters == pytest.approx(float((gained / (gained + tau)).sum()))
    assert d.prior_dominated == pytest.approx(float((gained < tau).double().mean()))
    u = embedder(data[0]).uncertainty
    assert d.uncertainties.mean == pytest.approx(float(u.mean()))
    assert d.uncertainties.variation == pytest.approx(float(u.std(correction=0) / u.mean()))
    assert f"{d.n_parameters:,}" in str(d)
    assert "rank correlation" in str(d)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prior_precision": 1e9}, ["prior-dominated", "tune_prior"]),
        ({"distance": "euclidean"}, ["degenerate", "arccos"]),
        ({"distance": "euclidean", "hessian": "positives"}, ["nearly constant"]),
    ],
)
def test_findings_are_in_words(model, loader, data, settings, words):
    same = data[0][:1].expand(5, -1)
    d = fit(model, loader, **settings).diagnose(same)
    assert all(any(word in finding for finding in d.findings) for word in words)
    assert words[0] in str(d)


def test_length_explains_the_uncertainty_of_an_isotropic_posterior():
    x = nn.functional.normalize(torch.randn(50, 3)) * torch.linspace(1, 5, 50)[:, None]
    embedder = LaplaceEmbedder.from_embeddings(
        x, torch.arange(50) % 5, prior_precision=1e6, distance="arccos"
    )
    d = embedder.diagnose(x)  # h = z here, so h^2 / |z|^2 is the same for all: nothing is left
    assert any("nearly constant" in finding for finding in d.findings)
    biased = nn.Linear(3, 3).requires_grad_(False)
    nn.init.eye_(biased.weight)
    nn.init.zeros_(biased.bias)  # now h^2 + 1 over |z|^2
    embedder = LaplaceEmbedder(biased, prior_precision=1e6)
    embedder.fit([(x, torch.arange(50) % 5)], progress=False)
    assert any("1/|z|^2" in finding for finding in embedder.diagnose(x).findings)


def test_nothing_unusual(model, loader):
    embedder = fit(model, loader, hessian="positives")
    embedder.tune_prior()
    assert embedder.diagnose().findings == ("nothing unusual.",)


def test_n_effective_is_tuned_with_the_prior(model, loader):
    embedder = fit(model, loader, hessian="positives")

    def size(embedding) -> torch.Tensor:  # of the Gaussian: that of directions has an end
        return embedding.distribution.covariance.diagonal().mean()

    target = float(size(embedder(loader[0][0])))

    def metric(embedding, _):  # best at the variance that n_effective = 6, tau = 0.1 gives
        return -abs(float((size(embedding) / (10 * target)).log()))

    arguments = {"loader": loader, "metric": metric, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PriorAtEdgeWarning)
        tau = embedder.tune_prior("validation", tune_n_effective=True, **arguments)
    n = embedder.posterior_.n_effective
    assert embedder.settings.n_effective == n
    assert embedder.settings.prior_precision == tau
    assert abs(float((size(embedder(loader[0][0])) / (10 * target)).log())) < 1.2
    with pytest.raises(InputError, match="tune_n_effective=True needs method='validation'"):
        embedder.tune_prior(tune_n_effective=True)


def clusters(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of classes of these sizes, around centres of their own."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = 3 * torch.randn(len(counts), 8, generator=g)
    return centres[labels] + torch.randn(len(labels), 8, generator=g), labels


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_classes_of_one_member_are_degenerate(structure):
    x, _ = clusters([500])
    settings = {"distance": "euclidean", "hessian": "positives", "structure": structure}
    embedder = LaplaceEmbedder(nn.Linear(8, 3), **settings)
    with pytest.warns(DegenerateCurvatureWarning, match="degenerate"):
        embedder.fit([(100 + 30 * x, torch.arange(500))], progress=False)


def test_a_negative_curvature_that_counts_by_its_size_warns(tmp_path):
    loader = [clusters([40, 40, 40])]
    torch.manual_seed(0)
    head = nn.Linear(8, 3)
    settings = {"distance": "euclidean", "hessian": "full"}
    embedder = LaplaceEmbedder(head, **settings)
    with pytest.warns(NegativeCurvatureWarning, match=r"\d+%.*curvature.*negative"):
        embedder.fit(loader, progress=False)
    assert embedder.hessian_.negative_fraction >= 0.2
    assert any("counts by its size" in finding for finding in embedder.diagnose().findings)
    with pytest.warns(NegativeCurvatureWarning, match="evidence"):
        embedder.tune_prior()
    embedder.save(tmp_path / "saved")
    with pytest.warns(NegativeCurvatureWarning, match="ranking heuristic"):
        LaplaceEmbedder.load(tmp_path / "saved", head)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NegativeCurvatureWarning)
        LaplaceEmbedder(head, **settings, positivity="clip").fit(loader, progress=False)
        LaplaceEmbedder.from_embeddings(*loader[0], distance="arccos")  # balanced classes
