"""How much curvature and prior count after t steps: the average that stays, or the paper's sum.

    average   P_t = n H_t + tau I,              H_t = mean of h_1 ... h_t, weights d^(t-k)
    paper     P_t = d P_(t-1) + n h_t           (Warburg et al. 2023, LAM, eq 70, d = 1 - alpha)
                  = n S_t H_t + d^t tau I,      P_0 = tau I,  S_t = (1 - d^t) / (1 - d)

One average serves both: the paper's precision is that of ``S_t`` times as much data, with a prior
that fades. n is what an average over pairs stands for: all points, or all pairs of the data set.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laplace_metric._utils.validation import check_name, check_positive
from laplace_metric.errors import InputError, UnknownNameError

RECURSIONS = ("average", "paper")
COUNTS = ("points", "pairs")
EVIDENCE = "evidence"
START = 1.0
"""The prior precision until the first epoch is over, where the evidence chooses it."""
LEAST = torch.finfo(torch.float32).tiny
"""A prior precision below is forgotten: 1 / tau would overflow."""


@dataclass
class Scale:
    """n and tau of the posterior after t steps.

    Parameters
    ----------
    recursion : "average" | "paper"
    decay : float in [0, 1]
        d.
    count : float > 0, "points" or "pairs"
        n: itself, N, or N^2.
    prior_precision : float > 0
        tau.
    by_evidence : bool
        Whether tau is chosen anew after each epoch.

    Examples
    --------
    >>> scale = Scale("paper", 0.5, "points", 8.0)
    >>> scale.of_curvature(10, 3), scale.of_prior(3)
    (17.5, 1.0)
    """

    recursion: str
    decay: float
    count: float | str
    prior_precision: float
    by_evidence: bool = False

    @classmethod
    def of(
        cls, recursion: str, decay: float, count: float | str | None, prior: float | str
    ) -> Scale:
        """From what a user says.

        Raises
        ------
        UnknownNameError
            For other names.
        InputError
            For numbers that are not positive, and a prior that would fade and be chosen anew.
        """
        check_name("recursion", recursion, RECURSIONS)
        if isinstance(count, str):
            _check_word("n_effective", count, COUNTS)
        elif count is not None:
            count = check_positive("n_effective", count)
        by_evidence = isinstance(prior, str)
        if isinstance(prior, str):
            _check_word("prior_precision", prior, (EVIDENCE,))
            if recursion == "paper":
                raise InputError(
                    "prior_precision='evidence' chooses a prior that recursion='paper' lets fade: "
                    "pass recursion='average', or a number."
                )
        tau = START if isinstance(prior, str) else check_positive("prior_precision", prior)
        return cls(recursion, decay, "points" if count is None else count, tau, by_evidence)

    def of_curvature(self, n_points: int, t: int) -> float:
        """What the running average is multiplied by; ``n_points`` is N."""
        n = float(n_points)
        n = {"points": n, "pairs": n * n}[self.count] if isinstance(self.count, str) else self.count
        return n * self._terms(max(t, 1)) if self.recursion == "paper" else n

    def _terms(self, t: int) -> float:
        """S_t."""
        return float(t) if self.decay == 1 else (1 - self.decay**t) / (1 - self.decay)

    def of_prior(self, t: int) -> float:
        """The prior precision that is left.

        Raises
        ------
        InputError
            If nothing is left: a direction without curvature would have an infinite variance.
        """
        if self.recursion == "average":
            return self.prior_precision
        left = self.prior_precision * self.decay**t
        if left < LEAST:
            raise InputError(
                f"recursion='paper' with decay={self.decay} has forgotten its prior after {t} "
                "steps: pass a decay closer to 1, or recursion='average'."
            )
        return left

    def identity(self) -> dict[str, float | str | bool]:
        """What must be the same in a run that goes on."""
        return {"recursion": self.recursion, "count": self.count, "by evidence": self.by_evidence}


def _check_word(name: str, word: str, words: tuple[str, ...]) -> None:
    """Raise ``UnknownNameError`` for a word where a number could stand, too."""
    if word not in words:
        raise UnknownNameError(name, word, (*words, "a number"))
