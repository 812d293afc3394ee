"""Streams that are watched for drift."""

from __future__ import annotations

import torch

from laplace_metric import Monitor
from tests.hostile import places
from tests.hostile.operations.table import GENERATOR, Operations

OPERATIONS = Operations()
operation = OPERATIONS.add


_STREAM = {"uncertainty": torch.linspace(0, 1, 60)}
operation(
    "Monitor",
    lambda: lambda **k: Monitor(**k).update(_STREAM),
    {
        "reference": ("mapping", lambda: dict(_STREAM)),
        "window": ("count", 30),
        "false_alarms": ("real", 0.05),
        "generator": GENERATOR,
    },
    weight=3,
    deterministic=False,
)
operation(
    "Monitor.of",
    lambda: lambda **k: Monitor.of(**k, window=30, progress=False),
    {
        "embedder": ("junk", places.model_embedder),
        "loader": ("loader", lambda: places.loader() * 2),
    },
)
operation(
    "monitor.update",
    lambda: places.monitor().update,
    {"values": ("mapping", lambda: {"uncertainty": torch.linspace(0, 1, 40)})},
    weight=2,
)
operation("monitor.save", lambda: places.monitor().save, {"path": ("path", places.scratch)})
operation(
    "Monitor.load",
    lambda: lambda path: Monitor.load(path).update(_STREAM),
    {"path": ("saved", lambda: places.saved()["monitor"])},
    weight=2,
)
