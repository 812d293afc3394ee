"""Every Jacobian backend against autograd, in parameter order, on every head that it takes."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from laplace_metric.errors import HeadError, MissingPackageError, UnknownNameError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._linear import LinearJacobian

B, D, Z = 4, 5, 3
CHAINS = {
    "linear": lambda: nn.Linear(D, Z),
    "no bias": lambda: nn.Linear(D, Z, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(D, 7), nn.ReLU(inplace=True), nn.Linear(7, Z)),
    "two layers": lambda: nn.Sequential(nn.Linear(D, 7, bias=False), nn.Linear(7, Z)),
    "deep": lambda: nn.Sequential(
        nn.Linear(D, 6), nn.GELU(), nn.Dropout(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, Z)
    ),
}
OTHERS = {
    "batch norm": lambda: nn.Sequential(nn.Linear(D, Z), nn.BatchNorm1d(Z)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(D), nn.Linear(D, Z)),
}
BACKPACK = ["linear", "no bias", "relu", "batch norm"]
CASES = [
    *((name, "auto") for name in CHAINS),
    *((name, "torch.func") for name in (*CHAINS, *OTHERS)),
    *((name, "backpack") for name in BACKPACK),
]


LINEAR, TWICE = nn.Linear(3, 3), nn.Tanh()
CHAINS_OR_NOT = {
    "a chain": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), True),
    "one layer": (nn.Sequential(nn.Linear(3, 2)), True),
    "no layer": (nn.Sequential(), False),
    "no sequence": (nn.Linear(3, 2), False),
    "a list": (nn.ModuleList([nn.Linear(3, 2)]), False),
    "an activation first": (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), False),
    "an activation last": (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), False),
    "a layer norm inside": (
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        False,
    ),
    "a layer twice": (nn.Sequential(LINEAR, nn.ReLU(), LINEAR), False),
    "an activation twice": (
        nn.Sequential(nn.Linear(3, 3), TWICE, nn.Linear(3, 3), TWICE, nn.Linear(3, 2)),
        False,
    ),
    "a subclass of a layer": (nn.Sequential(type("Own", (nn.Linear,), {})(3, 2)), False),
}


@pytest.mark.parametrize("name", CHAINS_OR_NOT)
def test_only_chains_of_distinct_layers_have_a_closed_form(name):
    module, fits = CHAINS_OR_NOT[name]
    assert ChainJacobian.fits(module) is fits


def make(name: str, dtype=torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return {**CHAINS, **OTHERS}[name]().to(dtype).train()


def backend_of(name: str, backend: str, dtype=torch.float64) -> tuple[nn.Module, HeadJacobian]:
    if backend == "backpack":
        pytest.importorskip("backpack", reason="the extra 'backpack' is not installed")
    module = make(name, dtype)
    return module, jacobian_of(module, Z, backend)


def oracle(module: nn.Module, h: torch.Tensor) -> torch.Tensor:
    module.eval()
    parameters = dict(module.named_parameters())
    parts = jacrev(lambda p: functional_call(module, p, (h,)))(parameters)
    module.train()
    return torch.cat([part.flatten(2) for part in parts.values()], dim=-1).detach()


def inputs(dtype=torch.float64) -> torch.Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_every_product_is_that_of_autograd(name, backend):
    module, head = backend_of(name, backend)
    h, state = inputs(), {k: v.clone() for k, v in module.state_dict().items()}
    j = oracle(module, h)
    tight = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(head.jacobian(h), j, **tight)
    torch.testing.assert_close(head.forward(h), module.eval()(h).detach(), **tight)
    module.train()
    g = torch.Generator().manual_seed(2)
    b = torch.randn(B, Z, Z, generator=g, dtype=torch.float64)
    b = b + b.mT  # symmetric of any sign
    expected = torch.einsum("bzp,bzy,byp->p", j, b, j)
    torch.testing.assert_close(head.diagonal(h, b), expected, **tight)
    v = torch.randn(B, 2, Z, generator=g, dtype=torch.float64)
    torch.testing.assert_close(head.vjp(h, v), torch.einsum("brz,bzp->rp", v, j), **tight)
    assert head.n_parameters == j.shape[-1] == len(head.parameters)
    assert torch.equal(head.parameters, nn.utils.parameters_to_vector(module.parameters()))
    assert module.training
    assert all(part.training for part in module.modules())
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_float32_agrees(name, backend):
    _, head = backend_of(name, backend, torch.float32)
    expected = oracle(make(name), inputs()).float()
    ours = head.jacobian(inputs().float())
    assert ours.dtype == torch.float32
    assert float((ours - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_perturbed_runs_the_module_under_each_parameter_vector(name, backend):
    module, head = backend_of(name, backend)
    vectors = torch.randn(6, head.n_parameters, dtype=torch.float64)
    draws = head.forward_with(inputs(), vectors)
    for vector, z in zip(vectors, draws, strict=True):
        copy = make(name)
        copy.load_state_dict(module.state_dict())
        nn.utils.vector_to_parameters(vector, copy.parameters())
        torch.testing.assert_close(z, copy.eval()(inputs()).detach())


@pytest.mark.parametrize("name", CHAINS)
def test_layers_are_the_jacobian(name):
    _, head = backend_of(name, "auto")
    layers = head.layers(inputs())
    whole = torch.cat([layer.jacobian(Z) for layer in layers], dim=-1)
    torch.testing.assert_close(whole, oracle(make(name), inputs()))
    for layer in layers:
        m = layer.factor
        g = torch.Generator().manual_seed(3)
        dense = m.dense(Z).to(torch.float64).expand(B, -1, -1)
        o = dense.shape[2]
        v = torch.randn(B, Z, generator=g, dtype=torch.float64)
        q = torch.randn(B, generator=g, dtype=torch.float64)
        s = torch.randn(o, o, generator=g, dtype=torch.float64)
        basis = torch.linalg.qr(torch.randn(o, o, generator=g, dtype=torch.float64))[0]
        for factor, array in ((m, dense), (m.rotated(basis), dense @ basis)):
            gram = array.mT @ array
            torch.testing.assert_close(factor.vjp(v), torch.einsum("bzo,bz->bo", array, v))
            ours = factor.gram_diagonal().to(v).expand(B, o)
            torch.testing.assert_close(ours, gram.diagonal(dim1=1, dim2=2))
            ours = factor.gram_sum(q, o)
            torch.testing.assert_close(ours, torch.einsum("b,bop->op", q, gram))
            ours = factor.gram_inner(s).expand(B)
            torch.testing.assert_close(ours, torch.einsum("bop,op->b", gram, s))
            u = nn.functional.normalize(v)
            projected = factor.projected(u)
            expected = array - u[:, :, None] * (u[:, None, :] @ array)
            torch.testing.assert_close(projected.mT @ projected, expected.mT @ expected)
            torch.testing.assert_close(factor.projected(u, slice(1, 3)), projected[:, 1:3])


@pytest.mark.parametrize("bias", [True, False])
def test_layout_folds_and_flattens(bias):
    layout = Layout(3, 5, bias)
    vector = torch.arange(2.0 * layout.n_parameters).view(2, -1)
    folded = layout.fold(vector)
    assert folded.shape == (2, 3, 6 if bias else 5)
    assert torch.equal(layout.flatten(folded), vector)
    assert torch.equal(folded[0, 1, :5], vector[0, 5:10])


def test_auto_takes_the_closed_form_where_there_is_one():
    assert isinstance(jacobian_of(make("linear"), Z), LinearJacobian)
    assert isinstance(jacobian_of(make("deep"), Z), ChainJacobian)
    assert type(jacobian_of(make("batch norm"), Z)).__name__ == "FunctionalJacobian"
    shared = nn.Linear(Z, Z)
    for chain in (
        nn.Sequential(nn.ReLU(), nn.Linear(D, Z)),
        nn.Sequential(nn.Linear(D, Z), nn.ReLU()),
        nn.Sequential(nn.Linear(D, Z), nn.Softmax(1), shared),
        nn.Sequential(shared, shared),
    ):
        assert not ChainJacobian.fits(chain)


def test_bad_backends_are_named():
    with pytest.raises(UnknownNameError, match="backend='jax'.*'torch.func'"):
        jacobian_of(nn.Linear(2, 2), 2, "jax")
    with pytest.raises(HeadError, match="backend='torch.func'"):
        jacobian_of(make("batch norm"), Z, "analytic")


def test_half_precision_heads_are_read_in_float32():
    assert LinearJacobian.of(nn.Linear(2, 2).half()).weight.dtype == torch.float32
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).bfloat16()
    assert jacobian_of(module, 3).jacobian(torch.ones(1, 2)).dtype == torch.float32


def test_a_missing_nnj_says_where_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "nnj", None)
    assert isinstance(jacobian_of(make("linear"), Z), LinearJacobian)
    with pytest.raises(MissingPackageError, match=r"package 'nnj'.*git\+https://github"):
        jacobian_of(make("linear"), Z, "nnj")


def test_a_missing_backpack_says_how_to_get_it_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "backpack", None)
    with pytest.raises(MissingPackageError, match="--no-deps backpack-for-pytorch"):
        jacobian_of(nn.Linear(2, 2), 2, "backpack")


@pytest.mark.parametrize("name", CHAINS)
def test_a_head_has_the_dtype_that_it_was_cast_to(name):
    head = jacobian_of(CHAINS[name](), Z)
    assert head.dtype == torch.float32
    assert head.to(torch.float64).dtype == torch.float64
    assert head.to(torch.float64).to(torch.float32).dtype == torch.float32
    assert head.to(torch.float64).parameters.dtype == torch.float64
