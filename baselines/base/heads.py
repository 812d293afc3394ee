"""Small networks that predict an uncertainty from the activations of a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def perceptron(
    n_inputs: int, n_hidden: int, n_outputs: int, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return linear, ReLU, linear, ReLU, linear: the "3-layer MLP" of the URL benchmark."""
    return nn.Sequential(
        nn.Linear(n_inputs, n_hidden),
        activation(),
        nn.Linear(n_hidden, n_hidden),
        activation(),
        nn.Linear(n_hidden, n_outputs),
    )


def inverse_softplus(value: float) -> float:
    """Return x with log(1 + e^x) = value > 0.

    Examples
    --------
    >>> round(inverse_softplus(math.log(2)), 12)
    0.0
    """
    return value + math.log(-math.expm1(-value))


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
        Number D of features of an input.
    initial : float > 0
        Approximate kappa before training. Default: 16.
    hidden : int
        Width of the perceptron. Default: 128.

    Examples
    --------
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
        """Map features [B, D] to concentrations [B]."""
        h = self.length * nn.functional.normalize(features, dim=-1)
        logits = self.network(h)[:, 0] + self.offset
        return nn.functional.softplus(logits) + self.smallest


class NormConcentration(nn.Module):
    """``kappa = c |z|`` of the raw embedding; the first batch sets c for a mean of ``initial``.

    Examples
    --------
    >>> NormConcentration(16.0)(torch.tensor([[3.0, 4.0]]))
    tensor([16.0010], grad_fn=<AddBackward0>)
    """

    smallest = 1e-3
    started: Tensor

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, raw: Tensor) -> Tensor:
        """Map raw embeddings [B, Z] to concentrations [B]."""
        norm = torch.linalg.vector_norm(raw, dim=-1)
        if not self.started:
            with torch.no_grad():
                self.log_scale.copy_((self.initial / norm.mean()).log())
                self.started.fill_(True)
        return self.log_scale.exp() * norm + self.smallest


class SharedBatchNorm(nn.Module):
    """Batch norm whose learnt scale and shift are one number each, shared by all dimensions."""

    def __init__(self, size: int, scale: float, shift: float) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm1d(size, affine=False)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, Z] to [B, Z]."""
        return self.scale * self.normalize(x) + self.shift


class LogVarianceHead(nn.Sequential):
    """Features [B, D] -> log variances [B, Z]: linear, batch norm, ReLU, linear, batch norm.

    Parameters
    ----------
    n_features, hidden, size : int
        Sizes D of the features, of the hidden layer, and Z of the embedding.
    start : float
        Mean of the log variances before training; they spread by 1 around it.

    Examples
    --------
    >>> LogVarianceHead(4, 8, 2, start=-7.0)(torch.randn(50, 4)).mean().round()
    tensor(-7., grad_fn=<RoundBackward0>)
    """

    def __init__(self, n_features: int, hidden: int, size: int, start: float) -> None:
        super().__init__(
            nn.Linear(n_features, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, size),
            SharedBatchNorm(size, 1.0, start),
        )
