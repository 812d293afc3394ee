"""The public API as a table: what is called, with which good arguments, of which kind each is.

A call is decided by a seed and its number: the order of the rows is part of that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn

import baselines
from benchmarks.datasets import load
from laplace_metric import Embedding, Index, LaplaceEmbedder, Monitor, OnlineLaplace, scale
from laplace_metric.calibration import Rule, guarantee
from laplace_metric.calibration._conformal import conformal_quantile, p_values
from laplace_metric.datasets import ImageSet
from laplace_metric.models import Call, Pooled, Precomputed, Sentences
from laplace_metric.training import train_embedder
from tests.hostile import places
from tests.hostile.networks import D, dropout_network, network
from tests.hostile.table import (
    OPERATIONS,
    PLAIN,
    QUERIES,
    SCORES,
    SETTINGS,
    VARIANCE,
    Kinds,
    embeds,
    functions,
    good_loss,
    operation,
    read,
)
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")
__all__ = ["OPERATIONS"]

ev = room("laplace_metric.evaluation")
STREAM = {"uncertainty": torch.linspace(0, 1, 60)}
NO_DENSITY = ("SphericalLaplace", "SphericalGaussian")
METHODS = [
    name
    for name in baselines.__all__
    if name != "Training" and is_dataclass(getattr(baselines, name))
]
SMALL = {"n_samples": 2, "n_members": 2, "hidden": 8, "k": 3}
KIND_OF_DEFAULT = {bool: "flag", int: "count", float: "real", str: "name"}


def _vmf() -> Any:
    return dist.VonMisesFisher(places.directions(), places.concentrations())


def _searched(index: Index) -> Any:
    return index.search(places.x(), k=3)


def density(name: str) -> Callable[[], Any]:
    """Make a distribution of PyTorch's kind, and ask it for everything."""

    def use(seed: Any, shape: Any, value: Any, **k: Any) -> Any:
        p = getattr(dist, name)(**k)
        return None if name in NO_DENSITY else p.log_prob(value), p.sample(shape, seed)

    return lambda: use


def asked(name: str, *properties: str) -> Callable[[], Any]:
    """Make a distribution of embeddings, and ask it for everything."""

    def use(n: Any, seed: Any, **k: Any) -> Any:
        p = getattr(dist, name)(**k)
        return {"sample": p.sample(n, seed)} | {x: getattr(p, x) for x in properties}

    return lambda: use


def covariance(name: str) -> Callable[[], Any]:
    """Make a covariance, and multiply by it."""

    def use(vectors: Any, noise: Any, **k: Any) -> Any:
        c = getattr(dist, name)(**k)
        return c.diagonal(), c.dense(), c.apply(vectors), c.color(noise)

    return lambda: use


def _moments(**k: Any) -> Any:
    p = dist.VonMisesFisher(**k)
    return p.mean, p.variance, p.covariance_matrix, p.entropy()


def settings(name: str) -> dict[str, tuple[str, Any]]:
    """Settings of a method, by the type of their default."""
    return {
        key: (KIND_OF_DEFAULT[type(item.default)], SMALL.get(key, item.default))
        for key, item in getattr(baselines, name).__dataclass_fields__.items()
        if item.init and type(item.default) in KIND_OF_DEFAULT
    }


def method(name: str) -> Callable[[], Any]:
    """Fit a method and read what it says."""
    kind = getattr(baselines, name)
    small: dict[str, Any] = {**SMALL, "training": baselines.Training(epochs=1)}
    others = set(small) & set(kind.__dataclass_fields__) - set(settings(name))

    def use(model: Any, loader: Any, inputs: Any, **k: Any) -> Any:
        made = kind(model, **k, **{key: small[key] for key in others})
        return read(made.fit(loader, progress=False)(inputs))

    return lambda: use


def _saved_method() -> Any:
    folder = places.scratch()
    model = nn.Sequential(nn.Linear(D, 8), nn.Dropout(), nn.Linear(8, 3))
    fitted = baselines.MCDropout(model, n_samples=2).fit(places.loader(), progress=False)
    fitted.save(folder)

    def load_damaged(damage: Any) -> Any:
        return read(baselines.MCDropout.load(damage(folder, random.Random(0)), model)(places.x()))

    return load_damaged


