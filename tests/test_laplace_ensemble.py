"""Several embedders with posteriors as one: embeddings, distances, indexes, guards and files."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from laplace_metric import Guard, Index, LaplaceEmbedder, LaplaceEnsemble
from laplace_metric.distributions import Concatenated, Gaussian, ProjectedNormal, vmf_concentration
from laplace_metric.errors import (
    FileFormatError,
    FittedQueriesWarning,
    HeadError,
    InputError,
    NotFittedError,
    UnknownNameError,
    WeightsChangedError,
    WideDrawsWarning,
)
from laplace_metric.laplace import Distance
from laplace_metric.laplace.distance._squared_distance import mixed_distance
from laplace_metric.training import train_embedder
from tests.saved_files import edit, parts_of

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
BOTH = pytest.mark.parametrize("distance", ["arccos", "euclidean"])
Z, WIDTH = 3, 5


def points(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(9))
    y = torch.arange(n) % 4
    return 2 * centres[y] + torch.randn(n, WIDTH, generator=g), y


def network(seed: int, hidden: int = 8, outputs: int = Z) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).eval()


def members(
    distance: str = "arccos", n: int = 3, *, float64: bool = False, **settings
) -> list[LaplaceEmbedder]:
    """Networks of other sizes below the head, whose head inputs differ in number."""
    hessian = "fixed" if distance == "arccos" else "positives"
    (x, y), dtype = points(), torch.float64 if float64 else torch.float32
    return [
        LaplaceEmbedder(
            network(seed, 8 + seed).to(dtype), distance=distance, hessian=hessian, **settings
        ).fit(x.to(dtype), y)
        for seed in range(n)
    ]


@BOTH
def test_inner_products_and_squared_distances_are_the_means_of_the_members(distance):
    several = members(distance)
    (x, _), ensemble = points(7, 1), LaplaceEnsemble(several)
    v, each = ensemble(x).mean, [member(x).mean for member in several]
    assert v.shape == (7, 3 * Z)
    torch.testing.assert_close(v @ v.mT, torch.stack([u @ u.mT for u in each]).mean(0))
    squared = torch.stack([torch.cdist(u, u).square() for u in each]).mean(0)
    torch.testing.assert_close(torch.cdist(v, v).square(), squared, atol=1e-5, rtol=1e-4)
    if distance == "arccos":
        torch.testing.assert_close(v.norm(dim=1), torch.ones(7))


@BOTH
def test_numbers_of_an_input_are_the_means_of_the_members(distance):
    several = members(distance)
    (x, _), ensemble = points(7, 1), LaplaceEnsemble(several)
    found = ensemble(x)
    for name in ("uncertainty", "epistemic", "near", "far", "local", "ambiguity"):
        expected = torch.stack([getattr(member(x), name) for member in several]).mean(0)
        torch.testing.assert_close(getattr(found, name), expected)
    variance = torch.cat([member(x).variance for member in several], 1) / 3
    torch.testing.assert_close(found.variance, variance)
    torch.testing.assert_close(found[2:4].epistemic, found.epistemic[2:4])
    torch.testing.assert_close(found[torch.tensor([5])].mean, found.mean[5:6])
    both = type(found).concatenate([found[:3], found[3:]])
    torch.testing.assert_close(both.variance, found.variance)
    (embedded, labels) = ensemble.embed([(x[:4], [0, 1, 2, 3]), (x[4:], [0, 1, 2])])
    torch.testing.assert_close(embedded.uncertainty, found.uncertainty)
    assert labels.tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_without_a_number_of_one_member_there_is_none():
    several = members()
    x, _ = points(7, 1)
    several[1]._fitted = copy.copy(several[1].fitted_)
    object.__setattr__(several[1]._fitted, "near_far", None)
    ensemble = LaplaceEnsemble(several)
    with pytest.raises(NotFittedError):
        _ = ensemble(x).epistemic
    # an index has traces in its place, of all members: the two are in other units
    found = ensemble.index(*points()).search(x, 3).hits
    np.testing.assert_allclose(found.epistemic, ensemble(x).uncertainty.numpy(), rtol=1e-4)


@BOTH
@pytest.mark.parametrize("shared_weights", [True, False])
def test_draws_have_the_distance_uncertainty_and_variance_of_the_ensemble(distance, shared_weights):
    """In float64, by 30,000 draws: those of shared weights, and those of the distribution."""
    several = members(distance, temperature=0.01, float64=True)
    (x, _), (y, _), n = points(6, 1), points(6, 2), 30_000
    x, y, ensemble = x.double(), y.double(), LaplaceEnsemble(several)
    found, both = ensemble(x), torch.cat([x, y])
    draws = (ensemble if shared_weights else ensemble(both)).sample(
        *([both] if shared_weights else []), n, seed=0
    )
    assert draws.shape == (n, 12, 3 * Z)
    assert draws.dtype == torch.float64
    squared = (draws[:, :6] - draws[:, 6:]).square().sum(2)
    told = ensemble.distance(x, y, shared_weights=shared_weights)
    torch.testing.assert_close(squared.mean(0), told.mean, rtol=0.01, atol=0)
    torch.testing.assert_close(squared.var(0), told.variance, rtol=0.05, atol=0)
    # about the mean of the member that is drawn: e_m (x) a_m = sqrt(M) v in the block of m
    gaps = draws[:, :6] - torch.where(draws[:, :6] == 0, 0.0, found.mean * 3**0.5)
    torch.testing.assert_close(gaps.square().sum(2).mean(0), found.uncertainty, rtol=0.05, atol=0)
    torch.testing.assert_close(gaps.square().mean(0), found.variance, rtol=0.1, atol=1e-5)


@BOTH
def test_a_draw_is_one_head_of_one_member_for_all_inputs(distance):
    several = members(distance, temperature=0.01)
    (x, _), ensemble = points(6, 1), LaplaceEnsemble(several)
    for draws in (ensemble.sample(x, 3000, seed=0), ensemble(x).sample(3000, seed=1)):
        blocks = (draws != 0).unflatten(2, (3, Z)).any(3)
        assert bool((blocks.sum(2) == 1).all())
        assert bool((blocks == blocks[:, :1]).all())
        assert blocks[:, 0].sum(0).tolist() == [1000, 1000, 1000]
        if distance == "arccos":
            torch.testing.assert_close(draws.norm(dim=2), torch.ones(3000, 6))
    assert torch.equal(ensemble.sample(x, 30, seed=0), ensemble.sample(x, 30, seed=0))
    one = ensemble.draw(5, seed=3)
    torch.testing.assert_close(one(x[:2]), one(x)[:, :2])
    own = [ensemble.sample(x[:1], 1, seed=s).reshape(3, Z).any(1).nonzero() for s in range(300)]
    assert torch.cat(own).flatten().bincount(minlength=3).min() > 70
    # four draws of three members: none is more likely to be the first
    first = [ensemble(x[:1]).sample(4, seed=s)[0].reshape(3, Z).any(1) for s in range(300)]
    assert torch.stack(first).sum(0).min() > 70


@BOTH
def test_the_distance_is_that_of_any_member(distance):
    several = members(distance)
    x, y = points(6, 1)[0], points(6, 2)[0]
    found = LaplaceEnsemble(several).distance(x, y)
    means = torch.stack([member.distance(x, y).mean for member in several])
    variances = torch.stack([member.distance(x, y).variance for member in several])
    torch.testing.assert_close(found.mean, means.mean(0))
    expected = variances.mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(found.variance, expected)
    independent = LaplaceEnsemble(several).distance(x, x, shared_weights=False)
    assert bool((independent.mean > LaplaceEnsemble(several).distance(x, x).mean + 1e-6).all())


def test_moments_of_the_mixture_are_those_of_draws_from_it():
    g = torch.Generator().manual_seed(0)
    means, spreads = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.1, 0.5, 1.0])
    member = torch.randint(3, (200_000,), generator=g)
    draws = means[member] + spreads[member] * torch.randn(200_000, generator=g)
    found = mixed_distance(
        [Distance(m[None], s[None] ** 2) for m, s in zip(means, spreads, strict=True)]
    )
    torch.testing.assert_close(found.mean[0], draws.mean(), rtol=0.01, atol=0)
    torch.testing.assert_close(found.variance[0], draws.var(), rtol=0.02, atol=0)
    nobody = mixed_distance([Distance(*torch.full((2, 1), torch.inf))] * 2)
    assert bool(nobody.mean.isinf() & nobody.variance.isinf())


@BOTH
@pytest.mark.parametrize("temperature", [None, 0.3])
def test_predictive_vectors_have_the_mean_of_the_expected_inner_products(distance, temperature):
    several = members(distance)
    x, _ = points(6, 1)
    v = LaplaceEnsemble(several).predictive_vectors(x, temperature=temperature)
    each = [member.predictive_vectors(x, temperature=temperature) for member in several]
    torch.testing.assert_close(v @ v.mT, torch.stack([u @ u.mT for u in each]).mean(0))


@BOTH
@pytest.mark.parametrize("rank_by", ["mean", "predictive", "shared", "auto"])
def test_an_index_finds_by_the_mean_distance_of_the_members(distance, rank_by, tmp_path):
    several = members(distance)
    ensemble, (x, y), (new, _) = LaplaceEnsemble(several), points(80), points(9, 5)
    index = ensemble.index(x, y, rank_by=rank_by)
    found = index.search(new, 5)
    if rank_by == "mean":
        each = [torch.cdist(member(new).mean, member(x).mean).square() for member in several]
        squared = torch.stack(each).mean(0)
        assert found.ids.tolist() == squared.topk(5, largest=False).indices.tolist()
        nearest = squared.sort(1).values[:, :5].sqrt()
        torch.testing.assert_close(found.distance, nearest.to(found.distance), rtol=1e-4, atol=1e-5)
    if distance == "euclidean" and rank_by != "predictive":  # directions: to second order there
        ids = torch.from_numpy(found.ids[:, 0].astype(int))
        exact = ensemble.distance(new, x[ids])
        expected = exact.standard_deviation / (2 * exact.mean.sqrt())
        expected = expected.to(found.distance_sd)
        torch.testing.assert_close(found.distance_sd[:, 0], expected, rtol=1e-3, atol=0)
    np.testing.assert_allclose(found.hits.epistemic, ensemble(new).epistemic, rtol=1e-4, atol=1e-5)
    assert found.hits.uncertainty.shape == (9,)
    index.save(tmp_path / "index.safetensors")
    again = Index.load(tmp_path / "index.safetensors", ensemble).search(new, 5)
    assert (again.ids == found.ids).all()
    torch.testing.assert_close(again.distance, found.distance)
    torch.testing.assert_close(again.distance_sd, found.distance_sd)
    assert again.hits.positions.shape == (9, 5)


def test_the_predictive_ranking_weighs_members_alike_whatever_their_lengths():
    """Directions: embeddings of one member that are 100 times as long change nothing."""
    several = members()
    x, y = points(80)
    before = LaplaceEnsemble(several).index(x, y, rank_by="predictive").ranking
    long = copy.deepcopy(several[1].model)
    long[2].weight.data *= 100
    long[2].bias.data *= 100
    settings = several[1].settings
    prior = several[1].posterior_.prior_precision
    longer = LaplaceEmbedder(long, prior_precision=prior * 1e-4, temperature=1.0).fit(*points())
    again = LaplaceEmbedder(several[1].model, prior_precision=prior, temperature=1.0).fit(*points())
    assert settings.distance == "arccos"
    rankings = [
        LaplaceEnsemble([several[0], member]).index(x, y, rank_by="predictive").ranking
        for member in (again, longer)
    ]
    assert rankings[0].share == rankings[1].share
    assert sorted(rankings[0].columns.tolist()) == sorted(rankings[1].columns.tolist())
    assert before.lost <= 0.05 + 1e-6


def test_ranks_that_are_given_are_kept_by_any_member():
    from laplace_metric.search import Predictive

    several = members()
    x, y = points(80)
    index = LaplaceEnsemble(several).index(x, y, rank_by=Predictive(share=0.5, rank=4))
    assert index.engine.vectors.shape == (80, 3 * Z + 4)
    whole = LaplaceEnsemble(several).index(x, y, rank_by=Predictive(share=0.5, rank=1000))
    assert whole.engine.vectors.shape == (80, 3 * Z + sum(8 + s + 1 for s in range(3)))
    torch.testing.assert_close(whole.engine.vectors.norm(dim=1), torch.ones(80))
    asked = whole.ranking.query_vectors(whole.encoder(x))
    torch.testing.assert_close(asked, whole.engine.vectors)
    less = LaplaceEnsemble(several).index(x, y, rank_by=Predictive(share=0.2, rank=1000))
    shares = [
        1 - float(_means_part(i.engine.vectors, several).square().sum(1).mean())
        for i in (less, whole)
    ]
    assert 0.1 < shares[0] < 0.3 < shares[1] < 0.6


def _means_part(vectors: Tensor, several: list[LaplaceEmbedder]) -> Tensor:
    """Coordinates of the means, of vectors with all columns of each member behind its own."""
    widths = [Z + 8 + s + 1 for s in range(len(several))]
    return torch.cat([part[:, :Z] for part in vectors.split(widths, 1)], 1)


def test_rankings_that_an_ensemble_has():
    several = members()
    x, y = points(40)
    with pytest.raises(UnknownNameError, match="rank_by"):
        LaplaceEnsemble(several).index(x, y, rank_by="expected")
    chain = LaplaceEmbedder(network(7), head=None).fit(x, y)
    chain = LaplaceEmbedder(chain.model, head=chain.model[0:]).fit(x, y)
    ensemble = LaplaceEnsemble([several[0], chain])
    with pytest.raises(InputError, match="needs head inputs"):
        ensemble.index(x, y, rank_by="predictive")
    assert ensemble.index(x, y).rank_by == "mean"
    assert ensemble.index(x, y, rank_by="shared").search(x[:3], 4).distance_sd.isfinite().all()
    with pytest.raises(HeadError):
        ensemble.predictive_vectors(x)


def test_calibrated_it_answers_and_abstains():
    x, y = points(600, 3)
    index = LaplaceEnsemble(members()).index(x[:200], y[:200])
    index.calibrate(x[200:400], y[200:400])
    found = index.search(x[400:])
    assert np.mean(np.asarray(found.label) == y[400:].numpy()) > 0.5
    assert bool(found.match_probability.isfinite().all())


def test_queries_of_the_fit_are_told_by_any_member_that_knows_them():
    several = members()
    several[0]._fitted = copy.copy(several[0].fitted_)
    object.__setattr__(several[0]._fitted, "fingerprints", None)
    x, y = points(60)
    index = LaplaceEnsemble(several).index(*points(60, 4))
    with pytest.warns(FittedQueriesWarning):
        index.calibrate(x, y)


@pytest.fixture(scope="module")
def guarded() -> Guard:
    x, y = points(900, 3)
    ensemble = LaplaceEnsemble(members())
    return Guard(x[:300], y[:300], model=ensemble, held_out=(x[300:700], y[300:700]), precision=0.6)


def test_a_guard_answers_with_it_and_is_saved(guarded, tmp_path):
    new, _ = points(50, 7)
    answers = guarded.ask(new)
    assert "3 embedders: distance='arccos'" in str(guarded)
    guarded.save(tmp_path / "guard.safetensors")
    models = [member.model for member in guarded.embedder.members]
    again = Guard.load(tmp_path / "guard.safetensors", models)
    assert isinstance(again.embedder, LaplaceEnsemble)
    assert again.ask(new).label.tolist() == answers.label.tolist()
    with pytest.raises(InputError, match="models has 2.*pass 3"):
        Guard.load(tmp_path / "guard.safetensors", models[:2])
    with pytest.raises(InputError, match="models.*one Sequential.*list of 3"):
        Guard.load(tmp_path / "guard.safetensors", models[0])
    held_out = points(400, 8)
    one = Guard(*points(60, 7), model=guarded.embedder.members[0], held_out=held_out, precision=0.6)
    one.save(tmp_path / "one.safetensors")
    with pytest.raises(InputError, match="model.*a list.*nn.Module"):
        Guard.load(tmp_path / "one.safetensors", models)


def test_what_a_guard_of_an_ensemble_refuses(guarded):
    x, y = points(60)
    with pytest.raises(InputError, match="a LaplaceEnsemble.*items.*calibrate"):
        Guard(x, y, model=guarded.embedder, trained_on_items=False)
    with pytest.raises(InputError, match="model.*a LaplaceEnsemble.*its own"):
        Guard(x, y, model=guarded.embedder, held_out=(x, y), hessian="full")


def test_a_guard_knows_what_any_member_was_trained_on():
    from pytorch_metric_learning.losses import ContrastiveLoss

    x, y = points(400, 3)
    trained = network(5)
    train_embedder(trained, [(x[200:], y[200:])], ContrastiveLoss(), epochs=1, progress=False)
    ensemble = LaplaceEnsemble([*members(n=2), LaplaceEmbedder(trained).fit(*points())])
    with pytest.warns(FittedQueriesWarning, match="model was trained.*100%"):
        Guard(x[:200], y[:200], model=ensemble, held_out=(x[200:], y[200:]), precision=0.6)


@BOTH
def test_it_is_saved_with_every_member(distance, tmp_path):
    several = members(distance)
    ensemble, (x, _) = LaplaceEnsemble(several), points(7, 1)
    ensemble.save(tmp_path / "e.safetensors")
    again = LaplaceEnsemble.load(tmp_path / "e.safetensors", [m.model for m in several])
    for name in ("mean", "variance", "epistemic"):
        assert torch.equal(getattr(again(x), name), getattr(ensemble(x), name))
    swapped = [m.model for m in several][::-1]
    with pytest.raises(FileFormatError):
        LaplaceEnsemble.load(tmp_path / "e.safetensors", swapped)
    names = {"ensemble", "posterior 0", "posterior 1", "posterior 2"}
    assert set(parts_of(tmp_path / "e.safetensors")) == names
    edit(tmp_path / "e.safetensors", "ensemble", members=1)
    with pytest.raises(FileFormatError, match="members"):
        LaplaceEnsemble.load(tmp_path / "e.safetensors", [m.model for m in several])
    several[0].save(tmp_path / "one.safetensors")
    with pytest.raises(FileFormatError, match="not.*saved ensemble"):
        LaplaceEnsemble.load(tmp_path / "one.safetensors", [several[0].model] * 2)


def test_members_without_a_model_are_saved_too(tmp_path):
    x, y = points()
    several = [LaplaceEmbedder.from_embeddings(x, y, n_effective=n) for n in (10.0, 1e4)]
    LaplaceEnsemble(several).save(tmp_path / "e.safetensors")
    again = LaplaceEnsemble.load(tmp_path / "e.safetensors")
    torch.testing.assert_close(again(x).variance, LaplaceEnsemble(several)(x).variance)
    edit(tmp_path / "e.safetensors", "ensemble", members=2)


def test_a_fit_is_of_every_member():
    several = members()
    before = [member.posterior_ for member in several]
    x, y = points(90, 8)
    ensemble = LaplaceEnsemble(several)
    assert ensemble.fit(pair for pair in [(x[:50], y[:50]), (x[50:], y[50:])]) is ensemble
    assert all(member.fitted_.n_points == 90 for member in several)
    assert all(a is not b.posterior_ for a, b in zip(before, several, strict=True))


def test_a_fit_that_fails_changes_no_member():
    several, (x, y) = members(), points(90, 8)
    ensemble, expected = LaplaceEnsemble(several), [member.posterior_ for member in several]
    before = ensemble(x).variance

    def fails(*_):
        raise RuntimeError("broken")

    handle = several[1].model.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="broken"):
        ensemble.fit(x, y)
    handle.remove()
    assert all(m.posterior_ is p for m, p in zip(several, expected, strict=True))
    assert torch.equal(ensemble(x).variance, before)
    ensemble.fit(x, y)
    alone = [LaplaceEmbedder(network(seed, 8 + seed)).fit(x, y) for seed in range(3)]
    for name in ("mean", "variance", "uncertainty", "epistemic"):
        assert torch.equal(getattr(ensemble(x), name), getattr(LaplaceEnsemble(alone)(x), name))
    several[2].model[0].weight.data.mul_(3)
    with pytest.raises(WeightsChangedError):
        ensemble(x)


def test_what_is_no_ensemble():
    several = members()
    x, y = points()
    with pytest.raises(InputError, match="members holds one LaplaceEmbedder.*list of two"):
        LaplaceEnsemble(several[:1])
    with pytest.raises(InputError, match="members holds one Sequential.*list of two"):
        LaplaceEnsemble([several[0].model])
    with pytest.raises(InputError, match="members is empty.*two LaplaceEmbedders"):
        LaplaceEnsemble([])
    with pytest.raises(InputError, match="members is.*LaplaceEmbedder"):
        LaplaceEnsemble(several[0])
    with pytest.raises(InputError, match=r"members\[1\].*a Sequential"):
        LaplaceEnsemble([several[0], several[1].model])
    with pytest.raises(NotFittedError, match=r"members\[1\].*not fitted"):
        LaplaceEnsemble([several[0], LaplaceEmbedder(network(5))])
    with pytest.raises(InputError, match=r"members\[0\].*members\[2\].*the same"):
        LaplaceEnsemble([several[0], several[1], several[0]])
    twin = LaplaceEmbedder(copy.deepcopy(several[0].model)).fit(x, y)
    with pytest.raises(InputError, match=r"members\[0\].*members\[1\].*the same"):
        LaplaceEnsemble([several[0], twin])
    wide = LaplaceEmbedder(network(5, outputs=Z + 1)).fit(x, y)
    with pytest.raises(InputError, match=r"members\[2\].*dimensions 4.*members\[0\] has 3"):
        LaplaceEnsemble([several[0], several[1], wide])
    with pytest.raises(InputError, match=r"geometry vectors.*members\[0\] has directions"):
        LaplaceEnsemble([several[0], members("euclidean")[1]])


@pytest.mark.parametrize(("temperature", "wide"), [(0.01, False), (100.0, True)])
def test_wide_draws_are_those_far_from_the_mean_of_their_member(temperature, wide):
    found = LaplaceEnsemble(members(temperature=temperature))(points(6, 1)[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found.sample(300, seed=0)
    assert any(issubclass(one.category, WideDrawsWarning) for one in caught) == wide


def test_a_draw_of_members_of_two_types_has_the_wider_one():
    several = [*members(n=1), *members(n=2, float64=True)[1:]]
    parts = [
        member(points(4)[0].to(t)).distribution
        for member, t in zip(several, (torch.float32, torch.float64), strict=True)
    ]
    assert Concatenated(parts).sample(5, seed=0).dtype == Concatenated(parts).mean.dtype


def test_other_heads_on_one_body_and_other_types():
    """Two heads on one body; and a member in float64."""
    x, y = points()
    body = network(0, outputs=6)[:2]
    heads = [nn.Sequential(body, nn.Linear(8, Z)) for _ in range(2)]
    with torch.random.fork_rng():
        several = [LaplaceEmbedder(head).fit(x, y) for head in heads]
    assert LaplaceEnsemble(several)(x).mean.shape == (60, 2 * Z)
    assert len(LaplaceEnsemble(several)) == 2
    assert "2 embedders with posteriors, each of 3 dimensions" in str(LaplaceEnsemble(several))


def test_side_by_side_distributions():
    g = torch.Generator().manual_seed(0)
    loc, variance = torch.randn(4, 3, generator=g) * 3, torch.rand(4, 3, generator=g)
    for kind in (Gaussian, ProjectedNormal):
        parts = [kind(loc, variance), kind(2 * loc, variance)]
        both = Concatenated(parts)
        draws = both.sample(20_000, seed=0)
        own_mean = torch.where(draws == 0, 0.0, both.mean * 2**0.5)
        torch.testing.assert_close(
            (draws - own_mean).square().sum(2).mean(0), both.total_variance, rtol=0.1, atol=0
        )
        totals = torch.stack([part.total_variance for part in parts])
        torch.testing.assert_close(both.total_variance, totals.mean(0))
        assert both.concentration.shape == (4,)
        assert both.sample(0).shape == (0, 4, 6)
    resultant = (draws * both.mean * 2**0.5).sum(2).mean(0)
    expected = vmf_concentration(resultant, 6)
    torch.testing.assert_close(both.concentration, expected, rtol=0.1, atol=0)
    gaussian = Concatenated([Gaussian(loc, variance)] * 2)
    alone = ProjectedNormal(torch.cat([loc, loc], 1), torch.cat([variance, variance], 1))
    torch.testing.assert_close(gaussian.concentration, alone.concentration)
    for parts in ([], [Gaussian(loc, variance), ProjectedNormal(loc, variance)], [both]):
        with pytest.raises(InputError, match="Gaussians.*ProjectedNormals"):
            Concatenated(parts)


def test_unit_vectors_of_members_stay_unit_vectors():
    x, _ = points(5, 1)
    several = members()
    v = LaplaceEnsemble(several)(x).mean
    torch.testing.assert_close(normalize(v, dim=1), v)
