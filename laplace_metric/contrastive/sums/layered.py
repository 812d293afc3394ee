"""What the accumulators for layered heads share: scaled layers and slabs of class sums.

For a layer ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

so its class sums are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i``: one product
[s O, n] x [n, A] for a slab of s rows z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.pairs.protocol import Groups
from laplace_metric.curvature import KroneckerBasis
from laplace_metric.errors import HeadError
from laplace_metric.features import block_rows
from laplace_metric.jacobians import HeadJacobian
from laplace_metric.jacobians.layers import Layer

SLAB_BYTES = 4 * 2**20
"""Memory of one slab of G_c; a larger head takes more passes, not more memory."""
PAIR_BYTES = 32 * 2**20
"""Memory of the arrays L [n, Z, O] of a block of pairs."""

View = Callable[[Points], list[Layer]]
"""Points -> J_i / r_i of every layer."""


def view(head: HeadJacobian, basis: KroneckerBasis | None = None) -> View:
    """The layers as they are, or as ``J_i (Q_S (x) Q_A)``.

    Raises
    ------
    HeadError
        If the head has no such structure.
    """
    if not head.layered:
        raise HeadError(
            f"{type(head).__name__} does not see the head as linear layers: use structure='diag' "
            "or 'full', or a head of linear layers with elementwise activations between them."
        )

    def layers(points: Points) -> list[Layer]:
        found = head.layers(points.features) or []
        if basis is not None:
            pairs = zip(found, basis.to(points.features).blocks, strict=True)
            found = [layer.rotated(block.left, block.right) for layer, block in pairs]
        return [layer.divided(points.lengths) for layer in found]

    return layers


def class_sum_slabs(
    layers: View, groups: Groups, number: int, shape: tuple[int, int, int], *, upper: bool = False
) -> Iterator[tuple[slice, Iterator[Tensor]]]:
    """(rows z, G_c [s, O, A] float64 class by class) of layer ``number``, slab by slab.

    With ``upper`` only columns from the slab's first row on, [s, O - rows.start, A]: enough where
    L is symmetric.
    """
    n_rows, n_outputs, n_columns = shape
    step = max(1, SLAB_BYTES // (8 * n_outputs * n_columns))
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        columns = slice(start if upper else 0, n_outputs)
        yield rows, _class_sums(layers, groups, number, (rows, columns))


def _class_sums(
    layers: View, groups: Groups, number: int, entries: tuple[slice, slice]
) -> Iterator[Tensor]:
    rows, columns = entries
    size = (rows.stop - rows.start, columns.stop - columns.start)
    for group in groups(block_rows(size[0] * size[1], 4, 2 * SLAB_BYTES)):
        total: Tensor | None = None
        for points in group:
            layer = layers(points)[number]
            left = layer.factor.projected(points.directions, rows, columns).flatten(1)  # [n, s O]
            term = (left.mT @ layer.inputs).double()
            total = term if total is None else total.add_(term)
        assert total is not None
        yield total.unflatten(0, size)


def chunks(points: Points, n_entries: int) -> Iterator[tuple[slice, Points]]:
    """Pieces of a block whose L [n, Z, O] fits ``PAIR_BYTES``."""
    step = max(1, PAIR_BYTES // (points.directions.element_size() * n_entries))
    for start in range(0, len(points), step):
        part = slice(start, min(start + step, len(points)))
        yield part, points[part]


def slab_shapes(head: HeadJacobian, n_rows: int) -> list[tuple[int, int, int]]:
    """(Z, O, A) of G for each layer; the last one has ``n_rows`` = K rows and outputs."""
    shapes = [(head.n_outputs, x.n_outputs, x.n_columns) for x in head.layouts]
    return [*shapes[:-1], (n_rows, n_rows, shapes[-1][2])]
