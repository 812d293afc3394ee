"""Return whether unit vectors lie in the credible cap of a von Mises-Fisher distribution."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from baselines.distributions.location_concentration import squared_chord
from baselines.distributions.von_mises_fisher import VonMisesFisher
from laplace_metric._utils.validation import check_broadcast, check_floating
from laplace_metric.distributions import cap_angle
from laplace_metric.errors import InputError


def in_cap(
    p: VonMisesFisher, value: Float[Tensor, "*V D"], probability: Float[Tensor, " ..."] | float
) -> Bool[Tensor, " ..."]:
    """Return [...], true for unit vectors [..., D] that lie in the credible cap of p.

    By ``|z - mu|^2 <= 4 sin^2(a/2)``, which keeps its digits in a narrow cap.

    Raises
    ------
    InputError
        For another distribution, or vectors of another length.

    Examples
    --------
    >>> import torch
    >>> mu = torch.tensor([1.0, 0.0])
    >>> in_cap(VonMisesFisher(mu, 100.0), torch.stack([mu, -mu]), 0.95)
    tensor([ True, False])
    """
    if not isinstance(p, VonMisesFisher):
        raise InputError(f"p is a {type(p).__name__}: pass a VonMisesFisher.")
    check_floating("value", value, "[..., D]")
    check_broadcast(value=value.shape, p=p.loc.shape)
    half = cap_angle(p.concentration, p.dimension, probability) / 2
    return squared_chord(value, p.loc) <= 4 * half.sin().square()
