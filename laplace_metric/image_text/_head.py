"""A Gaussian head on frozen or trained features: a mean on the unit sphere, and a variance.

    h = trunk(features)     z = W h + b     mu = z / |z|     log v = U u + c

with ``u = h``; where an encoder has two tokens, h is of [CLS] and u of [UNC] (Chun et al. 2025,
section 3.1). The bias c starts at ``log(0.35 / D)``, a trace of .35 whatever D: at much smaller
variances their gradient vanishes (at log v = -10 and D = 384 the trace is .017 and stays there).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

# A head on frozen or trained features: the mean of a Gaussian on the unit sphere, and its width.

FIRST_TRACE = 0.35


class HeadOutput(NamedTuple):
    """Outputs for B inputs: inputs of the projections, raw means, log variances.

    Parameters
    ----------
    inputs : Tensor [B, H]
        Features after the trunk, of [CLS] if there are two tokens.
    raw : Tensor [B, D]
        Means before they are normalised.
    log_v : Tensor [B, D]
        Log variances; minus infinity for a head without variances.
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
    """Features [B, F], or [B, 2, F] of two tokens, -> ``HeadOutput``.

    Two tokens, [CLS] and [UNC], go through the same trunk, then each through its own projection;
    ``inputs`` are of [CLS].

    Parameters
    ----------
    size : int
        Number F of features of an input.
    dim : int
        Dimension D of the embeddings.
    dropout : float in [0, 1)
        Dropout of the features while training.
    tokens : "head" | "uncertainty"
        Features of an input: one vector, or two tokens.
    probabilistic : bool
        True, the default, learns variances.
    layer_norm : bool
        Normalise the features (layer norm) first.
    first_trace : float > 0
        Approximate ``tr S`` before training.
    bias : bool
        True, the default, adds b to the means.

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
        dropout: float = 0.0,
        *,
        tokens: str = "head",
        probabilistic: bool = True,
        layer_norm: bool = True,
        first_trace: float = FIRST_TRACE,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.size, self.two_tokens = size, tokens == "uncertainty"
        norm = [nn.LayerNorm(size)] if layer_norm else []
        self.trunk = nn.Sequential(*norm, nn.Dropout(dropout))
        self.mean = nn.Linear(size, dim, bias=bias)
        self.log_variance = nn.Linear(size, dim) if probabilistic else None
        if self.log_variance is not None:
            nn.init.normal_(self.log_variance.weight, std=0.1 / math.sqrt(size))
            nn.init.constant_(self.log_variance.bias, math.log(first_trace / dim))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the features of one input."""
        return (2, self.size) if self.two_tokens else (self.size,)

    def entering(self, features: Tensor) -> Float[Tensor, "B H"]:
        """Return the input of the projections, h; with two tokens, h next to u [B, 2 H]."""
        entering: Tensor = self.trunk(features).flatten(1)
        return entering

    def forward(self, features: Float[Tensor, "B ..."]) -> HeadOutput:
        """Return means and log variances of a batch."""
        x = self.trunk(features)
        h, u = x.unbind(1) if self.two_tokens else (x, x)
        raw = self.mean(h)
        if self.log_variance is None:
            return HeadOutput(h, raw, torch.full_like(raw, -torch.inf))
        return HeadOutput(h, raw, self.log_variance(u))
