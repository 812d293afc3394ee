"""Honest uncertainty for any trained metric-learning embedder.

A value flows one way, and rooms import only what stands before them (``.importlinter``)::

    loader -> head inputs h   models              which layer, what follows it, h [N, D]
           -> Jacobians       models.jacobians    J = dz/dtheta of the head, one file a backend
           -> H               curvature           pairs of points; begin with curvature.by_class
           -> posterior       laplace             N(theta, (n_eff H + tau I)^-1), J S J^T
           -> Embedding       distributions       mean, variance, samples, concentration
           -> numbers         evaluation          retrieval, OOD, sparsification, calibration
           -> answers         search, monitor     neighbours, is it a match, drift

``LaplaceEmbedder`` goes that way once, after training; ``OnlineLaplace`` in every training step;
``scale`` lets the sums be those of several processes, or outlive one.
Public names are imported when they are first used, so that the command line starts at once.
Nothing is printed; ``logging.getLogger("laplace_metric").setLevel("INFO")`` makes it talk.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from laplace_metric._utils import __version__

if TYPE_CHECKING:
    from laplace_metric.embedder import LaplaceEmbedder
    from laplace_metric.embedding import Embedding, ProbabilisticEmbedder
    from laplace_metric.errors import LaplaceMetricError, LaplaceMetricWarning
    from laplace_metric.guard import Guard
    from laplace_metric.monitor import Monitor
    from laplace_metric.online import OnlineLaplace
    from laplace_metric.search import Index

__all__ = [
    "Embedding",
    "Guard",
    "Index",
    "LaplaceEmbedder",
    "LaplaceMetricError",
    "LaplaceMetricWarning",
    "Monitor",
    "OnlineLaplace",
    "ProbabilisticEmbedder",
    "__version__",
]

_HOMES = {
    "Embedding": "embedding",
    "Guard": "guard",
    "Index": "search",
    "LaplaceEmbedder": "embedder",
    "LaplaceMetricError": "errors",
    "LaplaceMetricWarning": "errors",
    "Monitor": "monitor",
    "OnlineLaplace": "online",
    "ProbabilisticEmbedder": "embedding",
}


logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'laplace_metric' has no attribute {name!r}")
    return getattr(import_module(f"laplace_metric.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
