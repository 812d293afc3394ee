"""The curvature in each structure: H as it is summed, and ``H = Q diag(l) Q^T`` made positive.

``DiagCurvature``, ``FullCurvature`` and ``KronCurvature`` (a Kronecker product a layer) hold H of
any sign. Sums of Kronecker products are not Kronecker products, so adding two keeps the nearest
one: rearranged (Van Loan and Pitsianis 1993), ``S_1 (x) A_1 + S_2 (x) A_2`` is
``s_1 a_1^T + s_2 a_2^T``, a matrix of rank two whose best rank-one part comes from a 2 x 2
singular value decomposition.

``refined`` betters a product: in the eigenbasis ``Q = Q_S (x) Q_A`` the diagonal of ``Q^T H Q`` is
the best of all diagonals in Frobenius norm, so it is never worse than the eigenvalues of S (x) A
(George et al. 2018, EKFAC, section 3).

``SpectralCurvature`` is one value for all structures, after the positivity step: Q is orthogonal,
one kind of eigenbasis for each structure. With the posterior precision ``P = n_eff H + tau I`` and
``p = n_eff l + tau``, all is elementwise in ``c = Q^T v``:

    v^T P^-1 v = sum c^2 / p      log det P = sum log p      N(0, P^-1): Q e / sqrt(p)

One decomposition a fit; every prior precision after that is free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import InputError, MemoryLimitError, NonFiniteError
from laplace_metric.heads._jacobian import Layout

DENSE_LIMIT_BYTES = 2**30
NEGATIVE_SHARE = 0.2
"""Of the curvature, from which on its absolute values are a heuristic and no approximation."""


@dataclass(frozen=True)
class IdentityEigenbasis:
    """Q = I: the diagonal structure."""

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return values

    def to(self, like: Tensor) -> IdentityEigenbasis:
        return self


@dataclass(frozen=True)
class DenseEigenbasis:
    """Q itself [P, P]: the full structure."""

    vectors: Tensor

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors @ self.vectors

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates @ self.vectors.mT

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.vectors.square() @ values

    def to(self, like: Tensor) -> DenseEigenbasis:
        return DenseEigenbasis(self.vectors.to(like))


@dataclass(frozen=True)
class KroneckerEigenblock:
    """``Q_S (x) Q_A`` of one linear layer: left [O, O] over outputs, right [A, A] over inputs."""

    left: Tensor
    right: Tensor
    layout: Layout

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return (self.left.mT @ self.layout.fold(vectors) @ self.right).flatten(-2)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self.layout.flatten(self.left @ self.fold(coordinates) @ self.right.mT)

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.layout.flatten(self.left.square() @ self.fold(values) @ self.right.square().mT)

    def fold(self, coordinates: Tensor) -> Tensor:
        """Coordinates [..., P] as [..., O, A]."""
        return coordinates.unflatten(-1, (len(self.left), len(self.right)))


@dataclass(frozen=True)
class KroneckerEigenbasis:
    """One ``Q_S (x) Q_A`` a layer, no coupling between layers: the kron structure."""

    blocks: tuple[KroneckerEigenblock, ...]

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self._by_layer(KroneckerEigenblock.to_eigenbasis, vectors)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self._by_layer(KroneckerEigenblock.from_eigenbasis, coordinates)

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self._by_layer(KroneckerEigenblock.diagonal, values)

    def to(self, like: Tensor) -> KroneckerEigenbasis:
        moved = [replace(b, left=b.left.to(like), right=b.right.to(like)) for b in self.blocks]
        return KroneckerEigenbasis(tuple(moved))

    def _by_layer(
        self, of_block: Callable[[KroneckerEigenblock, Tensor], Tensor], values: Tensor
    ) -> Tensor:
        parts = values.split([block.layout.n_parameters for block in self.blocks], dim=-1)
        return torch.cat(list(map(of_block, self.blocks, parts)), dim=-1)


Eigenbasis = IdentityEigenbasis | DenseEigenbasis | KroneckerEigenbasis
"""Q [P, P] with orthonormal columns, never written out unless it is dense.

``to_eigenbasis``: Q^T v; ``from_eigenbasis``: Q c; ``diagonal``: diag(Q diag(values) Q^T).
"""


POSITIVITY = {"absolute": Tensor.abs, "clip": Tensor.relu}
"""How an indefinite curvature becomes a precision.

``clip``: by projection, negative eigenvalues become 0. For the diagonal structure this is the
elementwise ReLU of Warburg et al. (2023, eq 98), else the projection on the positive semi-definite
cone.

