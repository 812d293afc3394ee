"""What arguments of each kind are replaced by: every other value, type and shape."""

from __future__ import annotations

import numpy as np
import torch

from tests.hostile import places
from tests.hostile.arrays import (
    ARRAYS,
    COUNTS,
    FLAGS,
    GENERATORS,
    IDS,
    JUNK,
    LABELS,
    NAMES,
    REALS,
    Variant,
    constant,
    variants,
)
from tests.hostile.networks import (
    HEADS,
    LOADERS,
    LOSSES,
    METRICS,
    MINERS,
    MODELS,
    OPTIMIZERS,
    batches,
)
from tests.hostile.places import DAMAGES
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")

PATHS = [
    *map(constant, [None, 5, "", b"x", "no/such", "a\0b", [], {}, True, object(), "/proc/no"]),
    *variants(
        file=lambda _p: str(places.workplace() / "x.npy"),
        another_folder=lambda _p: places.copy_of(places.saved()["monitor"]),
        an_empty_folder=lambda _p: places.workplace() / "folder",
    ),
]
MAPPINGS = [
    *JUNK,
    *variants(
        empty=lambda _m: {},
        other_names=lambda m: {"other": next(iter(m.values()))},
        number_names=lambda m: {3: next(iter(m.values()))},
        two=lambda m: {**m, "other": next(iter(m.values()))},
        uneven=lambda m: {**m, "other": next(iter(m.values()))[:-1]},
        pairs=lambda m: list(m.items()),
        few=lambda m: {name: values[:3] for name, values in m.items()},
    ),
    *(
        Variant(
            f"values {v.name}",
            lambda m, rng, v=v: {name: v.make(values, rng) for name, values in m.items()},
            v.same,
        )
        for v in ARRAYS
    ),
]
EMBEDDINGS = [
    *JUNK,
    *variants(
        gaussian=lambda p: dist.Gaussian(p.loc, torch.ones_like(p.loc)),
        fewer=lambda p: dist.VonMisesFisher(p.loc[:2], p.concentration[:2]),
        wider=lambda p: dist.VonMisesFisher(torch.eye(9), torch.ones(9)),
        tensor=lambda p: p.loc,
        directions=lambda p: dist.Directions(p.loc, p.concentration),
        projected=lambda p: dist.ProjectedNormal(p.loc, torch.ones_like(p.loc)),
    ),
]
MATCHES = [
    *JUNK,
    *variants(
        same=True,
        tuples=lambda m: tuple(tuple(row) for row in m),
        arrays=lambda m: [np.array(row, dtype=int) for row in m],
        tensors=lambda m: [torch.tensor(row, dtype=torch.int64) for row in m],
        twice=lambda m: [[*row, *row] for row in m],
        backwards=lambda m: [row[::-1] for row in m],
    ),
    *variants(
        fewer=lambda m: m[:-1],
        more=lambda m: [*m, []],
        nobody=lambda m: [[10**9], *m[1:]],
        none_at_all=lambda m: [[] for _ in m],
        strings=lambda m: [[str(i) for i in row] for row in m],
        mixed=lambda m: [["a"], *m[1:]],
        fractions=lambda m: [[0.5], *m[1:]],
        flags=lambda m: [[True], *m[1:]],
        numbers=lambda m: [0 for _ in m],
        texts=lambda m: ["a" for _ in m],
        one_none=lambda m: [None, *m[1:]],
        too_large=lambda m: [[2**70], *m[1:]],
        deep=lambda m: [[[0]], *m[1:]],
        one_array=lambda m: np.zeros((len(m), 2), dtype=int),
        a_dict=lambda m: dict(enumerate(m)),
    ),
]
SHAPES = [
    *COUNTS,
    *map(constant, [(-1,), (0,), (2.5,), ("a",), torch.Size([2]), (2, 3), [2], (None,)]),
]
GALLERIES = [
    *ARRAYS,
    *(
        Variant(
            f"loader {v.name}",
            lambda x, rng, v=v: v.make(batches(x, torch.arange(len(x)) % 4), rng),
        )
        for v in LOADERS
    ),
]
KINDS: dict[str, list[Variant]] = {
    "array": ARRAYS,
    "labels": LABELS,
    "ids": IDS,
    "count": COUNTS,
    "real": REALS,
    "name": NAMES,
    "flag": FLAGS,
    "generator": GENERATORS,
    "loader": LOADERS,
    "model": MODELS,
    "head": HEADS,
    "miner": MINERS,
    "metric": METRICS,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "path": PATHS,
    "saved": [*DAMAGES, *DAMAGES, *PATHS],
    "mapping": MAPPINGS,
    "distribution": EMBEDDINGS,
    "shape": SHAPES,
    "matches": MATCHES,
    "gallery": GALLERIES,
    "junk": JUNK,
    "counts": [*COUNTS, *map(constant, [(1, 2), [0], [True], ["a"], (10**30,), range(3), (), {1}])],
    "bounds": [
        *REALS,
        *map(constant, [(1,), (1, 2, 3), (2, 1), (0, 1), ("a", "b"), (1, np.inf), "ab"]),
    ],
    "dtype": list(
        map(constant, [torch.float16, torch.int64, np.float32, "float32", 5, None, object()])
    ),
    "raw damage": [Variant(v.name, lambda _plain, _rng, v=v: v.make) for v in [*DAMAGES, *PATHS]],
}
