"""H before the positivity step: its diagonal, all of it, or a Kronecker product a layer.

Sums of Kronecker products are not Kronecker products, so adding two keeps the nearest one:
rearranged (Van Loan and Pitsianis 1993), ``S_1 (x) A_1 + S_2 (x) A_2`` is
``s_1 a_1^T + s_2 a_2^T``, a matrix of rank two whose best rank-one part comes from a 2 x 2
singular value decomposition.

``refined`` betters a product: in the eigenbasis ``Q = Q_S (x) Q_A`` the diagonal of ``Q^T H Q`` is
the best of all diagonals in Frobenius norm, so it is never worse than the eigenvalues of S (x) A
(George et al. 2018, EKFAC, section 3).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.curvature._spectral import (
    POSITIVITY,
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
    SpectralCurvature,
    check_finite_curvature,
)
from laplace_metric.errors import MemoryLimitError
from laplace_metric.heads._layers import Layout


@dataclass(frozen=True)
class DiagCurvature:
    """diag(H) [P] float64 of any sign, before the positivity step.

    Examples
    --------
    >>> (DiagCurvature(torch.tensor([1.0, 2.0])) + DiagCurvature(torch.ones(2))).values
    tensor([2., 3.])
    """

    values: Tensor
    standard_error: Tensor | None = None

    @classmethod
    def zeros(cls, layouts: Sequence[Layout], device: torch.device | None = None) -> DiagCurvature:
        """H = 0 for layers of these layouts."""
        size = sum(layout.n_parameters for layout in layouts)
        return cls(torch.zeros(size, dtype=torch.float64, device=device))

    def __add__(self, other: DiagCurvature) -> DiagCurvature:
        return DiagCurvature(self.values + other.values)

    def scaled(self, factor: float) -> DiagCurvature:
        """factor * H."""
        error = None if self.standard_error is None else abs(factor) * self.standard_error
        return DiagCurvature(factor * self.values, error)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step: an elementwise ReLU, or the absolute values."""
        return POSITIVITY[positivity](IdentityEigenbasis(), self.values, self.standard_error)


@dataclass(frozen=True)
class FullCurvature:
    """H [P, P] float64, symmetric, before the positivity step.

    Examples
    --------
    >>> FullCurvature(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).decompose().negative_fraction
    0.25
    """

    matrix: Tensor

    @classmethod
    def zeros(cls, layouts: Sequence[Layout], device: torch.device | None = None) -> FullCurvature:
        """H = 0 for layers of these layouts."""
        size = sum(layout.n_parameters for layout in layouts)
        return cls(torch.zeros(size, size, dtype=torch.float64, device=device))

    def __add__(self, other: FullCurvature) -> FullCurvature:
        return FullCurvature(self.matrix + other.matrix)

    def scaled(self, factor: float) -> FullCurvature:
        """factor * H."""
        return FullCurvature(factor * self.matrix)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step on the eigenvalues. O(P^3), once."""
        check_finite_curvature(self.matrix)
        eigenvalues, vectors = torch.linalg.eigh(self.matrix)
        return POSITIVITY[positivity](DenseEigenbasis(vectors.contiguous()), eigenvalues)


@dataclass(frozen=True)
class KroneckerFactors:
    """``S (x) A`` of one layer, S [O, O] and A [A, A] symmetric float64."""

    left: Tensor
    right: Tensor
    layout: Layout

    def __add__(self, other: KroneckerFactors) -> KroneckerFactors:
        (s, t), (a, b) = (self.left, other.left), (self.right, other.right)
        q_s, r_s = torch.linalg.qr(torch.stack([s.flatten(), t.flatten()], 1))
        q_a, r_a = torch.linalg.qr(torch.stack([a.flatten(), b.flatten()], 1))
        u, sigma, v = torch.linalg.svd(r_s @ r_a.mT)
        left, right = (q_s @ u[:, 0]).view_as(s), (q_a @ v[0]).view_as(a)
        return KroneckerFactors(*balanced(sigma[0] * left, right), self.layout)

    def eigenbasis(self) -> tuple[KroneckerEigenblock, Tensor]:
        """Q_S (x) Q_A and the eigenvalues of the product [O, A]."""
        l_s, q_s = torch.linalg.eigh(self.left)
        l_a, q_a = torch.linalg.eigh(self.right)
        return KroneckerEigenblock(q_s.contiguous(), q_a.contiguous(), self.layout), l_s[
            :, None
        ] * l_a


def balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with factors of equal norm, symmetric, A of positive trace."""
    norms = left.norm(), right.norm()
    if not float(norms[0]) * float(norms[1]) > 0:
        return torch.zeros_like(left), torch.zeros_like(right)
    scale = (norms[1] / norms[0]).sqrt() * (1 if float(right.trace()) >= 0 else -1)
    left, right = left * scale, right / scale
    return (left + left.mT) / 2, (right + right.mT) / 2


