"""Online Laplace: the posterior is fitted while the embedder trains.

_laplace            the public class: settings, training, and the last fit
_online_run         one training: its steps and its result
_online_steps       rules of the draws and of the average H
_running_curvature  H, an average over batches that forgets
_sampled_pass       the model at sampled weights of its head
_training_on_disk   a training on disk, read by the next fit
_state_tree, _random_states    the states in it
"""

from laplace_metric.online._laplace import OnlineLaplace

__all__ = ["OnlineLaplace"]
