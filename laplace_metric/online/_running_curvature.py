"""The running curvature of a training: an average over batches that forgets.

H_t = (1 - a_t) H_(t-1) + a_t h_t,     a_t = (1 - d) / (1 - d^t)

is the mean of h_1 ... h_t with weights ``d^(t-k)`` (the bias correction of Kingma and Ba 2015,
Adam, section 3, as one recursion). It is an average over pairs after one step as after many, so
``n_effective`` means what it means after a post-hoc fit.

How much curvature and prior count after t steps: the average that stays, or the paper's sum.

    average   P_t = n H_t + tau I,              H_t = mean of h_1 ... h_t, weights d^(t-k)
    paper     P_t = d P_(t-1) + n h_t           (Warburg et al. 2023, LAM, eq 70, d = 1 - alpha)
                  = n S_t H_t + d^t tau I,      P_0 = tau I,  S_t = (1 - d^t) / (1 - d)

One average serves both: the paper's precision is that of ``S_t`` times as much data, with a prior
that fades. n is what an average over pairs stands for: all points, or all pairs of the data set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._eigenbases import IdentityEigenbasis
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.curvature._structures import Curvature
from laplace_metric.errors import InputError

LEAST = torch.finfo(torch.float32).tiny
"""Least prior precision: below it 1 / tau would overflow, and the prior is forgotten."""


@dataclass
class RunningCurvature:
    """H over the batches so far, and the decomposition that draws are made from.

    Parameters
    ----------
    decay : float in [0, 1]
        Decay d of the average, which is over the last ``1 / (1 - d)`` steps. 0: the last batch, 1:
        every batch alike.
    refresh : int
        Number of updates after which H is decomposed anew (1 for a diagonal, where that costs
        nothing).
    value : Curvature or None
        Curvature H before the positivity step, of any sign; None before the first update.
    positivity : "clip" | "absolute"
        Treatment of negative curvature when H is decomposed: set to 0, or counted by its size.

    Examples
    --------
    >>> from laplace_metric.curvature._structures import DiagCurvature
    >>> h = RunningCurvature(decay=0.5)
    >>> h.update(DiagCurvature(torch.tensor([3.0])))
    >>> h.update(DiagCurvature(torch.tensor([0.0])))  # weights 1/3 and 2/3
    >>> h.value.values
    tensor([1.])
    """

    decay: float
    refresh: int = 1
    n_updates: int = 0
    value: Curvature | None = None
    decomposed: Curvature | None = None
    _spectral: SpectralCurvature | None = None
    positivity: str = "clip"

    @property
    def weight(self) -> float:
        """a_t of the last update."""
        t = self.n_updates
        return 1 / t if self.decay == 1 else (1 - self.decay) / (1 - self.decay**t)

    def update(self, batch: Curvature) -> None:
        """Take in the curvature of one batch."""
        self.n_updates += 1
        if self.value is None:
            self.value = batch.summand()
        else:
            old, new = self.value.scaled(1 - self.weight), batch.scaled(self.weight)
            self.value = old + new
        if (self.n_updates - 1) % self.refresh == 0:
            self.decomposed, self._spectral = self.value, None

    def paper_scales(self, n: float, prior_precision: float) -> tuple[float, float]:
        """Return ``n S_t`` and ``d^t tau``: factors of H and of I in the paper's recursion.

        Raises
        ------
        InputError
            If nothing is left of the prior: a direction without curvature would have an infinite
            variance.

        Examples
        --------
        >>> RunningCurvature(decay=0.5, n_updates=3).paper_scales(10.0, 8.0)
        (17.5, 1.0)
        """
        t, d = self.n_updates, self.decay
        left = prior_precision * d**t
        if left < LEAST:
            raise InputError(
                f"recursion='paper' with decay={d} has forgotten its prior after {t} "
                "steps: pass a decay closer to 1, or recursion='average'."
            )
        first = max(t, 1)  # before the first step H is zero
        return n * (float(first) if d == 1 else (1 - d**first) / (1 - d)), left

    def spectral(self, like: Float[Tensor, " P"]) -> SpectralCurvature:
        """Return H after the positivity step as of the last refresh; zero before the first update.

        Its basis has the dtype and the device of ``like``.
        """
        if self.decomposed is None:
            zeros = torch.zeros(len(like), dtype=torch.float64, device=like.device)
            return SpectralCurvature(IdentityEigenbasis(), zeros, 0.0)
        if self._spectral is None:
            spectral = self.decomposed.decompose(self.positivity)
            self._spectral = replace(spectral, basis=spectral.basis.to(like))
        return self._spectral
