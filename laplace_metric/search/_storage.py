"""An index as parts of a file: its items, its calibration, and the arrays of its engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplace_metric.calibration import _saved as calibrations
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.errors import FileFormatError
from laplace_metric.inputs._columns import Column
from laplace_metric.io import UNIT, Fields, Kind, Part, SavedFile, checked_array
from laplace_metric.search import _built_engine, _engine
from laplace_metric.search._class_model import ClassModel
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._engine import IVF, Engine, Flat
from laplace_metric.search._faiss import FaissEngine
from laplace_metric.search._faiss_arrays import Place
from laplace_metric.search._foreign_engine import ForeignEngine
from laplace_metric.search._items import Items
from laplace_metric.search._protocols import SearchEncoder
from laplace_metric.search._rankings import (
    ExpectedRanking,
    MeanRanking,
    PredictiveRanking,
    Ranking,
    SharedRanking,
)

INDEX = Kind("index", "a saved index", 6)
ENGINE, CLASS_MODEL, CALIBRATION = "engine.", "class_model.", "calibration."
"""Before the names of the arrays of an engine, a class model and a calibration."""


@dataclass(frozen=True)
class IndexState:
    """All of an index but its encoder."""

    items: Items
    ranking: Ranking
    engine: Engine
    changes: int
    next_id: int
    calibration: Calibration | None
    class_model: ClassModel | None = None
    found: float | None = None
    """Share of the nearest items that a search elsewhere found, which a saved index had."""


def index_part(state: IndexState, identity: str) -> Part:
    """Return ``state`` and the identity of the encoder that it belongs to."""
    items, engine = state.items, state.engine
    arrays: dict[str, Any] = {**vars(items.encoded), **items.ids.tensors("ids")}
    if items.labels is not None:
        arrays |= items.labels.tensors("labels")
    if isinstance(engine, FaissEngine):
        arrays |= {ENGINE + name: array for name, array in engine.arrays().items()}
    ranking = state.ranking
    if ranking.stored:
        arrays["vectors"] = engine.vectors
    if isinstance(ranking, PredictiveRanking):
        arrays["columns"] = ranking.columns
    if state.class_model is not None:
        arrays |= {CLASS_MODEL + k: t for k, t in state.class_model.tensors().items()}
    content: dict[str, Any] = {
        "n_items": len(items),
        "rank_by": ranking.name,
        "predictive": ranking.numbers() if isinstance(ranking, PredictiveRanking) else None,
        "changes": state.changes,
        "next_id": state.next_id,
        "engine": _engine.kind_to_json(engine.kind),
        "embedder": identity,
        "class_model": state.class_model is not None,
    }
    found = engine.recall if isinstance(engine, ForeignEngine) else state.found
    if found is not None and not math.isnan(found):
        content["found"] = found
    if state.calibration is not None:
        part = calibrations.calibration_part(state.calibration)
        content["calibration"] = part.content
        arrays |= {CALIBRATION + name: array for name, array in part.arrays.items()}
    return Part(INDEX, content, arrays)


def load_index(
    saved: SavedFile, encoders: Sequence[SearchEncoder], name: str = INDEX.name
) -> tuple[IndexState, int]:
    """Return an index of an opened file, and which of the ``encoders`` embedded its items.

    Raises
    ------
    FileFormatError
        If the file holds no index, a damaged one, or one of another encoder.
    """
    identities = [encoder.identity for encoder in encoders]
    with saved.checked():
        part = saved.part(INDEX, name)
        identity = Fields(part.content, name).text("embedder")
        if identity not in identities:
            raise FileFormatError(
                f"{saved.path} was built with another embedder: other weights of the head, another "
                "posterior or another prior precision. Load the posterior that it was built with."
            )
        place = None
        if saved.mapped and f"{ENGINE}lists" in part.arrays:
            place = Place(saved.path, saved.start_of(f"{name}/{ENGINE}lists"))
        which = identities.index(identity)
        return _state(part, saved, place, encoders[which]), which


def _state(part: Part, saved: SavedFile, place: Place | None, encoder: SearchEncoder) -> IndexState:
    content, tensors = Fields(part.content, "index"), part.arrays
    items = _items(content, tensors, verified=saved.verified, spherical=encoder.spherical)
    ranking = _ranking(content, tensors, encoder)
    kind = _engine.kind_from_json(content.inner("engine").content)
    vectors = items.encoded.mean
    if ranking.stored:
        width = ranking.item_vectors(items.encoded.take(slice(0, 1))).shape[1]
        vectors = _numbers("vectors", tensors, [len(items), width], verified=saved.verified)
    engine: Engine
    if isinstance(kind, Flat):
        engine = _built_engine.build(vectors, kind, mapped=saved.mapped)
    else:
        place = place if isinstance(kind, IVF) else None
        arrays = _below(ENGINE, tensors)
        engine = FaissEngine.restored(arrays, vectors, kind, mapped=saved.mapped, place=place)
    calibration, class_model = None, None
    if "calibration" in content:
        told, numbers = content.inner("calibration").content, _below(CALIBRATION, tensors)
        calibration = calibrations.calibration_of(told, numbers)
    if content.flag("class_model"):
        class_model = ClassModel.from_tensors(_below(CLASS_MODEL, tensors))
    changes, next_id = content.whole("changes"), content.whole("next_id", most=2**63)
    found = content.number("found", least=0, most=1) if "found" in content else None
    return IndexState(items, ranking, engine, changes, next_id, calibration, class_model, found)


def _ranking(content: Fields, tensors: Mapping[str, Tensor], encoder: SearchEncoder) -> Ranking:
    """Return the ranking of a saved index, with the numbers that it was given."""
    name = content.text("rank_by", encoder.rankings)
    if name == "expected":
        return ExpectedRanking(encoder.spherical)
    if name != "predictive":
        return SharedRanking() if name == "shared" else MeanRanking()
    vectors, numbers = encoder.predictive, content.inner("predictive")
    assert vectors is not None
    columns = checked_array("index/columns", tensors.get("columns"), [None], dtype="int64")
    n_columns = len(vectors.variances)
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < n_columns:
        raise FileFormatError(f"index/columns are not all from 0 to {n_columns - 1}")
    gain = numbers.content.get("gain")
    return PredictiveRanking(
        vectors.with_columns(columns.to(vectors.variances.device)),
        numbers.share("share"),
        numbers.number("factor", least=0),
        numbers.number("lost", least=0, most=1),
        None if gain is None else (float(gain[0]), float(gain[1])),
    )


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _numbers(
    name: str,
    tensors: Mapping[str, Tensor],
    shape: Sequence[int | None],
    *,
    verified: bool,
    least: float = -torch.inf,
    most: float = torch.inf,
) -> Tensor:
    """Return an array of numbers; where the arrays were left on disk, they are not looked at."""
    checked: Tensor = checked_array(
        f"index/{name}", tensors.get(name), shape, least=least, most=most, values=verified
    )
    return checked


def _items(
    content: Fields, tensors: Mapping[str, Tensor], *, verified: bool, spherical: bool
) -> Items:
    n, most = content.whole("n_items"), UNIT if spherical else torch.inf
    encoded = Encoded(
        _numbers("mean", tensors, [n, None], least=-most, most=most, verified=verified),
        _numbers("trace", tensors, [n], least=0.0, verified=verified),
        _numbers("epistemic", tensors, [n], verified=verified),
        _numbers("basis_inputs", tensors, [n, None], verified=verified),
    )
    ids = Column.from_tensors("ids", dict(tensors))
    labels = Column.from_tensors("labels", dict(tensors))
    columns = [ids] if labels is None else [ids, labels]
    lengths = [0 if column is None else len(column) for column in columns]
    if ids is None or set(lengths) != {n}:
        raise FileFormatError(f"{n} items, but ids and labels of {lengths}")
    return Items(encoded, ids, labels)
