"""A last fit after an online training, and the structures and the positivity of the training."""

from __future__ import annotations

import itertools

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import BatchEasyHardMiner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder, OnlineLaplace, datasets
from laplace_metric.errors import InputError, NotFittedError

silent = pytest.mark.filterwarnings(
    "ignore:the curvature is degenerate", "ignore:.*of the curvature was negative"
)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def train(model, batches, *, epochs=2, refit_loader=None, checkpoint=None, **settings):
    online = OnlineLaplace(model, **settings)
    return online.fit(
        batches,
        ContrastiveLoss(),
        epochs=epochs,
        seed=0,
        progress=False,
        refit_loader=refit_loader,
        checkpoint=checkpoint,
    )


@silent
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"structure": "full", "positivity": "clip", "prior_precision": 7.0, "n_effective": 30.0},
        {"structure": "diag", "positivity": "absolute"},
        {"distance": "euclidean", "hessian": "full", "margin": 1.0},
        {"head": "2", "backend": "torch.func"},
    ],
)
def test_a_last_fit_is_that_of_a_laplace_embedder(make_model, batches, points, settings):
    x, _ = points
    trained, model = make_model(), make_model()
    train(trained, batches, refit=False, **settings)
    online = train(model, batches, **settings)
    assert same_weights(trained, model)
    expected = LaplaceEmbedder(model, **settings).fit(batches, progress=False)
    assert online.settings == expected.settings
    assert torch.equal(online(x).variance, expected(x).variance)
    assert torch.equal(online(x).epistemic, expected(x).epistemic)
    assert torch.equal(online(x).ambiguity, expected(x).ambiguity)


@silent
def test_a_last_fit_reads_the_loader_that_is_named(make_model, batches, points):
    x, y = points
    model = make_model()
    online = train(model, batches, refit=True, refit_loader=[(x[:32], y[:32])])
    assert online.fitted_.n_points == 32
    expected = LaplaceEmbedder(model).fit([(x[:32], y[:32])], progress=False)
    assert torch.equal(online(x).variance, expected(x).variance)


@silent
def test_a_last_fit_chooses_its_prior_by_its_own_evidence(make_model, batches):
    model = make_model()
    online = train(model, batches, refit=True, prior_precision="evidence", positivity="clip")
    expected = LaplaceEmbedder(model, positivity="clip").fit(batches, progress=False)
    expected.tune_prior()
    assert online.settings.prior_precision == expected.settings.prior_precision


@silent
def test_a_last_fit_has_all_pairs_also_with_a_miner(make_model, batches, points):
    online = train(make_model(), batches, refit=True, pairs=BatchEasyHardMiner(), structure="auto")
    assert online.settings.pairs == "all"
    assert bool(online(points[0]).epistemic.isfinite().all())


@silent
def test_modes_and_random_states_are_left_by_a_last_fit(make_model, batches, points):
    model = make_model(dropout=0.5).eval()
    loader = DataLoader(TensorDataset(*points), batch_size=12, shuffle=True)
    before = torch.get_rng_state()
    online = train(model, loader, refit=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part.training for part in model.modules())
    assert online.fitted_.n_points == 48


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"refit": False}, {"refit_loader": [1]}, "leave refit=True"),
        ({}, {"batches": iter}, "list_iterator can be read only once.*refit_loader"),
        ({"refit": True}, {"batches": lambda b: (x for x in b)}, "generator can be read only once"),
    ],
)
def test_a_last_fit_that_cannot_be_is_refused_before_the_training(
    make_model, batches, settings, given, message
):
    model, untouched = make_model(), make_model()
    loader = given.pop("batches", list)(batches)
    with pytest.raises(InputError, match=message):
        train(model, loader, epochs=1, **settings, **given)
    assert same_weights(model, untouched)


@silent
@pytest.mark.parametrize("positivity", ["clip", "absolute"])
def test_auto_is_the_structure_of_the_head(make_model, batches, points, positivity):
    model, named = make_model(), make_model()
    auto = train(model, batches, structure="auto", positivity=positivity, refit=False)
    kron = train(named, batches, structure="kron", positivity=positivity, refit=False)
    assert auto.settings == kron.settings
    assert auto.settings.structure == "kron"
    assert same_weights(model, named)
    assert torch.equal(auto(points[0]).variance, kron(points[0]).variance)
    wide = nn.Sequential(nn.Linear(6, 2049), nn.Linear(2049, 3))
    found = train(wide, batches[:1], epochs=1, structure="auto", refit=False)
    assert found.settings.structure == "diag"


@silent
def test_negative_curvature_counts_by_its_size_where_that_is_asked_for(make_model, batches):
    models = [make_model(), make_model()]
    rare = [(x, (torch.arange(len(x)) < 2).long()) for x, _ in batches]
    clip, absolute = (
        train(model, rare, positivity=positivity, prior_precision=1.0, refit=False)
        for model, positivity in zip(models, ("clip", "absolute"), strict=True)
    )
    assert clip.hessian_.negative_fraction > 0
    assert not same_weights(*models)  # the draws are others
    assert float(absolute.hessian_.eigenvalues.min()) >= 0
    assert (absolute.hessian_.eigenvalues > 0).sum() > (clip.hessian_.eigenvalues > 0).sum()


@silent
def test_a_last_fit_is_the_default(make_model, batches, points):
    """It sees all pairs, and has what a running posterior has not."""
    embedder = train(make_model(), batches)
    assert embedder.settings == train(make_model(), batches, refit=True).settings
    assert bool(embedder(points[0]).epistemic.isfinite().all())
    running = train(make_model(), batches, refit=False)
    assert running.settings.temperature == 1
    with pytest.raises(NotFittedError, match="OnlineLaplace.*refit is True"):
        _ = running(points[0]).epistemic


def test_print_shows_the_last_fit(make_model):
    assert "none" in repr(OnlineLaplace(make_model(), refit=False))
    shown = repr(OnlineLaplace(make_model(), positivity="clip"))
    assert "structure='auto', positivity='clip', prior_precision=auto" in shown


@silent
def test_a_finished_run_makes_its_last_fit_again(make_model, batches, points, tmp_path):
    model = make_model()
    first = train(model, batches, refit=True, checkpoint=tmp_path)
    again = train(make_model(3), batches, refit=True, checkpoint=tmp_path)
    assert torch.equal(first(points[0]).variance, again(points[0]).variance)
    assert torch.equal(first(points[0]).epistemic, again(points[0]).epistemic)


@silent
def test_the_running_posterior_of_wide_embeddings_tells_strangers_worse_than_a_last_fit():
    """Digits with 16 numbers an embedding; noise is foreign. Mean AUROC of four networks.

    Of each .77 to .97, and .977 to .999.
    """
    digits, new = datasets.load("digits"), datasets.load("digits", "test")
    known = new.pixels(slice(0, 300))
    noise = torch.rand(known.shape, generator=torch.Generator().manual_seed(5))
    shares = torch.empty(4, 2)
    for seed, refit in itertools.product(range(4), (False, True)):
        torch.manual_seed(1 + seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        embedder = train(model, digits.loader(64), epochs=4, refit=refit)
        u = [embedder(x).uncertainty for x in (known, noise)]
        shares[seed, int(refit)] = (u[0][:, None] < u[1]).float().mean()
    assert bool((shares[:, 0] < shares[:, 1]).all())
    assert float(shares[:, 1].mean()) > 0.98
    assert (embedder(noise).epistemic.min() > embedder(known).epistemic.median()).item()
