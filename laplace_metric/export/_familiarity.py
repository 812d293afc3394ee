"""``Embedding.epistemic`` as a plain graph, from buffers (``familiarity`` has the equations)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.familiarity._near_far import NOTHING_ENTERS, NearFar
from laplace_metric.familiarity._nearest import others_of
from laplace_metric.familiarity._novelty import foreign_sum, length_of
from laplace_metric.familiarity._row_sample import row_weights

# What ``Embedding.epistemic`` needs as a plain graph (``familiarity._near_far`` has the equations).


class Familiarity(nn.Module):
    """h [B, D] -> ``Embedding.epistemic`` [B].

    What ``Embedding.epistemic`` refuses has a number here: ``NOTHING_ENTERS`` for rows of zeros,
    as in an index; NaN for NaN and infinity.
    """

    mean: Tensor
    total_root: Tensor
    root: Tensor
    points: Tensor
    white: Tensor
    row_weights: Tensor
    classes: Tensor
    weights: Tensor
    length: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, near_far: NearFar) -> None:
        super().__init__()
        self.knows_classes = len(near_far.class_means) > 0
        root = near_far.within_root if self.knows_classes else near_far.total_root
        for name in ("mean", "total_root", "points", "length"):
            self.register_buffer(name, getattr(near_far, name).clone())
        for name in ("weights", "centre", "scale"):
            self.register_buffer(name, getattr(near_far, name).to(root))
        self.register_buffer("root", root.clone())
        self.register_buffer("row_weights", row_weights(len(root)).to(near_far.points))
        self.register_buffer("classes", near_far.class_means @ root)
        self.register_buffer("white", near_far.points @ root.to(near_far.points))

    def forward(self, h: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Return epistemic [B]."""
        wide = h.double()
        longest = wide.abs().amax(1, keepdim=True)
        wide = wide / torch.where(longest > 0, longest, 1.0)  # squares neither over- nor underflow
        length = wide.square().sum(1, keepdim=True).sqrt()
        u = wide / torch.where(length > 0, length, 1.0)
        x = (u - self.mean).to(self.root.dtype)
        a, far = x @ self.root, (x @ self.total_root).square().sum(1)
        near = _nearest(a, self.classes) - far if self.knows_classes else torch.zeros_like(far)
        exact = self.points.dtype
        asked, white = x.to(exact), a.to(exact)
        points = others_of(asked, self.points, white, self.white, self.row_weights)
        scores = torch.stack([near, far, *(part.to(far.dtype) for part in points)], 1)
        z = (scores - self.centre[:4]) / self.scale[:4]
        w = length_of((longest.log() + length.log())[:, 0], self.length).to(z)
        number = foreign_sum(z, w, self.weights, self.centre, self.scale)
        number = (number - self.centre[5]) / self.scale[5]
        return torch.where(longest[:, 0] == 0, NOTHING_ENTERS, number)


def _nearest(a: Float[Tensor, "B D"], points: Float[Tensor, "S D"]) -> Float[Tensor, " B"]:
    """Return squared distance to the nearest point; that difference is not expanded."""
    nearest = (points.square().sum(1) - 2 * a @ points.mT).argmin(1)
    return (a - points[nearest]).square().sum(1)
