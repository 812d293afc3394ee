from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from laplace_metric.jacobians import LinearJacobian
from laplace_metric.posterior import Posterior


@pytest.mark.parametrize("bias", [True, False])
def test_analytic_against_autograd_in_parameter_order(bias):
    torch.manual_seed(0)
    module, h = nn.Linear(5, 3, bias=bias).double(), torch.randn(4, 5, dtype=torch.float64)
    head = LinearJacobian.of(module)
    parameters = dict(module.named_parameters())
    parts = jacrev(lambda p: functional_call(module, p, (h,)))(parameters)
    oracle = torch.cat([part.flatten(2) for part in parts.values()], dim=-1)
    torch.testing.assert_close(head.jacobian(h), oracle)
    torch.testing.assert_close(head.raw(h), module(h).detach())
    assert head.n_parameters == oracle.shape[-1] == len(head.parameters)
    assert torch.equal(head.parameters, nn.utils.parameters_to_vector(module.parameters()))
    s = torch.rand(head.n_parameters, dtype=torch.float64)
    covariance = oracle @ s.diag() @ oracle.mT
    torch.testing.assert_close(head.variance(h, s), covariance.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("bias", [True, False])
def test_perturbed_runs_the_module_under_each_parameter_vector(bias):
    torch.manual_seed(0)
    module, h = nn.Linear(5, 3, bias=bias), torch.randn(4, 5)
    head = LinearJacobian.of(module)
    vectors = torch.randn(6, head.n_parameters)
    draws = head.perturbed(h, vectors)
    for vector, z in zip(vectors, draws, strict=True):
        copy = nn.Linear(5, 3, bias=bias)
        nn.utils.vector_to_parameters(vector, copy.parameters())
        torch.testing.assert_close(z, copy(h).detach())


@pytest.mark.parametrize("bias", [True, False])
def test_augmented_and_flat_orders_are_inverse(bias):
    head = LinearJacobian.of(nn.Linear(5, 3, bias=bias))
    weight, b = head.unflatten(head.parameters)
    columns = [weight] + ([b[:, None]] if bias else [])
    assert torch.equal(head.flatten_augmented(torch.cat(columns, dim=1)), head.parameters)
    assert head.augment(torch.ones(2, 5)).shape == (2, 6 if bias else 5)


def test_half_precision_heads_are_read_in_float32():
    assert LinearJacobian.of(nn.Linear(2, 2).half()).weight.dtype == torch.float32


def test_posterior_samples_have_the_posterior_moments(model, loader):
    from laplace_metric import LaplaceEmbedder

    posterior: Posterior = LaplaceEmbedder(model).fit(loader, progress=False).posterior_
    draws = posterior.sample(100_000, torch.Generator().manual_seed(0))
    z = (draws.mean(0) - posterior.mean) / (posterior.variance / len(draws)).sqrt()
    assert float(z.abs().max()) < 5
    torch.testing.assert_close(draws.var(0), posterior.variance, rtol=0.03, atol=0)
    other = posterior.with_prior_precision(100.0)
    assert bool((other.variance < posterior.variance).all())
