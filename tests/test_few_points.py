"""Fits to fewer points than the head has inputs, against the same fit in all of its inputs."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from laplace_metric import LaplaceEmbedder
from laplace_metric._utils.smallest_of_rows import smallest_of_rows
from laplace_metric.familiarity import _fit_set
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.laplace._draws import _noise
from laplace_metric.laplace.fit import _spanned
from laplace_metric.laplace.fit._executor import PassExecutor
from laplace_metric.laplace.fit._fit import HeadFit
from laplace_metric.laplace.fit._fit_storage import InMemory
from laplace_metric.laplace.fit._processes import ONE_PROCESS
from laplace_metric.models import Precomputed
from laplace_metric.models._blocks import Block
from laplace_metric.models._feature_store import FeatureStore

CLOSE = {"rtol": 1e-7, "atol": 1e-12}


def points(n, d, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    means = torch.randn(4, d, generator=generator, dtype=torch.float64)
    x = means[labels] + 0.5 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (scale * x).to(dtype), labels


def head(d, z, bias=True, seed=1, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Linear(d, z, bias=bias).to(dtype)


def both(monkeypatch, model, x, y, **options):
    """Fit in the space of the points, and in all inputs."""
    made = []
    for share in (0.75, 0.0):
        monkeypatch.setattr(_spanned, "FEW", share)
        monkeypatch.setattr(_fit_set, "FEW", share)
        made.append(LaplaceEmbedder(model, **options).fit([(x, y)], progress=False))
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("hessian", ["full", "positives", "fixed"])
@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_variances_and_novelty_are_those_of_a_fit_in_all_inputs(
    monkeypatch, bias, distance, hessian
):
    x, y = points(20, 40)
    new = torch.cat([x[:3], 2 * points(5, 40, seed=7)[0]])  # of the space, and outside of it
    options = {"distance": distance, "hessian": hessian, "temperature": 1.0}
    few, whole = both(monkeypatch, head(40, 6, bias), x, y, structure="kron", **options)
    assert few.posterior_.curvature.negative_fraction == pytest.approx(
        whole.posterior_.curvature.negative_fraction, abs=1e-9
    )
    torch.testing.assert_close(few.posterior_.variance, whole.posterior_.variance, **CLOSE)
    torch.testing.assert_close(few(new).variance, whole(new).variance, **CLOSE)
    torch.testing.assert_close(few(new).epistemic, whole(new).epistemic, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(few(new).ambiguity, whole(new).ambiguity, rtol=1e-6, atol=1e-8)
    assert few.fitted_.fingerprints.tolist() == whole.fitted_.fingerprints.tolist()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(4, 18),
    copies=st.integers(0, 3),
    seed=st.integers(0, 9),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_shapes_copies_and_sizes_of_inputs_change_nothing(n, copies, seed, scale):
    x, y = points(n, 24, seed, scale=scale)
    x, y = torch.cat([x, x[:copies]]), torch.cat([y, y[:copies]])
    model = head(24, 3, bias=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        few, whole = both(monkeypatch, model, x, y, structure="kron", temperature=1.0)
    largest = whole(x).variance.abs().max()
    torch.testing.assert_close(
        few(x).variance, whole(x).variance, rtol=1e-5, atol=float(1e-7 * largest)
    )
    assert (few.fitted_.near_far is None) == (whole.fitted_.near_far is None)
    if whole.fitted_.near_far is not None:
        torch.testing.assert_close(few(x).epistemic, whole(x).epistemic, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvectors_are_orthonormal_and_unseen_directions_have_the_prior(dtype):
    x, y = points(20, 40, dtype=dtype)
    fitted = LaplaceEmbedder(head(40, 6, dtype=dtype), structure="kron", temperature=1.0)
    posterior = fitted.fit([(x, y)], progress=False).posterior_
    (block,) = posterior.curvature.basis.blocks
    assert block.right.shape == (41, 41)
    assert block.right.dtype == dtype  # held once, as curvature and as posterior
    right, identity = block.right.double(), torch.eye(41, dtype=torch.float64)
    rounding = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(right.mT @ right, identity, rtol=0, atol=rounding)
    values = block.fold(posterior.curvature.eigenvalues)
    assert values[:, :21].abs().amax() > 0
    assert values[:, 21:].abs().amax() == 0
    unseen = torch.linalg.qr(x.double().mT, mode="complete").Q[:, 20:]
    inside = right[:-1, :21]
    torch.testing.assert_close(unseen.mT @ inside, torch.zeros(20, 21).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "width"), [(23, 23), (24, 24), (25, 40)])
def test_a_fit_set_of_few_points_is_seen_in_their_space(n, width):
    x, y = points(n, 40)
    read = _fit_set.FitSet.read([Block(0, x, y)], y.unique(), n)
    assert read.spanned().sample.u.shape == (n, width)
    assert read.spanned().scatter.total.shape == (width, width)
    apart = torch.cdist(read.sample.u, read.sample.u)
    seen = read.spanned().sample.u
    torch.testing.assert_close(torch.cdist(seen, seen), apart, rtol=1e-6, atol=1e-7)


def test_a_fit_set_that_is_sampled_is_seen_as_it_is(monkeypatch):
    monkeypatch.setattr(_fit_set, "SAMPLED", 19)
    x, y = points(20, 40)
    read = _fit_set.FitSet.read([Block(0, x, y)], y.unique(), 20)
    assert read.spanned() is read


def test_draws_of_points_have_the_covariance_of_the_posterior():
    """Draws in the space of the points, which choose the temperature, against the variance."""
    x, y = points(20, 40)
    model = head(40, 6)
    options = {"distance": "euclidean", "hessian": "positives", "temperature": 1.0}
    fitted = LaplaceEmbedder(model, structure="kron", **options)
    fitted.fit([(x, y)], progress=False)
    space = _spanned.SpannedSpace.of(fitted.fitted_.jacobian, x)
    inner = jacobian_of(space.module(), 6)
    assert space.module().in_features == 20
    torch.testing.assert_close(inner.forward(space.coordinates(x)), model(x), **CLOSE)
    whole = fitted.fitted_
    located = replace(whole.head, module=space.module())
    curvature = _curvature(HeadFit.of(located, fitted.settings), space.store(FeatureStore.of(x, y)))
    reduced = space.reduced(whole, inner, curvature, fitted.settings.positivity)
    noise = torch.cat(list(_noise(reduced.posterior, 4_000)))
    moved = inner.forward_with(space.coordinates(x), noise + inner.parameters) - model(x).detach()
    drawn = moved.square().mean(0)
    torch.testing.assert_close(drawn, fitted(x).variance, rtol=0.2, atol=0)
    assert float((drawn / fitted(x).variance).mean()) == pytest.approx(1, abs=0.02)


def _curvature(fit, store):
    return PassExecutor(store, ONE_PROCESS, InMemory(2**20)).execute(fit.passes())


def test_the_temperature_and_what_draws_do_are_those_of_the_whole_space(monkeypatch):
    x, y = points(60, 160)
    model = head(160, 8)
    few, whole = both(monkeypatch, model, x, y, structure="kron")
    ratio = few.posterior_.temperature / whole.posterior_.temperature
    assert 1 / 4 < ratio < 4  # of other random numbers
    assert few.fitted_.draws.recall == pytest.approx(whole.fitted_.draws.recall, abs=0.06)


def test_more_points_and_other_structures_are_fitted_in_all_inputs(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(_spanned.SpannedSpace, "of", refuse)
    x, y = points(20, 40)
    LaplaceEmbedder(head(40, 6), structure="diag").fit([(x, y)], progress=False)
    x, y = points(25, 40)
    LaplaceEmbedder(head(40, 6), structure="kron").fit([(x, y)], progress=False)
    x, y = points(24, 40)
    with pytest.raises(AssertionError):
        LaplaceEmbedder(head(40, 6), structure="kron").fit([(x, y)], progress=False)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_smallest_of_rows_is_the_first_of_equal_ones(device):
    values = torch.tensor([[2.0, 1.0, 1.0], [0.0, 3.0, 0.0], [torch.inf] * 3], device=device)
    found = smallest_of_rows(values)
    assert found.shape == (3,)
    assert found.dtype == torch.int64
    if device == "cpu":
        assert found.tolist() == [1, 0, 0]


def test_a_fit_to_few_points_draws_no_number_of_the_global_generator():
    x, y = points(20, 40)
    model = head(40, 6)
    before = torch.get_rng_state()
    LaplaceEmbedder(model, structure="kron").fit([(x, y)], progress=False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bias", [False, True])
def test_lifted_factors_are_those_of_the_whole_space(bias):
    x, y = points(20, 40)
    options = {"structure": "kron", "distance": "euclidean", "hessian": "positives"}
    fitted = LaplaceEmbedder(head(40, 6, bias), **options).fit([(x, y)], progress=False)
    space = _spanned.SpannedSpace.of(fitted.fitted_.jacobian, x)
    located = replace(fitted.fitted_.head, module=space.module())
    store = FeatureStore.of(x, y)
    inside = _curvature(HeadFit.of(located, fitted.settings), space.store(store))
    whole = _curvature(HeadFit.of(fitted.fitted_.head, fitted.settings), store)
    for found in zip(space.lifted(inside).factors, whole.factors, strict=True):
        one, other = (torch.kron(f.left, f.right) for f in found)  # their scales may differ
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7 * float(other.abs().max()))


def subnormal(values) -> int:
    """Number of entries that are not 0 and smaller than any normal number of their type."""
    return int(((values != 0) & (values.abs() < torch.finfo(values.dtype).tiny)).sum())


def tensors_of(found, seen: set[int]):
    """Yield all floating tensors that an object holds, however deep."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, torch.Tensor):
        if found.is_floating_point():
            yield found
        return
    held = found.values() if isinstance(found, dict) else ()
    held = found if isinstance(found, (list, tuple)) else held
    for part in (*held, *vars(found).values()) if hasattr(found, "__dict__") else held:
        yield from tensors_of(part, seen)