@dataclass(frozen=True)
class KronCurvature:
    """One Kronecker product a layer, before the positivity step.

    Parameters
    ----------
    factors : of each layer
    refined : (basis Q, diag(Q^T H Q) [P]) or None
        The exact H seen in the factors' eigenbasis; dropped when sums are added.

    Examples
    --------
    >>> layout, one = Layout(1, 2, bias=False), torch.ones(1, 1)
    >>> h = KronCurvature((KroneckerFactors(one, torch.eye(2), layout),))
    >>> (h + h).decompose().eigenvalues
    tensor([2.0000, 2.0000], dtype=torch.float64)
    """

    factors: tuple[KroneckerFactors, ...]
    refined: tuple[KroneckerEigenbasis, Tensor] | None = None

    @classmethod
    def zeros(cls, layouts: Sequence[Layout], device: torch.device | None = None) -> KronCurvature:
        """H = 0 for layers of these layouts."""

        def zero(size: int) -> Tensor:
            return torch.zeros(size, size, dtype=torch.float64, device=device)

        return cls(
            tuple(KroneckerFactors(zero(x.n_outputs), zero(x.n_columns), x) for x in layouts)
        )

    def __add__(self, other: KronCurvature) -> KronCurvature:
        pairs = zip(self.factors, other.factors, strict=True)
        return KronCurvature(tuple(mine + its for mine, its in pairs))

    def scaled(self, factor: float) -> KronCurvature:
        """factor * H."""
        factors = tuple(KroneckerFactors(factor * f.left, f.right, f.layout) for f in self.factors)
        refined = None if self.refined is None else (self.refined[0], factor * self.refined[1])
        return KronCurvature(factors, refined)

    def eigenbasis(self) -> tuple[KroneckerEigenbasis, Tensor]:
        """Q and the eigenvalues of the product [P]. O(O^3 + A^3) a layer."""
        for f in self.factors:
            check_finite_curvature(f.left)
            check_finite_curvature(f.right)
        parts = [f.eigenbasis() for f in self.factors]
        values = torch.cat([values.flatten() for _, values in parts])
        return KroneckerEigenbasis(tuple(block for block, _ in parts)), values

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step on the eigenvalues."""
        return POSITIVITY[positivity](*(self.refined or self.eigenbasis()))


Curvature = DiagCurvature | KronCurvature | FullCurvature
"""H before the positivity step: zeros, ``+``, ``scaled``, ``decompose``."""

STRUCTURES: dict[str, type[Curvature]] = {
    "diag": DiagCurvature,
    "kron": KronCurvature,
    "full": FullCurvature,
}

SHARE = 0.5
"""Of the free memory that a curvature may take."""


def required_bytes(structure: str, layouts: Sequence[Layout]) -> int:
    """Peak bytes of a curvature in float64: H and what is added to it, eigenvectors, workspace.

    Examples
    --------
    >>> required_bytes("full", [Layout(2, 2, bias=True)])  # 6 matrices of 6 x 6
    1728
    """
    n_parameters = sum(x.n_parameters for x in layouts)
    if structure == "full":
        return 8 * 6 * n_parameters**2
    vectors = 8 * 4 * n_parameters
    if structure == "diag":
        return vectors
    return vectors + sum(8 * 4 * (x.n_outputs**2 + x.n_columns**2) for x in layouts)


def available_bytes(device: torch.device) -> int:
    """Free memory of the device; of the CPU what the system says is available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            free_memory = {line.split(":")[0]: line.split()[1] for line in lines}
        return 1024 * int(free_memory["MemAvailable"])
    except (OSError, KeyError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def check_memory(structure: str, layouts: Sequence[Layout], device: torch.device) -> None:
    """Raise ``MemoryLimitError`` with the bytes needed, and the structures that fit."""
    limit = int(SHARE * available_bytes(device))
    needed = required_bytes(structure, layouts)
    if needed <= limit:
        return
    smaller = [
        f"{name!r} ({required_bytes(name, layouts):,} bytes)"
        for name in ("kron", "diag")
        if name != structure and required_bytes(name, layouts) <= limit
    ]
    raise MemoryLimitError(
        f"structure={structure!r} of {sum(x.n_parameters for x in layouts):,} parameters needs "
        f"{needed:,} bytes, and half of what is free is {limit:,}. "
        f"Structures that fit: {', '.join(smaller) or 'none; use a smaller head'}."
    )
