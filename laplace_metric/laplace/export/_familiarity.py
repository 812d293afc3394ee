"""near and far of the fit set as a plain graph (``laplace._near_far`` has the equations)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.laplace._near_far import NOTHING_ENTERS, NearFar


class Familiarity(nn.Module):
    """h [B, D] -> ``near + far`` [B], far alone without known classes.

    What ``Embedding.epistemic`` refuses has a number here: ``NOTHING_ENTERS`` for rows of zeros,
    as in an index; NaN for NaN and infinity.
    """

    mean: Tensor
    total_root: Tensor
    within_root: Tensor
    centre: Tensor
    scale: Tensor
    classes: Tensor
    sizes: Tensor

    def __init__(self, near_far: NearFar) -> None:
        super().__init__()
        classes = near_far.class_means @ near_far.within_root  # [C, D]
        self.knows_classes = len(classes) > 0
        for name in ("mean", "total_root", "within_root", "centre", "scale"):
            self.register_buffer(name, getattr(near_far, name).clone())
        self.register_buffer("classes", classes)
        self.register_buffer("sizes", classes.square().sum(1))

    def forward(self, h: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """epistemic [B]."""
        wide = h.double()
        longest = wide.abs().amax(1, keepdim=True)
        wide = wide / torch.where(longest > 0, longest, 1.0)  # squares neither over- nor underflow
        length = wide.square().sum(1, keepdim=True).sqrt()
        u = wide / torch.where(length > 0, length, 1.0)
        x = (u - self.mean).to(self.total_root.dtype)
        t = (x @ self.total_root).square().sum(1)
        number = (t - self.centre[1].to(t.dtype)) / self.scale[1].to(t.dtype)
        if self.knows_classes:
            r = self._nearest(x) - t
            number = number + (r - self.centre[0].to(t.dtype)) / self.scale[0].to(t.dtype)
        return torch.where(longest[:, 0] == 0, NOTHING_ENTERS, number)

    def _nearest(self, x: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """min_c d_c; the difference to the nearest class is not expanded."""
        a = x @ self.within_root
        nearest = (self.sizes - 2 * a @ self.classes.mT).argmin(1)
        return (a - self.classes[nearest]).square().sum(1)
