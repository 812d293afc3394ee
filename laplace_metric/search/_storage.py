"""An index on disk: its items, its calibration, and the arrays of its engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric._utils.validation import check_name
from laplace_metric.calibration import _learn as calibrations
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.errors import FileFormatError
from laplace_metric.io import FileKind
from laplace_metric.search import _faiss as engines
from laplace_metric.search._class_model import ClassModel
from laplace_metric.search._columns import Column, Encoded, Items
from laplace_metric.search._engines import IVF, Engine, Flat
from laplace_metric.search._faiss import FaissEngine, Place
from laplace_metric.search._neighbours import RANKINGS

INDEX = FileKind("index", "a saved index", 3)
ENGINE, CLASS_MODEL = "engine.", "class_model."
"""Before the names of the arrays of an engine, and of a class model."""


@dataclass(frozen=True)
class IndexState:
    """All of an index but its encoder."""

    items: Items
    rank_by: str
    engine: Engine
    changes: int
    next_id: int
    calibration: Calibration | None
    class_model: ClassModel | None = None


def save_index(folder: Path, state: IndexState, identity: str) -> None:
    """Write ``state`` and the identity of the encoder that it belongs to."""
    items, engine = state.items, state.engine
    tensors = {**vars(items.encoded), **items.ids.tensors("ids")}
    if items.labels is not None:
        tensors |= items.labels.tensors("labels")
    if isinstance(engine, FaissEngine):
        tensors |= {ENGINE + name: array for name, array in engine.arrays().items()}
    if state.rank_by == "expected":
        tensors["vectors"] = engine.vectors
    if state.class_model is not None:
        tensors |= {CLASS_MODEL + k: t for k, t in state.class_model.tensors().items()}
    content: dict[str, Any] = {
        "n_items": len(items),
        "rank_by": state.rank_by,
        "changes": state.changes,
        "next_id": state.next_id,
        "engine": engines.kind_to_json(engine.kind),
        "embedder": identity,
        "class_model": state.class_model is not None,
    }
    if state.calibration is not None:
        content["calibration"], arrays = calibrations.calibration_to_json(state.calibration)
        tensors |= {name: torch.from_numpy(array) for name, array in arrays.items()}
    files.write(folder, content, tensors, INDEX)


def load_index(
    folder: Path, identities: Sequence[str], *, mmap: bool, verify: bool | None = None
) -> tuple[IndexState, int]:
    """Read what ``save_index`` wrote, and which of ``identities`` it has.

    ``verify``: hash all of it, which is the default but of mmap.

    Raises
    ------
    FileFormatError
        If the folder holds no index, a damaged one, or one of another encoder.
    """
    whole = not mmap if verify is None else verify
    return files.settled([folder / INDEX.index], lambda: _load(folder, identities, mmap, whole))


def _load(
    folder: Path, identities: Sequence[str], mmap: bool, whole: bool
) -> tuple[IndexState, int]:
    content, tensors = files.read(folder, INDEX, mapped=mmap, verify=whole)
    identity = content.get("embedder")
    if identity not in identities:
        raise FileFormatError(
            f"{folder} was built with another embedder: other weights of the head, another "
            "posterior or another prior precision. Load the posterior that it was built with."
        )
    try:
        return _state(folder, content, tensors, mmap), identities.index(identity)
    except FileFormatError as error:
        raise FileFormatError(f"{folder} is damaged: {error}") from error
    except files.MALFORMED as error:
        raise FileFormatError(
            f"{folder} is damaged: {error!r}. Build the index again and save it."
        ) from error


def _state(
    folder: Path, content: dict[str, Any], tensors: dict[str, Tensor], mapped: bool
) -> IndexState:
    items, rank_by = _items(content, tensors), check_name("rank_by", content["rank_by"], RANKINGS)
    kind = engines.kind_from_json(content["engine"])
    vectors = tensors["vectors"] if rank_by == "expected" else items.encoded.mean
    if vectors.shape != (len(items), items.encoded.mean.shape[1] + (rank_by == "expected")):
        raise ValueError(f"vectors {tuple(vectors.shape)} of {len(items)} items")
    engine: Engine
    if isinstance(kind, Flat):
        engine = engines.build(vectors, kind, mapped=mapped)
    else:
        place = _place(folder / content["tensors"]) if mapped and isinstance(kind, IVF) else None
        arrays = _below(ENGINE, tensors)
        engine = FaissEngine.restored(arrays, vectors, kind, mapped=mapped, place=place)
    calibration, class_model = None, None
    if "calibration" in content:
        numbers = {name: tensor.numpy() for name, tensor in tensors.items()}
        calibration = calibrations.calibration_from_json(content["calibration"], numbers)
    if content["class_model"]:
        class_model = ClassModel.from_tensors(_below(CLASS_MODEL, tensors))
    changes, next_id = int(content["changes"]), int(content["next_id"])
    return IndexState(items, rank_by, engine, changes, next_id, calibration, class_model)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _items(content: dict[str, Any], tensors: dict[str, Tensor]) -> Items:
    n, ids = content["n_items"], Column.from_tensors("ids", tensors)
    encoded = Encoded(**{f.name: tensors[f.name] for f in fields(Encoded)})
    labels = Column.from_tensors("labels", tensors)
    columns = [ids] if labels is None else [ids, labels]
    parts = [*vars(encoded).values(), *columns]
    lengths = [0 if part is None else len(part) for part in parts]
    if ids is None or set(lengths) != {n}:
        raise ValueError(f"{n} items, but columns of {lengths}")
    return Items(encoded, ids, labels)


def _place(path: Path) -> Place:
    """Return where the lists of an inverted file lie in a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return Place(path, 8 + length + int(header[ENGINE + "lists"]["data_offsets"][0]))
