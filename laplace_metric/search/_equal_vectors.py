"""Equal vectors: one query that stands in a log many times, one item that is stored twice.

Two vectors are equal if they are at most

    t = SAME r + ROUNDED e (|v - c| + |c|)

apart, for the longer |v - c| of both. c is a median of the rows, r the median distance from it, and
e the rounding of their type: a model rounds one input differently in another batch. A minority of
rows far away moves neither. r leaves out rows that are as near to c as float32 rounds: most rows
may be copies of one. Projections on one random direction are no farther apart than the vectors
themselves, so that equal vectors stand next to each other in the order of their projections:
O(N D + N log N).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import blocks

SAME, ROUNDED = 1e-6, 8.0
"""Parts of t; a network of twelve layers rounds to 2 e |v|."""
SAMPLED = 1_000
"""Rows of which the centre is a median."""
SLACK = 10.0
"""Distance of projections, in t, up to which vectors are compared: projections are rounded."""


def equal_vectors(vectors: Float[Tensor, "N D"]) -> npt.NDArray[np.int64]:
    """Return a number [N] for each vector, from 0: equal vectors have the same.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
    >>> equal_vectors(x).tolist()
    [0, 1, 0]
    """
    n, width = vectors.shape
    if n < 2 or not width:
        return np.zeros(n, np.int64)
    row_bytes = 16 * width  # of two rows in float64
    source = torch.Generator().manual_seed(0)
    direction = torch.randn(width, dtype=torch.float64, generator=source)
    direction = (direction / direction.norm()).to(vectors)
    sample = torch.randperm(n, generator=source)[:SAMPLED].to(vectors.device)
    centre = vectors[sample].median(0).values
    projections, lengths = list[Tensor](), list[Tensor]()
    for part in blocks(n, row_bytes):  # the vectors may be a memory map
        centred = vectors[part] - centre
        projections.append(centred @ direction)
        lengths.append(torch.linalg.vector_norm(centred, dim=1, dtype=torch.float64))
    projected, length = torch.cat(projections), torch.cat(lengths)
    to_centre = centre.double().norm()
    beyond = length[length > ROUNDED * torch.finfo(torch.float32).eps * to_centre]
    usual = beyond.median() if len(beyond) else to_centre.new_zeros(())
    tolerance = SAME * usual + ROUNDED * torch.finfo(vectors.dtype).eps * (length + to_centre)
    order = projected.argsort(stable=True)
    placed = projected[order]
    most = torch.maximum(tolerance[order[1:]], tolerance[order[:-1]])
    near = (placed.diff() <= SLACK * most).nonzero().flatten()
    apart = torch.ones(n - 1, dtype=torch.bool, device=vectors.device)
    for part in blocks(len(near), row_bytes):
        some = near[part]
        gaps = vectors[order[some]].double() - vectors[order[some + 1]].double()
        apart[some] = gaps.norm(dim=1) > most[some]
    run = torch.zeros(n, dtype=torch.long, device=vectors.device)
    run[1:] = apart.cumsum(0)
    group = torch.empty_like(run)
    group[order] = run
    # numbered in the order in which they come, which depends on no direction
    _, first, number = np.unique(group.cpu().numpy(), return_index=True, return_inverse=True)
    return first.argsort().argsort()[number]


def first_rows(group: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first row of each group [N], in their order."""
    return np.sort(np.unique(group, return_index=True)[1])
