"""The Laplace posterior of a head, and what follows from it for an input or a pair of inputs.

fit          ``fit``: settings, then phases
posterior    ``_posterior``; its prior precision is tuned by ``_prior_precision``
input        ``_predictive_covariance``; its trace alone for many inputs: ``_traces``
vectors      ``_predictive_vectors``, of several models ``_ensemble_vectors``; ``_earlier_layer``
pair         ``distance``: the squared distance, its mean and its variance
in words     ``_diagnosis``
together     ``_fitted``: head and posterior; ``_predicted``: inputs under them;
             ``_prior_precision``: their score on data that were not fitted
"""

from laplace_metric.laplace._diagnosis import Diagnosis
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace.distance._squared_distance import Distance
from laplace_metric.laplace.fit._settings import Settings

__all__ = [
    "Diagnosis",
    "Distance",
    "Fitted",
    "Posterior",
    "Settings",
]
