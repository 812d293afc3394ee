"""Fits, embeddings, the prior, files of a posterior."""

from __future__ import annotations

from typing import Any

import torch

from laplace_metric import Embedding, LaplaceEmbedder
from tests.hostile import places
from tests.hostile.networks import network
from tests.hostile.operations.table import GENERATOR, LOADER, SETTINGS, Operations, X, Y, read

OPERATIONS = Operations()
operation = OPERATIONS.add


def _settings() -> Any:
    def make(**settings: Any) -> Any:
        fitted = LaplaceEmbedder.from_embeddings(places.x(), places.y(), **settings)
        return read(fitted(places.x()))

    return make


def _constructed() -> Any:
    def make(model: Any, head: Any) -> Any:
        fitted = LaplaceEmbedder(model, head).fit(places.loader(), progress=False)
        return read(fitted(places.x()))

    return make


def _fitted() -> Any:
    unfitted = LaplaceEmbedder(network(), margin=1.0)

    def fit(**options: Any) -> Any:
        return read(unfitted.fit(progress=False, **options)(places.x()))

    return fit


def _pairs() -> Any:
    def fit(pairs: Any) -> Any:
        fitted = LaplaceEmbedder(network(), pairs=pairs).fit(places.loader(), progress=False)
        return read(fitted(places.x()))

    return fit


operation("LaplaceEmbedder(**settings)", _settings, SETTINGS, weight=4)
operation(
    "LaplaceEmbedder(model, head).fit",
    _constructed,
    {"model": ("model", network), "head": ("head", None)},
    weight=5,
)
operation("LaplaceEmbedder(pairs).fit", _pairs, {"pairs": ("miner", "batch")}, weight=2)
operation(
    "LaplaceEmbedder.fit",
    _fitted,
    {
        "loader": LOADER,
        "reference": ("count", 16),
        "generator": GENERATOR,
        "memory_bytes": ("count", 2**20),
        "checkpoint_dir": ("path", places.scratch),
        "precision": ("dtype", torch.float32),
    },
    weight=5,
    deterministic=False,
)
operation(
    "LaplaceEmbedder.fit(loader)",
    lambda: lambda loader: read(LaplaceEmbedder(network()).fit(loader, progress=False)(places.x())),
    {"loader": LOADER},
    weight=5,
)
operation(
    "LaplaceEmbedder.from_embeddings",
    lambda: lambda **k: read(LaplaceEmbedder.from_embeddings(**k)(places.x())),
    {"embeddings": X, "labels": Y},
    weight=4,
)
for _name, _make in {"from_embeddings": places.embedder, "model": places.model_embedder}.items():
    operation(
        f"embedder(x), {_name}",
        lambda make=_make: lambda inputs: read(make()(inputs)),
        {"inputs": X},
        weight=4,
    )
operation(
    "embedder(x), structure full",
    lambda: (
        lambda inputs: read(
            LaplaceEmbedder.from_embeddings(places.x(), places.y(), structure="full")(inputs)
        )
    ),
    {"inputs": X},
)
operation(
    "embedder.uncertainties",
    lambda: places.model_embedder().uncertainties,
    {"loader": LOADER},
    fixed={"progress": False},
    weight=2,
)
operation(
    "embedder.embed",
    lambda: lambda loader: read(places.model_embedder().embed(loader, progress=False)[0]),
    {"loader": LOADER},
    weight=2,
)
operation(
    "embedder.sample",
    lambda: places.model_embedder().sample,
    {"inputs": X, "n": ("count", 3), "generator": GENERATOR},
    deterministic=False,
    weight=2,
)
operation(
    "embedder.draw",
    lambda: lambda **k: places.model_embedder().draw(**k)(places.x()),
    {"n": ("count", 3), "generator": GENERATOR},
    deterministic=False,
)
operation("embedder.distance", lambda: places.embedder().distance, {"x": X, "y": X}, weight=2)
operation("embedder.diagnose", lambda: places.model_embedder().diagnose, {"inputs": X})
operation(
    "embedder.optimize_prior_precision",
    lambda: places.fresh_embedder().optimize_prior_precision,
    {
        "method": ("name", "marglik"),
        "loader": LOADER,
        "metric": ("metric", lambda embedding, labels: 1.0),
        "bounds": ("bounds", (1e-2, 1e2)),
        "tune_n_effective": ("flag", False),
    },
    fixed={"progress": False},
    weight=2,
)
operation(
    "embedder.optimize_prior_precision(metric)",
    lambda: places.fresh_embedder().optimize_prior_precision,
    {"loader": LOADER, "metric": ("metric", lambda embedding, labels: 1.0)},
    fixed={"progress": False, "method": "validation", "bounds": (0.1, 10.0)},
)
operation("embedder.save", lambda: places.embedder().save, {"path": ("path", places.scratch)})
operation(
    "LaplaceEmbedder.load",
    lambda: lambda **k: read(LaplaceEmbedder.load(**k)(places.x())),
    {"path": ("saved", lambda: places.saved()["posterior"])},
    weight=3,
)
operation(
    "LaplaceEmbedder.load(model)",
    lambda: lambda **k: read(LaplaceEmbedder.load(**k)(places.x())),
    {"path": ("saved", lambda: places.saved()["model posterior"]), "model": ("model", network)},
    weight=2,
)
operation(
    "Embedding[index]",
    lambda: lambda index: read(places.embedder()(places.x())[index]),
    {"index": ("labels", lambda: torch.tensor([0, 2]))},
)
operation(
    "Embedding.concatenate",
    lambda: Embedding.concatenate,
    {"parts": ("junk", lambda: [places.embedder()(places.x())])},
)
