"""Half precision of weights, or of products under autocast; never of the posterior."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

from laplace_metric import Guard, LaplaceEmbedder, OnlineLaplace
from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import HeadError
from laplace_metric.online import _online_run as step

X, Y = torch.randn(60, 16, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4
FAR = {"atol": 0.0, "rtol": 1e-5}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 6))


class Directions(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


def bfloat16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def test_what_is_nested_leaves_autocast_for_as_long_as_the_outermost():
    @full_precision()
    def product(depth: int = 1) -> torch.dtype:
        return product(depth - 1) if depth else (X @ X.mT).dtype

    with bfloat16():
        assert product() == torch.float32
        with full_precision():
            assert product(3) == torch.float32
            assert (X @ X.mT).dtype == torch.float32
        assert (X @ X.mT).dtype == torch.bfloat16
    assert product() == torch.float32


def seen_by_hand(model: nn.Module) -> Tensor:
    """What enters the head under autocast: rounded to 8 bits."""
    with bfloat16(), torch.no_grad():
        h = model[:2](X)
    assert h.dtype == torch.bfloat16
    return h.float()


def fit(model: nn.Module, x: Tensor, **settings) -> LaplaceEmbedder:
    return LaplaceEmbedder(model, **settings).fit(
        [(x[:25], Y[:25]), (x[25:], Y[25:])], progress=False
    )


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_a_fit_under_autocast_is_that_of_its_features(model, structure, distance):
    how = {"structure": structure, "distance": distance, "hessian": "positives"}
    expected = fit(model[2], seen_by_hand(model), **how)
    with bfloat16():
        fitted = fit(model, X, **how)
    wanted = expected.hessian_.eigenvalues
    torch.testing.assert_close(fitted.hessian_.eigenvalues, wanted, **FAR)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_a_call_under_autocast(model, structure):
    how = {"structure": structure, "distance": "euclidean", "hessian": "positives"}
    embedder, h = fit(model, X, **how), seen_by_hand(model)
    alone = LaplaceEmbedder.from_fitted(model[2], embedder.settings, embedder.fitted_)
    expected, joint = alone(h), alone.sample(h, 7, torch.Generator().manual_seed(0))
    with bfloat16():
        embedding = embedder(X)
        variance, draws = embedding.variance, embedding.sample(5, torch.Generator().manual_seed(0))
        weights, uncertainties = (
            embedder.posterior_.variance,
            embedder.uncertainties([X], progress=False),
        )
        sampled = embedder.sample(X, 7, torch.Generator().manual_seed(0))
        distance = embedder.distance(X[:5], X[5:10])
    torch.testing.assert_close(variance, expected.variance, **FAR)
    torch.testing.assert_close(uncertainties, expected.uncertainty, **FAR)
    torch.testing.assert_close(weights, fit(model, X, **how).posterior_.variance, **FAR)
    torch.testing.assert_close(sampled, joint, atol=1e-5, rtol=1e-5)
    assert torch.equal(draws, embedding.sample(5, torch.Generator().manual_seed(0)))
    spread = alone.distance(h[:5], h[5:10])
    torch.testing.assert_close(
        distance.variance, spread.variance, atol=0, rtol=0.02
    )  # z is rounded


def test_directions_under_autocast(model):
    embedder = fit(model, X, structure="kron")
    with bfloat16():
        embedding = embedder(X)
        inside = embedding.mean, embedding.variance, embedding.concentration
    assert {part.dtype for part in inside} == {torch.float32}
    assert torch.equal(inside[0], embedding.mean)
    assert torch.equal(inside[1], embedding.variance)
    assert torch.equal(inside[2], embedding.concentration)
    torch.testing.assert_close(embedding.mean.norm(dim=1), torch.ones(60))
    torch.testing.assert_close(embedding.mean, embedder(X).mean, atol=0.02, rtol=0)


def test_an_appended_head_stays_exact(model):
    with bfloat16():
        embedder = fit(model, X, head="append")
        output = model(X)
        embedding = embedder(X)
    assert output.dtype == torch.bfloat16
    assert torch.equal(embedding.mean, nn.functional.normalize(output.detach().float(), dim=-1))


@pytest.mark.parametrize("pairs", ["batch", MultiSimilarityMiner()])
def test_pairs_of_batches_under_autocast(model, pairs):
    expected = fit(model[2], seen_by_hand(model), pairs=pairs, structure="diag")
    with bfloat16():
        fitted = fit(model, X, pairs=pairs, structure="diag")
    wanted = expected.hessian_.diagonal()
    torch.testing.assert_close(fitted.hessian_.diagonal(), wanted, atol=1e-7, rtol=1e-4)


def test_online_draws_are_not_rounded(model, monkeypatch):
    dtypes = []
    real = step.sampled_pass
    monkeypatch.setattr(
        step,
        "sampled_pass",
        lambda m, h, x, offsets: dtypes.append(offsets.dtype) or real(m, h, x, offsets),
    )
    with bfloat16():
        online = OnlineLaplace(model, structure="kron")
        online.fit([(X, Y)] * 3, ContrastiveLoss(), epochs=1, progress=False)
    assert len(dtypes) >= 3
    assert set(dtypes) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights(model, dtype, tmp_path):
    short = copy.deepcopy(model).to(dtype)
    twin = copy.deepcopy(short).float()  # the same rounded weights
    how = {"structure": "kron", "temperature": 1.0}  # a chosen one depends on ties of the draws
    embedder = fit(short, X.to(dtype), **how)
    embedding, expected = embedder(X.to(dtype)), fit(twin, X.to(dtype).float(), **how)(X)
    assert embedding.mean.dtype == embedding.variance.dtype == torch.float32
    bits = torch.finfo(dtype).eps
    torch.testing.assert_close(embedding.mean, expected.mean, atol=4 * bits, rtol=0)
    for ours, theirs in (
        (embedding.uncertainty, expected.uncertainty),
        (embedding.variance.sum(1), expected.variance.sum(1)),
    ):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=8 * bits)
    embedder.save(tmp_path / "saved")
    again = LaplaceEmbedder.load(tmp_path / "saved", short)
    assert torch.equal(again(X.to(dtype)).variance, embedding.variance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("directions", [False, True], ids=["plain", "directions"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fitted_items_of_half_precision_weights_are_indexed_and_guarded(model, dtype, directions):
    """Parts of the items are fitted to what entered the head, which is kept in float32."""
    short = (nn.Sequential(*model, Directions()) if directions else model).to(dtype)
    x, y = (2 * torch.eye(16)[Y] + X).to(dtype), Y
    twin, twin_x = copy.deepcopy(short).float(), x.float()
    embedder, of_twin = fit(short, x), fit(twin, twin_x)
    for rank_by in ("auto", "predictive"):
        found = embedder.index(x, y, rank_by=rank_by).search(x[:5], k=1)
        expected = of_twin.index(twin_x, y, rank_by=rank_by).search(twin_x[:5], k=1)
        assert np.array_equal(found.ids, expected.ids)
    assert embedder.cross_index(x, y, seed=0).search(x[:5], k=3).ids.shape == (5, 3)
    later = x[::2] + torch.full_like(x[::2], 0.25)
    for how in ({"trained_on_items": False}, {"held_out": (later, y[::2])}):
        guard = Guard(x, y, model=short, precision=0.02, **how)
        assert guard.ask(later).probability.shape == (30,)
    assert {p.dtype for p in short.parameters()} == {dtype}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_autocast(model):
    model.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        embedding = fit(model, X)(X)
        inside = embedding.variance
    assert inside.device.type == "cuda"
    assert torch.equal(inside, embedding.variance)
    torch.testing.assert_close(inside, fit(model, X)(X).variance, atol=0, rtol=0.1)


class MixedInside(nn.Module):
    """A network whose forward pass has an autocast of its own, as they are trained today."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.last = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 4)
        self.kind, self.dtype = kind, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            h = self.body(x)
            if self.kind != "body":
                z = self.last(h)
                if self.kind == "directions":
                    z = nn.functional.normalize(z, dim=-1)
                return z if self.kind == "half precision" else z.float()
        return self.last(h.float())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["all", "body", "directions", "half precision"])
