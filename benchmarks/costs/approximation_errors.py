"""How well each approximation of the curvature stands for the dense one, on a trained head.

For every distance and Hessian, against the dense H (projected on the positive semi-definite cone):
relative Frobenius error of H, and relative error of the predictive variance of the raw embedding
at the prior precision that the log marginal likelihood of the dense posterior prefers.

    diagonal            diag(H)
    kfac                sum_i B_i (x) mean_i h_i h_i^T: the usual factors (Martens and Grosse 2015)
    nearest             S (x) A by power iteration (Van Loan and Pitsianis 1993)
    nearest, refined    its eigenbasis with the exact diagonal of H in it: structure="kron"
    low rank            the leading eigenvectors that fit the memory of the Kronecker factors, and
                        the diagonal of the rest
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.costs.embedders import Problem
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import AllPairs, all_pairs_curvature
from laplace_metric.curvature._jacobian_terms import LinearDense
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._passes import ClassSumsPass
from laplace_metric.curvature._schedule import execute
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.curvature._structures import (
    Curvature,
    FullCurvature,
    KronCurvature,
    KroneckerFactors,
)
from laplace_metric.curvature._totals import Terms
from laplace_metric.curvature.by_class import PointBlocks, Points
from laplace_metric.errors import PriorAtEdgeWarning
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.laplace import Posterior
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace._prior_precision import by_marginal_likelihood
from laplace_metric.models._store import FeatureStore

KINDS = tuple(itertools.product(("arccos", "euclidean"), ("fixed", "positives", "full")))


class KfacFactors(LinearDense):
    """The usual Kronecker factors of the point part: sums of B_i, of h_i h_i^T, and of one."""

    def zeros(self) -> list[Tensor]:
        """[Z, Z], [A, A] and a count."""
        z, a = self.head.n_outputs, self.head.layout.n_columns
        return [torch.zeros(shape, dtype=torch.float64) for shape in ((z, z), (a, a), ())]

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        """Sums over a batch."""
        h = self.head.layout.augment(points.features)
        b = 2 * blocks.dense(self.head.n_outputs) / points.lengths[:, :, None].square()
        return [b.sum(0).double(), (h.mT @ h).double(), torch.tensor(float(len(h))).double()]

    def product(self, totals: Sequence[Tensor]) -> KronCurvature:
        """``sum_i B_i (x) mean h h^T``."""
        left, right, n = totals
        return KronCurvature((KroneckerFactors(left, right / n, self.head.layout),))


def approximation_errors(trained: Problem) -> list[dict[str, Any]]:
    """One row for each distance, Hessian and approximation."""
    head = LinearJacobian.of(trained.head)
    store = FeatureStore.of(trained.features, trained.labels)
    rows = []
    for distance, hessian in KINDS:
        loss = ContrastiveLoss.of(distance, hessian, normalized=True)
        if loss.vanishes:
            continue
        for name, row in _one_kind(trained, head, store, loss).items():
            rows.append({"distance": distance, "hessian": hessian, "approximation": name, **row})
            print(rows[-1], flush=True)
    return rows


def _one_kind(
    trained: Problem, head: LinearJacobian, store: FeatureStore, loss: ContrastiveLoss
) -> dict[str, dict[str, float]]:
    full = all_pairs_curvature(store, head, loss, "full")
    sums = ClassSumsPass(head, loss.geometry).collect(store).by_class
    pairs = AllPairs(head, loss, sums)
    product = execute(nearest_kronecker(pairs.totals, head, loss, refine=False), store)
    candidates: dict[str, Curvature] = {
        "diagonal": all_pairs_curvature(store, head, loss, "diag"),
        "nearest": product,
        "nearest, refined": all_pairs_curvature(store, head, loss, "kron"),
    }
    if not loss.cross:
        kfac = KfacFactors(head)
        candidates["kfac"] = kfac.product(execute(pairs.totals(kfac), store))
    exact = full.decompose()
    curvatures = {name: value.decompose() for name, value in candidates.items()}
    curvatures["low rank"] = low_rank(exact, head)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PriorAtEdgeWarning)
        tau = by_marginal_likelihood(Posterior(head.parameters, exact, len(store), 1.0))

    def variance(value: SpectralCurvature) -> Tensor:
        posterior = Posterior(head.parameters, value, len(store), tau)
        return covariance(head, posterior, trained.queries).diagonal()

    reference = variance(exact)
    return {
        name: {
            "frobenius_error": relative(value.to_dense(), exact.to_dense()),
            "variance_error": relative(variance(value), reference),
            "prior_precision": tau,
            "clipped_fraction": exact.negative_fraction,
        }
        for name, value in curvatures.items()
    }


def low_rank(exact: SpectralCurvature, head: LinearJacobian) -> SpectralCurvature:
    """Leading eigenvectors within the memory of the Kronecker factors, plus a diagonal."""
    layout, h = head.layout, exact.to_dense()
    floats = layout.n_outputs**2 + layout.n_columns**2 + layout.n_parameters
    rank = max(1, floats // layout.n_parameters - 1)
    values, vectors = torch.linalg.eigh(h)
    leading = vectors[:, -rank:] @ (values[-rank:, None] * vectors[:, -rank:].mT)
    rest = (h - leading).diagonal().diag()
    return FullCurvature(leading + rest).decompose()


def relative(ours: Tensor, exact: Tensor) -> float:
    """``|ours - exact| / |exact|``."""
    return float((ours - exact).norm() / exact.norm())
