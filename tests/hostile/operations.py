"""The public API as a table: what is called, with which good arguments, of which kind each is."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import baselines
from laplace_metric import Embedding, Index, LaplaceEmbedder, Monitor, OnlineLaplace, scale
from laplace_metric import distributions as dist
from laplace_metric import evaluation as ev
from laplace_metric.cli import main
from laplace_metric.datasets import ImageSet, load, split_classes
from laplace_metric.models import Call, Pooled, Precomputed, Sentences
from laplace_metric.search.match import conformal_quantile, p_values, threshold_for
from laplace_metric.training import train_embedder
from tests.hostile import places
from tests.hostile.arrays import (
    ARRAYS,
    COUNTS,
    FLAGS,
    GENERATORS,
    IDS,
    JUNK,
    LABELS,
    NAMES,
    REALS,
    Variant,
    constant,
    variants,
)
from tests.hostile.networks import (
    HEADS,
    LOADERS,
    LOSSES,
    METRICS,
    MINERS,
    MODELS,
    OPTIMIZERS,
    D,
    batches,
    dropout_network,
    network,
)
from tests.hostile.places import DAMAGES

PATHS = [
    *map(constant, [None, 5, "", b"x", "no/such", "a\0b", [], {}, True, object(), "/proc/no"]),
    *variants(
        file=lambda _p: str(places.workplace() / "x.npy"),
        another_folder=lambda _p: places.copy_of(places.saved()["monitor"]),
        an_empty_folder=lambda _p: places.workplace() / "folder",
    ),
]
MAPPINGS = [
    *JUNK,
    *variants(
        empty=lambda _m: {},
        other_names=lambda m: {"other": next(iter(m.values()))},
        number_names=lambda m: {3: next(iter(m.values()))},
        two=lambda m: {**m, "other": next(iter(m.values()))},
        uneven=lambda m: {**m, "other": next(iter(m.values()))[:-1]},
        pairs=lambda m: list(m.items()),
        few=lambda m: {name: values[:3] for name, values in m.items()},
    ),
    *(
        Variant(
            f"values {v.name}",
            lambda m, rng, v=v: {name: v.make(values, rng) for name, values in m.items()},
            v.same,
        )
        for v in ARRAYS
    ),
]
EMBEDDINGS = [
    *JUNK,
    *variants(
        gaussian=lambda p: dist.Gaussian(p.loc, torch.ones_like(p.loc)),
        fewer=lambda p: dist.VonMisesFisher(p.loc[:2], p.concentration[:2]),
        wider=lambda p: dist.VonMisesFisher(torch.eye(9), torch.ones(9)),
        tensor=lambda p: p.loc,
        directions=lambda p: dist.Directions(p.loc, p.concentration),
        projected=lambda p: dist.ProjectedNormal(p.loc, torch.ones_like(p.loc)),
    ),
]
MATCHES = [
    *JUNK,
    *variants(
        same=True,
        tuples=lambda m: tuple(tuple(row) for row in m),
        arrays=lambda m: [np.array(row, dtype=int) for row in m],
        tensors=lambda m: [torch.tensor(row, dtype=torch.int64) for row in m],
        twice=lambda m: [[*row, *row] for row in m],
        backwards=lambda m: [row[::-1] for row in m],
    ),
    *variants(
        fewer=lambda m: m[:-1],
        more=lambda m: [*m, []],
        nobody=lambda m: [[10**9], *m[1:]],
        none_at_all=lambda m: [[] for _ in m],
        strings=lambda m: [[str(i) for i in row] for row in m],
        mixed=lambda m: [["a"], *m[1:]],
        fractions=lambda m: [[0.5], *m[1:]],
        flags=lambda m: [[True], *m[1:]],
        numbers=lambda m: [0 for _ in m],
        texts=lambda m: ["a" for _ in m],
        one_none=lambda m: [None, *m[1:]],
        too_large=lambda m: [[2**70], *m[1:]],
        deep=lambda m: [[[0]], *m[1:]],
        one_array=lambda m: np.zeros((len(m), 2), dtype=int),
        a_dict=lambda m: dict(enumerate(m)),
    ),
]
SHAPES = [
    *COUNTS,
    *map(constant, [(-1,), (0,), (2.5,), ("a",), torch.Size([2]), (2, 3), [2], (None,)]),
]
GALLERIES = [
    *ARRAYS,
    *(
        Variant(
            f"loader {v.name}",
            lambda x, rng, v=v: v.make(batches(x, torch.arange(len(x)) % 4), rng),
        )
        for v in LOADERS
    ),
]
KINDS: dict[str, list[Variant]] = {
    "array": ARRAYS,
    "labels": LABELS,
    "ids": IDS,
    "count": COUNTS,
    "real": REALS,
    "name": NAMES,
    "flag": FLAGS,
    "generator": GENERATORS,
    "loader": LOADERS,
    "model": MODELS,
    "head": HEADS,
    "miner": MINERS,
    "metric": METRICS,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "path": PATHS,
    "saved": [*DAMAGES, *DAMAGES, *PATHS],
    "mapping": MAPPINGS,
    "distribution": EMBEDDINGS,
    "shape": SHAPES,
    "matches": MATCHES,
    "gallery": GALLERIES,
    "junk": JUNK,
    "counts": [*COUNTS, *map(constant, [(1, 2), [0], [True], ["a"], (10**30,), range(3), (), {1}])],
    "bounds": [
        *REALS,
        *map(constant, [(1,), (1, 2, 3), (2, 1), (0, 1), ("a", "b"), (1, np.inf), "ab"]),
    ],
    "dtype": list(
        map(constant, [torch.float16, torch.int64, np.float32, "float32", 5, None, object()])
    ),
}


@dataclass(frozen=True)
class Operation:
    """One callable of the API.

    ``target`` makes it, before what is judged; ``arguments`` are name -> (kind, good value).
    """

    name: str
    target: Callable[[], Callable[..., Any]]
    arguments: dict[str, tuple[str, Callable[[], Any]]]
    positional: tuple[str, ...] = ()
    deterministic: bool = True
    weight: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        first = [values[name] for name in self.positional]
        rest = {name: value for name, value in values.items() if name not in self.positional}
        return function(*first, **rest, **self.fixed)


OPERATIONS: list[Operation] = []


def operation(
    name: str,
    target: Callable[[], Callable[..., Any]],
    arguments: dict[str, tuple[str, Any]],
    **options: Any,
) -> None:
    """Add one; values that are no functions stand for themselves."""
    made = {
        key: (kind, value if callable(value) and kind not in NO_CALL else _constantly(value))
        for key, (kind, value) in arguments.items()
    }
    OPERATIONS.append(Operation(name, target, made, **options))


NO_CALL = ("metric", "loss")


def _constantly(value: Any) -> Callable[[], Any]:
    return lambda: value


def read(embedding: Embedding) -> dict[str, Any]:
    """All that an embedding says."""
    return {
        "mean": embedding.mean,
        "variance": embedding.variance,
        "uncertainty": embedding.uncertainty,
        "concentration": embedding.concentration,
    }


SETTINGS: dict[str, tuple[str, Any]] = {
    "distance": ("name", "arccos"),
    "hessian": ("name", "fixed"),
    "structure": ("name", "kron"),
    "margin": ("real", 1.0),
    "prior_precision": ("real", 1.0),
    "n_effective": ("real", 10.0),
    "pairs": ("miner", "all"),
    "backend": ("name", "auto"),
    "positivity": ("name", "absolute"),
}


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


X, Y, LOADER = ("array", places.x), ("labels", places.y), ("loader", places.loader)
GENERATOR = ("generator", None)
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


def _loss(z: torch.Tensor, labels: torch.Tensor, *_: Any) -> torch.Tensor:
    return (z.square().sum(1) * (1 + labels)).mean()


_TRAINING = {"loader": LOADER, "loss": ("loss", _loss), "epochs": ("count", 1)}
operation(
    "OnlineLaplace",
    lambda: (
        lambda **k: read(
            OnlineLaplace(**k).fit(places.loader(), _loss, epochs=1, progress=False)(places.x())
        )
    ),
    {
        **SETTINGS,
        "model": ("model", network),
        "head": ("head", None),
        "structure": ("name", "diag"),
        "pairs": ("miner", "batch"),
        "positivity": ("name", "clip"),
        "decay": ("real", 0.9),
        "samples": ("count", 2),
        "refresh": ("count", 2),
        "recursion": ("name", "paper"),
        "warmup": ("count", 1),
    },
    deterministic=False,
    weight=3,
)
OPERATIONS[-1].arguments.pop("positivity")
operation(
    "OnlineLaplace.fit",
    lambda: lambda **k: read(places.online().fit(**k, progress=False)(places.x())),
    {
        **_TRAINING,
        "optimizer": ("optimizer", None),
        "scheduler": ("optimizer", None),
        "generator": GENERATOR,
        "checkpoint": ("path", places.scratch),
        "checkpoint_every": ("count", 1),
    },
    deterministic=False,
    weight=4,
)
operation(
    "train_embedder",
    lambda: train_embedder,
    {
        "model": ("model", network),
        **_TRAINING,
        "optimizer": ("optimizer", None),
        "scheduler": ("optimizer", None),
        "miner": ("miner", None),
    },
    fixed={"progress": False},
    deterministic=False,
    weight=3,
)

_SCORES, _CORRECT = ("array", places.scores), ("array", places.correct)
for _name in ("auroc", "auprc", "fpr_at_tpr", "roc_curve"):
    _arguments: dict[str, Any] = {"in_scores": _SCORES, "out_scores": _SCORES}
    if _name == "fpr_at_tpr":
        _arguments["tpr"] = ("real", 0.9)
    operation(f"evaluation.{_name}", lambda n=_name: getattr(ev, n), _arguments)
for _name in ("r_auroc", "sparsification", "abstention"):
    _arguments = {"uncertainty": _SCORES, "correct": _CORRECT}
    operation(f"evaluation.{_name}", lambda n=_name: getattr(ev, n), _arguments)
operation("evaluation.spearman", lambda: ev.spearman, {"x": _SCORES, "y": _SCORES})
operation(
    "evaluation.mann_whitney",
    lambda: ev.mann_whitney,
    {"in_scores": _SCORES, "out_scores": _SCORES},
)
operation(
    "evaluation.expected_calibration_error",
    lambda: ev.expected_calibration_error,
    {"confidence": _SCORES, "correct": _CORRECT, "bins": ("count", 5)},
    weight=2,
)
operation(
    "evaluation.mean_and_standard_error", lambda: ev.mean_and_standard_error, {"values": _SCORES}
)
for _name in ("bootstrap_interval", "bootstrap_replicates"):
    _arguments = {
        "metric": ("metric", lambda a: float(a.mean())),
        "array": _SCORES,
        "n": ("count", 10),
        "paired": ("flag", True),
        "generator": GENERATOR,
    }
    if _name == "bootstrap_interval":
        _arguments["level"] = ("real", 0.9)
    operation(
        f"evaluation.{_name}",
        lambda n=_name: getattr(ev, n),
        _arguments,
        positional=("metric", "array"),
        deterministic=False,
        weight=2,
    )
_GALLERY = {
    "gallery": X,
    "gallery_labels": Y,
    "exclude": ("labels", lambda: torch.arange(len(places.y()))),
}
for _name in ("map_at_k", "map_at_r", "recall_at_k", "retrieval_report"):
    _arguments = {"query": X, "labels": Y, **_GALLERY}
    if _name.endswith("_k"):
        _arguments |= {"k": ("count", 3)}
    if _name == "retrieval_report":
        _arguments |= {"recall_ks": ("counts", (1, 2)), "map_ks": ("counts", (3,))}
    operation(f"evaluation.{_name}", lambda n=_name: getattr(ev, n), _arguments, weight=2)
operation(
    "evaluation.retrieval_calibration",
    lambda: ev.retrieval_calibration,
    {
        "samples": ("array", lambda: places.x().expand(3, -1, -1).clone()),
        "labels": Y,
        **_GALLERY,
        "bins": ("count", 5),
    },
    weight=2,
)
operation(
    "evaluation.nearest_neighbours",
    lambda: ev.nearest_neighbours,
    {
        "queries": X,
        "gallery": X,
        "k": ("count", 3),
        "exclude": ("labels", lambda: torch.arange(len(places.y()))),
        "backend": ("name", "torch"),
    },
    weight=2,
)
operation(
    "evaluation.evaluate_method",
    lambda: ev.evaluate_method,
    {
        "method": ("junk", places.model_embedder),
        "queries": LOADER,
        "ood": ("mapping", lambda: {"noise": places.loader()}),
        "n_draws": ("count", 3),
        "generator": GENERATOR,
        "n_bootstrap": ("count", 5),
    },
    deterministic=False,
    weight=2,
)

NO_DENSITY = ("SphericalLaplace", "SphericalGaussian")
_VARIANCE = ("array", lambda: places.fixed(5, D))
_LOC, _K = ("array", places.directions), ("array", places.concentrations)
for _name in (
    "VonMisesFisher",
    "PowerSpherical",
    "SphericalGaussian",
    "SphericalLaplace",
    "NonIsotropicVonMisesFisher",
):

    def _density(name: str = _name) -> Any:
        def use(generator: Any, shape: Any, value: Any, **k: Any) -> Any:
            p = getattr(dist, name)(**k)
            density = None if name in NO_DENSITY else p.log_prob(value)
            return density, p.sample(shape, generator)

        return use

    operation(
        f"distributions.{_name}",
        _density,
        {
            "loc": _LOC,
            "concentration": _K if _name != "NonIsotropicVonMisesFisher" else _VARIANCE,
            "value": _LOC,
            "shape": ("shape", (2,)),
            "generator": GENERATOR,
        },
        deterministic=False,
        weight=2,
    )
operation(
    "distributions.VonMisesFisher.moments",
    lambda: (
        lambda **k: [
            (p.mean, p.variance, p.covariance_matrix, p.entropy())
            for p in [dist.VonMisesFisher(**k)]
        ]
    ),
    {"loc": _LOC, "concentration": _K},
)


def _uniform() -> Any:
    def use(dimension: Any, shape: Any, generator: Any, value: Any) -> Any:
        p = dist.HypersphericalUniform(dimension)
        return p.log_prob(value), p.sample(shape, generator), p.entropy()

    return use


operation(
    "distributions.HypersphericalUniform",
    _uniform,
    {
        "dimension": ("count", D),
        "shape": ("shape", (2,)),
        "generator": GENERATOR,
        "value": _LOC,
    },
    deterministic=False,
)
_MATRICES = ("array", lambda: torch.eye(D).expand(5, D, D).clone())
for _name in ("Gaussian", "ProjectedNormal"):

    def _gaussian(name: str = _name) -> Any:
        def use(n: Any, generator: Any, **k: Any) -> Any:
            p = getattr(dist, name)(**k)
            return {
                "mean": p.mean,
                "variance": p.variance,
                "concentration": p.concentration,
                "sample": p.sample(n, generator),
            }

        return use

    operation(
        f"distributions.{_name}",
        _gaussian,
        {"loc": _LOC, "covariance": _VARIANCE, "n": ("count", 2), "generator": GENERATOR},
        deterministic=False,
        weight=2,
    )
for _name, _values in {"DiagonalCovariance": _VARIANCE, "DenseCovariance": _MATRICES}.items():
    _first = "values" if _name == "DiagonalCovariance" else "matrices"

    def _covariance(name: str = _name) -> Any:
        def use(vectors: Any, noise: Any, **k: Any) -> Any:
            c = getattr(dist, name)(**k)
            return c.diagonal(), c.dense(), c.apply(vectors), c.color(noise)

        return use

    operation(
        f"distributions.{_name}",
        _covariance,
        {_first: _values, "vectors": _LOC, "noise": ("array", lambda: torch.ones(2, 5, D))},
    )
operation(
    "distributions.Empirical",
    lambda: (
        lambda n, generator, **k: [
            (p.mean, p.variance, p.sample(n, generator)) for p in [dist.Empirical(**k)]
        ]
    ),
    {
        "draws": ("array", lambda: places.fixed(3, 5, D)),
        "spherical": ("flag", False),
        "n": ("count", 2),
        "generator": GENERATOR,
    },
    deterministic=False,
)
operation(
    "distributions.Directions",
    lambda: (
        lambda n, generator, **k: [
            (p.mean, p.variance, p.sample(n, generator)) for p in [dist.Directions(**k)]
        ]
    ),
    {"loc": _LOC, "concentration": _K, "n": ("count", 2), "generator": GENERATOR},
    deterministic=False,
)
for _name in ("log_vmf_normalizer", "mean_resultant_length"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"concentration": _K, "dimension": ("count", D)},
    )
for _name in ("concentration_of", "vmf_concentration"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"resultant": ("array", lambda: torch.linspace(0.1, 0.9, 5)), "dimension": ("count", D)},
    )
for _name in ("cap_angle", "cap_cosine"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"concentration": _K, "dimension": ("count", D), "probability": ("real", 0.9)},
    )
operation(
    "distributions.sample_angle",
    lambda: dist.sample_angle,
    {"concentration": _K, "dimension": ("count", D), "generator": GENERATOR},
    deterministic=False,
)
operation(
    "distributions.unnormalized_vmf_score",
    lambda: dist.unnormalized_vmf_score,
    {"loc": _LOC, "concentration": _K, "x": _LOC},
)


def _vmf() -> Any:
    return dist.VonMisesFisher(places.directions(), places.concentrations())


operation(
    "distributions.in_cap",
    lambda: dist.in_cap,
    {"p": ("distribution", _vmf), "value": _LOC, "probability": ("real", 0.9)},
)
for _name in ("log_expected_likelihood", "pairwise_log_expected_likelihood"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"p": ("distribution", _vmf), "q": ("distribution", _vmf)},
    )

METHODS = [name for name in baselines.__all__ if name != "Training"]
SMALL = {"n_samples": 2, "n_members": 2, "hidden": 8, "k": 3}
TRAINING = baselines.Training(epochs=1)


def _plain_fields(name: str) -> dict[str, Any]:
    fields = getattr(baselines, name).__dataclass_fields__
    options = {key: value for key, value in SMALL.items() if key in fields}
    return options | ({"training": TRAINING} if "training" in fields else {})


def _numbers_of(name: str) -> dict[str, tuple[str, Any]]:
    """Settings of a method, by the type of their default."""
    kinds = {bool: "flag", int: "count", float: "real", str: "name"}
    made = {}
    for key, item in getattr(baselines, name).__dataclass_fields__.items():
        kind = kinds.get(type(item.default))
        if kind and item.init and key not in ("model", "head"):
            made[key] = (kind, SMALL.get(key, item.default))
    return made


for _name in METHODS:

    def _method(name: str = _name) -> Any:
        others = {k: v for k, v in _plain_fields(name).items() if k not in _numbers_of(name)}

        def use(model: Any, head: Any, loader: Any, inputs: Any, **k: Any) -> Any:
            method = getattr(baselines, name)(model, head=head, **k, **others)
            return read(method.fit(loader, progress=False)(inputs))

        return use

    operation(
        f"baselines.{_name}",
        _method,
        {
            "model": ("model", dropout_network),
            "head": ("head", None),
            "loader": LOADER,
            "inputs": X,
            **_numbers_of(_name),
        },
        deterministic=False,
    )
operation(
    "baselines.Training",
    lambda: baselines.Training,
    {
        "epochs": ("count", 2),
        "learning_rate": ("real", 0.1),
        "decay": ("real", 0.1),
        "weight_decay": ("real", 0.1),
        "optimizer": ("name", "adam"),
        "seed": ("count", 3),
    },
    weight=2,
)


def _saved_method(name: str = "MCDropout") -> Any:
    folder = places.scratch()
    model = nn.Sequential(nn.Linear(D, 8), nn.Dropout(), nn.Linear(8, 3))
    method = getattr(baselines, name)(model, n_samples=2)
    method.fit(places.loader(), progress=False).save(folder)

    def load_damaged(damage: Any) -> Any:
        changed = damage(folder, random.Random(0))
        return read(baselines.MCDropout.load(changed, model)(places.x()))

    return load_damaged


operation(
    "baselines.load",
    _saved_method,
    {"damage": ("raw damage", lambda: lambda folder, rng: folder)},
    deterministic=False,
)
KINDS["raw damage"] = [
    Variant(v.name, lambda _plain, _rng, v=v: v.make) for v in [*DAMAGES, *PATHS]
]

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


def _command() -> Any:
    def run(name: str, *options: str) -> Any:
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                code = main([name, *options])
            except SystemExit as stopped:
                code = stopped.code
        return CommandResult(int(code or 0), out.getvalue(), error.getvalue())

    return run


@dataclass(frozen=True)
class CommandResult:
    """How a command of the command line ended."""

    code: int
    out: str
    error: str


FILES = [
    *("x.npy", "both.npz", "both.safetensors", "texts.csv", "empty.csv", "damaged.npz"),
    *("pickle.npy", "text.npy", "nan.npy", "flat.npy", "words.npy", "objects.npy", "none.npy"),
    *("folder", "images", "no such.npy", "lines.txt", "y.npy", "posterior", "index"),
]
ODD = ["", "-1", "0", "1", "x", "nan", "inf", "1e400", "2.5", "a\0b"]


def command_line(rng: random.Random) -> list[str]:
    """A command with good or bad files and options."""
    folder = places.workplace()

    def file(good: str) -> str:
        name = good if rng.random() < 0.6 else rng.choice(FILES)
        path = folder / name
        if name in ("posterior", "index") and rng.random() < 0.6:
            path = rng.choice(DAMAGES).make(path, rng)
        return str(path)

    name = rng.choice(["fit", "embed", "index", "search", "evaluate", "report", "image-text"])
    made = {
        "fit": [file("x.npy"), "--output", str(places.scratch())],
        "embed": [file("x.npy"), "--posterior", file("posterior"), "--output"],
        "index": [file("x.npy"), "--posterior", file("posterior"), "--output"],
        "search": [file("index"), file("x.npy")],
        "evaluate": [file("index"), file("x.npy")],
        "report": [file("index"), file("x.npy"), "--output", str(places.scratch()) + ".html"],
        "image-text": [*rng.choice([["search"], ["fit", "--model", "no:such"]]), file("texts.csv")],
    }[name]
    if name == "embed":
        made.append(str(places.scratch()) + rng.choice([".npz", ".safetensors", ".parquet", ".x"]))
    if name == "index":
        made.append(str(places.scratch()))
    if name not in ("search", "image-text"):
        made += ["--labels", file("y.npy")]
    extra = {
        "fit": [
            "--structure",
            "--distance",
            "--hessian",
            "--prior-precision",
            "--head",
            "--model",
            "--holdout",
        ],
        "embed": ["--model", "--device"],
        "index": ["--engine", "--rank-by", "--holdout", "--seed"],
        "search": ["-k", "--model", "--device"],
        "evaluate": ["--model", "--strangers", "--device"],
        "report": ["--model", "--device"],
        "image-text": ["--text", "--image", "-k", "--model", "--image-column", "--holdout"],
    }[name]
    shared = ["--size", "--channels", "--batch-size", "--text-column", "--label-column", "--labels"]
    if rng.random() < 0.5:
        made += [rng.choice([*extra, *shared]), rng.choice(ODD)]
    if name == "index" and rng.random() < 0.5:
        made += ["--holdout", "0.4"]
    if name == "search" and rng.random() < 0.5:
        made += [
            "--output",
            str(places.scratch()) + rng.choice([".csv", ".json", ".parquet", ".x"]),
        ]
    return [name, *made, "--quiet"]


COMMANDS = Variant("command", lambda _plain, rng: command_line(rng))
