"""The sums against the dense Gauss-Newton matrix of InfoNCE that autograd gives, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import hessian, jacrev

from laplace_metric.image_text import multi_positive_infonce
from laplace_metric.image_text._curvature import SoftmaxPairs, tower_curvature
from tests.image_text.conftest import features, make_embedder, make_pairs
from tests.image_text.test_curvature import PROBLEMS, Problem, check_contractions

F64 = torch.float64


class SoftmaxProblem(Problem):
    """The same towers under InfoNCE."""

    def cosines(self, theta: Tensor) -> Tensor:
        return torch.nn.functional.normalize(self.raw(theta), dim=1) @ self.other.mT

    def pairs(self) -> SoftmaxPairs:
        h, z = self.layout.augment(self.h), self.raw(self.theta)
        zeros = torch.zeros(len(h), dtype=F64), torch.zeros(len(self.other), dtype=F64)
        return SoftmaxPairs(h, z, zeros[0], self.other, zeros[1], self.a, 0.0)

    def oracle(self) -> Tensor:
        """J^T (d^2 loss / dc^2) J, every derivative by autograd; every row and column matches."""
        match = self.match | torch.eye(*self.match.shape).bool()
        match[:, 0] = match[0] = True

        def loss(flat: Tensor) -> Tensor:
            return multi_positive_infonce(flat.view(match.shape), match, self.a)

        jacobian = jacrev(self.cosines)(self.theta).flatten(0, 1)
        middle = hessian(loss)(self.cosines(self.theta).flatten())
        return jacobian.mT @ middle @ jacobian


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_dense_and_diagonal_are_those_of_autograd(n, m, d, size, bias, seed):
    problem = SoftmaxProblem(n, m, d, size, bias=bias, seed=seed)
    oracle, pairs = problem.oracle(), problem.pairs()
    torch.testing.assert_close(pairs.dense(problem.layout), oracle, rtol=1e-8, atol=1e-11)
    diagonal = problem.layout.flatten(pairs.diagonal())
    torch.testing.assert_close(diagonal, oracle.diagonal(), rtol=1e-8, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_contractions_and_rotations_are_those_of_the_dense_matrix(n, m, d, size, bias, seed):
    check_contractions(SoftmaxProblem(n, m, d, size, bias=bias, seed=seed), seed)


def test_structures_come_nearer_the_dense_matrix():
    problem = SoftmaxProblem(6, 5, 3, 4, bias=True, seed=7)
    oracle, eye = problem.oracle(), torch.eye(problem.layout.n_parameters, dtype=F64)

    def matrix(structure: str) -> Tensor:
        value = tower_curvature(problem.pairs(), problem.layout, structure)
        return value.basis.from_eigenbasis(value.basis.to_eigenbasis(eye) * value.eigenvalues)

    torch.testing.assert_close(matrix("full"), oracle, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(matrix("diag"), oracle.diagonal().diag())
    kron, diag = (float((matrix(s) - oracle).norm()) for s in ("kron", "diag"))
    assert kron < diag
    torch.testing.assert_close(matrix("kron").trace(), oracle.trace())


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_clip_has_a_posterior_that_knows_foreign_images(structure):
    pairs = make_pairs()
    how = {"epochs": 8, "batch_size": 30, "learning_rate": 0.02, "progress": False}
    embedder = make_embedder("clip", structure=structure).fit(pairs, **how, generator=0)
    for tower in embedder.fitted_.posteriors:
        assert tower.posterior.n_effective == pairs.n_images + pairs.n_texts
    near = embedder.embed_image(features(seed=9)).epistemic
    g = torch.Generator().manual_seed(3)
    foreign = embedder.embed_image(3 * torch.randn(60, 12, generator=g)).epistemic
    assert float(near.median()) < float(foreign.median())
    assert bool((near > 0).all())


def test_the_scale_is_the_one_of_the_loss():
    """Above 100 the loss holds its scale, and so does the curvature."""
    pairs = make_pairs()
    embedder = make_embedder("clip").fit(
        pairs, epochs=1, batch_size=30, progress=False, generator=0
    )
    objective = embedder.fitted_.heads.objective
    assert objective.softmax_scale() == pytest.approx(float(objective.a.detach()))
    with torch.no_grad():
        objective.log_a.fill_(9.0)
    assert objective.softmax_scale() == 100.0
    assert objective.logit_scale() is None
