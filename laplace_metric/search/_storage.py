"""An index as parts of a file: its items, its calibration, and the arrays of its engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration.probability._features import FEATURES
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.errors import FileFormatError
from laplace_metric.inputs._columns import Column
from laplace_metric.io import (
    POSITIVE,
    UNIT,
    WHOLE,
    Fields,
    Kind,
    Part,
    SavedFile,
    below,
    checked_array,
    record,
    restored,
    saved,
    unsaved,
)
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._items import Items
from laplace_metric.search._protocols import SearchEncoder
from laplace_metric.search.classes._class_model import ClassModel, inputs_of
from laplace_metric.search.engines import _built_engine, _engine
from laplace_metric.search.engines._engine import IVF, Engine, Flat
from laplace_metric.search.engines._faiss import FaissEngine
from laplace_metric.search.engines._faiss_arrays import Place
from laplace_metric.search.engines._foreign_engine import ForeignEngine
from laplace_metric.search.rank._rankings import (
    ExpectedRanking,
    MeanRanking,
    PredictiveRanking,
    Ranking,
    SharedRanking,
)

INDEX = Kind("index", "a saved index", 6)
ENGINE, CLASS_MODEL, PREDICTIVE = "engine.", "class_model.", "predictive."
"""Before the names of the arrays of an engine, of a class model and of a predictive ranking."""


@dataclass(frozen=True)
class IndexState:
    """All of an index but its encoder."""

    items: Items = unsaved()
    ranking: Ranking = unsaved()
    engine: Engine = unsaved()
    changes: int = saved()
    next_id: int = saved(-(2**63), 2**63)
    calibration: Calibration | None = saved()
    class_model: ClassModel | None = unsaved(default=None)
    found: float | None = saved(0, 1, default=None)
    """Share of the nearest items that a search elsewhere found, which a saved index had."""
    class_sizes: Float[np.ndarray, " C"] | None = saved(0, WHOLE, default=None)
    """Items of each class when it was calibrated, in the order of the classes then."""

    def check_saved(self) -> None:
        """Refuse another number of class sizes than of classes that calibrated."""
        labels = None if self.calibration is None else self.calibration.labels
        if self.class_sizes is not None and labels is not None:
            checked_array("index/class_sizes", self.class_sizes, [len(labels.classes)])

    @cached_property
    def change(self) -> GalleryChange | None:
        """Change of the gallery since its calibration; None without either."""
        if self.calibration is None or not self.changes:
            return None
        before, now = self.calibration.labels, self.items.classes
        names = None if before is None else before.classes
        classes, codes = None if now is None else now.values, self.items.label_codes
        sizes = None if codes is None else np.bincount(codes.cpu().numpy()).astype(np.float64)
        return GalleryChange.of(
            self.calibration.n_items, self.changes, names, classes, self.class_sizes, sizes
        )


def index_part(state: IndexState, identity: str) -> Part:
    """Return ``state`` and the identity of the encoder that it belongs to."""
    items, engine = state.items, state.engine
    found = engine.recall if isinstance(engine, ForeignEngine) else state.found
    is_known = found is not None and not math.isnan(found)
    content, arrays = record(replace(state, found=found if is_known else None))
    arrays |= record(items.encoded)[1] | items.ids.tensors("ids")
    if items.labels is not None:
        arrays |= items.labels.tensors("labels")
    if isinstance(engine, FaissEngine):
        arrays |= {ENGINE + name: array for name, array in engine.arrays().items()}
    ranking = state.ranking
    if ranking.stored:
        arrays["vectors"] = engine.vectors
    if isinstance(ranking, PredictiveRanking):
        arrays["columns"] = ranking.columns
        arrays |= {PREDICTIVE + name: array for name, array in record(ranking)[1].items()}
        if ranking.vectors.centre is not None:
            arrays["centre"] = ranking.vectors.centre
    if state.class_model is not None:
        arrays |= {CLASS_MODEL + k: t for k, t in state.class_model.tensors().items()}
    content |= {
        "n_items": len(items),
        "rank_by": ranking.name,
        "predictive": record(ranking)[0] if isinstance(ranking, PredictiveRanking) else None,
        "engine": _engine.kind_to_json(engine.kind),
        "embedder": identity,
        "class_model": state.class_model is not None,
    }
    return Part(INDEX, content, arrays)


def load_index(
    file: SavedFile, encoders: Sequence[SearchEncoder], name: str = INDEX.name
) -> tuple[IndexState, int]:
    """Return an index of an opened file, and which of the ``encoders`` embedded its items.

    Raises
    ------
    FileFormatError
        If the file holds no index, a damaged one, or one of another encoder.
    """
    identities = [encoder.identity for encoder in encoders]
    with file.checked():
        part = file.part(INDEX, name)
        identity = Fields(part.content, name).text("embedder")
        if identity not in identities and "guard" in file:
            raise FileFormatError(
                f"{file.path} is a saved guard, with an embedder of its own: read it with "
                "Guard.load(path), whose index is guard.index."
            )
        if identity not in identities:
            raise FileFormatError(
                f"{file.path} was built with another embedder: other weights of the head, another "
                "posterior or another prior precision. Load the posterior that it was built with."
            )
        place = None
        if file.mapped and f"{ENGINE}lists" in part.arrays:
            place = Place(file.path, file.start_of(f"{name}/{ENGINE}lists"))
        which = identities.index(identity)
        return _state(part, file, place, encoders[which]), which


def _state(part: Part, file: SavedFile, place: Place | None, encoder: SearchEncoder) -> IndexState:
    content, tensors = Fields(part.content, "index"), part.arrays
    items = _items(content, tensors, verified=file.verified, spherical=encoder.spherical)
    device = torch.device("cpu") if file.mapped else encoder.device
    items = replace(items, encoded=items.encoded.to(device))
    ranking = _ranking(content, tensors, encoder)
    kind = _engine.kind_from_json(content.inner("engine").content)
    vectors = items.encoded.mean
    if isinstance(ranking, PredictiveRanking) and ranking.layer is not None:
        shape = [len(items), ranking.layer.directions.shape[1]]
        checked_array("index/earlier", items.encoded.earlier, shape, values=file.verified)
    if ranking.stored:
        first = items.encoded.take(slice(0, 1)).to(encoder.device)
        width = ranking.item_vectors(first).shape[1]
        vectors = checked_array(
            "index/vectors", tensors.get("vectors"), [len(items), width], values=file.verified
        ).to(device)
    engine: Engine
    if isinstance(kind, Flat):
        engine = _built_engine.build(vectors, kind, mapped=file.mapped)
    else:
        place = place if isinstance(kind, IVF) else None
        arrays = below(ENGINE, tensors)
        engine = FaissEngine.restored(arrays, vectors, kind, mapped=file.mapped, place=place)
    given = {"items": items, "ranking": ranking, "engine": engine}
    if content.flag("class_model"):
        model = ClassModel.from_tensors(below(CLASS_MODEL, tensors))
        width = inputs_of(items.encoded.take(slice(0, 1))).shape[1]
        checked_array("class_model/mean", model.mean, [width])
        given["class_model"] = model.to(device)
    return restored(IndexState, content, tensors, given=given, F=len(FEATURES))


def _ranking(content: Fields, tensors: Mapping[str, Tensor], encoder: SearchEncoder) -> Ranking:
    """Return the ranking of a saved index, with the numbers that it was given."""
    name = content.text("rank_by", encoder.rankings)
    if name == "expected":
        return ExpectedRanking(encoder.spherical)
    if name != "predictive":
        return SharedRanking() if name == "shared" else MeanRanking()
    vectors = encoder.predictive
    assert vectors is not None
    columns = checked_array("index/columns", tensors.get("columns"), [None], dtype="int64")
    n_columns = len(vectors.variances)
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < n_columns:
        raise FileFormatError(f"index/columns are not all from 0 to {n_columns - 1}")
    inner, device = content.inner("predictive"), vectors.variances.device
    if "prior" in inner:
        if not vectors.takes_priors:
            raise FileFormatError("index/predictive has a prior, and this posterior no other one")
        vectors = vectors.with_prior(inner.number("prior", least=POSITIVE))
    if (centre := tensors.get("centre")) is not None:
        checked_array("index/centre", centre, [n_columns])
        vectors = vectors.about(centre.to(vectors.variances))
    if "directions" in inner and inner.flag("directions"):
        vectors = vectors.as_directions()
    given = {"vectors": vectors.with_columns(columns.to(device))}
    return restored(PredictiveRanking, inner, below(PREDICTIVE, tensors), given=given)


def _items(
    content: Fields, tensors: Mapping[str, Tensor], *, verified: bool, spherical: bool
) -> Items:
    n = content.whole("n_items")
    encoded = restored(Encoded, Fields({}, "index"), tensors, values=verified, N=n)
    if spherical and verified:
        checked_array("index/mean", encoded.mean, [n, None], least=-UNIT, most=UNIT)
    ids = Column.from_tensors("ids", dict(tensors))
    labels = Column.from_tensors("labels", dict(tensors))
    columns = [ids] if labels is None else [ids, labels]
    lengths = [0 if column is None else len(column) for column in columns]
    if ids is None or set(lengths) != {n}:
        raise FileFormatError(f"{n} items, but ids and labels of {lengths}")
    return Items(encoded, ids, labels)
