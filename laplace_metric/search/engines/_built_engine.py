"""The engine that its settings name."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from laplace_metric.search.engines._engine import Engine, EngineKind, Flat, FlatEngine
from laplace_metric.search.engines._faiss import FaissEngine


def build(vectors: Float[Tensor, "N d"], kind: EngineKind, *, mapped: bool = False) -> Engine:
    """Return an engine of this kind over vectors [N, d]."""
    if isinstance(kind, Flat):
        return FlatEngine(vectors, kind, mapped=mapped)
    return FaissEngine.build(vectors, kind)
