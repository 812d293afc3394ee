"""The curvature H as it is summed, of any sign: diagonal, full, or a Kronecker product a layer.

Sums of Kronecker products are not Kronecker products, so adding two keeps the nearest one:
rearranged (Van Loan and Pitsianis 1993), ``S_1 (x) A_1 + S_2 (x) A_2`` is
``s_1 a_1^T + s_2 a_2^T``, a matrix of rank two whose best rank-one part comes from a 2 x 2
singular value decomposition.

``KronCurvature.refined`` improves a product: in the eigenbasis ``Q = Q_S (x) Q_A`` the diagonal of
``Q^T H Q`` is the best of all diagonals in Frobenius norm, so it is never worse than the
eigenvalues of S (x) A (George et al. 2018, EKFAC, section 3).

``decompose`` makes H positive and returns it as a ``SpectralCurvature``.

Memory that a curvature needs in each structure, and the check that it is there before a fit.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.curvature._spectral_curvature import SpectralCurvature, check_finite_curvature
from laplace_metric.errors import MemoryLimitError
from laplace_metric.heads._layout import Layout

if TYPE_CHECKING:
    from typing_extensions import Self

LARGE = 1_024
"""Rows from which on eigenvectors are computed in the type of the head."""
ORTHOGONAL = 1e-5
"""Largest entry of ``Q^T Q - I`` of eigenvectors that are used."""


class Curvature(ABC):
    """H of P parameters in one structure, of any sign, before the positivity step.

    Values do not change. What was refined or estimated of a single H is lost in a sum of two.
    """

    @abstractmethod
    def __add__(self, other: Self) -> Self:
        """Return the sum, or what is nearest to it in this structure."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return ``factor * H``."""

    @abstractmethod
    def summand(self) -> Self:
        """Return what enters a sum: H without what sums drop."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the float64 tensors of ``summand``, in order; ``curvature_of`` reads them."""

    @abstractmethod
    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """Return ``H = Q diag(l) Q^T`` after the positivity step, "clip" or "absolute"."""


@final
@dataclass(frozen=True)
class DiagCurvature(Curvature):
    """diag(H) [P] float64 of any sign, before the positivity step.

    Examples
    --------
    >>> (DiagCurvature(torch.tensor([1.0, 2.0])) + DiagCurvature(torch.ones(2))).values
    tensor([2., 3.])
    """

    values: Tensor
    standard_error: Tensor | None = None

    def __add__(self, other: DiagCurvature) -> DiagCurvature:
        return DiagCurvature(self.values + other.values)

    def scaled(self, factor: float) -> DiagCurvature:
        error = None if self.standard_error is None else abs(factor) * self.standard_error
        return DiagCurvature(factor * self.values, error)

    def summand(self) -> DiagCurvature:
        """Return H without its standard error."""
        return DiagCurvature(self.values)

    def tensors(self) -> list[Tensor]:
        return [self.values]

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """Make H positive: by an elementwise ReLU, or by the absolute values."""
        basis = IdentityEigenbasis()
        return SpectralCurvature.positive(basis, self.values, positivity, self.standard_error)


@final
@dataclass(frozen=True)
class FullCurvature(Curvature):
    """H [P, P] float64, symmetric, before the positivity step.

    Examples
    --------
    >>> FullCurvature(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).decompose().negative_fraction
    0.25
    """

    matrix: Tensor

    def __add__(self, other: FullCurvature) -> FullCurvature:
        return FullCurvature(self.matrix + other.matrix)

    def scaled(self, factor: float) -> FullCurvature:
        return FullCurvature(factor * self.matrix)

    def summand(self) -> FullCurvature:
        """Return H itself."""
        return self

    def tensors(self) -> list[Tensor]:
        return [self.matrix]

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """Make H positive by its eigenvalues, at O(P^3)."""
        check_finite_curvature(self.matrix)
        eigenvalues, vectors = torch.linalg.eigh(self.matrix)
        basis = DenseEigenbasis(vectors.contiguous())
        return SpectralCurvature.positive(basis, eigenvalues, positivity)


@dataclass(frozen=True)
class KroneckerFactors:
    """``S (x) A`` of one layer, S [O, O] and A [A, A] symmetric float64."""

    left: Tensor
    right: Tensor
    layout: Layout

    def __add__(self, other: KroneckerFactors) -> KroneckerFactors:
        # The sum, rearranged, is s_1 a_1^T + s_2 a_2^T. With [s_1 s_2] = Q_s R_s and
        # [a_1 a_2] = Q_a R_a it is Q_s (R_s R_a^T) Q_a^T: a 2 x 2 SVD gives its best rank-one part.
        (s, t), (a, b) = (self.left, other.left), (self.right, other.right)
        q_s, r_s = torch.linalg.qr(torch.stack([s.flatten(), t.flatten()], 1))
        q_a, r_a = torch.linalg.qr(torch.stack([a.flatten(), b.flatten()], 1))
        u, sigma, v = torch.linalg.svd(r_s @ r_a.mT)
        left, right = (q_s @ u[:, 0]).view_as(s), (q_a @ v[0]).view_as(a)
        return KroneckerFactors(*balanced(sigma[0] * left, right), self.layout)

    def eigenbasis(self, dtype: torch.dtype = torch.float64) -> tuple[KroneckerEigenblock, Tensor]:
        """Return Q_S (x) Q_A and the eigenvalues of the product [O, A], as exact as ``dtype``."""
        l_s, q_s = eigenvectors(self.left, dtype)
        l_a, q_a = eigenvectors(self.right, dtype)
        block = KroneckerEigenblock(q_s.contiguous(), q_a.contiguous(), self.layout)
        return block, l_s[:, None] * l_a


