"""What one point contributes to the Hessian at z: ``T_i = alpha_i I + u_i v_i^T + v_i u_i^T``.

Identity plus rank two covers both distances (see ``geometry``), so every product with T is a few
matrix products, and the [n, Z, Z] array is written out only for Jacobians without structure.

Where the contrastive distance lives, and what one point contributes to the Hessian there.

Both distances use one formula. Let ``u`` be the direction of ``z = W h``, ``r = |z|``, and

    J^_i = (I - u_i u_i^T) (x) a_i^T,   a_i = h_i / r_i

the Jacobian of what the distance compares (of ``u_i``). Then, for a pair weight ``y_ij``,

    cross block:    d2l_12 = -y_ij J^_i^T J^_j       both on the sphere (euclidean and arccos)
    diagonal block: sum_j d2l_11 = J_i^T B_i J_i     with B_i = 2 T_i / r_i^2, where
        euclidean:  T_i = w_i (I - u_i u_i^T)                        w_i = sum_j y_ij
        arccos:     T_i = k_i I + u m^T + m u^T - 3 k_i u u^T        m_i = sum_j y_ij u_j
                                                                     k_i = <u_i, m_i>

    (kept as T = alpha I + u v^T + v u^T: see ``blocks``).

For another head J^_i = (I - u_i u_i^T) J_i / r_i. The raw euclidean distance is the same with
``u = 0`` and ``r = 1``: all output dimensions of a linear head share one curvature there, so a
single one is computed. (Warburg et al. 2023, LAM, eqs 85 and 94-97; the
arccos cross block equals the Gauss-Newton cross block of the normalised network, which the paper's
code gets the sign of wrong.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class PointBlocks:
    """T_i of n points; K = Z on the sphere, and K = 1 with u = 0 in the raw geometry.

    Parameters
    ----------
    alpha : Tensor [n]
    u, v : Tensor [n, K]

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

    def dense(self, n_outputs: int) -> Tensor:
        """T [n, Z, Z]."""
        u, v = (x.expand(-1, n_outputs) for x in (self.u, self.v))
        outer = u[:, :, None] * v[:, None, :]
        identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
        return self.alpha[:, None, None] * identity + outer + outer.mT


@dataclass(frozen=True)
class Points:
    """A block of points as the distance sees them.

    Parameters
    ----------
    features : Tensor [n, D]
        h, the input of the head.
    coordinates : Tensor [n, Z]
        What the distance compares: u on the sphere, z raw.
    directions : Tensor [n, K]
        u on the sphere (K = Z); zeros raw (K = 1, shared by all output dimensions).
    lengths : Tensor [n, 1]
        r on the sphere; ones raw.
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


@dataclass(frozen=True)
class Geometry:
    """A distance and the space it is measured in.

    Parameters
    ----------
    spherical : bool
        Directions are compared (an l2-normalised network, or the arccos distance).
    curved_loss : bool
        The normalisation belongs to the loss (arccos), so its second derivative counts.
    """

    name: str
    spherical: bool
    curved_loss: bool

    def n_rows(self, n_outputs: int) -> int:
        """K: how many rows of the [Z, D'] curvature differ (Z on the sphere, 1 raw)."""
        return n_outputs if self.spherical else 1

    def points(self, features: Tensor, raw: Tensor, *, checked: bool = True) -> Points:
        """View head inputs h [n, D] and raw embeddings z [n, Z] in this geometry.

        Unchecked, an embedding without direction gives NaN instead of an error.
        """
        if not self.spherical:
            return Points(features, raw, raw.new_zeros(len(raw), 1), raw.new_ones(len(raw), 1))
        norm = robust_norm(raw, checked=checked)
        directions = raw / norm
        return Points(features, directions, directions, norm)

    def point_blocks(self, directions: Tensor, weight: Tensor, pull: Tensor) -> PointBlocks:
        """T_i from u [n, K], w [n] and m [n, K] (see the module's formulas)."""
        u, w, m = directions, weight, pull
        if not self.curved_loss:
            return PointBlocks(w, u, -0.5 * w[:, None] * u)
        k = (u * m).sum(1)
        return PointBlocks(k, u, m - 1.5 * k[:, None] * u)


RAW_EUCLIDEAN = Geometry("euclidean", spherical=False, curved_loss=False)
NORMALIZED_EUCLIDEAN = Geometry("euclidean on the sphere", spherical=True, curved_loss=False)
ARCCOS = Geometry("arccos", spherical=True, curved_loss=True)

DISTANCES = ("euclidean", "arccos")


def geometry(distance: str, *, normalized: bool) -> Geometry:
    """The geometry of a distance on a network that does or does not l2-normalise its output.

    Arccos sees directions only, so there the network's own normalisation makes no difference.

    Examples
    --------
    >>> geometry("euclidean", normalized=False).spherical
    False
    """
    if distance not in DISTANCES:
        raise UnknownNameError("distance", distance, DISTANCES)
    if distance == "arccos":
        return ARCCOS
    return NORMALIZED_EUCLIDEAN if normalized else RAW_EUCLIDEAN


def robust_norm(raw: Tensor, *, checked: bool = True) -> Tensor:
    """|z| [n, 1] without underflow or overflow of the squares.

    Raises
    ------
    InputError
        If an embedding is exactly zero and so has no direction.
    """
    scale = raw.abs().amax(1, keepdim=True)
    if checked and bool((scale == 0).any()):
        raise InputError(
            f"{int((scale == 0).sum())} embeddings are exactly zero and have no direction: "
            "remove those inputs or use distance='euclidean' on a network without normalisation."
        )
    return scale * torch.linalg.vector_norm(raw / scale, dim=1, keepdim=True)
