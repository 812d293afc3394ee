"""One contract, inherited by every structure: each against its own dense float64 matrix."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from laplace_metric.curvature import _structures
from laplace_metric.curvature._structures import (
    DiagCurvature,
    FullCurvature,
    KronCurvature,
    KroneckerFactors,
    zero_curvature,
)
from laplace_metric.errors import InputError, MemoryLimitError, NonFiniteError
from laplace_metric.heads._layout import Layout
from laplace_metric.laplace import Posterior

LAYOUTS = (Layout(3, 2, bias=True), Layout(2, 3, bias=False))
P = sum(layout.n_parameters for layout in LAYOUTS)
N_EFF, TAU = 7.0, 0.3


def symmetric(size: int, g: torch.Generator, *, psd: bool) -> torch.Tensor:
    a = torch.randn(size, size, generator=g, dtype=torch.float64)
    return a @ a.mT / size if psd else a + a.mT


def in_parameter_order(left: torch.Tensor, right: torch.Tensor, layout: Layout) -> torch.Tensor:
    order = layout.flatten(torch.arange(layout.n_parameters).view(layout.n_outputs, -1))
    return torch.kron(left, right)[order][:, order]


class Contract:
    """What every structure promises; subclasses say how to make one and what it means."""

    name: str

    def make(self, seed: int, *, psd: bool = True):
        raise NotImplementedError

    def matrix(self, value) -> torch.Tensor:
        """H of a sum, written out."""
        raise NotImplementedError

    def precision(self, value) -> torch.Tensor:
        return N_EFF * self.matrix(value) + TAU * torch.eye(P, dtype=torch.float64)

    def test_zeros_add_nothing(self):
        value = self.make(0)
        zero = zero_curvature(self.name, LAYOUTS)
        assert float(self.matrix(zero).abs().max()) == 0
        torch.testing.assert_close(self.matrix(value + zero), self.matrix(value))
        torch.testing.assert_close(self.matrix(zero + value), self.matrix(value))
        assert float(zero.decompose().eigenvalues.abs().max()) == 0
        assert zero.decompose().negative_fraction == 0

    def test_scaling_and_merging_are_linear(self):
        value = self.make(0)
        expected = 3.5 * self.matrix(value)
        torch.testing.assert_close(self.matrix(value.scaled(3.5)), expected)
        torch.testing.assert_close(self.matrix(value.scaled(1.5) + value.scaled(2)), expected)

    def test_decomposed_it_is_the_same_matrix(self):
        value = self.make(0)
        curvature = value.decompose()
        torch.testing.assert_close(curvature.to_dense(), self.matrix(value))
        torch.testing.assert_close(curvature.diagonal(), self.matrix(value).diagonal())
        assert curvature.n_parameters == P

    def test_negative_curvature_is_projected_and_reported(self):
        value = self.make(0, psd=False)
        curvature = value.decompose()
        eigenvalues, vectors = torch.linalg.eigh(self.matrix(value))
        nearest = vectors @ (eigenvalues.clamp_min(0)[:, None] * vectors.mT)
        torch.testing.assert_close(curvature.to_dense(), nearest)
        share = eigenvalues.clamp_max(0).abs().sum() / eigenvalues.abs().sum()
        assert curvature.negative_fraction == pytest.approx(float(share))
        assert 0.1 < curvature.negative_fraction < 0.9

    def test_the_basis_is_orthogonal(self):
        basis = self.make(0).decompose().basis
        v = torch.randn(3, P, dtype=torch.float64)
        torch.testing.assert_close(basis.from_eigenbasis(basis.to_eigenbasis(v)), v)
        torch.testing.assert_close(basis.to_eigenbasis(v).norm(dim=1), v.norm(dim=1))

    def test_samples_have_the_posterior_covariance(self):
        value = self.make(0)
        mean = torch.arange(P, dtype=torch.float64)
        posterior = Posterior(mean, value.decompose(), N_EFF, TAU)
        draws = posterior.sample(200_000, torch.Generator().manual_seed(0))
        covariance = torch.linalg.inv(self.precision(value))
        error = (draws.mT.cov() - covariance).norm() / covariance.norm()
        assert float(error) < 0.02
        z = (draws.mean(0) - mean) / (covariance.diagonal() / len(draws)).sqrt()
        assert float(z.abs().max()) < 5

    def test_float32_weights_see_the_float64_posterior(self):
        value = self.make(0)
        single = Posterior(torch.zeros(P), value.decompose(), N_EFF, TAU).variance
        assert single.dtype == torch.float32
        exact = torch.linalg.inv(self.precision(value)).diagonal()
        torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=0)

    def test_effective_parameters_and_evidence(self):
        value = self.make(0)
        h = N_EFF * self.matrix(value)
        mean = torch.randn(P, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        posterior = Posterior(mean, value.decompose(), N_EFF, TAU)
        expected = float(torch.linalg.solve(h + TAU * torch.eye(P), h).trace())
        assert posterior.n_effective_parameters == pytest.approx(expected)
        for tau in (0.1, 10.0):
            precision = h + tau * torch.eye(P, dtype=torch.float64)
            evidence = 0.5 * (
                P * torch.log(torch.tensor(tau).double())
                - tau * mean.square().sum()
                - torch.logdet(precision)
            )
            assert posterior.log_prior_and_determinant(tau) == pytest.approx(float(evidence))

    def test_overflow_is_an_error(self):
        with pytest.raises(NonFiniteError, match="float64"):
            self.make(0).scaled(float("inf")).decompose()


class TestDiagonal(Contract):
    name = "diag"

    def make(self, seed: int, *, psd: bool = True) -> DiagCurvature:
        values = torch.randn(P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return DiagCurvature(values.abs() if psd else values)

    def matrix(self, value: DiagCurvature) -> torch.Tensor:
        return value.values.diag()

    def test_merging_adds(self):
        a, b = self.make(0), self.make(1)
        torch.testing.assert_close(self.matrix(a + b), self.matrix(a) + self.matrix(b))


class TestDense(Contract):
    name = "full"

    def make(self, seed: int, *, psd: bool = True) -> FullCurvature:
        return FullCurvature(symmetric(P, torch.Generator().manual_seed(seed), psd=psd))

    def matrix(self, value: FullCurvature) -> torch.Tensor:
        return value.matrix

    def test_merging_adds(self):
        a, b = self.make(0), self.make(1)
        torch.testing.assert_close(self.matrix(a + b), self.matrix(a) + self.matrix(b))


class TestKronecker(Contract):
    name = "kron"

    def make(self, seed: int, *, psd: bool = True) -> KronCurvature:
        g = torch.Generator().manual_seed(seed)
        return KronCurvature(
            tuple(
                KroneckerFactors(
                    symmetric(x.n_outputs, g, psd=psd), symmetric(x.n_columns, g, psd=True), x
                )
                for x in LAYOUTS
            )
        )

    def matrix(self, value: KronCurvature) -> torch.Tensor:
        parts = [in_parameter_order(f.left, f.right, f.layout) for f in value.factors]
        return torch.block_diag(*parts)

    def test_merging_keeps_the_nearest_product(self):
        a, b = self.make(0), self.make(1)
        for x, y, merged in zip(a.factors, b.factors, (a + b).factors, strict=True):
            total = torch.outer(x.left.flatten(), x.right.flatten())
            total = total + torch.outer(y.left.flatten(), y.right.flatten())
            u, sigma, v = torch.linalg.svd(total)
            best = sigma[0] * torch.outer(u[:, 0], v[0])
            ours = torch.outer(merged.left.flatten(), merged.right.flatten())
            torch.testing.assert_close(ours, best)

    def test_an_exact_spectrum_replaces_the_products_and_is_dropped_by_merging(self):
        value = self.make(0)
        basis, product = value.eigenbasis()
        refined = KronCurvature(value.factors, (basis, product + 1))
        ours = refined.decompose().eigenvalues
        torch.testing.assert_close(ours, product + 1)
        torch.testing.assert_close(refined.scaled(2).decompose().eigenvalues, 2 * ours)
        assert (refined + value).refined is None


def test_memory_is_told_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(_structures, "available_bytes", lambda _: 2 * 10**9)
    big = [Layout(128, 512, bias=True)]
    _structures.check_memory("kron", big, torch.device("cpu"))
    with pytest.raises(
        MemoryLimitError,
        match=r"structure='full'.*65,664 parameters.*206,964,523,008 bytes.*'kron' \(",
    ):
        _structures.check_memory("full", big, torch.device("cpu"))
    with pytest.raises(MemoryLimitError, match="use.*smaller head"):
        _structures.check_memory("diag", [Layout(10**5, 10**5, bias=False)], torch.device("cpu"))
    assert issubclass(MemoryLimitError, InputError)
    assert _structures.available_bytes(torch.device("cpu")) > 0


MEASURED = {
    "full": (
        (1, 1500),
        "a = torch.randn(d, d, dtype=torch.float64)\n    FullCurvature(a + a.mT).decompose()",
    ),
    "diag": (
        (2000, 2000),
        "h, labels = torch.randn(8, d, dtype=torch.float64), torch.arange(8) % 2\n"
        "    head = LinearJacobian(torch.randn(z, d, dtype=torch.float64))\n"
        "    loss = ContrastiveLoss.of('arccos', 'fixed', normalized=False)\n"
        "    points = FeatureStore.of(h, labels)\n"
        "    all_pairs_curvature(points, head, loss, 'diag').decompose('absolute')",
    ),
}
"""Sizes Z and D of a head, and the computation whose memory is estimated."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("structure", MEASURED)
def test_the_memory_estimate_of_a_structure_holds(structure):
    """Peak memory, measured in a process of its own."""
    (z, d), work = MEASURED[structure]
    code = (
        "import re, torch\n"
        "from laplace_metric.curvature import ContrastiveLoss\n"
        "from laplace_metric.curvature._all_pairs import all_pairs_curvature\n"
        "from laplace_metric.curvature._structures import FullCurvature\n"
        "from laplace_metric.heads._linear import LinearJacobian\n"
        "from laplace_metric.models._feature_store import FeatureStore\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status())[1])\n"
        f"def run(z, d):\n    {work}\n"
        f"run(10, 50); before = peak(); run({z}, {d}); print(peak() - before)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    estimate = _structures.required_bytes(structure, [Layout(z, d, bias=False)])
    assert 0.4 * estimate < int(out.stdout) < 1.6 * estimate
