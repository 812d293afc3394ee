"""The Laplace posterior of a head: settings, fit, posterior, predictive, distances, files."""

from laplace_metric.laplace._diagnosis import Diagnosis, Uncertainties, diagnose
from laplace_metric.laplace._distances import squared_distance, squared_distance_in_basis
from laplace_metric.laplace._fit import (
    collect_features,
    fit_posterior,
    head_inputs,
    in_dtype,
    minibatch_curvature,
    posterior_of,
    warn_if_degenerate,
    warn_if_negative,
)
from laplace_metric.laplace._fitted import Fitted, predicted_embedding
from laplace_metric.laplace._near_far import NOTHING_ENTERS, NearAndFar, NearFar
from laplace_metric.laplace._pair_moments import Distance, EmbeddingPairs, SpectralPairs
from laplace_metric.laplace._posterior import Posterior, covariance
from laplace_metric.laplace._prior import by_marginal_likelihood
from laplace_metric.laplace._settings import AUTO, FitOptions, Miner, Settings
from laplace_metric.laplace._traces import Traces, traced, traces_of, variance_trace

__all__ = [
    "AUTO",
    "NOTHING_ENTERS",
    "Diagnosis",
    "Distance",
    "EmbeddingPairs",
    "FitOptions",
    "Fitted",
    "Miner",
    "NearAndFar",
    "NearFar",
    "Posterior",
    "Settings",
    "SpectralPairs",
    "Traces",
    "Uncertainties",
    "by_marginal_likelihood",
    "collect_features",
    "covariance",
    "diagnose",
    "fit_posterior",
    "head_inputs",
    "in_dtype",
    "minibatch_curvature",
    "posterior_of",
    "predicted_embedding",
    "squared_distance",
    "squared_distance_in_basis",
    "traced",
    "traces_of",
    "variance_trace",
    "warn_if_degenerate",
    "warn_if_negative",
]
