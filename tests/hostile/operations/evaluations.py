"""Metrics, and what an evaluation says of a method."""

from __future__ import annotations

from typing import Any

import torch

from tests.hostile import places
from tests.hostile.operations.table import GENERATOR, LOADER, Operations, X, Y
from tests.rooms import room

ev = room("laplace_metric.evaluation")

OPERATIONS = Operations()
operation = OPERATIONS.add


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
