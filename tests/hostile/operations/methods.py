"""Every other method, with its own settings."""

from __future__ import annotations

import random
from typing import Any

from torch import nn

import baselines
from tests.hostile import places
from tests.hostile.networks import D, dropout_network
from tests.hostile.operations.table import LOADER, Operations, X, read

OPERATIONS = Operations()
operation = OPERATIONS.add


METHODS = [name for name in baselines.__all__ if name != "Training"]
SMALL = {"n_samples": 2, "n_members": 2, "hidden": 8, "k": 3}
TRAINING = baselines.Training(epochs=1)


def _plain_fields(name: str) -> dict[str, Any]:
    fields = getattr(baselines, name).__dataclass_fields__
    options = {key: value for key, value in SMALL.items() if key in fields}
    return options | ({"training": TRAINING} if "training" in fields else {})


def _numbers_of(name: str) -> dict[str, tuple[str, Any]]:
    """Settings of a method, by the type of their default."""
    kinds = {bool: "flag", int: "count", float: "real", str: "name"}
    made = {}
    for key, item in getattr(baselines, name).__dataclass_fields__.items():
        kind = kinds.get(type(item.default))
        if kind and item.init and key not in ("model", "head"):
            made[key] = (kind, SMALL.get(key, item.default))
    return made


for _name in METHODS:

    def _method(name: str = _name) -> Any:
        others = {k: v for k, v in _plain_fields(name).items() if k not in _numbers_of(name)}

        def use(model: Any, head: Any, loader: Any, inputs: Any, **k: Any) -> Any:
            method = getattr(baselines, name)(model, head=head, **k, **others)
            return read(method.fit(loader, progress=False)(inputs))

        return use

    operation(
        f"baselines.{_name}",
        _method,
        {
            "model": ("model", dropout_network),
            "head": ("head", None),
            "loader": LOADER,
            "inputs": X,
            **_numbers_of(_name),
        },
        deterministic=False,
    )
operation(
    "baselines.Training",
    lambda: baselines.Training,
    {
        "epochs": ("count", 2),
        "learning_rate": ("real", 0.1),
        "decay": ("real", 0.1),
        "weight_decay": ("real", 0.1),
        "optimizer": ("name", "adam"),
        "seed": ("count", 3),
    },
    weight=2,
)


def _saved_method(name: str = "MCDropout") -> Any:
    folder = places.scratch()
    model = nn.Sequential(nn.Linear(D, 8), nn.Dropout(), nn.Linear(8, 3))
    method = getattr(baselines, name)(model, n_samples=2)
    method.fit(places.loader(), progress=False).save(folder)

    def load_damaged(damage: Any) -> Any:
        changed = damage(folder, random.Random(0))
        return read(baselines.MCDropout.load(changed, model)(places.x()))

    return load_damaged


operation(
    "baselines.load",
    _saved_method,
    {"damage": ("raw damage", lambda: lambda folder, rng: folder)},
    deterministic=False,
)
