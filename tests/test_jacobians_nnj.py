"""The nnj backend against autograd and against the same head in torch (skipped without nnj)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import HeadJacobian

nnj = pytest.importorskip("nnj", reason="nnj is not installed (it is not on the package index)")

B, D, Z = 4, 5, 3
HEADS = {
    "linear": lambda n: n.Linear(D, Z),
    "no bias": lambda n: n.Linear(D, Z, bias=False),
    "relu": lambda n: n.Sequential(n.Linear(D, 7), n.ReLU(), n.Linear(7, Z)),
    "one layer": lambda n: n.Sequential(n.Linear(D, Z)),
    "deep": lambda n: n.Sequential(
        n.Linear(D, 6), n.Sigmoid(), n.Linear(6, 4, bias=False), n.Tanh(), n.Linear(4, Z)
    ),
    "nested": lambda n: n.Sequential(
        n.Flatten(), n.Sequential(n.Linear(D, 6), n.Softplus()), n.Linear(6, Z), n.Softplus()
    ),
}
TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def make(name: str, package=nnj, dtype=torch.float64) -> nn.Module:
    torch.manual_seed(0)  # a float64 and a float32 head have the same weights
    return HEADS[name](package).to(dtype).train()


def oracle(name: str, h: torch.Tensor) -> torch.Tensor:
    """J [B, Z, P] of the same head built from torch's modules."""
    module = make(name, nn)
    parts = jacrev(lambda p: functional_call(module, p, (h,)))(dict(module.named_parameters()))
    return torch.cat([part.flatten(2) for part in parts.values()], dim=-1).detach()


