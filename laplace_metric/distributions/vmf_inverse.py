"""The concentration that gives a mean resultant length: the inverse of A_D."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplace_metric.distributions.vmf import vmf_concentration
from laplace_metric.distributions.vmf_normalizer import (
    check_vmf_arguments,
    mean_resultant_length,
    mean_resultant_slope,
)
from laplace_metric.errors import InputError

NEWTON_STEPS = 8


def concentration_of(resultant: Tensor, dimension: int) -> Tensor:
    """The k in [0, inf] with ``A_D(k) = resultant``: the maximum likelihood concentration.

    Newton on ``1/(1 - A)``, nearly linear in k at both ends, from Sra's formula.

    Parameters
    ----------
    resultant : Tensor [...] in [0, 1]
        Length of a mean of unit vectors; 1 gives inf.
    dimension : int >= 2

    Raises
    ------
    InputError as ``log_vmf_normalizer``, and for a length that is not in [0, 1].

    Examples
    --------
    >>> from laplace_metric.distributions import mean_resultant_length
    >>> concentration_of(mean_resultant_length(torch.tensor([0.0, 1.0, 50.0]), 3), 3)
    tensor([ 0.0000,  1.0000, 50.0000])
    """
    check_vmf_arguments(resultant, dimension, "resultant")
    if not bool(((resultant >= 0) & (resultant <= 1)).all()):
        raise InputError("resultant must lie in [0, 1]: clamp a mean length that rounds above 1.")
    return _Concentration.apply(resultant.double(), dimension).to(resultant.dtype)


class _Concentration(torch.autograd.Function):
    """Inverse of A; derivative ``1 / A'``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor, dimension: int) -> Tensor:
        k = vmf_concentration(r, dimension)
        for _ in range(NEWTON_STEPS):
            a = mean_resultant_length(k, dimension)
            rate = (1 - a) / ((1 - r) * mean_resultant_slope(k, dimension))
            k = (k + (r - a) * rate).clamp_min(0)
        return torch.where(r == 1, torch.inf, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dimension = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (k,) = ctx.saved_tensors
        return grad / mean_resultant_slope(k, ctx.dimension), None
