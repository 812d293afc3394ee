"""Indexes, calibrations, images and texts, sets and thresholds."""

from __future__ import annotations

from laplace_metric import Index
from laplace_metric.calibration._conformal import conformal_quantile, p_values
from laplace_metric.calibration._thresholds import threshold_for
from tests.hostile import places
from tests.hostile.operations.table import GENERATOR, Operations, Y

OPERATIONS = Operations()
operation = OPERATIONS.add


_INDEX = {
    "gallery": ("gallery", places.x),
    "labels": Y,
    "ids": ("ids", places.ids),
    "engine": ("name", "flat"),
    "rank_by": ("name", "mean"),
}
operation(
    "embedder.index",
    lambda: lambda **k: places.embedder().index(**k, progress=False).search(places.x(), k=3),
    _INDEX,
    weight=5,
)
operation(
    "index.search",
    lambda: places.calibrated().search,
    {"queries": ("gallery", places.x), "k": ("count", 3), "alpha": ("real", 0.05)},
    weight=4,
)
operation(
    "index.add",
    lambda: places.index().add,
    {
        "gallery": ("gallery", places.x),
        "labels": Y,
        "ids": ("ids", lambda: places.ids() + 1000),
    },
    weight=3,
)
operation(
    "index.remove",
    lambda: places.index().remove,
    {"ids": ("ids", lambda: places.ids()[:3])},
    weight=3,
)
operation(
    "index.calibrate",
    lambda: places.index().calibrate,
    {
        "queries": ("gallery", places.queries),
        "labels": ("labels", places.query_labels),
        "k": ("count", 3),
        "depth": ("count", 5),
        "generator": GENERATOR,
    },
    weight=4,
)
operation(
    "index.evaluate",
    lambda: places.calibrated().evaluate,
    {
        "queries": ("gallery", places.queries),
        "labels": ("labels", places.query_labels),
        "ood": ("gallery", places.queries),
        "depth": ("count", 5),
    },
    weight=3,
)
_MATCHES = ("matches", places.query_matches)
for _name, _make in {"labels": places.index, "calibrated": places.calibrated}.items():
    operation(
        f"index.calibrate(matches), {_name}",
        lambda make=_make: make().calibrate,
        {"queries": ("gallery", places.queries), "matches": _MATCHES, "k": ("count", 3)},
        weight=2,
    )
operation(
    "index.evaluate(matches)",
    lambda: places.calibrated().evaluate,
    {"queries": ("gallery", places.queries), "matches": _MATCHES, "labels": ("labels", None)},
    weight=2,
)
operation(
    "image_text.index_images",
    lambda: (
        lambda **k: (
            places.image_text().index_images(**k, progress=False).search(places.texts(), k=3)
        )
    ),
    {
        "images": ("array", places.x),
        "ids": ("ids", places.ids),
        "engine": ("name", "flat"),
        "rank_by": ("name", "expected"),
    },
    weight=3,
)
operation(
    "image_text.index_texts.search",
    lambda: places.image_text().index_texts(places.texts(), progress=False).search,
    {"queries": ("array", places.x), "k": ("count", 3), "alpha": ("real", 0.05)},
    weight=3,
)
operation(
    "image_text.index_texts.calibrate",
    lambda: places.image_text().index_texts(places.texts(), progress=False).calibrate,
    {
        "queries": ("array", places.queries),
        "matches": ("matches", places.text_matches),
        "k": ("count", 3),
        "depth": ("count", 5),
        "generator": GENERATOR,
    },
    weight=3,
)
operation(
    "index.retrieval_sets",
    lambda: places.calibrated().retrieval_sets,
    {"queries": ("gallery", places.x), "alpha": ("real", 0.5)},
)
operation(
    "index.label_sets",
    lambda: lambda **k: places.calibrated().label_sets(**k).sizes,
    {"queries": ("gallery", places.x), "alpha": ("real", 0.5), "confidence": ("real", 0.5)},
    weight=3,
)
operation(
    "embedder.cross_index",
    lambda: lambda **k: places.embedder().cross_index(**k, progress=False).search(places.x(), k=3),
    {
        "inputs": ("gallery", places.x),
        "labels": Y,
        "ids": ("ids", places.ids),
        "folds": ("count", 3),
        "k": ("count", 3),
        "depth": ("count", 5),
    },
    weight=3,
)
operation(
    "index.credible_sets",
    lambda: places.index().credible_sets,
    {"queries": ("gallery", places.x), "probability": ("real", 0.9), "depth": ("count", 5)},
)
operation("index.save", lambda: places.calibrated().save, {"path": ("path", places.scratch)})
operation(
    "Index.load",
    lambda: lambda **k: Index.load(**k).search(places.x(), k=3),
    {
        "path": ("saved", lambda: places.saved()["index"]),
        "embedder": ("junk", places.embedder),
        "mmap": ("flag", False),
    },
    weight=3,
)
operation(
    "result.accepted",
    lambda: places.calibrated().search(places.x(), k=3).accepted,
    {"threshold": ("real", 0.5)},
)
operation(
    "calibration.threshold_for",
    lambda: places.calibrated().calibration.threshold_for,
    {"precision": ("real", 0.5), "confidence": ("real", 0.9)},
)
operation(
    "calibration.quality", lambda: places.calibrated().calibration.quality, {"n": ("count", 20)}
)
operation(
    "threshold_for",
    lambda: threshold_for,
    {
        "probability": ("array", places.scores),
        "correct": ("array", places.correct),
        "recall": ("real", 0.2),
    },
)
operation(
    "conformal_quantile",
    lambda: conformal_quantile,
    {"held_out": ("array", places.scores), "alpha": ("real", 0.2)},
)
operation(
    "p_values",
    lambda: p_values,
    {"held_out": ("array", places.scores), "scores": ("array", places.scores)},
)
