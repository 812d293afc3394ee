"""The Laplace posterior of a head: settings, fit, posterior, predictive, distances, files."""

from laplace_metric.laplace._diagnosis import Diagnosis
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._settings import Settings
from laplace_metric.laplace._squared_distance import Distance

__all__ = [
    "Diagnosis",
    "Distance",
    "Fitted",
    "Posterior",
    "Settings",
]
