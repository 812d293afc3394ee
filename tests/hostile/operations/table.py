"""A row of the table of the API, and the good arguments that many rows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from laplace_metric import Embedding
from tests.hostile import places


@dataclass(frozen=True)
class Operation:
    """One callable of the API.

    ``target`` makes it, before what is judged; ``arguments`` are name -> (kind, good value).
    """

    name: str
    target: Callable[[], Callable[..., Any]]
    arguments: dict[str, tuple[str, Callable[[], Any]]]
    positional: tuple[str, ...] = ()
    deterministic: bool = True
    weight: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        first = [values[name] for name in self.positional]
        rest = {name: value for name, value in values.items() if name not in self.positional}
        return function(*first, **rest, **self.fixed)


class Operations(list[Operation]):
    """The callables of one part of the API, in the order in which they were added."""

    def add(
        self,
        name: str,
        target: Callable[[], Callable[..., Any]],
        arguments: dict[str, tuple[str, Any]],
        **options: Any,
    ) -> None:
        """Add one; values that are no functions stand for themselves."""
        made = {
            key: (kind, value if callable(value) and kind not in NO_CALL else _constantly(value))
            for key, (kind, value) in arguments.items()
        }
        self.append(Operation(name, target, made, **options))


NO_CALL = ("metric", "loss")


def _constantly(value: Any) -> Callable[[], Any]:
    return lambda: value


def read(embedding: Embedding) -> dict[str, Any]:
    """All that an embedding says."""
    return {
        "mean": embedding.mean,
        "variance": embedding.variance,
        "uncertainty": embedding.uncertainty,
        "concentration": embedding.concentration,
    }


SETTINGS: dict[str, tuple[str, Any]] = {
    "distance": ("name", "arccos"),
    "hessian": ("name", "fixed"),
    "structure": ("name", "kron"),
    "margin": ("real", 1.0),
    "prior_precision": ("real", 1.0),
    "n_effective": ("real", 10.0),
    "pairs": ("miner", "all"),
    "backend": ("name", "auto"),
    "positivity": ("name", "absolute"),
}
X, Y, LOADER = ("array", places.x), ("labels", places.y), ("loader", places.loader)
GENERATOR = ("generator", None)
