"""Encode once: features and labels in a cache folder, as safetensors beside a JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.records import write_whole

Batches = Iterable[tuple[Any, Tensor]]


@dataclass(frozen=True)
class Encoding:
    """Everything that decides the features of one set.

    ``packages`` are the names of those whose versions matter; ``options`` is whatever else was
    chosen, for example the side of the images.
    """

    encoder: str
    dataset: str
    split: str
    limit: int | None = None
    packages: tuple[str, ...] = ()
    options: str = ""

    def key(self) -> dict[str, Any]:
        """The fields, with the installed versions of the packages."""
        versions = {name: importlib.metadata.version(name) for name in self.packages}
        return {**asdict(self), "packages": versions}

    @property
    def file(self) -> str:
        """Name without ending; it holds a hash of the key."""
        digest = hashlib.sha256(json.dumps(self.key(), sort_keys=True).encode()).hexdigest()
        limit = "all" if self.limit is None else self.limit
        return f"{self.encoder}-{self.dataset}-{self.split}-{limit}-{digest[:12]}"


def encoded(
    name: Encoding,
    model: Callable[[], nn.Module],
    batches: Callable[[], Batches],
    cache_folder: Path,
    progress: bool = True,
) -> tuple[Tensor, Tensor]:
    """Features [N, D] float32 and labels [N], read from the cache or encoded now.

    ``model`` and ``batches`` are called only where the cache has nothing, so that a second run
    loads neither weights nor images. The JSON is written last: a set that has one is whole.
    """
    table, note = (cache_folder / (name.file + ending) for ending in (".safetensors", ".json"))
    if note.is_file() and table.is_file():
        found = load_file(table)
        return found["features"], found["labels"]
    start = time.perf_counter()
    features, labels = encode(model(), batches(), name.file if progress else None, total=name.limit)
    seconds = time.perf_counter() - start
    cache_folder.mkdir(parents=True, exist_ok=True)
    tensors = {"features": features, "labels": labels}
    write_whole(table, lambda path: save_file(tensors, path))
    content = {**name.key(), "shape": list(features.shape), "seconds": seconds}
    write_whole(note, lambda path: path.write_text(json.dumps(content, indent=1) + "\n"))
    return features, labels


@torch.no_grad()
def encode(
    model: nn.Module, batches: Batches, title: str | None = None, total: int | None = None
) -> tuple[Tensor, Tensor]:
    """Every batch (x, labels [b]) through ``model``; a bar where there is a title."""
    features, labels = [], []
    with tqdm(desc=title, total=total, disable=title is None) as bar:
        for x, y in batches:
            features.append(model(x).float().cpu())
            labels.append(y.cpu())
            bar.update(len(y))
    return torch.cat(features), torch.cat(labels)
