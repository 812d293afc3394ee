"""The settings of a Laplace posterior as one checked value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from laplace_metric.contrastive import Contrast
from laplace_metric.curvature import POSITIVITY, STRUCTURES
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.jacobians.choose import check_backend
from laplace_metric.posterior import check_positive
from laplace_metric.structure import AUTO

Miner = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""A pytorch-metric-learning miner: (embeddings [B, Z], labels [B]) -> index tuple."""

PAIRS = ("all", "batch")


@dataclass(frozen=True)
class Settings:
    """What ``LaplaceEmbedder`` is told, apart from the model (see there for the meanings).

    Raises
    ------
    UnknownNameError, InputError
        For names that do not exist and numbers out of range.

    Examples
    --------
    >>> Settings(distance="euclidean").contrast(normalized=True).geometry.name
    'euclidean on the sphere'
    """

    distance: str = "arccos"
    hessian: str = "fixed"
    structure: str = AUTO
    margin: float | None = None
    prior_precision: float = 1.0
    n_effective: float | None = None
    pairs: str | Miner = "all"
    backend: str = "auto"
    positivity: str = "absolute"

    def __post_init__(self) -> None:
        self.contrast(normalized=False)
        if self.structure not in (AUTO, *STRUCTURES):
            raise UnknownNameError("structure", self.structure, (AUTO, *STRUCTURES))
        if not callable(self.pairs) and self.pairs not in PAIRS:
            raise UnknownNameError("pairs", self.pairs, (*PAIRS, "a miner (callable)"))
        check_backend(self.backend)
        if self.positivity not in POSITIVITY:
            raise UnknownNameError("positivity", self.positivity, tuple(POSITIVITY))
        check_positive("prior_precision", self.prior_precision)
        if self.n_effective is not None:
            check_positive("n_effective", self.n_effective)

    def contrast(self, *, normalized: bool) -> Contrast:
        """Geometry, approximation and margin on a network that does or does not normalise."""
        return Contrast.of(self.distance, self.hessian, normalized=normalized, margin=self.margin)

    def resolved(self, structure: str) -> Settings:
        """The same with the structure that "auto" stands for."""
        return replace(self, structure=structure)

    def to_json(self) -> dict[str, Any]:
        """Plain values; a miner is kept by name only."""
        pairs = self.pairs if isinstance(self.pairs, str) else f"miner {type(self.pairs).__name__}"
        return {**asdict(self), "pairs": pairs}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Settings:
        """Back from ``to_json``; using a miner that was not kept raises ``InputError``."""
        pairs = content["pairs"]
        kept = pairs if pairs in PAIRS else _LostMiner(pairs)
        return cls(**{"positivity": "clip", **content, "pairs": kept})


@dataclass(frozen=True)
class _LostMiner:
    name: str

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        raise InputError(
            f"this posterior was fitted with {self.name}, which its file does not hold: make a new "
            "LaplaceEmbedder with pairs=<the miner> to fit again."
        )
