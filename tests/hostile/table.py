"""A row of the table of the API, and the good arguments that many rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laplace_metric import Embedding
from tests.hostile import places
from tests.hostile.networks import D, network

Kinds = Mapping[str, tuple[str, Any]]
NO_CALL = ("metric", "loss")
"""Kinds whose good value is itself a function; of the others a function makes it."""


@dataclass(frozen=True)
class Operation:
    """One callable of the API.

    ``target`` makes it, before what is judged; ``arguments`` are name -> (kind, good value).
    """

    name: str
    target: Callable[[], Callable[..., Any]]
    arguments: Kinds
    positional: tuple[str, ...] = ()
    deterministic: bool = True
    weight: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)

    def good(self, name: str) -> Any:
        """The good value of an argument, made anew."""
        kind, value = self.arguments[name]
        return value() if callable(value) and kind not in NO_CALL else value

    def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        first = [values[name] for name in self.positional]
        rest = {name: value for name, value in values.items() if name not in self.positional}
        return function(*first, **rest, **self.fixed)


def good_loss(z: Tensor, labels: Tensor, *_: Any) -> Tensor:
    return (z.square().sum(1) * (1 + labels)).mean()


ROWS = ("labels", lambda: torch.arange(len(places.y())))
SCORES, VARIANCE = ("array", places.scores), ("array", lambda: places.fixed(5, D))
# fmt: off
PLAIN: Kinds = {
    **dict.fromkeys(("x", "y", "inputs", "embeddings", "query"), ("array", places.x)),
    **dict.fromkeys(("gallery", "queries"), ("gallery", places.x)),
    **dict.fromkeys(("loc", "value"), ("array", places.directions)),
    **dict.fromkeys(("in_scores", "out_scores", "uncertainty", "confidence"), SCORES),
    **dict.fromkeys(("k", "n"), ("count", 3)),
    **dict.fromkeys(("optimizer", "scheduler"), ("optimizer", None)),
    "alpha": ("real", 0.5), "bins": ("count", 5), "bounds": ("bounds", (1e-2, 1e2)),
    "backend": ("name", "auto"), "concentration": ("array", places.concentrations),
    "correct": ("array", places.correct), "depth": ("count", 5), "dimension": ("count", D),
    "distance": ("name", "arccos"), "engine": ("name", "flat"), "epochs": ("count", 1),
    "exclude": ROWS, "gallery_labels": ("labels", places.y),
    "seed": ("generator", None), "head": ("head", None),
    "hessian": ("name", "fixed"), "ids": ("ids", places.ids), "labels": ("labels", places.y),
    "loader": ("loader", places.loader), "loss": ("loss", good_loss), "margin": ("real", 1.0),
    "matches": ("matches", places.query_matches), "method": ("name", "marglik"),
    "metric": ("metric", lambda embedding, labels: 1.0), "model": ("model", network),
    "n_effective": ("real", 10.0), "noise": ("array", lambda: torch.ones(2, 5, D)),
    "pairs": ("miner", "all"), "path": ("path", places.scratch), "positivity": ("name", "absolute"),
    "dtype": ("dtype", torch.float32), "prior_precision": ("real", 1.0),
    "probability": ("real", 0.9), "rank_by": ("name", "mean"), "shape": ("shape", (2,)),
    "structure": ("name", "kron"), "vectors": ("array", places.directions),
    "window": ("count", 30),
}
# fmt: on
"""Kind and good value of an argument of this name, unless an operation says otherwise."""
QUERIES = {"queries": ("gallery", places.queries), "labels": ("labels", places.query_labels)}
SETTINGS = "distance hessian structure margin prior_precision n_effective pairs backend"

OPERATIONS: list[Operation] = []


def operation(
    name: str,
    target: Callable[[], Any],
    names: str = "",
    other: Kinds | None = None,
    **options: Any,
) -> None:
    """Add one; `names` are arguments with good values of ``PLAIN``, `other` has the other ones."""
    arguments = {key: PLAIN[key] for key in names.split()} | dict(other or {})
    OPERATIONS.append(Operation(name, target, arguments, **options))


def functions(prefix: str, of: Any, names: str, arguments: str, other: Kinds | None = None) -> None:
    """Add several functions of `of` that take the same arguments."""
    for name in names.split():
        operation(f"{prefix}.{name}", lambda n=name: getattr(of, n), arguments, other)


def read(embedding: Embedding) -> dict[str, Any]:
    """All that an embedding says."""
    names = ("mean", "variance", "uncertainty", "concentration")
    return {name: getattr(embedding, name) for name in names}


def embeds(make: Callable[..., Any]) -> Callable[[], Any]:
    """What is called: make an embedder and read what it says of the good inputs."""
    return lambda: lambda **k: read(make(**k)(places.x()))