def inputs(n: int = B) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def symmetric(n: int) -> torch.Tensor:
    b = torch.randn(n, Z, Z, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return b + b.mT


def check_products(head: HeadJacobian, name: str) -> None:
    h, b = inputs(), symmetric(B)
    j = oracle(name, h)
    torch.testing.assert_close(head.jacobian(h), j, **TIGHT)
    torch.testing.assert_close(head.forward(h), make(name, nn)(h).detach(), **TIGHT)
    expected = torch.einsum("bzp,bzy,byp->p", j, b, j)
    torch.testing.assert_close(head.diagonal(h, b), expected, **TIGHT)
    v = torch.randn(B, 2, Z, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(head.vjp(h, v), torch.einsum("brz,bzp->rp", v, j), **TIGHT)


@pytest.mark.parametrize("backend", ["nnj", "auto"])
@pytest.mark.parametrize("name", HEADS)
def test_every_product_is_that_of_autograd(name, backend):
    module = make(name)
    head = jacobian_of(module, Z, backend)
    linear = isinstance(module, nn.Linear) and backend == "auto"
    assert type(head).__name__ == ("LinearJacobian" if linear else "NnjJacobian")
    check_products(head, name)
    vector = nn.utils.parameters_to_vector(module.parameters())
    assert torch.equal(head.parameters, vector)
    assert head.n_parameters == len(vector)


@pytest.mark.parametrize("name", HEADS)
def test_float32_agrees(name):
    expected = oracle(name, inputs()).float()
    head = jacobian_of(make(name, dtype=torch.float32), Z)
    ours = head.jacobian(inputs().float())
    assert ours.dtype == torch.float32
    assert float((ours - expected).norm() / expected.norm()) < 1e-5
    b = symmetric(B)
    expected = jacobian_of(make(name, nn), Z, "torch.func").diagonal(inputs(), b)
    ours = head.diagonal(inputs().float(), b.float())
    assert float((ours - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("name", HEADS)
def test_perturbed_runs_the_module_under_each_parameter_vector(name):
    head, twin = jacobian_of(make(name), Z), make(name, nn)
    vectors = torch.randn(6, head.n_parameters, dtype=torch.float64)
    for vector, z in zip(vectors, head.forward_with(inputs(), vectors), strict=True):
        nn.utils.vector_to_parameters(vector, twin.parameters())
        torch.testing.assert_close(z, twin(inputs()).detach())


def test_a_long_batch_is_taken_in_blocks(monkeypatch):
    monkeypatch.setattr("laplace_metric.heads._nnj.JACOBIAN_BYTES", 8 * 100)
    h, b = inputs(11), symmetric(11)
    ours = jacobian_of(make("relu"), Z).diagonal(h, b)
    torch.testing.assert_close(ours, jacobian_of(make("relu", nn), Z).diagonal(h, b))


def test_the_users_head_is_left_alone():
    model = make("relu")
    before = model(torch.ones(1, D, dtype=torch.float64))
    maps = list(model.feature_maps)
    for module in (model, model[2]):
        head = jacobian_of(module, Z)
        h = inputs() if module is model else torch.ones(B, 7, dtype=torch.float64)
        head.jacobian(h), head.diagonal(h, symmetric(B)), head.forward(h)
        head.forward_with(h, head.parameters[None]), head.vjp(h, symmetric(B))
        assert len(model.feature_maps) == len(maps)
        assert all(a is b for a, b in zip(model.feature_maps, maps, strict=True))
    assert all(part.training for part in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(model(torch.ones(1, D, dtype=torch.float64)), before)


def test_copies_slices_and_chains_without_hooks():
    check_products(jacobian_of(copy.deepcopy(make("relu")), Z), "relu")
    torch.manual_seed(0)
    chain = nnj.Sequential(nnj.Linear(D, 7), nnj.ReLU(), nnj.Linear(7, Z), add_hooks=False)
    check_products(jacobian_of(chain.double(), Z), "relu")
    check_products(jacobian_of(nn.Sequential(*make("relu")), Z), "relu")
    model = nnj.Sequential(nnj.Tanh(), *make("relu"))
    check_products(jacobian_of(model[1:], Z), "relu")
    assert jacobian_of(make("relu").half(), Z).jacobian(torch.ones(1, D)).dtype == torch.float32


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("hessian", ["fixed", "positives", "full"])
@pytest.mark.parametrize("head", [None, "whole"])
def test_a_fitted_embedder_is_that_of_the_torch_head(distance, hessian, head):
    x, y = inputs(30), torch.arange(30) % 3
    # nnj's products do not see layers, which the Kronecker product needs: of a chain, the diagonal
    structure = "auto" if head is None else "diag"
    settings = {"distance": distance, "hessian": hessian, "margin": 0.3, "structure": structure}
    fitted = []
    for package in (nnj, nn):
        model = nn.Sequential(nn.Identity(), make("relu", package))
        name = None if head is None else "1"
        fitted.append(LaplaceEmbedder(model, head=name, **settings).fit([(x, y)], progress=False))
    ours, torchs = fitted
    torch.testing.assert_close(ours.hessian_.diagonal(), torchs.hessian_.diagonal())
    a, b = ours(x[:7]), torchs(x[:7])
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.variance, b.variance)
    torch.testing.assert_close(a.uncertainty, b.uncertainty)


def test_heads_that_nnj_does_not_know_are_named():
    torch_head = nn.Sequential(nnj.Linear(D, Z), nn.BatchNorm1d(Z))
    with pytest.raises(HeadError, match=r"BatchNorm1d.*with nnj\.Sequential"):
        jacobian_of(torch_head, Z, "nnj")
    skip = nnj.SkipConnection(nnj.Linear(D, Z))
    with pytest.raises(HeadError, match="nnj.skipconnection.SkipConnection"):
        jacobian_of(skip, Z + D, "nnj")
    assert type(jacobian_of(skip, Z + D)).__name__ == "FunctionalJacobian"
    layer = nnj.Linear(D, D)
    with pytest.raises(HeadError, match="used twice"):
        jacobian_of(nnj.Sequential(layer, layer), D, "nnj")
