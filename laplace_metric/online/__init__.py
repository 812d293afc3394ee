"""Online Laplace: the posterior is fitted while the embedder trains.

``_average`` keeps H, ``_perturbed`` runs the model at sampled weights, ``_step`` takes one step,
``_state`` writes states as values, ``_checkpoint`` resumes a run, ``_laplace`` is the public class.
"""

from laplace_metric.online._laplace import OnlineLaplace

__all__ = ["OnlineLaplace"]