``absolute``: by magnitude, ``|H|`` (Dauphin et al. 2014, section 4). Clipped to 0, the few
directions in which the loss curves down are as free as the prior lets them, and their variance
hides every other; a Gaussian as wide as the loss takes to change by a half, up or down, has 1 / |l|
there. That is a heuristic for ranking inputs, not Laplace's approximation: where l < 0 there is no
maximum to approximate. Do not use it for the evidence, or where much of H is negative
(``negative_fraction``).
"""


@dataclass(frozen=True)
class SpectralCurvature:
    """A positive semi-definite contrastive Gauss-Newton matrix, averaged over pairs.

    Parameters
    ----------
    basis : Eigenbasis
        Q; parameters are in the order of ``torch.nn.utils.parameters_to_vector``.
    eigenvalues : Tensor [P] float64, >= 0
    negative_fraction : float in [0, 1]
        Share of the absolute spectrum that was negative before the positivity step; 0 for H = 0.
    standard_error : Tensor [P] or None
        Of the diagonal before clipping, where a reference subset estimated it.

    Examples
    --------
    >>> from laplace_metric.curvature._structures import IdentityEigenbasis
    >>> h = SpectralCurvature.positive(IdentityEigenbasis(), torch.tensor([3.0, -1.0]), "absolute")
    >>> h.eigenvalues, h.negative_fraction
    (tensor([3., 1.], dtype=torch.float64), 0.25)
    """

    basis: Eigenbasis
    eigenvalues: Tensor
    negative_fraction: float
    standard_error: Tensor | None = None

    @classmethod
    def positive(
        cls,
        basis: Eigenbasis,
        eigenvalues: Tensor,
        positivity: str,
        standard_error: Tensor | None = None,
    ) -> SpectralCurvature:
        """The positivity step.

        Raises
        ------
        NonFiniteError
            If the curvature overflowed.
        """
        check_finite_curvature(eigenvalues)
        mass = float(eigenvalues.abs().sum())
        negative = float(eigenvalues.clamp_max(0).abs().sum()) / mass if mass > 0 else 0.0
        return cls(basis, POSITIVITY[positivity](eigenvalues.double()), negative, standard_error)

    @property
    def n_parameters(self) -> int:
        """P."""
        return len(self.eigenvalues)

    def diagonal(self) -> Float[Tensor, " P"]:
        """diag(H) [P], before n_effective and the prior precision."""
        return self.basis.diagonal(self.eigenvalues)

    def to_dense(self) -> Float[Tensor, "P P"]:
        """H [P, P].

        Raises
        ------
        InputError
            If the matrix would need more than 1 GiB.
        """
        needed = 8 * self.n_parameters**2
        if needed > DENSE_LIMIT_BYTES:
            raise InputError(
                f"a dense {self.n_parameters} x {self.n_parameters} matrix needs {needed:,} bytes: "
                "use diagonal()."
            )
        identity = torch.eye(self.n_parameters).to(self.eigenvalues)
        q = self.basis.to_eigenbasis(identity)  # rows: Q^T e_i
        return q @ (self.eigenvalues[:, None] * q.mT)

    def precision(self, n_effective: float, prior_precision: float) -> Float[Tensor, " P"]:
        """Eigenvalues ``p = n_eff l + prior_precision`` [P] of the posterior precision."""
        return n_effective * self.eigenvalues + prior_precision

    def to(self, device: torch.device) -> SpectralCurvature:
        """On another device."""
        values = self.eigenvalues.to(device)
        error = None if self.standard_error is None else self.standard_error.to(device)
        return replace(self, basis=self.basis.to(values), eigenvalues=values, standard_error=error)


def check_finite_curvature(values: Tensor) -> None:
    """Raise ``NonFiniteError`` if a curvature overflowed."""
    if not torch.isfinite(values).all():
        raise NonFiniteError(
            "the curvature is not finite: features or embedding norms are too large or too "
            "small for their dtype. Fit in float64 (model.double()) or rescale the features."
        )


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

    def __add__(self, other: DiagCurvature) -> DiagCurvature:
        return DiagCurvature(self.values + other.values)

    def scaled(self, factor: float) -> DiagCurvature:
        """factor * H."""
        error = None if self.standard_error is None else abs(factor) * self.standard_error
        return DiagCurvature(factor * self.values, error)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step: an elementwise ReLU, or the absolute values."""
        basis = IdentityEigenbasis()
        return SpectralCurvature.positive(basis, self.values, positivity, self.standard_error)


@dataclass(frozen=True)
class FullCurvature:
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
        """factor * H."""
        return FullCurvature(factor * self.matrix)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step on the eigenvalues. O(P^3), once."""
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
        block = KroneckerEigenblock(q_s.contiguous(), q_a.contiguous(), self.layout)
        return block, l_s[:, None] * l_a


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
        basis, eigenvalues = self.refined or self.eigenbasis()
        return SpectralCurvature.positive(basis, eigenvalues, positivity)


Curvature = DiagCurvature | KronCurvature | FullCurvature
"""H before the positivity step: ``+``, ``scaled``, ``decompose``."""

STRUCTURES = ("diag", "kron", "full")


def zero_curvature(
    structure: str, layouts: Sequence[Layout], device: torch.device | None = None
) -> Curvature:
    """H = 0 for layers of these layouts."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    size = sum(layout.n_parameters for layout in layouts)
    if structure == "diag":
        return DiagCurvature(zeros(size))
    if structure == "full":
        return FullCurvature(zeros(size, size))
    sides = [(zeros(x.n_outputs, x.n_outputs), zeros(x.n_columns, x.n_columns)) for x in layouts]
    return KronCurvature(tuple(map(KroneckerFactors, *zip(*sides, strict=True), layouts)))


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