def eigenvectors(matrix: Float[Tensor, "A A"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of a symmetric matrix, float64.

    For float32 those of a large matrix are computed in float32, in half the time; in float64 where
    the vectors turn out not to be orthogonal. Those of a diagonal matrix are known.
    """
    diagonal = matrix.diagonal()
    if torch.equal(matrix, torch.diag(diagonal)):  # as S of a raw linear head, s I
        values, order = diagonal.sort(stable=True)
        return values, torch.eye(len(matrix)).to(matrix)[:, order]
    if dtype == torch.float32 and len(matrix) >= LARGE:
        scale = matrix.abs().amax().clamp_min(torch.finfo(dtype).tiny)
        values, vectors = torch.linalg.eigh((matrix / scale).float())
        gap = (vectors.mT @ vectors - torch.eye(len(vectors)).to(vectors)).abs().amax()
        if bool(gap < ORTHOGONAL):
            return scale * values.double(), vectors.double()
    found: tuple[Tensor, Tensor] = torch.linalg.eigh(matrix)
    return found


def balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same product with symmetric factors of equal norm, the right one of trace >= 0."""
    norms = left.norm(), right.norm()
    if not float(norms[0]) * float(norms[1]) > 0:
        return torch.zeros_like(left), torch.zeros_like(right)
    scale = (norms[1] / norms[0]).sqrt() * (1 if float(right.trace()) >= 0 else -1)
    left, right = left * scale, right / scale
    return (left + left.mT) / 2, (right + right.mT) / 2


@final
@dataclass(frozen=True)
class KronCurvature(Curvature):
    """One Kronecker product a layer, before the positivity step.

    Parameters
    ----------
    factors : tuple of KroneckerFactors
        S and A of each layer.
    refined : (basis Q, diag(Q^T H Q) [P]) or None
        Exact diagonal of H in the factors' eigenbasis; dropped when two curvatures are added.

    Examples
    --------
    >>> layout, one = Layout(1, 2, bias=False), torch.ones(1, 1)
    >>> h = KronCurvature((KroneckerFactors(one, torch.eye(2), layout),))
    >>> (h + h).decompose().eigenvalues
    tensor([2.0000, 2.0000], dtype=torch.float64)
    """

    factors: tuple[KroneckerFactors, ...]
    refined: tuple[KroneckerEigenbasis, Tensor] | None = None

    def __add__(self, other: KronCurvature) -> KronCurvature:
        pairs = zip(self.factors, other.factors, strict=True)
        return KronCurvature(tuple(mine + its for mine, its in pairs))

    def scaled(self, factor: float) -> KronCurvature:
        factors = tuple(KroneckerFactors(factor * f.left, f.right, f.layout) for f in self.factors)
        refined = None if self.refined is None else (self.refined[0], factor * self.refined[1])
        return KronCurvature(factors, refined)

    def summand(self) -> KronCurvature:
        """Return the factors, without the refined spectrum."""
        return KronCurvature(self.factors)

    def tensors(self) -> list[Tensor]:
        return [side for f in self.factors for side in (f.left, f.right)]

    def eigenbasis(self, dtype: torch.dtype = torch.float64) -> tuple[KroneckerEigenbasis, Tensor]:
        """Return Q and the eigenvalues of the product [P], at O(O^3 + A^3) a layer.

        ``dtype`` says how exact they are: large factors take half the time in float32.
        """
        for f in self.factors:
            check_finite_curvature(f.left)
            check_finite_curvature(f.right)
        parts = [f.eigenbasis(dtype) for f in self.factors]
        values = torch.cat([values.flatten() for _, values in parts])
        return KroneckerEigenbasis(tuple(block for block, _ in parts)), values

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """Make H positive by its eigenvalues."""
        basis, eigenvalues = self.refined or self.eigenbasis()
        return SpectralCurvature.positive(basis, eigenvalues, positivity)


STRUCTURES = ("diag", "kron", "full")


def zero_curvature(
    structure: str, layouts: Sequence[Layout], device: torch.device | None = None
) -> Curvature:
    """Return H = 0 for layers of these layouts."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    size = sum(layout.n_parameters for layout in layouts)
    if structure == "diag":
        return DiagCurvature(zeros(size))
    if structure == "full":
        return FullCurvature(zeros(size, size))
    sides = [(zeros(x.n_outputs, x.n_outputs), zeros(x.n_columns, x.n_columns)) for x in layouts]
    return KronCurvature(tuple(map(KroneckerFactors, *zip(*sides, strict=True), layouts)))


def curvature_of(tensors: Sequence[Tensor], structure: str, layouts: Sequence[Layout]) -> Curvature:
    """Read the result of ``Curvature.tensors``."""
    if structure == "diag":
        return DiagCurvature(tensors[0])
    if structure == "full":
        return FullCurvature(tensors[0])
    sides = zip(tensors[::2], tensors[1::2], layouts, strict=True)
    return KronCurvature(tuple(KroneckerFactors(*part) for part in sides))


SHARE = 0.5
"""Share of the free memory that a curvature may take."""


def required_bytes(structure: str, layouts: Sequence[Layout]) -> int:
    """Return the peak bytes of a curvature in float64: H, its summand, eigenvectors, workspace.

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
    """Return the free memory of the device; on the CPU, what the system reports as available."""
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
    """Raise ``MemoryLimitError`` if the curvature does not fit, with the structures that do."""
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
