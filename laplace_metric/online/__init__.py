"""Online Laplace: the posterior is fitted while the embedder trains.

``_laplace`` is the public class and one step, ``_running`` averages H and runs the model at sampled
weights, ``_checkpoint`` resumes a run.
"""

from laplace_metric.online._laplace import OnlineLaplace

__all__ = ["OnlineLaplace"]
