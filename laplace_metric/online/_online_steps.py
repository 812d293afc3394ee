"""Rules of the steps of an online training: how heads are drawn, and how H is averaged."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric._utils.validation import check_count, check_name, check_real
from laplace_metric.errors import InputError

RECURSIONS = ("average", "paper")
COUNTS = ("points", "pairs")


@dataclass(frozen=True)
class OnlineSteps:
    """Rules of the steps, checked; ``OnlineLaplace`` documents each.

    Parameters
    ----------
    decay : float in [0, 1]
        Decay of the average H.
    samples : int
        Number of heads drawn a step.
    refresh : int
        Largest age in steps of the decomposition that the draws come from.
    warmup : int
        Number of epochs at the mean weights.
    recursion : "average" | "paper"
        Recursion of H and of the prior.
    count : "points" | "pairs"
        Observations that one average over pairs counts for, unless a number is given for them.
    by_evidence : bool
        True if the evidence chooses the prior precision after each epoch.

    Raises
    ------
    UnknownNameError, InputError
        For a name that does not exist and a number out of range.
    """

    decay: float
    samples: int
    refresh: int
    warmup: int
    recursion: str
    count: str
    by_evidence: bool

    def __post_init__(self) -> None:
        decay = check_real("decay", self.decay, "number in [0, 1]")
        if not 0 <= decay <= 1:
            raise InputError(f"decay={decay!r}: pass a number in [0, 1].")
        object.__setattr__(self, "decay", decay)
        for name, least in (("samples", 1), ("refresh", 1), ("warmup", 0)):
            object.__setattr__(self, name, check_count(name, getattr(self, name), least))
        check_name("recursion", self.recursion, RECURSIONS)

    def refresh_of(self, structure: str) -> int:
        """Return after how many steps the eigendecomposition is computed again: 1 of a diagonal."""
        return 1 if structure == "diag" else self.refresh
