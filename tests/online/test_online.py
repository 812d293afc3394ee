"""Online Laplace against what it must equal: plain training, Monte Carlo, the recursion by hand."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss
from pytorch_metric_learning.miners import BatchEasyHardMiner
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature._structures import DiagCurvature
from laplace_metric.errors import (
    InputError,
)
from laplace_metric.heads._functional import FunctionalJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._locate import find_head
from laplace_metric.online import _online_run
from laplace_metric.online._running_curvature import RunningCurvature
from laplace_metric.online._sampled_pass import sampled_pass
from laplace_metric.training import train_embedder

running = partial(OnlineLaplace, refit=False)
"""Training that returns the posterior of its steps."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


class Normalised(nn.Module):
    """Ends in an l2 normalisation that is no module."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(self.body(x), dim=-1)


silent = pytest.mark.filterwarnings("ignore:the curvature is degenerate")


# --- without variance it is plain training ------------------------------------------------------


@silent
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("normalised", [False, True])
def test_without_variance_it_is_plain_training(make_model, batches, samples, normalised):
    plain, online = make_model(), make_model()
    ends = [Normalised(m) if normalised else m for m in (plain, online)]
    losses = train_embedder(ends[0], batches, ContrastiveLoss(), epochs=3, progress=False)
    laplace = running(ends[1], prior_precision=1e30, samples=samples)
    laplace.fit(batches, ContrastiveLoss(), epochs=3, progress=False)
    if samples == 1:
        assert same_weights(plain, online)
        assert laplace.losses_ == losses
    for a, b in zip(plain.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@silent
def test_dropout_and_batch_norm_happen_as_often_as_in_plain_training(batches):
    """Also inside the head: its statistics see each batch once, its masks are drawn once."""

    def net() -> nn.Sequential:
        torch.manual_seed(3)
        head = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), head)

    plain, online = net(), net()
    laplace = running(online, head=online[-1], prior_precision=1e30, samples=1)
    laplace.fit(batches, ContrastiveLoss(), epochs=2, seed=generator(4), progress=False)
    weights = generator(4)  # as ``fit`` seeds the global state from it
    torch.manual_seed(int(torch.randint(2**62, (), generator=weights)))
    train_embedder(plain, batches, ContrastiveLoss(), epochs=2, progress=False)
    assert same_weights(plain, online)
    many = net()
    laplace = running(many, head=many[-1], samples=3)
    laplace.fit(batches, ContrastiveLoss(), epochs=2, progress=False)
    assert int(many[-1][1].num_batches_tracked) == 6


# --- the gradient -------------------------------------------------------------------------------


def test_gradient_is_that_of_the_expected_loss(make_model, batches):
    """In float64, averaged over draws, against autograd at weights that were really moved."""
    model, loss = make_model().double(), ContrastiveLoss()
    x, y = batches[0][0].double(), batches[0][1]
    offsets = 0.4 * torch.randn(200, 27, generator=generator(), dtype=torch.float64)
    head = find_head(model, x)
    sampled = sampled_pass(model, head, x, offsets)
    torch.stack([loss(f, y) for f in sampled.embeddings]).mean().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for offset in offsets:
        moved = copy.deepcopy(model)
        start = nn.utils.parameters_to_vector(moved[-1].parameters()).detach()
        nn.utils.vector_to_parameters(start + offset, moved[-1].parameters())
        moved.zero_grad()
        loss(moved(x), y).backward()
        for total, p in zip(expected, moved.parameters(), strict=True):
            total += p.grad / len(offsets)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    # and it is not the gradient at the mean weights
    model.zero_grad()
    loss(model(x), y).backward()
    gap = (model[-1].weight.grad - gradients[2]).norm() / gradients[2].norm()
    assert float(gap) > 0.05


def quadratic(embeddings: Tensor, labels: Tensor) -> Tensor:
    """E_q of it is known: 1/2 |z|^2, z = W h, gives W hh^T; W also gets the noise of one draw."""
    return 0.5 * embeddings.square().sum(1).mean()


def test_first_step_goes_down_the_sampled_gradient_with_the_prior_s_spread():
    """One SGD step by hand: theta - lr * (theta + eps) hh^T with eps ~ N(0, 1/tau)."""
    model = nn.Linear(2, 2, bias=False).double()
    start, tau, rate = model.weight.detach().clone(), 4.0, 0.1
    x, y = torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double(), torch.tensor([0, 1])
    running(model, prior_precision=tau, samples=2).fit(
        [(x, y)],
        quadratic,
        epochs=1,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        seed=generator(7),
        progress=False,
    )
    weights = generator(7)
    torch.randint(2**62, (), generator=weights)  # the seed of the global state
    eps = torch.randn(2, 4, generator=weights, dtype=torch.float64).view(2, 2, 2) / tau**0.5
    second_moment = x.mT @ x / len(x)
    expected = start - rate * ((start + eps) @ second_moment).mean(0)
    torch.testing.assert_close(model.weight.detach(), expected)


# --- the curvature ------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """Every (features, head, kwargs) that a curvature was measured from, and its value."""
    recorded = []

    def spy(features, head, *args, **kwargs):
        value = batch_curvature(features, head, *args, **kwargs)
        recorded.append((features.clone(), head, kwargs, value))
        return value

    monkeypatch.setattr(_online_run, "batch_curvature", spy)
    return recorded


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999, 1.0])
def test_curvature_is_the_weighted_mean_of_the_batches(make_model, batches, recorded, decay):
    model = make_model()
    online = running(model, decay=decay, hessian="positives", samples=2)
    embedder = online.fit(batches, ContrastiveLoss(), epochs=2, progress=False)
    values = torch.stack([value.values for *_, value in recorded]).view(6, 2, -1).mean(1)
    weights = torch.tensor([decay ** (5 - k) for k in range(6)], dtype=torch.float64)
    expected = (weights[:, None] * values).sum(0) / weights.sum()
    torch.testing.assert_close(embedder.hessian_.eigenvalues, expected.clamp_min(0))


def test_curvature_is_measured_at_the_sampled_heads_before_the_step(make_model, batches, recorded):
    """The head of each measurement is theta_(t-1) + eps_t; the features are those of the step."""
    model, tau = make_model(), 50.0
    states = []

    class Spy(ContrastiveLoss):
        def forward(self, embeddings, labels, *args):
            states.append((copy.deepcopy(model), embeddings.detach().clone()))
            return super().forward(embeddings, labels, *args)

    running(model, prior_precision=tau, decay=0.5, n_effective=20.0, samples=1).fit(
        batches, Spy(), epochs=1, seed=generator(2), progress=False
    )
    weights, curvature = generator(2), None
    torch.randint(2**62, (), generator=weights)
    for t, ((x, y), (before, embeddings), (h, head, kwargs, value)) in enumerate(
        zip(batches, states, recorded, strict=True)
    ):
        torch.testing.assert_close(h, before[:-1](x).detach())
        torch.testing.assert_close(head.forward(h), embeddings)
        assert torch.equal(kwargs["labels"], y)
        precision = tau + (0 if curvature is None else 20.0 * curvature.clamp_min(0))
        eps = torch.randn(1, 27, generator=weights)[0].double() / torch.as_tensor(precision).sqrt()
        theta = nn.utils.parameters_to_vector(before[-1].parameters()).detach()
        torch.testing.assert_close(head.parameters, (theta + eps).float(), rtol=1e-5, atol=1e-6)
        contrast = LaplaceEmbedder(model).settings.loss(normalized=False)
        expected = batch_curvature(h, LinearJacobian(head.weight, head.bias), contrast, labels=y)
        torch.testing.assert_close(expected.values, value.values)
        a = 0.5 / (1 - 0.5 ** (t + 1))
        curvature = value.values if curvature is None else (1 - a) * curvature + a * value.values


def test_miner_feeds_loss_and_curvature(make_model, batches, recorded):
    mined = []

    class Spy(TripletMarginLoss):
        def forward(self, embeddings, labels, indices_tuple=None, **kwargs):
            mined.append(indices_tuple)
            return super().forward(embeddings, labels, indices_tuple, **kwargs)

    miner = BatchEasyHardMiner()
    online = running(make_model(), hessian="positives", pairs=miner, samples=1)
    embedder = online.fit(batches, Spy(), epochs=1, progress=False)
    assert len(mined) == len(recorded) == 3
    for tuples, (_, _, kwargs, _) in zip(mined, recorded, strict=True):
        pairs = zip(tuples, kwargs["indices_tuple"], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert embedder.settings.pairs is miner


def test_draws_of_kron_and_full_are_refreshed():
    running = RunningCurvature(decay=0.5, refresh=3)
    like, eigenvalues = torch.zeros(1), []
    for k in range(7):
        eigenvalues.append(float(running.spectral(like).eigenvalues))
        running.update(DiagCurvature(torch.tensor([float(2**k)], dtype=torch.float64)))
    assert eigenvalues[0] == 0.0
    assert eigenvalues[1] == eigenvalues[2] == eigenvalues[3] == 1.0
    assert eigenvalues[4] == eigenvalues[5] == eigenvalues[6] > 1.0


def test_batch_of_one_class_leaves_the_curvature(make_model, batches):
    one = (batches[0][0][:4], torch.zeros(4, dtype=torch.long))
    online = running(make_model(), hessian="positives")
    with pytest.warns(UserWarning, match="degenerate"):
        embedder = online.fit([one], quadratic, epochs=1, progress=False)
    assert float(embedder.hessian_.eigenvalues.max()) == 0.0
    embedder = online.fit([*batches, one], quadratic, epochs=1, progress=False)
    assert float(embedder.hessian_.eigenvalues.max()) > 0.0


# --- the whole ----------------------------------------------------------------------------------


@silent
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize(
    ("structure", "hessian"), [("diag", "fixed"), ("kron", "positives"), ("full", "full")]
)
def test_every_structure_and_hessian(make_model, points, batches, structure, hessian, distance):
    model = make_model()
    online = running(
        model, distance=distance, hessian=hessian, structure=structure, samples=2, refresh=2
    )
    embedder = online.fit(batches, ContrastiveLoss(), epochs=2, progress=False)
    assert isinstance(embedder, LaplaceEmbedder)
    assert torch.isfinite(embedder(points[0]).variance).all()
    assert (embedder(points[0]).variance > 0).all()
    assert embedder.sample(points[0], 4).shape == (4, 48, 3)
    assert len(online.losses_) == len(online.variances_) == 2
    if structure == "diag":
        mean = float(embedder.posterior_.variance.mean())
        assert online.variances_[-1] == pytest.approx(mean, rel=1e-5)


def test_heads_that_are_no_linear_layer(make_model, points, batches):
    for choose in (lambda m: m[-3:], lambda m: "2", lambda m: m):
        model = make_model()
        head = choose(model)
        embedder = running(model, head=head).fit(
            batches, ContrastiveLoss(), epochs=1, progress=False
        )
        assert torch.isfinite(embedder(points[0]).variance).all()
    general = running(make_model(), backend="torch.func", hessian="positives")
    closed = running(make_model(), hessian="positives")
    fits = [
        o.fit(batches, ContrastiveLoss(), epochs=1, seed=generator(), progress=False)
        for o in (general, closed)
    ]
    assert isinstance(fits[0].fitted_.jacobian, FunctionalJacobian)
    values = [fit.hessian_.eigenvalues for fit in fits]
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-7)


def test_nothing_global_is_touched(make_model, batches):
    import random

    import numpy as np

    model = make_model(dropout=0.5)
    model.train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    running(model, samples=2).fit(batches, ContrastiveLoss(), epochs=1, progress=False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002
    assert (model.training, model[0].training, model[2].training) == (True, True, False)
    assert not model[0].weight.requires_grad
    assert model[3].weight.requires_grad
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_same_generator_same_result_whatever_the_global_state(make_model, batches):
    models = [make_model(dropout=0.3) for _ in range(3)]
    for i, model in enumerate(models):
        torch.manual_seed(i)
        running(model).fit(
            batches, ContrastiveLoss(), epochs=2, seed=generator(i // 2), progress=False
        )
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


@silent
def test_a_data_parallel_model_is_trained_as_the_model_inside(make_model, batches):
    fits = []
    for wrap in (nn.Sequential, nn.DataParallel):
        model = make_model()
        online = running(wrap(model), head=None)
        online.fit(batches, ContrastiveLoss(), epochs=1, progress=False, seed=generator())
        fits.append(model)
    assert same_weights(*fits)


# --- the paper's recursion ----------------------------------------------------------------------


@silent
@pytest.mark.parametrize("decay", [0.5, 0.999, 1.0])
@pytest.mark.parametrize(("count", "n"), [("points", 48.0), ("pairs", 48.0**2), (7.0, 7.0)])
def test_the_paper_s_recursion_is_its_loop(make_model, batches, monkeypatch, decay, count, n):
    """P <- d P + n h, step by step in float64, against the posterior that is returned."""
    seen: list[Tensor] = []
    update = RunningCurvature.update

    def spy(self, batch):
        seen.append(batch.values.double())
        update(self, batch)

    monkeypatch.setattr(RunningCurvature, "update", spy)
    tau = 3.0
    model = make_model().double()
    data = [(x.double(), y) for x, y in batches]
    online = running(
        model, recursion="paper", decay=decay, n_effective=count, prior_precision=tau,
        hessian="positives", distance="euclidean",  # never negative: nothing is clipped
    )  # fmt: skip
    embedder = online.fit(data, ContrastiveLoss(), epochs=4, progress=False)
    precision = torch.full_like(seen[0], tau)
    for h in seen:
        precision = decay * precision + n * h
    torch.testing.assert_close(
        embedder.posterior_.variance.double(), 1 / precision, rtol=1e-9, atol=0
    )
    assert online.priors_ == pytest.approx([tau * decay ** (3 * k) for k in range(1, 5)])
    assert embedder.posterior_.prior_precision == pytest.approx(tau * decay ** len(seen))


def test_a_prior_that_is_forgotten_is_said(make_model, batches):
    online = running(make_model(), recursion="paper", decay=1e-8)
    with pytest.raises(InputError, match=r"forgotten.*prior after \d+"):
        online.fit(batches, ContrastiveLoss(), epochs=3, progress=False)


@silent
def test_the_evidence_chooses_the_prior_after_each_epoch(make_model, batches):
    online = running(make_model(), prior_precision="evidence")
    embedder = online.fit(batches, ContrastiveLoss(), epochs=3, progress=False)
    posterior = embedder.posterior_
    grid = torch.logspace(-3, 3, 61).tolist()
    values = [posterior.log_prior_and_determinant(online.priors_[-1] * x) for x in grid]
    assert max(values) == pytest.approx(values[30])
    assert embedder.settings.prior_precision == posterior.prior_precision == online.priors_[-1]
    assert online.priors_[0] != 1.0


@silent
def test_warming_up_is_plain_training_that_gathers_curvature(make_model, batches):
    plain, online = make_model(), make_model()
    train_embedder(plain, batches, ContrastiveLoss(), epochs=2, progress=False)
    warm = running(online, warmup=2, samples=3)
    fitted = warm.fit(batches, ContrastiveLoss(), epochs=2, progress=False)
    assert same_weights(plain, online)
    assert float(fitted.posterior_.variance.min()) < 1.0
    later = make_model()
    running(later, warmup=1).fit(batches, ContrastiveLoss(), epochs=2, progress=False)
    assert not same_weights(plain, later)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"recursion": "sum"}, "recursion"),
        ({"n_effective": "items"}, "n_effective"),
        ({"n_effective": "a number"}, "n_effective"),
        ({"n_effective": -1.0}, "n_effective"),
        ({"prior_precision": "evidance"}, "prior_precision"),
        ({"prior_precision": "evidence", "recursion": "paper"}, "lets fade"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 1.5}, "warmup"),
        ({"structure": "dense"}, "structure.*auto"),
        ({"positivity": "squared"}, "positivity.*absolute"),
        ({"positivity": "absolute", "recursion": "paper"}, "positivity='clip'"),
        ({"refit": "yes"}, "refit_loader"),
        ({"refit": [1, 2]}, "refit_loader"),
    ],
)
def test_what_cannot_be_is_refused(make_model, given, message):
    with pytest.raises(InputError, match=message):
        running(make_model(), **given)


@silent
def test_a_second_fit_begins_with_the_prior_that_was_asked_for(make_model, batches):
    online, first = running(make_model(), prior_precision="evidence"), None
    state = copy.deepcopy(online.model.state_dict())
    for _ in range(2):
        online.model.load_state_dict(state)
        online.fit(batches, ContrastiveLoss(), epochs=2, seed=0, progress=False)
        first = first or online.priors_
    assert online.priors_ == first
