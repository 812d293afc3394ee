"""The sums against the dense Gauss-Newton matrix that autograd gives over all pairs, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import hessian, jacrev

from laplace_metric.heads._layers import Layout
from laplace_metric.image_text import _curvature as curvature
from laplace_metric.image_text import csd_similarity, pairwise_sigmoid_loss
from laplace_metric.image_text._curvature import TowerPairs, nearest_factors, tower_curvature

F64 = torch.float64


class Problem:
    """Two towers of a linear projection each, and the loss over all their pairs."""

    def __init__(self, n: int, m: int, d: int, size: int, *, bias: bool, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.layout = Layout(d, size, bias=bias)
        self.h = torch.randn(n, size, generator=g, dtype=F64)
        self.theta = torch.randn(self.layout.n_parameters, generator=g, dtype=F64)
        self.other = torch.randn(m, d, generator=g, dtype=F64)
        if m > 1:
            self.other[1] = self.other[0]  # a text that occurs twice
        if n > 1:
            self.h[1] = self.h[0]
        self.other = torch.nn.functional.normalize(self.other, dim=1)
        self.log_v = torch.randn(n, d, generator=g, dtype=F64) - 2
        self.log_v_other = torch.randn(m, d, generator=g, dtype=F64) - 2
        self.a, self.b = 4.0, -1.5
        self.match = torch.rand(n, m, generator=g) < 0.4
        self.match[0, 0] = True

    def raw(self, theta: Tensor) -> Tensor:
        return self.layout.augment(self.h) @ self.layout.fold(theta).mT

    def logits(self, theta: Tensor) -> Tensor:
        mu = torch.nn.functional.normalize(self.raw(theta), dim=1)
        return self.a * csd_similarity(mu, self.log_v, self.other, self.log_v_other) + self.b

    def pairs(self) -> TowerPairs:
        traces = (self.log_v.exp().sum(1), self.log_v_other.exp().sum(1))
        h, z = self.layout.augment(self.h), self.raw(self.theta)
        return TowerPairs(h, z, traces[0], self.other, traces[1], self.a, self.b)

    def oracle(self) -> Tensor:
        """J^T (d^2 loss / df^2) J / (N M), every derivative by autograd."""
        f = self.logits(self.theta)
        jacobian = jacrev(self.logits)(self.theta).flatten(0, 1)  # [N M, P]

        def loss(flat: Tensor) -> Tensor:
            y = torch.where(self.match, 1.0, -1.0).to(F64).flatten()
            return -torch.nn.functional.logsigmoid(y * flat).sum()

        return jacobian.mT @ hessian(loss)(f.flatten()) @ jacobian / f.numel()


PROBLEMS = {
    "n": st.integers(1, 5),
    "m": st.integers(1, 5),
    "d": st.integers(2, 4),
    "size": st.integers(1, 4),
    "bias": st.booleans(),
    "seed": st.integers(0, 10_000),
}


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_dense_and_diagonal_are_those_of_autograd(n, m, d, size, bias, seed):
    problem = Problem(n, m, d, size, bias=bias, seed=seed)
    oracle, pairs = problem.oracle(), problem.pairs()
    torch.testing.assert_close(pairs.dense(problem.layout), oracle, rtol=1e-9, atol=1e-12)
    diagonal = problem.layout.flatten(pairs.diagonal())
    torch.testing.assert_close(diagonal, oracle.diagonal(), rtol=1e-9, atol=1e-12)


def check_contractions(problem: Problem, seed: int) -> None:
    """Both contractions and the rotated diagonal, against the dense matrix of autograd."""
    layout, pairs, h = problem.layout, problem.pairs(), problem.oracle()
    d, columns = layout.n_outputs, layout.n_columns
    order = layout.fold(torch.arange(layout.n_parameters)).flatten()
    h = h[order][:, order].view(d, columns, d, columns)
    g = torch.Generator().manual_seed(seed)
    s, a = (torch.randn(k, k, generator=g, dtype=F64) for k in (d, columns))
    s, a = s + s.mT, a + a.mT
    left, right = torch.einsum("daeb,ab->de", h, a), torch.einsum("daeb,de->ab", h, s)
    torch.testing.assert_close(pairs.left_contraction(a), left, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(pairs.right_contraction(s), right, rtol=1e-8, atol=1e-11)
    q_s, q_a = (torch.linalg.eigh(x)[1] for x in (s, a))
    turned = torch.einsum("daeb,dk,al,ek,bl->kl", h, q_s, q_a, q_s, q_a)
    diagonal = pairs.rotated(q_s, q_a).diagonal()
    torch.testing.assert_close(diagonal, turned, rtol=1e-8, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_contractions_and_rotations_are_those_of_the_dense_matrix(n, m, d, size, bias, seed):
    check_contractions(Problem(n, m, d, size, bias=bias, seed=seed), seed)


def test_blocks_of_rows_give_the_same_sums(monkeypatch):
    problem = Problem(7, 5, 3, 4, bias=True, seed=3)
    whole = problem.pairs().left_contraction(torch.eye(5, dtype=F64)), problem.pairs().diagonal()
    monkeypatch.setattr(curvature, "ROWS", 10)  # two rows at once
    parts = problem.pairs().left_contraction(torch.eye(5, dtype=F64)), problem.pairs().diagonal()
    torch.testing.assert_close(parts, whole)


def test_the_nearest_product_is_that_of_the_singular_value_decomposition():
    problem = Problem(6, 5, 3, 4, bias=False, seed=5)
    h = problem.oracle().view(3, 4, 3, 4)
    u, sigma, v = torch.linalg.svd(h.permute(0, 2, 1, 3).reshape(9, 16))
    best = sigma[0] * u[:, :1] @ v[:1]
    factors = nearest_factors(problem.pairs(), problem.layout)
    product = factors.left.reshape(9, 1) @ factors.right.reshape(1, 16)
    residual = (h.permute(0, 2, 1, 3).reshape(9, 16) - product).norm()
    assert float(residual) <= 1.001 * float(sigma[1:].norm())
    torch.testing.assert_close(product, best, rtol=0, atol=0.05 * float(sigma[0]))


def matrix(problem: Problem, structure: str) -> Tensor:
    value = tower_curvature(problem.pairs(), problem.layout, structure)
    eye = torch.eye(problem.layout.n_parameters, dtype=F64)
    return value.basis.from_eigenbasis(value.basis.to_eigenbasis(eye) * value.eigenvalues)


def test_structures_come_nearer_the_dense_matrix():
    problem = Problem(6, 5, 3, 4, bias=True, seed=7)
    oracle = problem.oracle()
    torch.testing.assert_close(matrix(problem, "full"), oracle, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(matrix(problem, "diag"), oracle.diagonal().diag())
    kron, diag = (float((matrix(problem, s) - oracle).norm()) for s in ("kron", "diag"))
    assert kron < diag
    torch.testing.assert_close(matrix(problem, "kron").trace(), oracle.trace())


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_a_kronecker_curvature_is_exact(structure):
    """Images whose inputs are multiples of one: H is a single product."""
    problem = Problem(4, 3, 3, 2, bias=False, seed=1)
    problem.h = problem.h[:1] * torch.tensor([[1.0], [2.0], [0.5], [3.0]], dtype=F64)
    torch.testing.assert_close(matrix(problem, structure), problem.oracle(), rtol=1e-6, atol=1e-9)


def test_the_loss_of_the_oracle_is_the_loss_of_the_training():
    problem = Problem(5, 4, 3, 4, bias=True, seed=2)
    f, y = problem.logits(problem.theta), torch.where(problem.match, 1.0, -1.0).to(F64)
    s = (f - problem.b) / problem.a
    loss = pairwise_sigmoid_loss(s, problem.match, problem.a, problem.b)
    torch.testing.assert_close(loss, -torch.nn.functional.logsigmoid(y * f).sum() / 5)
