"""A head on frozen or trained features: the mean of a Gaussian on the unit sphere, and its width.

    h = trunk(features)     z = W h + b     mu = z / |z|     log v = U h + c

The bias c starts at ``log(0.35 / D)``, a trace of .35 whatever D: at much smaller variances their
gradient vanishes (at log v = -10 and D = 384 the trace is .017 and stays there).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count

FIRST_TRACE = 0.35


class HeadOutput(NamedTuple):
    """Of B inputs: what enters the projections, the raw means, the log variances.

    Parameters
    ----------
    inputs : Tensor [B, H]
    raw : Tensor [B, D]
    log_v : Tensor [B, D]
        Minus infinity for a head without variances.
    """

    inputs: Float[Tensor, "B H"]
    raw: Float[Tensor, "B D"]
    log_v: Float[Tensor, "B D"]

    @property
    def mu(self) -> Float[Tensor, "B D"]:
        """Unit means [B, D]."""
        return nn.functional.normalize(self.raw, dim=-1)

    @property
    def trace(self) -> Float[Tensor, " B"]:
        """``tr S`` [B]."""
        return self.log_v.exp().sum(-1)


class GaussianHead(nn.Module):
    """Features [B, F] -> ``HeadOutput``.

    Parameters
    ----------
    size : int
        F.
    dim : int
        D.
    hidden : int
        Units of one hidden layer; 0: both projections are linear in the normalised features.
    dropout : float in [0, 1)
        Of the features, while training.
    probabilistic : bool
        Whether there are variances.

    Examples
    --------
    >>> out = GaussianHead(8, 4)(torch.randn(3, 8))
    >>> out.mu.norm(dim=1).allclose(torch.ones(3)), out.trace.shape
    (True, torch.Size([3]))
    """

    def __init__(
        self,
        size: int,
        dim: int,
        hidden: int = 0,
        dropout: float = 0.0,
        *,
        probabilistic: bool = True,
    ) -> None:
        super().__init__()
        self.size, dim = check_count("size", size), check_count("dim", dim, 2)
        layers: list[nn.Module] = [nn.LayerNorm(self.size), nn.Dropout(dropout)]
        if check_count("hidden", hidden, 0):
            layers += [nn.Linear(size, hidden), nn.GELU(), nn.LayerNorm(hidden)]
        self.trunk = nn.Sequential(*layers)
        self.mean = nn.Linear(hidden or size, dim)
        self.log_variance = nn.Linear(hidden or size, dim) if probabilistic else None
        if self.log_variance is not None:
            nn.init.normal_(self.log_variance.weight, std=0.1 / math.sqrt(hidden or size))
            nn.init.constant_(self.log_variance.bias, math.log(FIRST_TRACE / dim))

    def forward(self, features: Float[Tensor, "B F"]) -> HeadOutput:
        """Means and log variances of a batch."""
        h = self.trunk(features)
        raw = self.mean(h)
        if self.log_variance is None:
            return HeadOutput(h, raw, torch.full_like(raw, -torch.inf))
        return HeadOutput(h, raw, self.log_variance(h))
