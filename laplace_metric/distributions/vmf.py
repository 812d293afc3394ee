"""The von Mises-Fisher summary of a spread of directions."""

from __future__ import annotations

from torch import Tensor


def vmf_concentration(resultant: Tensor, dimension: int) -> Tensor:
    """Concentration from the mean resultant length: ``kappa = R (Z - R^2) / (1 - R^2)``.

    Parameters
    ----------
    resultant : Tensor [...] in [0, 1]
        R, the length of the mean of unit vectors.
    dimension : int
        Z, of the ambient space.

    Returns
    -------
    Tensor [...] in [0, inf]; inf at R = 1. (Sra 2012; Warburg et al. 2023, LAM, section D.)

    Examples
    --------
    >>> import torch
    >>> vmf_concentration(torch.tensor([0.0, 0.5]), 3)
    tensor([0.0000, 1.8333])
    """
    r = resultant
    return r * (dimension - r.square()) / (1 - r.square())
