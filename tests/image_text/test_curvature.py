"""The sums against the dense Gauss-Newton matrix that autograd gives over all pairs, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import hessian, jacrev

from laplace_metric.heads._layout import Layout
from laplace_metric.image_text import csd_similarity, multi_positive_infonce, pairwise_sigmoid_loss
from laplace_metric.image_text.objectives import _sigmoid_curvature
from laplace_metric.image_text.objectives._sigmoid_curvature import (
    TowerPairs,
    nearest_factors,
    tower_curvature,
)
from laplace_metric.image_text.objectives._softmax_curvature import SoftmaxPairs

F64 = torch.float64


class Problem:
    """Two towers of a linear projection each, and the pairwise sigmoid loss over all pairs."""

    def __init__(self, n: int, m: int, d: int, size: int, *, bias: bool, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.layout = Layout(d, size, bias=bias)
        self.h = torch.randn(n, size, generator=g, dtype=F64)
        self.theta = torch.randn(self.layout.n_parameters, generator=g, dtype=F64)
        self.other = torch.randn(m, d, generator=g, dtype=F64)
        self.other[1:2] = self.other[:1]  # a text that occurs twice
        self.h[1:2] = self.h[:1]
        self.other = torch.nn.functional.normalize(self.other, dim=1)
        self.log_v = torch.randn(n, d, generator=g, dtype=F64) - 2
        self.log_v_other = torch.randn(m, d, generator=g, dtype=F64) - 2
        self.a, self.b = 4.0, -1.5
        self.match = torch.rand(n, m, generator=g) < 0.4
        self.match[:, 0] = self.match[0] = True

    def raw(self, theta: Tensor) -> Tensor:
        return self.layout.augment(self.h) @ self.layout.fold(theta).mT

    def scores(self, theta: Tensor) -> Tensor:
        mu = torch.nn.functional.normalize(self.raw(theta), dim=1)
        return csd_similarity(mu, self.log_v, self.other, self.log_v_other)

    def loss(self, s: Tensor) -> Tensor:
        """Of all pairs, averaged over them."""
        loss = pairwise_sigmoid_loss(s, self.match, self.a, self.b)
        return loss / s.shape[1]

    def pairs(self) -> TowerPairs:
        traces = (self.log_v.exp().sum(1), self.log_v_other.exp().sum(1))
        h, z = self.layout.augment(self.h), self.raw(self.theta)
        return TowerPairs(h, z, traces[0], self.other, traces[1], self.a, self.b)

    def oracle(self) -> Tensor:
        """J^T (d^2 loss / ds^2) J, every derivative by autograd."""
        s = self.scores(self.theta)
        jacobian = jacrev(self.scores)(self.theta).flatten(0, 1)  # [N M, P]
        middle = hessian(lambda flat: self.loss(flat.view(s.shape)))(s.flatten())
        return jacobian.mT @ middle @ jacobian


class SoftmaxProblem(Problem):
    """The same towers under InfoNCE of cosines."""

    def scores(self, theta: Tensor) -> Tensor:
        return torch.nn.functional.normalize(self.raw(theta), dim=1) @ self.other.mT

    def loss(self, s: Tensor) -> Tensor:
        return multi_positive_infonce(s, self.match, self.a)

    def pairs(self) -> SoftmaxPairs:
        h, z = self.layout.augment(self.h), self.raw(self.theta)
        zeros = torch.zeros(len(h), dtype=F64), torch.zeros(len(self.other), dtype=F64)
        return SoftmaxPairs(h, z, zeros[0], self.other, zeros[1], self.a, 0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([Problem, SoftmaxProblem]), st.integers(1, 5), st.integers(1, 5),
    st.integers(2, 4), st.integers(1, 4), st.booleans(), st.integers(0, 10_000),
)  # fmt: skip
def test_contractions_and_diagonals_are_those_of_autograd(kind, n, m, d, size, bias, seed):
    problem = kind(n, m, d, size, bias=bias, seed=seed)
    layout, pairs, h = problem.layout, problem.pairs(), problem.oracle()
    close = {"rtol": 1e-8, "atol": 1e-11}
    diagonal = layout.flatten(pairs.diagonal())
    torch.testing.assert_close(diagonal, h.diagonal(), **close)
    columns = layout.n_columns
    order = layout.fold(torch.arange(layout.n_parameters)).flatten()
    h = h[order][:, order].view(d, columns, d, columns)
    g = torch.Generator().manual_seed(seed)
    s, a = (torch.randn(k, k, generator=g, dtype=F64) for k in (d, columns))
    s, a = s + s.mT, a + a.mT
    left, right = torch.einsum("daeb,ab->de", h, a), torch.einsum("daeb,de->ab", h, s)
    torch.testing.assert_close(pairs.left_contraction(a), left, **close)
    torch.testing.assert_close(pairs.right_contraction(s), right, **close)
    q_s, q_a = (torch.linalg.eigh(x)[1] for x in (s, a))
    turned = torch.einsum("daeb,dk,al,ek,bl->kl", h, q_s, q_a, q_s, q_a)
    torch.testing.assert_close(pairs.rotated(q_s, q_a).diagonal(), turned, **close)


def test_blocks_of_rows_give_the_same_sums(monkeypatch):
    problem = Problem(7, 5, 3, 4, bias=True, seed=3)
    whole = problem.pairs().left_contraction(torch.eye(5, dtype=F64)), problem.pairs().diagonal()
    monkeypatch.setattr(_sigmoid_curvature, "WEIGHT_BYTES", 80)  # two rows at once
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


def matrix(problem: Problem) -> Tensor:
    value = tower_curvature(problem.pairs(), problem.layout)
    eye = torch.eye(problem.layout.n_parameters, dtype=F64)
    return value.basis.from_eigenbasis(value.basis.to_eigenbasis(eye) * value.eigenvalues)


@pytest.mark.parametrize("kind", [Problem, SoftmaxProblem])
def test_the_product_is_nearer_the_dense_matrix_than_its_diagonal(kind):
    problem = kind(6, 5, 3, 4, bias=True, seed=7)
    oracle, ours = problem.oracle(), matrix(problem)
    assert float((ours - oracle).norm()) < float((oracle.diagonal().diag() - oracle).norm())
    torch.testing.assert_close(ours.trace(), oracle.trace())
