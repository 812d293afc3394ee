"""The contrastive Gauss-Newton matrix of a linear head, from class sums: the whole of it here.

**Model.** ``z_i = W h_i`` (append a 1 to h for a bias), ``r_i = |z_i|``, ``u_i = z_i / r_i``,
``theta = vec(W)``, so ``J_i = dz_i/dtheta = I (x) h_i^T``. Classes c have n_c of the N points.

**Loss.** ``L = sum_ij y_ij l(i, j)`` over ordered pairs, with weights

    y_ij = 1/P in a class, -1/M between classes,    P = sum_c n_c^2,    M = N^2 - P

    euclidean: l = 1/2 |f_i - f_j|^2 of the network's output f         arccos: l = 1 - <u_i, u_j>

**Hessian of one pair.** With ``J^_i = (I - u_i u_i^T) J_i / r_i``, the Jacobian of u_i:

    cross blocks:      -y_ij J^_i^T J^_j
    diagonal blocks:    summed over j they are J_i^T B_i J_i,   B_i = 2 T_i / r_i^2

        euclidean:  T_i = w_i (I - u_i u_i^T)                          w_i = sum_j y_ij
        arccos:     T_i = k_i I + u_i m_i^T + m_i u_i^T - 3 k_i u_i u_i^T
                                                                       m_i = sum_j y_ij u_j
                                                                       k_i = <u_i, m_i>

The raw euclidean distance is the same with ``u = 0``, ``r = 1``. Both are ``T = alpha I + u v^T +
v u^T``: products with T are matrix products, and no [N, Z, Z] array is needed.

**Class sums.** y_ij takes two values, so sums over pairs are sums over classes, O(N) not O(N^2):

    w_i = n_c/P - (N - n_c)/M          m_i = s_c/P - (s - s_c)/M        c the class of i

with ``s_c = sum_{i in c} u_i`` and ``s = sum_c s_c``.

**H.** The default approximation ("fixed") keeps the diagonal blocks. With ``a_i = h_i / r_i``:

    H = 2 sum_i T_i (x) a_i a_i^T
    diagonal:   H_oo,aa = 2 sum_i T_i[o, o] a_i[a]^2                   one product [Z, N] x [N, A]
    Kronecker:  min |H - S (x) A| alternates   S <- 2 sum_i (a_i^T A a_i) T_i      [Z, Z]
                                               A <- 2 sum_i <T_i, S> a_i a_i^T     [A, A]

A layer further down has ``J_i = M_i (x) a_i^T`` and ``M_i^T T_i M_i`` in the place of T_i; the code
below is written for that, and a linear head has M = I.

**Digits.** The weights q_i of a_i a_i^T have both signs. About the origin, a common part of the
inputs would leave float32 no digits of their differences, so the sum is taken about the mean m of a
block. With ``c_i = a_i - m`` and ``s = sum_i q_i c_i`` it is the same sum:

    sum_i q_i a_i a_i^T = sum_i q_i c_i c_i^T + m s^T + s m^T + (sum_i q_i) m m^T

**Cross blocks.** "full" and "positives" add
``-2 sum_ij y_ij J^_i^T J^_j = -2 ((1/P + b) sum_c G_c^T G_c - b G^T G)``, b = 1/M or 0, with class
sums ``G_c = sum_{i in c} J^_i`` (``_passes``).

Source: Warburg et al. 2023, LAM, eqs 6-12, 85, 94-102. The cross block is that of the normalised
network; the published code has its sign wrong. Power iteration: Van Loan and Pitsianis 1993.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.heads._affine import pad
from laplace_metric.heads._factors import Factor
from laplace_metric.heads._layer import Layer
from laplace_metric.io import saved

MANY_OUTPUTS = 512
"""O from which padding the inputs costs less than the product then saves (``pad``)."""
ONE_DIRECTION = 1e-2
"""Distance of a mean cosine of all pairs from 1 below which sums over points are in float64."""
STRIP = 256
"""Rows of a symmetric product that are multiplied at once."""


@dataclass(frozen=True)
class Points:
    """Block of points, in the coordinates that the distance compares.

    Parameters
    ----------
    features : Tensor [n, D]
        Inputs h of the head.
    coordinates : Tensor [n, Z]
        Coordinates that the distance compares: u on the sphere, z raw.
    directions : Tensor [n, K]
        Directions u on the sphere (K = Z); zeros raw (K = 1, shared by all output dimensions).
    lengths : Tensor [n, 1]
        Lengths r on the sphere; ones raw.
    """

    features: Tensor
    coordinates: Tensor
    directions: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, part: slice) -> Points:
        values = (self.features, self.coordinates, self.directions, self.lengths)
        return Points(*(value[part] for value in values))


def view_points(
    h: Float[Tensor, "n D"], z: Float[Tensor, "n Z"], *, spherical: bool, checked: bool = True
) -> Points:
    """Return head inputs h and raw embeddings z as points on the sphere, or raw.

    Unchecked, an embedding without direction gives NaN instead of an error.

    Raises
    ------
    InputError
        If an embedding is exactly zero and so has no direction.
    """
    if not spherical:
        return Points(h, z, z.new_zeros(len(z), 1), z.new_ones(len(z), 1))
    scale = z.abs().amax(1, keepdim=True)  # [n, 1]: squares neither underflow nor overflow
    if checked and bool((scale == 0).any()):
        raise InputError(
            f"{int((scale == 0).sum())} embeddings are exactly zero and have no direction: "
            "remove those inputs or use distance='euclidean' on a network without normalisation."
        )
    u = z / scale
    length = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    u = u / length
    return Points(h, u, u, scale * length)


@dataclass(frozen=True)
class ClassSums:
    """Counts and sums of vectors over the points of each class, as a value that adds up.

    ``a + b`` of the sums of two disjoint sets of points is the sums of their union, in any order
    and for any split (up to float64 rounding), also when a class lives in one of them only.
    Everything is accumulated in float64.

    Parameters
    ----------
    classes : Tensor [C] int64
        The labels that occur, ascending.
    counts : Tensor [C] int64
        Numbers n_c of points of each class.
    sums : Tensor [C, V] float64
        Sums s_c of the vectors of each class; V = 0 if only counts are needed.

    Examples
    --------
    >>> left = ClassSums.of(torch.tensor([7, 7]), torch.ones(2, 1))
    >>> right = ClassSums.of(torch.tensor([3]), torch.ones(1, 1))
    >>> (left + right).counts
    tensor([1, 2])
    """

    classes: Int64[Tensor, " C"]
    counts: Int64[Tensor, " C"] = saved(0)
    sums: Float64[Tensor, "C V"] = saved()

    @classmethod
    def of(
        cls, labels: Int[Tensor, " N"], vectors: Float[Tensor, "N V"] | None = None
    ) -> ClassSums:
        """Return sums of ``vectors`` [N, V] by ``labels`` [N]."""
        classes, position, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        if vectors is None:
            vectors = torch.empty(len(labels), 0, device=labels.device)
        sums = torch.zeros(
            len(classes), vectors.shape[1], dtype=torch.float64, device=labels.device
        )
        return cls(classes, counts, sums.index_add_(0, position, vectors.double()))

    def __add__(self, other: ClassSums) -> ClassSums:
        classes, position = torch.unique(
            torch.cat([self.classes, other.classes]), return_inverse=True
        )
        counts = torch.zeros_like(classes)
        sums = self.sums.new_zeros(len(classes), self.sums.shape[1])
        return ClassSums(
            classes,
            counts.index_add_(0, position, torch.cat([self.counts, other.counts])),
            sums.index_add_(0, position, torch.cat([self.sums, other.sums])),
        )

    @classmethod
    def zeros(cls, classes: Int[Tensor, " C"], n_values: int) -> ClassSums:
        """Return zero counts and sums for ``classes`` [C], ascending."""
        counts = torch.zeros_like(classes)
        sums = torch.zeros(len(classes), n_values, dtype=torch.float64, device=classes.device)
        return cls(classes, counts, sums)

    def add_(self, labels: Int[Tensor, " n"], vectors: Float[Tensor, "n V"] | None = None) -> None:
        """Add points of known classes in place; no value is read, so a GPU need not wait.

        A label that is not among the classes is counted for a neighbouring one: the audit of a pass
        finds it by the counts.
        """
        position = self.position(labels)
        self.counts.index_add_(0, position, torch.ones_like(position))
        if vectors is not None:
            self.sums.index_add_(0, position, vectors.double())

    @property
    def n_points(self) -> int:
        """Number N of points."""
        return int(self.counts.sum())

    @property
    def nearly_one_direction(self) -> bool:
        """True if the sums are of unit vectors whose mean cosine exceeds ``1 - ONE_DIRECTION``.

        The blocks T_i then nearly cancel in their sum, which float32 would leave without digits.
        """
        if not self.sums.shape[1]:
            return False
        cosine = self.sums.sum(0).norm() / max(1, self.n_points)
        return bool(cosine.square() > 1 - ONE_DIRECTION)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Classes, counts, sums."""
        return self.classes, self.counts, self.sums

    def to(self, device: torch.device) -> ClassSums:
        """Return the same sums on another device."""
        return ClassSums(*(t.to(device) for t in self.tensors))

    def position(self, labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return positions of labels [n] in ``classes``; for an unknown label, a neighbour's."""
        return torch.searchsorted(self.classes, labels.contiguous()).clamp_max(
            len(self.classes) - 1
        )


def pair_counts(class_counts: Int[Tensor, " C"]) -> tuple[int, int]:
    """Return the numbers P and M of ordered positive (with self pairs) and negative pairs.

    Examples
    --------
    >>> pair_counts(torch.tensor([2, 1]))
    (5, 4)
    """
    counts = class_counts.tolist()
    positive = sum(n * n for n in counts)
    return positive, sum(counts) ** 2 - positive


def class_weights(class_counts: Int[Tensor, " C"], *, negatives: bool) -> Float[Tensor, " C"]:
    """Compute ``w_c = n_c/P - (N - n_c)/M`` in float64; ``n_c/P`` without negatives.

    The numerator is an integer difference, so w_c is exactly 0 for balanced classes.

    Examples
    --------
    >>> class_weights(torch.tensor([5, 5, 5]), negatives=True)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    counts: list[int] = class_counts.tolist()
    n, (p, m) = sum(counts), pair_counts(class_counts)
    if negatives and m:
        values = [(c * m - (n - c) * p) / (p * m) for c in counts]
    else:
        values = [c / p for c in counts]
    return torch.tensor(values, dtype=torch.float64, device=class_counts.device)


class PairWeights(ABC):
    """Weights y_ij of one kind of pairs, as a pass over the points asks for them."""

    @abstractmethod
    def __str__(self) -> str:
        """Name the kind of pairs: a part of the fingerprint of a pass."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the tensors that the weights depend on, in addition to the class sums."""

    @abstractmethod
    def prepare(self) -> None:
        """Compute what is computed once, before any point is read."""

    @abstractmethod
    def sums(
        self, points: Points, labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n K"]]:
        """Return w_i and m_i of a block of n points; K = 0 if no direction is summed."""

    @abstractmethod
    def pairs(self, points: Points, labels: Int[Tensor, " n"]) -> Iterator[tuple[Points, Tensor]]:
        """Yield m columns and Y [n, m] of the pairs that must be computed one by one."""


@final
@dataclass(frozen=True)
class ClassPairWeights(PairWeights):
    """Weights w_i and m_i of all pairs, from class sums.

    Parameters
    ----------
    class_sums : ClassSums
        Counts n_c and sums s_c of all points.
    negatives : bool
        True if negative pairs count, too.
    """

    class_sums: ClassSums
    negatives: bool

    @cached_property
    def within_and_between(self) -> tuple[float, float]:
        """Weights ``1/P + b`` and b, with b = 1/M, or 0 if there are no negatives that count."""
        positive, negative = pair_counts(self.class_sums.counts)
        between = 1 / negative if negative and self.negatives else 0.0
        return (1 / positive if positive else 0.0) + between, between

    @cached_property
    def by_class(self) -> tuple[Tensor, Tensor]:
        """w_c [C] and m_c [C, Z] in float64."""
        s_c, s = self.class_sums.sums, self.class_sums.sums.sum(0)
        within, b = self.within_and_between
        w = class_weights(self.class_sums.counts, negatives=self.negatives)
        return w, (within - b) * s_c - b * (s - s_c)

    def sums(
        self, points: Points, labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n K"]]:
        """Return those of the classes of the points."""
        position, dtype = self.class_sums.position(labels), points.features.dtype
        w, m = (values.to(dtype)[position] for values in self.by_class)
        return w, m

    def prepare(self) -> None:
        """Compute w_c and m_c, before any point is read."""
        _ = self.by_class

    def pairs(self, points: Points, labels: Int[Tensor, " n"]) -> Iterator[tuple[Points, Tensor]]:
        """Return no pair: those by class never need to be listed."""
        return iter(())

    def tensors(self) -> list[Tensor]:
        """Return no tensors: the weights depend on the class sums only."""
        return []

    def __str__(self) -> str:
        return f"by class, negatives={self.negatives}"


@dataclass(frozen=True)
class PointBlocks:
    """``T_i = alpha_i I + u_i v_i^T + v_i u_i^T`` of n points.

    Parameters
    ----------
    alpha : Tensor [n]
        Factors of the identity.
    u, v : Tensor [n, K]
        Vectors of the part of rank two. K = Z on the sphere; K = 1 and u = 0 raw.

    Examples
    --------
    >>> t = PointBlocks(torch.ones(1), torch.tensor([[1.0, 0.0]]), torch.tensor([[-0.5, 0.0]]))
    >>> t.dense(2)
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    alpha: Tensor
    u: Tensor
    v: Tensor

    @classmethod
    def of(
        cls,
        u: Float[Tensor, "n K"],
        w: Float[Tensor, " n"],
        m: Float[Tensor, "n K0"],
        *,
        curved_loss: bool,
    ) -> PointBlocks:
        """Return T_i from w_i and m_i; m is used only if ``curved_loss`` (arccos)."""
        if not curved_loss:
            return cls(w, u, -0.5 * w[:, None] * u)
        k = (u * m).sum(1)
        return cls(k, u, m - 1.5 * k[:, None] * u)

    def pulled(self, factor: Factor) -> PointBlocks:
        """Return ``M_i^T u_i`` and ``M_i^T v_i`` as u and v, for sums of ``M_i^T T_i M_i``."""
        return PointBlocks(self.alpha, factor.vjp(self.u), factor.vjp(self.v))

    def dense(self, n_outputs: int) -> Float[Tensor, "n Z Z"]:
        """Return T written out, for Jacobians without structure."""
        u, v = (x.expand(-1, n_outputs) for x in (self.u, self.v))
        outer = u[:, :, None] * v[:, None, :]  # [n, Z, Z]
        identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
        return self.alpha[:, None, None] * identity + outer + outer.mT


def diagonal_sum(blocks: PointBlocks, layer: Layer) -> Float[Tensor, "O A"]:
    """Return ``2 sum_i diag(M_i^T T_i M_i) (x) a_i^2``, of ``blocks.pulled`` by M."""
    # (M^T T M)_oo = alpha (M^T M)_oo + 2 (M^T u)_o (M^T v)_o
    alpha_gram = blocks.alpha[:, None] * layer.factor.gram_diagonal()  # [n, O]; M = I: alpha itself
    t_oo = torch.addcmul(alpha_gram, blocks.u, blocks.v, value=2).mul_(2)
    a = pad(layer.inputs) if t_oo.shape[1] >= MANY_OUTPUTS else layer.inputs
    return (t_oo.mT @ a.square())[:, : layer.inputs.shape[1]]


def left_sum(
    blocks: PointBlocks, layer: Layer, other: Float[Tensor, "*shape"] | None
) -> Float[Tensor, "O O"]:
    """Return ``S = 2 sum_i (a_i^T A a_i) M_i^T T_i M_i``, of ``blocks.pulled`` by M.

    A is a matrix [A, A], the diagonal [A] of one, or None for the identity.
    """
    a = layer.inputs
    # T = alpha I + u v^T + v u^T: the last two are one product [O, n] x [n, O] and its transpose
    q = 2 * quadratic(a, other)  # 2 a_i^T A a_i [n]
    outer = blocks.u.mT @ (q[:, None] * blocks.v)
    return layer.factor.gram_sum(q * blocks.alpha, len(outer)).add_(outer).add_(outer.mT)


def right_sum(
    blocks: PointBlocks, layer: Layer, other: Float[Tensor, "O O"]
) -> Float[Tensor, "A A"]:
    """Compute ``A = 2 sum_i <M_i^T T_i M_i, S> a_i a_i^T``, of ``blocks.pulled`` by M.

    What is below the diagonal is left out, or not, as it comes.
    """
    u, v, m = blocks.u, blocks.v, centre(layer.inputs)
    q = blocks.alpha * layer.factor.gram_inner(other) + 2 * ((u @ other) * v).sum(1)
    c = layer.inputs - m
    q.mul_(2)  # q_i = <M_i^T T_i M_i, S>
    return about_origin(upper_gram(q[:, None] * c, c), q @ c, q.sum(dtype=torch.float64), m)


def centre(a: Float[Tensor, "n A"]) -> Float[Tensor, " A"]:
    """Return the point about which sums over inputs a are taken: their mean, 0 without inputs."""
    return a.detach().sum(0) / max(1, len(a))


def about_origin(
    second: Float[Tensor, "*K A A"],
    first: Float[Tensor, "*K A"],
    total: Float[Tensor, "*K"],
    m: Float[Tensor, " A"],
) -> Float[Tensor, "*K A A"]:
    """Return ``sum_i q_i a_i a_i^T`` in float64, from the sums of q, q c and q c c^T, c = a - m.

    Examples
    --------
    >>> a, q, m = torch.tensor([[3.0, 5.0]]), torch.tensor([2.0]), torch.tensor([1.0, 1.0])
    >>> c = a - m
    >>> about_origin((q[:, None] * c).mT @ c, q @ c, q.sum(), m)
    tensor([[18., 30.],
            [30., 50.]], dtype=torch.float64)
    """
    m, first = m.double(), first.double()
    side = m[:, None] * (first + total[..., None].double() * m / 2)[..., None, :]
    return second.double() + side + side.mT


def upper_gram(x: Float[Tensor, "n A"], y: Float[Tensor, "n A"]) -> Float[Tensor, "A A"]:
    """Compute ``X^T Y`` from the diagonal on; entries below it may be left out.

    Up to a half fewer multiplications than the whole product, in three quarters of its time.

    Examples
    --------
    >>> x = torch.ones(3, 2)
    >>> upper_gram(x, x)
    tensor([[3., 3.],
            [3., 3.]])
    """
    width = x.shape[1]
    if width <= STRIP:
        return x.mT @ y
    gram = x.new_zeros(width, width)
    for start in range(0, width, STRIP):
        rows = slice(start, start + STRIP)
        gram[rows, start:] = x[:, rows].mT @ y[:, start:]  # gradients may pass
    return gram


def quadratic(
    a: Float[Tensor, "n A"], other: Float[Tensor, "*shape"] | None
) -> Float[Tensor, " n"]:
    """Return ``a_i^T A a_i`` for a matrix A [A, A], the diagonal [A] of one, or None for I."""
    if other is None:
        return torch.linalg.vecdot(a, a)
    return a.square() @ other if other.ndim == 1 else torch.linalg.vecdot(a @ other, a)


def times(a: Float[Tensor, "*n A"], other: Float[Tensor, "*shape"]) -> Float[Tensor, "*n A"]:
    """Return ``a A`` for a matrix A [A, A], or for the diagonal [A] of one."""
    return a * other if other.ndim == 1 else a @ other
