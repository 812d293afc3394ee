"""The networks that the benchmarks train."""

from __future__ import annotations

from torch import nn


def lam_network(embedding_size: int, dropout: float = 0.0) -> nn.Sequential:
    """The embedder of Warburg et al. (2023, LAM) for grey images of 28x28 pixels.

    Parameters
    ----------
    embedding_size : int
        Z; the last layer is ``Linear(9216, Z)``, without normalisation after it.
    dropout : float
        Probability in [0, 1); above 0 a dropout layer stands between each two trainable
        layers (the Monte Carlo dropout baseline).

    Returns
    -------
    nn.Sequential
        Images [B, 1, 28, 28] -> embeddings [B, Z].

    Examples
    --------
    >>> import torch
    >>> lam_network(3)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 3])
    """
    between = (lambda: [nn.Dropout(dropout)]) if dropout else list[nn.Module]
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        *between(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *between(),
        nn.Linear(64 * 12 * 12, embedding_size),
    )


def strided_cnn(embedding_size: int, channels: int = 64) -> nn.Sequential:
    """Four strided convolutions with batch normalisation, for grey images of 28x28 pixels.

    The network of few-shot learning (Vinyals et al. 2016) with strides in place of pooling: a
    sixth of the arithmetic of `lam_network`, and a head of 256 inputs, not 9,216.

    Examples
    --------
    >>> import torch
    >>> strided_cnn(16)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 16])
    """
    layers: list[nn.Module] = []
    for incoming in (1, channels, channels, channels):
        layers += [
            nn.Conv2d(incoming, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels, embedding_size))


def perceptron(inputs: int, embedding_size: int, hidden: int = 512) -> nn.Sequential:
    """One hidden layer over features [B, D], or over small images.

    Examples
    --------
    >>> import torch
    >>> perceptron(64, 16)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 16])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, embedding_size)
    )


DROPPED = (nn.Conv2d, nn.Linear)


def with_dropout(network: nn.Sequential, rate: float) -> nn.Sequential:
    """The same layers (not copies) with dropout before each linear map but the first.

    Examples
    --------
    >>> [type(layer).__name__ for layer in with_dropout(lam_network(3), 0.2)][:4]
    ['Conv2d', 'ReLU', 'Dropout', 'Conv2d']
    """
    layers: list[nn.Module] = []
    for layer in network:
        if isinstance(layer, DROPPED) and any(isinstance(one, DROPPED) for one in layers):
            layers.append(nn.Dropout(rate))
        layers.append(layer)
    return nn.Sequential(*layers)