@pytest.mark.parametrize("head", [None, "append", "last"])
def test_autocast_inside_of_the_model(kind, dtype, head):
    """The posterior is that of the head inputs that the model gives, in float32."""
    model, y = MixedInside(kind, dtype), torch.arange(120) % 4
    x = 2 * torch.eye(8)[y] + torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
    embedder = LaplaceEmbedder(model, head=head).fit(x, y, progress=False)
    h = embedder.activations(x).features
    assert h.dtype == torch.float32
    found = embedder(x)
    with torch.no_grad():
        expected = model(x).float()
    if embedder.spherical:
        expected = nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(found.mean, expected, rtol=0.01, atol=0.01)
    alone = LaplaceEmbedder(nn.Sequential(embedder.head_.module), head="0")
    plain = alone.fit(h, y, progress=False)
    torch.testing.assert_close(plain(h).variance, found.variance, rtol=0.05, atol=1e-6)
    assert embedder.sample(x[:2], 5, seed=0).dtype == torch.float32
    assert embedder.index(x, y, progress=False).search(x[:2], k=3).ids.shape == (2, 3)


def test_a_head_that_is_not_whole_is_still_told_under_autocast():
    class Twice(MixedInside):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", self.dtype):
                return (1.2 * self.last(self.body(x))).float()

    x, y = torch.randn(40, 8), torch.arange(40) % 4
    with pytest.raises(HeadError, match="neither.*output z.*last. nor"):
        LaplaceEmbedder(Twice("all", torch.bfloat16)).fit(x, y, progress=False)