# fmt: off
# fits, embeddings, the prior, files of a posterior

operation(
    "LaplaceEmbedder(**settings)",
    embeds(lambda **k: LaplaceEmbedder.from_embeddings(places.x(), places.y(), **k)),
    f"{SETTINGS} positivity", weight=4,
)
operation(
    "LaplaceEmbedder(model, head).fit",
    embeds(lambda **k: LaplaceEmbedder(**k).fit(places.loader(), progress=False)),
    "model head", weight=5,
)
operation(
    "LaplaceEmbedder(pairs).fit",
    embeds(lambda **k: LaplaceEmbedder(network(), **k).fit(places.loader(), progress=False)),
    other={"pairs": ("miner", "batch")}, weight=2,
)
operation(
    "LaplaceEmbedder.fit",
    embeds(lambda **k: LaplaceEmbedder(network(), margin=1.0).fit(**k)),
    "loader seed dtype",
    {"reference": ("count", 16), "memory_bytes": ("count", 2**20),
     "checkpoint_dir": ("path", places.scratch)},
    weight=5, deterministic=False, fixed={"progress": False},
)
operation(
    "LaplaceEmbedder.fit(loader)",
    embeds(lambda loader: LaplaceEmbedder(network()).fit(loader, progress=False)),
    "loader", weight=5,
)
operation(
    "LaplaceEmbedder.from_embeddings",
    embeds(LaplaceEmbedder.from_embeddings), "embeddings labels", weight=4,
)
for _name, _make in {
    "from_embeddings": places.embedder,
    "model": places.model_embedder,
    "structure full": lambda: LaplaceEmbedder.from_embeddings(
            places.x(), places.y(), structure="full"
        ),
}.items():
    operation(
        f"embedder(x), {_name}",
        lambda make=_make: lambda inputs: read(make()(inputs)), "inputs", weight=3,
    )
operation(
    "embedder.uncertainties", lambda: places.model_embedder().uncertainties, "loader",
    fixed={"progress": False}, weight=2,
)
operation(
    "embedder.embed",
    lambda: lambda loader: read(places.model_embedder().embed(loader, progress=False)[0]),
    "loader", weight=2,
)
operation(
    "embedder.sample", lambda: places.model_embedder().sample, "inputs n seed",
    deterministic=False, weight=2,
)
operation(
    "embedder.draw", lambda: lambda **k: places.model_embedder().draw(**k)(places.x()),
    "n seed", deterministic=False,
)
operation("embedder.distance", lambda: places.embedder().distance, "x y", weight=2)
operation("embedder.diagnose", lambda: places.model_embedder().diagnose, "inputs")
operation(
    "embedder.tune_prior",
    lambda: places.fresh_embedder().tune_prior,
    "method loader metric bounds", {"tune_n_effective": ("flag", False)},
    fixed={"progress": False}, weight=2,
)
operation(
    "embedder.tune_prior(metric)",
    lambda: places.fresh_embedder().tune_prior, "loader metric",
    fixed={"progress": False, "method": "validation", "bounds": (0.1, 10.0)},
)
operation("embedder.save", lambda: places.embedder().save, "path")
operation(
    "LaplaceEmbedder.load", embeds(LaplaceEmbedder.load),
    other={"path": ("saved", lambda: places.saved()["posterior"])}, weight=3,
)
operation(
    "LaplaceEmbedder.load(model)", embeds(LaplaceEmbedder.load), "model",
    {"path": ("saved", lambda: places.saved()["model posterior"])}, weight=2,
)
operation(
    "Embedding[index]", lambda: lambda index: read(places.embedder()(places.x())[index]),
    other={"index": ("labels", lambda: torch.tensor([0, 2]))},
)
operation(
    "Embedding.concatenate", lambda: Embedding.concatenate,
    other={"parts": ("junk", lambda: [places.embedder()(places.x())])},
)

