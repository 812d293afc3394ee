"""Encode once: features and labels in a cache folder, as safetensors beside a JSON.

``python -m benchmarks encode`` runs EfficientNet-Lite0 on CIFAR-10, Omniglot (evaluation
characters) and FashionMNIST, and MiniLM on the summaries of SciPy. What the cache has is not
encoded again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.datasets import load
from benchmarks.encoders import texts
from benchmarks.encoders.pretrained import (
    EFFICIENTNET_PACKAGES,
    MINILM_PACKAGES,
    EfficientNetLite0,
    MiniLM,
)
from benchmarks.records import write_whole
from laplace_metric.datasets import ImageSet

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
        tensors = load_file(table)
        return tensors["features"], tensors["labels"]
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


SIDE = 64
# (set, split, limit, size that the reader resizes to)
IMAGES: tuple[tuple[str, str, int, int | None], ...] = (
    ("cifar10", "train", 10_000, None),
    ("cifar10", "test", 2_500, None),
    ("omniglot", "test", 2_500, SIDE),
    ("fashion-mnist", "test", 2_500, None),
)

Result = tuple[Tensor, Tensor]


def rgb(images: ImageSet, size: int = 200) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches with three channels; a grey image has three equal ones."""
    for x, y in images.loader(size):
        yield x.expand(-1, 3, -1, -1), y


def encoded_images(
    cache: Path,
    data: str | None,
    dataset: str,
    split: str,
    limit: int | None,
    size: int | None = None,
    progress: bool = True,
    side: int = SIDE,
) -> Result:
    """Features [N, 1280] and labels of one image set, every image resized to ``side`` pixels."""
    options = f"side {side}" + ("" if size is None else f", read at {size}")
    key = Encoding("efficientnet-lite0", dataset, split, limit, EFFICIENTNET_PACKAGES, options)
    batches = lambda: rgb(load(dataset, split, data, limit, size=size))  # noqa: E731
    return encoded(key, lambda: EfficientNetLite0(side), batches, cache, progress)


def encoded_texts(cache: Path, split: str, progress: bool = True) -> Result:
    """Features [N, 384] of length 1 and labels of the SciPy summaries."""
    key = Encoding("minilm", "scipy", split, None, (*MINILM_PACKAGES, *texts.PACKAGES))
    batches = lambda: texts.load_texts(split).batches(64)  # noqa: E731
    return encoded(key, MiniLM, batches, cache, progress)


def run(options: Namespace) -> None:
    """Encode every set of the benchmarks."""
    for dataset, split, limit, size in IMAGES:
        features, _ = encoded_images(options.cache, options.data, dataset, split, limit, size)
        print(dataset, split, list(features.shape))
    for split in texts.SPLITS:
        print("scipy", split, list(encoded_texts(options.cache, split)[0].shape))
