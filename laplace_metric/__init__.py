"""Calibrated uncertainty for any trained metric-learning embedder.

Data flow in one direction (``.importlinter`` has the order of imports, which differs)::

    data   -> batches                inputs          reads what users pass, once, at each call
           -> inputs h of the head   models, heads   calls the model; finds the last layer, h [N, D]
           -> Jacobians              heads           J = dz/dtheta of the head
           -> H                      curvature       pairs of points; begin with curvature.by_class
           -> posterior              laplace         N(theta, (n_eff H + tau I)^-1), J S J^T
           -> Embedding              distributions   mean, variance, samples, concentration
           -> is it known?           familiarity     near and far from the fitted classes
           -> numbers                evaluation      retrieval, OOD, sparsification, calibration
           -> answers                search          neighbours and their distances
           -> guarantees             calibration     match probabilities, rules
           -> drift                  monitor         a stream of queries against a reference

``LaplaceEmbedder`` does this once, after training, ``OnlineLaplace`` in every training step;
``distributed`` and ``scale`` do it on several machines. Public names are imported when they are
first used, so that the command line starts at once. Nothing is printed unless
``logging.getLogger("laplace_metric").setLevel("INFO")`` asks for it.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from laplace_metric._utils import __version__

if TYPE_CHECKING:
    from laplace_metric.calibration import Answers, Rule, calibrate_scores
    from laplace_metric.embedder import LaplaceEmbedder
    from laplace_metric.embedding import Embedding
    from laplace_metric.errors import LaplaceMetricError, LaplaceMetricWarning
    from laplace_metric.guard import Guard
    from laplace_metric.guard_classifier import GuardClassifier
    from laplace_metric.laplace_ensemble import LaplaceEnsemble
    from laplace_metric.monitor import Monitor
    from laplace_metric.online import OnlineLaplace
    from laplace_metric.probabilistic_embedder import ProbabilisticEmbedder
    from laplace_metric.search import Index

__all__ = [
    "Answers",
    "Embedding",
    "Guard",
    "GuardClassifier",
    "Index",
    "LaplaceEmbedder",
    "LaplaceEnsemble",
    "LaplaceMetricError",
    "LaplaceMetricWarning",
    "Monitor",
    "OnlineLaplace",
    "ProbabilisticEmbedder",
    "Rule",
    "__version__",
    "calibrate_scores",
]

_HOMES = {
    "Answers": "calibration",
    "Embedding": "embedding",
    "Guard": "guard",
    "GuardClassifier": "guard_classifier",
    "Index": "search",
    "LaplaceEmbedder": "embedder",
    "LaplaceEnsemble": "laplace_ensemble",
    "LaplaceMetricError": "errors",
    "LaplaceMetricWarning": "errors",
    "Monitor": "monitor",
    "OnlineLaplace": "online",
    "ProbabilisticEmbedder": "probabilistic_embedder",
    "Rule": "calibration",
    "calibrate_scores": "calibration",
}
_PACKAGES = (
    "calibration",
    "datasets",
    "errors",
    "evaluation",
    "integrations",
    "models",
    "monitor",
    "tags",
    "training",
)
"""Packages that are imported when they are first named, as ``laplace_metric.datasets``."""


logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"laplace_metric.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'laplace_metric' has no attribute {name!r}")
    return getattr(import_module(f"laplace_metric.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
