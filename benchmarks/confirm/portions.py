"""What is run again of each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Change = Callable[[Any], Any]
RESTING = ("laplace", "detector")
"""Groups of methods that rest on the network of metric learning, or train none."""


@dataclass(frozen=True)
class Portion:
    """Rows of a record, and how its piece is told to make these alone.

    Parameters
    ----------
    keys : tuple of str
        Fields that name a row; (): rows are compared by their places, if the record has any.
    where : mapping of a field to its values
        Rows that are compared; None: the value of the record's first row. Default: all.
    narrowed : mapping of a constant of the piece's module to a function of it
        What is left of it. Default: nothing is narrowed.
    options : mapping of an option of the piece's command to its value
    """

    keys: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    narrowed: Mapping[str, Change] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, record: Mapping[str, Any], like: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of ``record`` that are compared; None in ``where`` is of ``like``."""
        rows: list[dict[str, Any]] = record.get("rows", [])
        wanted = {
            name: (like["rows"][0][name],) if values is None else values
            for name, values in self.where.items()
        }
        return [row for row in rows if all(row[name] in of for name, of in wanted.items())]

    def named(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Return rows by their names; without keys by their places."""
        if not self.keys:
            return {f"row {place}": row for place, row in enumerate(rows)}
        return {", ".join(f"{k} {row[k]}" for k in self.keys if k in row): row for row in rows}

    def about(self, record: Mapping[str, Any]) -> str:
        """Return the rows that are compared, in words."""
        rows = self.rows(record, record)
        fixed = {
            name: of for name in self.where if len(of := {str(row[name]) for row in rows}) == 1
        }
        said = [f"{name} {next(iter(of))}" for name, of in fixed.items()]
        if not rows:
            return "all of it"
        return ", ".join([*said, f"{len(rows)} of {len(record['rows'])} rows"])

    def share(self, record: Mapping[str, Any]) -> float:
        """Return the part of the record's rows."""
        return len(self.rows(record, record)) / len(record["rows"]) if record.get("rows") else 1.0


def first(value: Any) -> Any:
    """Return the first entry alone; 1 of a number.

    Examples
    --------
    >>> first({"a": 1, "b": 2}), first((3, 4)), first(20)
    ({'a': 1}, (3,), 1)
    """
    if isinstance(value, int):
        return 1
    return dict([next(iter(value.items()))]) if isinstance(value, Mapping) else value[:1]


def only(*names: Any) -> Change:
    """Return what leaves these entries of a mapping or a tuple.

    Examples
    --------
    >>> only("b")({"a": 1, "b": 2}), only(3)((3, 4))
    ({'b': 2}, (3,))
    """

    def kept(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: value[name] for name in names}
        return tuple(one for one in value if one in names)

    return kept


def _of_comparison(task: str) -> Portion:
    return Portion(("task", "method", "seed"), {"task": (task,), "seed": (0,), "group": RESTING})


SEED = {"seeds": [0]}
NETWORK = Portion(
    ("network", "seed", "collection"), {"network": None, "seed": None},
    {"NETWORKS": first, "SEEDS": first},
)  # fmt: skip
ONLINE_LINES = ("prior 1000", "post-hoc fixed, prior 1000")
PORTIONS: dict[str, Portion] = {
    "lam": _of_comparison("cub"),
    "url": _of_comparison("cub"),
    "human": _of_comparison("cifar10h-soft"),
    "corruption": _of_comparison("cifar10"),
    "pretrained": _of_comparison("pretrained-text"),
    "evidence": Portion(("problem",), {"problem": None}, options={"problems": ["fashion-mnist"]}),
    "confirm": Portion(("problem",), {"problem": None}, options={"problems": ["digits"]}),
    "posterior": NETWORK,
    "variance": NETWORK,
    "frozen": Portion(
        ("set", "vectors", "seed", "ranking"), {"set": None, "seed": None},
        {"SETS": first, "SPLITS": first},
    ),
    "layers": Portion(
        ("network", "seed", "set", "ranking", "views", "query"), {"network": None, "seed": None},
        {"NETWORKS": first, "SEEDS": first},
    ),
    "discount": Portion(("seed",), {"seed": None}, {"SEEDS": first}),
    "rivals": Portion(("seed", "method", "vectors"), {"seed": None}, {"SEEDS": first}),
    "miners": Portion(
        ("seed", "training", "pairs of the posterior"), {"seed": None}, {"SEEDS": first}
    ),
    "losses": Portion(("loss", "seed"), {"seed": None}, options=SEED),
    "tags": Portion(),
    "unfamiliar": Portion(
        ("kind", "set", "strangers", "way"),
        {"kind": ("frozen, other classes",), "set": None},
        {"SETS": first, "UNSEEN": only(), "NETWORKS": only()},
    ),
    "fitted": Portion(
        ("world", "n", "cross_fit"), {"world": ("constant",), "n": None},
        {"MIXTURES": only(), "FITTED": first},
    ),
    "guarantees": Portion(("world", "n", "confidence")),
    "power": Portion(("world", "n"), {"n": None}, {"SIZES": first}),
    "growing": Portion(("world", "step"), {"world": None}, {"APART": first}),
    "twenty": Portion(),
    "forty": Portion(
        ("set", "seed"), {"set": None, "seed": None}, {"SETS": first, "SPLITS": first}
    ),
    "recovery": Portion(
        ("setting", "loss", "seed"), {"setting": None, "loss": None, "seed": None},
        {"RUNS": only(("ambiguous", "infonce"))}, SEED,
    ),
    "levels": Portion(("loss", "seed"), {"seed": None}, options=SEED),
    "online": Portion(
        ("method", "embedding_size", "seed"),
        {"embedding_size": (3,), "seed": (0,), "method": ("plain", *ONLINE_LINES)},
        {"ASKED_LINES": lambda _: {3: ONLINE_LINES}}, SEED,
    ),
    "views": Portion(("line", "seed"), {"line": None, "seed": None}, {"LINES": first}, SEED),
    "people": Portion(
        ("labels", "fold", "model"), {"labels": None, "fold": None}, {"LABELS": first}, SEED
    ),
    "people_hib": Portion(("method", "seed"), {"seed": None}, options=SEED),
    "papers": Portion(),
    "transfer": Portion(
        ("method", "trial", "seed"), {"method": None, "seed": None}, {"ASKED": only()}, SEED
    ),
    "image_text": Portion(
        ("method", "seed"), {"method": ("prolip-regions",), "seed": None},
        {"METHODS": only("prolip-regions")}, SEED,
    ),
}  # fmt: skip
"""Record -> its portion; records of times have none."""