# indexes, calibrations, images and texts, sets and thresholds

operation(
    "embedder.index",
    lambda: lambda **k: _searched(places.embedder().index(**k, progress=False)),
    "gallery labels ids engine rank_by", weight=5,
)
operation("index.search", lambda: places.calibrated().search, "queries k alpha", weight=4)
operation(
    "index.add", lambda: places.index().add, "gallery labels",
    {"ids": ("ids", lambda: places.ids() + 1000)}, weight=3,
)
operation(
    "index.remove", lambda: places.index().remove,
    other={"ids": ("ids", lambda: places.ids()[:3])}, weight=3,
)
operation(
    "index.calibrate", lambda: places.index().calibrate, "k depth seed", QUERIES, weight=4
)
operation(
    "index.evaluate", lambda: places.calibrated().evaluate, "depth",
    {**QUERIES, "ood": ("gallery", places.queries)}, weight=3,
)
for _name, _make in {"labels": places.index, "calibrated": places.calibrated}.items():
    operation(
        f"index.calibrate(matches), {_name}", lambda make=_make: make().calibrate, "matches k",
        {"queries": QUERIES["queries"]}, weight=2,
    )
operation(
    "index.evaluate(matches)", lambda: places.calibrated().evaluate, "matches",
    {"queries": QUERIES["queries"], "labels": ("labels", None)}, weight=2,
)
operation(
    "image_text.index_images",
    lambda: (
        lambda **k: (
            places.image_text().index_images(**k, progress=False).search(places.texts(), k=3)
        )
    ),
    "ids engine", {"images": ("array", places.x), "rank_by": ("name", "expected")}, weight=3,
)
operation(
    "image_text.index_texts.search", lambda: places.text_index().search, "k alpha",
    {"queries": ("array", places.x)}, weight=3,
)
operation(
    "image_text.index_texts.calibrate", lambda: places.text_index().calibrate,
    "k depth seed",
    {"queries": ("array", places.queries), "matches": ("matches", places.text_matches)}, weight=3,
)
operation("index.retrieval_sets", lambda: places.calibrated().retrieval_sets, "queries alpha")
operation(
    "index.label_sets", lambda: lambda **k: places.calibrated().label_sets(**k).sizes,
    "queries alpha", {"confidence": ("real", 0.5)}, weight=3,
)
operation(
    "embedder.cross_index",
    lambda: lambda **k: _searched(places.embedder().cross_index(**k, progress=False)),
    "labels ids k depth", {"inputs": ("gallery", places.x), "folds": ("count", 3)}, weight=3,
)
operation("index.save", lambda: places.calibrated().save, "path")
operation(
    "Index.load", lambda: lambda **k: _searched(Index.load(**k)),
    other={"path": ("saved", lambda: places.saved()["index"]),
           "embedder": ("junk", places.embedder), "mmap": ("flag", False)}, weight=3,
)
operation(
    "Rule.at", lambda: lambda **k: Rule.at(**k)(_searched(places.calibrated())),
    other={"value": ("real", 0.5)},
)
operation(
    "calibration.guarantee", lambda: places.calibrated().calibration.guarantee,
    other={"precision": ("real", 0.5), "confidence": ("real", 0.9)},
)
operation(
    "calibration.quality", lambda: places.calibrated().calibration.quality,
    other={"n": ("count", 20)},
)
operation(
    "guarantee", lambda: guarantee, "correct",
    {"probability": SCORES, "recall": ("real", 0.2)},
)
operation(
    "conformal_quantile", lambda: conformal_quantile,
    other={"held_out": SCORES, "alpha": ("real", 0.2)},
)
operation("p_values", lambda: p_values, other={"held_out": SCORES, "scores": SCORES})

# streams that are watched for drift

operation(
    "Monitor", lambda: lambda **k: Monitor(**k).update(STREAM), "window seed",
    {"reference": ("mapping", lambda: dict(STREAM)), "false_alarms": ("real", 0.05)},
    weight=3, deterministic=False,
)
operation(
    "monitor.update", lambda: places.monitor().update,
    other={"values": ("mapping", lambda: {"uncertainty": torch.linspace(0, 1, 40)})}, weight=2,
)
operation("monitor.save", lambda: places.monitor().save, "path")
operation(
    "Monitor.load", lambda: lambda path: Monitor.load(path).update(STREAM),
    other={"path": ("saved", lambda: places.saved()["monitor"])}, weight=2,
)