class Products(TorchDispatchMode):
    """Counts the products of float32 matrices with subnormal numbers, and of pairs of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mm.default and out.device.type == "cpu" and out.numel():
            small = [x[x != 0].abs().min() for x in args if bool((x != 0).any())]
            tiny = torch.finfo(out.dtype).tiny
            if (len(small) == 2 and float(small[0]) * float(small[1]) < tiny) or subnormal(out):
                self.found.append(f"{[tuple(x.shape) for x in args]} {list(map(float, small))}")
        return out


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("appended", [True, False])
def test_no_product_of_a_fit_to_few_points_is_subnormal(appended, copies):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 400, generator=g), torch.arange(100) % 10
    x, y = x.repeat(copies, 1), y.repeat(copies)
    model = Precomputed(400) if appended else nn.Linear(400, 32)
    embedder = LaplaceEmbedder(model, head="append" if appended else None)
    with Products() as products:
        embedder.fit(x, y)
    assert not products.found
    held = list(tensors_of(embedder.fitted_, set()))
    assert len(held) > 5
    assert not any(map(subnormal, held))


def test_a_first_fit_to_few_points_does_not_import_sympy():
    code = """
import sys, torch, warnings
warnings.simplefilter("ignore")
from laplace_metric import LaplaceEmbedder
x, y = torch.randn(30, 100), torch.arange(30) % 3
embedder = LaplaceEmbedder(torch.nn.Linear(100, 4)).fit(x, y)
embedder(x).uncertainty, embedder(x).variance, embedder(x).epistemic, embedder.distance(x, x)
embedder.index(x, y).search(x, k=3)
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
