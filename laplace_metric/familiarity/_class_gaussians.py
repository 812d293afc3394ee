"""One Gaussian of all directions of a fit set, and one for each of its classes.

With mu the mean of all directions u, m_c that of class c, T their covariance about mu and W their
covariance about the m_c. A ridge e is added to both (``_scatter``).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ClassGaussians(NamedTuple):
    """Gaussian model of the fit set, of directions.

    Parameters
    ----------
    mean : Tensor [D]
        Mean mu of all directions, in float64: differences to it may be small.
    class_means : Tensor [C, D]
        Mean of each class less mu, ``m_c - mu``; no rows where classes say nothing (one member
        each, or all members alike).
    total_root, within_root : Tensor [D, D]
        Upper triangles R with ``R R' = (T + e I)^-1``, and with ``(W + e I)^-1``. The second has no
        columns where classes say nothing.
    """

    mean: Tensor
    class_means: Tensor
    total_root: Tensor
    within_root: Tensor

    def without_classes(self) -> ClassGaussians:
        """Return the Gaussian of all directions alone, which gives far."""
        return self._replace(class_means=self.mean[None][:0], within_root=self.mean[None].T[:, :0])
