"""Fits in parts, wrapped models, data sets."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.datasets import load
from laplace_metric import LaplaceEmbedder, scale
from laplace_metric.datasets import ImageSet
from laplace_metric.datasets._image_set import split_classes
from laplace_metric.models import Call, Pooled, Precomputed, Sentences
from tests.hostile import places
from tests.hostile.networks import D, network
from tests.hostile.operations.table import Operations, X, Y

OPERATIONS = Operations()
operation = OPERATIONS.add


operation(
    "scale.Plan",
    lambda: (
        lambda inputs, reference, precision: scale.Plan(
            LaplaceEmbedder(network(), margin=1.0), inputs, reference=reference, precision=precision
        )
    ),
    {
        "inputs": X,
        "reference": ("loader", lambda: (places.fixed(6, 8), torch.arange(6) % 3)),
        "precision": ("dtype", torch.float64),
    },
)
operation(
    "scale.collect",
    lambda: lambda **k: scale.collect(scale.Plan(LaplaceEmbedder(network()), places.x()).task, **k),
    {"features": ("array", lambda: places.fixed(len(places.y()), 8)), "labels": Y},
    weight=2,
)
operation("scale.merge", lambda: scale.merge, {"parts": ("junk", places.statistics)})
operation("models.Precomputed", lambda: Precomputed(), {"embeddings": X}, weight=2)
operation(
    "models.Precomputed(size)",
    lambda: lambda size: Precomputed(size)(places.x()),
    {"size": ("count", D)},
)
operation(
    "models.Pooled",
    lambda: lambda x, **k: Pooled(**k)(x),
    {
        "model": ("model", lambda: nn.Unflatten(1, (2, 3))),
        "pooling": ("name", "mean"),
        "field": ("name", "last_hidden_state"),
        "x": X,
    },
)
operation(
    "models.Call",
    lambda: lambda model, method: Call(model, method)(places.x()),
    {"model": ("model", network), "method": ("name", "forward")},
)
operation("models.Sentences", lambda: Sentences, {"model": ("model", network)})
_IMAGES = ("array", lambda: torch.zeros(8, 1, 4, 4, dtype=torch.uint8))
operation(
    "datasets.ImageSet",
    lambda: lambda **k: ImageSet(**k).pixels(),
    {
        "images": _IMAGES,
        "labels": ("labels", lambda: torch.arange(8) % 2),
        "name": ("name", "x"),
        "class_names": ("labels", lambda: ("a", "b")),
    },
)
operation(
    "datasets.load",
    lambda: load,
    {
        "name": ("name", "digits"),
        "split": ("name", "train"),
        "data": ("path", None),
        "limit": ("count", 5),
        "size": ("count", None),
        "colour": ("flag", False),
    },
)
operation(
    "datasets.split_classes",
    lambda: lambda train_classes: split_classes(load("digits", limit=50), train_classes),
    {"train_classes": ("counts", 5)},
)