# training, with the posterior and without

operation(
    "OnlineLaplace",
    embeds(
        lambda **k: OnlineLaplace(**k).fit(places.loader(), good_loss, epochs=1, progress=False)
    ),
    f"{SETTINGS} model head",
    {"structure": ("name", "diag"), "pairs": ("miner", "batch"), "decay": ("real", 0.9),
     "samples": ("count", 2), "refresh": ("count", 2), "recursion": ("name", "paper"),
     "warmup": ("count", 1)},
    deterministic=False, weight=3,
)
operation(
    "OnlineLaplace.fit",
    embeds(lambda **k: OnlineLaplace(network()).fit(**k, progress=False)),
    "loader loss epochs optimizer scheduler seed",
    {"checkpoint": ("path", places.scratch)},
    deterministic=False, weight=4,
)
operation(
    "train_embedder", lambda: train_embedder, "model loader loss epochs optimizer scheduler",
    {"miner": ("miner", None)}, fixed={"progress": False}, deterministic=False, weight=3,
)

# metrics, and what an evaluation says of a method

functions("evaluation", ev, "auroc auprc", "in_scores out_scores")
functions("evaluation", ev, "fpr_at_tpr", "in_scores out_scores", {"tpr": ("real", 0.9)})
functions("evaluation", ev, "r_auroc sparsification abstention", "uncertainty correct")
functions("evaluation", ev, "expected_calibration_error", "confidence correct bins")
for _name in ("bootstrap_interval", "bootstrap_replicates"):
    operation(
        f"evaluation.{_name}", lambda n=_name: getattr(ev, n), "seed",
        {"metric": ("metric", lambda a: float(a.mean())), "array": SCORES, "n": ("count", 10),
         "paired": ("flag", True),
         **({"level": ("real", 0.9)} if _name == "bootstrap_interval" else {})},
        positional=("metric", "array"), deterministic=False, weight=2,
    )
RETRIEVED = "labels gallery_labels exclude"
_POINTS: Kinds = {"query": ("array", places.x), "gallery": ("array", places.x)}
functions("evaluation", ev, "map_at_k recall_at_k", f"{RETRIEVED} k", _POINTS)
functions("evaluation", ev, "map_at_r", RETRIEVED, _POINTS)
functions(
    "evaluation", ev, "retrieval_calibration", f"{RETRIEVED} bins",
    {"samples": ("array", lambda: places.x().expand(3, -1, -1).clone()),
     "gallery": ("array", places.x)},
)
functions(
    "evaluation", ev, "nearest_neighbours", "k exclude",
    {"queries": ("array", places.x), "gallery": ("array", places.x)},
)
# distributions of embeddings, and functions of their parameters

DRAWN: dict[str, Any] = {"deterministic": False, "weight": 2}
for _name in ("VonMisesFisher", "PowerSpherical", *NO_DENSITY):
    operation(
        f"distributions.{_name}", density(_name), "loc concentration value shape seed", **DRAWN
    )
operation(
    "distributions.NonIsotropicVonMisesFisher", density("NonIsotropicVonMisesFisher"),
    "loc value shape seed", {"concentration": VARIANCE}, **DRAWN,
)
operation(
    "distributions.HypersphericalUniform", density("HypersphericalUniform"),
    "dimension value shape seed", **DRAWN,
)

operation("distributions.VonMisesFisher.moments", lambda: _moments, "loc concentration")
for _name in ("Gaussian", "ProjectedNormal"):
    operation(
        f"distributions.{_name}", asked(_name, "mean", "variance", "concentration"),
        "loc n seed", {"covariance": VARIANCE}, **DRAWN,
    )
