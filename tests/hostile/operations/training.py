"""Training, with the posterior and without."""

from __future__ import annotations

from typing import Any

import torch

from laplace_metric import OnlineLaplace
from laplace_metric.training import train_embedder
from tests.hostile import places
from tests.hostile.networks import network
from tests.hostile.operations.table import GENERATOR, LOADER, SETTINGS, Operations, read

OPERATIONS = Operations()
operation = OPERATIONS.add


def _loss(z: torch.Tensor, labels: torch.Tensor, *_: Any) -> torch.Tensor:
    return (z.square().sum(1) * (1 + labels)).mean()


_TRAINING = {"loader": LOADER, "loss": ("loss", _loss), "epochs": ("count", 1)}
operation(
    "OnlineLaplace",
    lambda: (
        lambda **k: read(
            OnlineLaplace(**k).fit(places.loader(), _loss, epochs=1, progress=False)(places.x())
        )
    ),
    {
        **SETTINGS,
        "model": ("model", network),
        "head": ("head", None),
        "structure": ("name", "diag"),
        "pairs": ("miner", "batch"),
        "positivity": ("name", "clip"),
        "decay": ("real", 0.9),
        "samples": ("count", 2),
        "refresh": ("count", 2),
        "recursion": ("name", "paper"),
        "warmup": ("count", 1),
    },
    deterministic=False,
    weight=3,
)
OPERATIONS[-1].arguments.pop("positivity")
operation(
    "OnlineLaplace.fit",
    lambda: lambda **k: read(places.online().fit(**k, progress=False)(places.x())),
    {
        **_TRAINING,
        "optimizer": ("optimizer", None),
        "scheduler": ("optimizer", None),
        "generator": GENERATOR,
        "checkpoint": ("path", places.scratch),
        "checkpoint_every": ("count", 1),
    },
    deterministic=False,
    weight=4,
)
operation(
    "train_embedder",
    lambda: train_embedder,
    {
        "model": ("model", network),
        **_TRAINING,
        "optimizer": ("optimizer", None),
        "scheduler": ("optimizer", None),
        "miner": ("miner", None),
    },
    fixed={"progress": False},
    deterministic=False,
    weight=3,
)
