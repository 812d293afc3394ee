"""Online Laplace: the posterior is fitted while the embedder trains.

One room each: ``average`` keeps H, ``perturbed`` runs the model at sampled weights, ``step`` takes
one step, ``randomness`` holds every random state, ``run`` is all that changes, ``checkpoint``
writes and reads it, ``laplace`` is the front door.
"""

from laplace_metric.online._laplace import OnlineLaplace

__all__ = ["OnlineLaplace"]
