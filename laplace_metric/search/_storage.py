"""An index on disk: what it knows of its items, its calibration, and the engine's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laplace_metric._utils import files
from laplace_metric._utils.files import FileKind
from laplace_metric.errors import FileFormatError
from laplace_metric.search._encoding import Encoded, identity
from laplace_metric.search._items import Column, Items
from laplace_metric.search.engines import Engine, FaissEngine, Flat, FlatEngine
from laplace_metric.search.engines import _build as engines
from laplace_metric.search.match import _storage as matching

if TYPE_CHECKING:
    from laplace_metric.embedder import LaplaceEmbedder
    from laplace_metric.search._index import Index

INDEX = FileKind("index", "a saved index", 1)


def save(folder: Path, index: Index) -> None:
    """Write everything but the embedder."""
    encoded, labels = index.items.encoded, index.items.labels
    tensors = {"mean": encoded.mean, "trace": encoded.trace, "words": encoded.words}
    tensors |= index.items.ids.tensors("ids")
    tensors |= {} if labels is None else labels.tensors("labels")
    content: dict[str, Any] = {"n_items": len(index), "rank_by": index.rank_by}
    content |= {"changes": index.changes, "next_id": index.next_id}
    content |= {"engine": engines.to_json(index.kind), "embedder": index.identity}
    if isinstance(index.engine, FaissEngine):
        tensors["keys"] = torch.from_numpy(index.engine.keys)
    elif isinstance(index.engine, FlatEngine) and index.rank_by == "expected":
        tensors["vectors"] = index.engine.vectors
    if index.calibration is not None:
        content["calibration"], more = matching.written(index.calibration)
        tensors |= more
    own = index.engine.write if isinstance(index.engine, FaissEngine) else None
    files.write(folder, content, tensors, INDEX, own)


def load(kind: type[Index], folder: Path, embedder: LaplaceEmbedder, *, mmap: bool) -> Index:
    """Read what ``save`` wrote and check that it belongs to ``embedder``."""
    content, tensors = files.read(folder, INDEX, mapped=mmap)
    if content.get("embedder") != identity(embedder):
        raise FileFormatError(
            f"{folder} was built with another embedder: other weights of the head, another "
            "posterior or another prior precision. Load the posterior that it was built with."
        )
    try:
        items = _items(content, tensors)
        engine = _engine(folder, content, tensors, mmap)
        calibration = None
        if "calibration" in content:
            calibration = matching.read(content["calibration"], tensors)
        of = engines.from_json(content["engine"])
        index = kind(embedder, items, of, content["rank_by"], engine, calibration=calibration)
        index.changes, index.next_id = int(content["changes"]), int(content["next_id"])
        return index
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _items(content: dict[str, Any], tensors: dict[str, Tensor]) -> Items:
    n, ids = content["n_items"], Column.from_tensors("ids", tensors)
    encoded = Encoded(tensors["mean"], tensors["trace"], tensors["words"])
    labels = Column.from_tensors("labels", tensors)
    columns = [ids] if labels is None else [ids, labels]
    parts = [encoded.mean, encoded.trace, encoded.words, *columns]
    lengths = [0 if part is None else len(part) for part in parts]
    if ids is None or set(lengths) != {n}:
        raise ValueError(f"{n} items, but columns of {lengths}")
    return Items(encoded, ids, labels)


def _engine(
    folder: Path, content: dict[str, Any], tensors: dict[str, Tensor], mapped: bool
) -> Engine:
    kind = engines.from_json(content["engine"])
    if isinstance(kind, Flat):
        return engines.build(tensors.get("vectors", tensors["mean"]), kind, mapped=mapped)
    path = files.foreign_file(folder, content, INDEX, hashed=not mapped)
    return FaissEngine.read(path, tensors["keys"], kind, mapped=mapped)
