"""Engines from the values that name them, and these as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import FileFormatError, UnknownNameError
from laplace_metric.search.engines._faiss import FaissEngine
from laplace_metric.search.engines._flat import FlatEngine
from laplace_metric.search.engines._protocol import HNSW, IVF, Engine, EngineKind, Flat

KINDS: dict[str, type[EngineKind]] = {"flat": Flat, "ivf": IVF, "hnsw": HNSW}


def kind_of(engine: str | EngineKind) -> EngineKind:
    """``"flat"``, ``"ivf"`` and ``"hnsw"`` are the kinds with their defaults.

    Raises
    ------
    UnknownNameError
        For anything else.

    Examples
    --------
    >>> kind_of("ivf"), kind_of(HNSW(links=16))
    (IVF(lists=None, probes=None), HNSW(links=16, ef=128))
    """
    if isinstance(engine, (Flat, IVF, HNSW)):
        return engine
    if not isinstance(engine, str) or engine not in KINDS:
        raise UnknownNameError("engine", engine, (*KINDS, "Flat()", "IVF()", "HNSW()"))
    return KINDS[engine]()


def build(vectors: Float[Tensor, "N d"], kind: EngineKind, *, mapped: bool = False) -> Engine:
    """An engine over vectors [N, d]."""
    if isinstance(kind, Flat):
        return FlatEngine(vectors, kind, mapped=mapped)
    return FaissEngine.build(vectors, kind)


def kind_to_json(kind: EngineKind) -> dict[str, Any]:
    """Its name and its numbers."""
    name = next(name for name, of in KINDS.items() if isinstance(kind, of))
    return {"name": name, **asdict(kind)}


def kind_from_json(content: dict[str, Any]) -> EngineKind:
    """What ``kind_to_json`` wrote.

    Raises
    ------
    FileFormatError
        For an unknown kind.
    """
    numbers = dict(content)
    name = numbers.pop("name", None)
    if name not in KINDS:
        raise FileFormatError(f"engine {name!r} is not known: {', '.join(KINDS)} are.")
    return KINDS[name](**numbers)
