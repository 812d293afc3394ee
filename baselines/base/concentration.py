"""Small networks that predict an uncertainty from features."""

from __future__ import annotations

import math

from torch import Tensor, nn


def perceptron(n_inputs: int, n_hidden: int, n_outputs: int) -> nn.Sequential:
    """Linear, ReLU, linear, ReLU, linear: the "3-layer MLP" of the URL benchmark."""
    return nn.Sequential(
        nn.Linear(n_inputs, n_hidden),
        nn.ReLU(),
        nn.Linear(n_hidden, n_hidden),
        nn.ReLU(),
        nn.Linear(n_hidden, n_outputs),
    )


class ConcentrationHead(nn.Module):
    """Features [B, D] -> concentrations kappa [B] > 0 (at least 1e-3), by a softplus.

    ``kappa = softplus(m(10 h / |h|) + b)``, where b is set so that kappa starts near ``initial``;
    the last layer starts at a tenth of its usual weights. The features' length is taken out: where
    they are wide and long (9,216 after a ReLU, say) a step of the optimiser would else move kappa
    by orders of magnitude, and it falls to zero before the directions are any good, which stops
    both from learning.

    Parameters
    ----------
    n_features : int
    initial : float > 0
    hidden : int

    Examples
    --------
    >>> import torch
    >>> bool((ConcentrationHead(4, initial=16.0)(torch.zeros(2, 4)) - 16).abs().max() < 1)
    True
    """

    smallest, length = 1e-3, 10.0

    def __init__(self, n_features: int, *, initial: float = 16.0, hidden: int = 128) -> None:
        super().__init__()
        self.network = perceptron(n_features, hidden, 1)
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.bias)
        last.weight.data.mul_(0.1)
        self.offset = nn.Parameter(last.bias.new_tensor(inverse_softplus(initial)))

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B]."""
        h = self.length * nn.functional.normalize(features, dim=-1)
        logits = self.network(h)[:, 0] + self.offset
        return nn.functional.softplus(logits) + self.smallest


def inverse_softplus(value: float) -> float:
    """x with log(1 + e^x) = value > 0.

    Examples
    --------
    >>> round(inverse_softplus(math.log(2)), 12)
    0.0
    """
    return value + math.log(-math.expm1(-value))
