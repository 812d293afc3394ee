"""What fitting finds, apart from the settings: head, sizes, classes and learnt modules."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from laplace_metric.models.heads import LocatedHead


@dataclass(frozen=True)
class Sizes:
    """Of what a method is built for: features D, embedding Z, classes C."""

    features: int
    embedding: int
    classes: int


@dataclass(frozen=True)
class Fitted:
    """What fitting found: the head, the sizes, the class labels [C] in order, what was learnt."""

    head: LocatedHead
    sizes: Sizes
    classes: Tensor
    parts: nn.ModuleDict
