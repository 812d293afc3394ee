"""What the spread of a head does to embeddings, and to the gradient that the backbone sees."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

Pairs = list[tuple[Tensor, Tensor]]
DRAWS = 8


def noise_of(head: nn.Linear, variance: Tensor, pairs: Pairs) -> dict[str, float]:
    """Of a linear head whose parameters [P] have these variances, at its inputs.

    length    median over inputs of sqrt(E|dz|^2) / |z|
    spread    noise of directions over the spread of class means, both summed over the axes of
              the class means: above 1 the noise moves an image further than its class
    weakest   the same on the axis where it is largest
    outside   share of the noise of directions that is orthogonal to all class means
    gradient  cosine of dL/dh at a drawn head with that at the mean one, mean over draws, of the
              entries h > 0: the others do not pass the ReLU before the head
    """
    h, labels = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    weight, bias = variance[: head.weight.numel()].view_as(head.weight), variance[-len(head.bias) :]
    with torch.no_grad():
        z = head(h)
        spread = h.square() @ weight.float().mT + bias.float()  # [N, Z], of each number
        r2 = z.square().sum(1, keepdim=True)
        u = z / r2.sqrt()
        length = (spread.sum(1) / r2[:, 0]).sqrt().median()
        axes, signal = class_axes(u, labels)
        along = u @ axes.mT
        # a' P diag(s) P a / r^2 with P = I - u u': noise of the direction along each axis
        cross = (spread * u) @ axes.mT
        energy = (spread * u.square()).sum(1, keepdim=True)
        noise = (spread @ axes.square().mT - 2 * along * cross + along.square() * energy) / r2
        total = (spread.sum(1, keepdim=True) - energy) / r2
    ratio = noise.mean(0) / signal
    return {
        "length": float(length),
        "spread": float(noise.mean(0).sum() / signal.sum()),
        "weakest": float(ratio.max()),
        "outside": float(1 - noise.mean(0).sum() / total.mean()),
        "gradient": gradient_cosine(head, variance.float(), pairs),
    }


def class_axes(u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Principal axes [A, Z] of the class means of directions u [N, Z], and the variance along."""
    means = torch.stack([u[labels == c].mean(0) for c in labels.unique()])
    centred = means - means.mean(0)
    _, values, axes = torch.linalg.svd(centred, full_matrices=False)
    kept = values > 1e-3 * values[0]
    return axes[kept], values[kept].square() / len(means)


def gradient_cosine(head: nn.Linear, variance: Tensor, pairs: Pairs) -> float:
    """Mean cosine between the gradients of the loss for h at drawn heads and at the mean."""
    loss, generator = ContrastiveLoss(neg_margin=0.5), torch.Generator().manual_seed(0)
    cosines = []
    theta = torch.cat([head.weight.detach().flatten(), head.bias.detach()])
    for x, y in pairs:
        h, labels = x[:128], y[:128]

        def gradient(parameters: Tensor, h: Tensor = h, labels: Tensor = labels) -> Tensor:
            at = h.detach().requires_grad_()
            weight, bias = parameters.split([head.weight.numel(), len(head.bias)])
            z = nn.functional.linear(at, weight.view_as(head.weight), bias)
            (found,) = torch.autograd.grad(loss(z, labels), at)
            return found[h > 0]

        mean = gradient(theta)
        for _ in range(DRAWS):
            eps = torch.randn(len(theta), generator=generator) * variance.sqrt()
            cosines.append(torch.cosine_similarity(gradient(theta + eps), mean, dim=0))
    return float(torch.stack(cosines).mean())