operation(
    "distributions.Empirical", asked("Empirical", "mean", "variance"), "n seed",
    {"draws": ("array", lambda: places.fixed(3, 5, D)), "spherical": ("flag", False)}, **DRAWN,
)
operation(
    "distributions.Directions", asked("Directions", "mean", "variance"),
    "loc concentration n seed", **DRAWN,
)
operation(
    "distributions.DiagonalCovariance", covariance("DiagonalCovariance"), "vectors noise",
    {"values": VARIANCE},
)
operation(
    "distributions.DenseCovariance", covariance("DenseCovariance"), "vectors noise",
    {"matrices": ("array", lambda: torch.eye(D).expand(5, D, D).clone())},
)
_RESULTANT: Kinds = {"resultant": ("array", lambda: torch.linspace(0.1, 0.9, 5))}
_TWO: Kinds = {"p": ("distribution", _vmf), "q": ("distribution", _vmf)}
functions(
    "distributions", dist, "log_vmf_normalizer mean_resultant_length", "concentration dimension"
)
functions("distributions", dist, "vmf_concentration", "dimension", _RESULTANT)
functions("distributions", dist, "cap_angle cap_cosine", "concentration dimension probability")
operation(
    "distributions.sample_angle", lambda: dist.sample_angle, "concentration dimension seed",
    deterministic=False,
)
functions("distributions", dist, "unnormalized_vmf_score", "loc concentration", {"x": PLAIN["loc"]})
functions("distributions", dist, "in_cap", "value probability", {"p": _TWO["p"]})
functions(
    "distributions", dist, "log_expected_likelihood pairwise_log_expected_likelihood", "", _TWO
)

# every other method, with its own settings

for _name in METHODS:
    operation(
        f"baselines.{_name}", method(_name), "head loader inputs",
        {"model": ("model", dropout_network), **settings(_name)}, deterministic=False,
    )
operation(
    "baselines.Training", lambda: baselines.Training, other=settings("Training"), weight=2
)
operation(
    "baselines.load", _saved_method,
    other={"damage": ("raw damage", lambda: lambda folder, rng: folder)}, deterministic=False,
)

# fits in parts, wrapped models, data sets

operation(
    "scale.Plan", lambda: lambda **k: scale.Plan(LaplaceEmbedder(network(), margin=1.0), **k),
    "inputs",
    {"reference": ("loader", lambda: (places.fixed(6, 8), torch.arange(6) % 3)),
     "dtype": ("dtype", torch.float64)},
)
operation(
    "scale.collect",
    lambda: lambda **k: scale.collect(scale.Plan(LaplaceEmbedder(network()), places.x()).task, **k),
    "labels", {"features": ("array", lambda: places.fixed(len(places.y()), 8))}, weight=2,
)
operation("scale.merge", lambda: scale.merge, other={"parts": ("junk", places.statistics)})
operation("models.Precomputed", lambda: Precomputed(), "embeddings", weight=2)
operation(
    "models.Precomputed(size)", lambda: lambda size: Precomputed(size)(places.x()),
    other={"size": ("count", D)},
)
operation(
    "models.Pooled", lambda: lambda x, **k: Pooled(**k)(x), "x",
    {"model": ("model", lambda: nn.Unflatten(1, (2, 3))), "pooling": ("name", "mean"),
     "field": ("name", "last_hidden_state")},
)
operation(
    "models.Call", lambda: lambda model, method: Call(model, method)(places.x()), "model",
    {"method": ("name", "forward")},
)
operation("models.Sentences", lambda: Sentences, "model")
operation(
    "datasets.ImageSet", lambda: lambda **k: ImageSet(**k).pixels(),
    other={"images": ("array", lambda: torch.zeros(8, 1, 4, 4, dtype=torch.uint8)),
           "labels": ("labels", lambda: torch.arange(8) % 2), "name": ("name", "x"),
           "class_names": ("labels", lambda: ("a", "b"))},
)
operation(
    "datasets.load", lambda: load,
    other={"name": ("name", "digits"), "split": ("name", "train"), "data": ("path", None),
           "limit": ("count", 5), "size": ("count", None), "colour": ("flag", False)},
)
