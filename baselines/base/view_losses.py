"""Self-supervised losses for two views of each input: SimSiam, BYOL and SwAV.

They follow the interface ``loss(embeddings, labels)``: items of one label are views of one another.
(SimCLR is ``InfoNCELoss``.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baselines.base.pairs import positive_pairs


def predictor(size: int, hidden: int) -> nn.Sequential:
    """Return the small network that SimSiam and BYOL put on one side."""
    return nn.Sequential(
        nn.Linear(size, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, size),
    )


class SimSiamLoss(nn.Module):
    """``mean_ij -cos(q(z_i), stopgrad(z_j))`` over positive pairs (Chen and He 2021).

    Parameters
    ----------
    size : int
        Dimension Z of the embeddings.
    hidden : int
        Width of the predictor q.

    Examples
    --------
    >>> z = torch.randn(4, 2)
    >>> bool(SimSiamLoss(2)(z, torch.tensor([0, 1, 0, 1])) >= -1)
    True
    """

    def __init__(self, size: int, hidden: int = 64) -> None:
        super().__init__()
        self.predict = predictor(size, hidden)

    def forward(self, embeddings: Tensor, labels: Tensor, target: Tensor | None = None) -> Tensor:
        """Map embeddings [B, Z] to a scalar in [-1, 1]; ``target`` [B, Z] stands for z_j."""
        i, j = positive_pairs(labels)
        other = embeddings if target is None else target
        cosine = nn.functional.cosine_similarity(self.predict(embeddings)[i], other.detach()[j])
        return -cosine.mean()


class BYOLLoss(SimSiamLoss):
    """``mean_ij -cos(q(z_i), z'_j)`` with z' from a slowly moving copy of the network.

    (Grill et al. 2020, whose squared distance is 2 + 2 of this.) Without ``target`` the copy is
    taken to be the network itself.
    """


class SwAVLoss(nn.Module):
    """Swapped prediction of cluster codes (Caron et al. 2020).

        loss = mean_ij -sum_k q_jk log softmax_k(c_k.z_i / tau)

    with unit prototypes c_k and codes q = Sinkhorn(exp(C z / eps)), whose rows sum to one and whose
    clusters are equally full.

    Parameters
    ----------
    size : int
        Dimension Z of the embeddings.
    n_prototypes : int
        Number of prototypes, which are the clusters.
    temperature, epsilon : float > 0
        Temperature tau of the softmax, and eps of the codes; 0.1 and 0.05 in the paper.

    Examples
    --------
    >>> z = torch.randn(4, 2)
    >>> bool(SwAVLoss(2)(z, torch.tensor([0, 1, 0, 1])) > 0)
    True
    """

    def __init__(
        self,
        size: int,
        n_prototypes: int = 30,
        *,
        temperature: float = 0.1,
        epsilon: float = 0.05,
    ) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(n_prototypes, size))
        self.temperature, self.epsilon = temperature, epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Map embeddings [B, Z] to a scalar."""
        z = nn.functional.normalize(embeddings, dim=-1)
        scores = z @ nn.functional.normalize(self.prototypes, dim=-1).mT
        codes = sinkhorn(scores.detach() / self.epsilon)
        log_p = (scores / self.temperature).log_softmax(-1)
        i, j = positive_pairs(labels)
        return -(codes[j] * log_p[i]).sum(-1).mean()


def sinkhorn(scores: Tensor, iterations: int = 3) -> Tensor:
    """Return codes [B, K] >= 0 with rows of sum 1 from scores [B, K]; columns nearly of sum B/K.

    Alternates the two scalings of ``exp(scores)`` in logarithms, rows last (Cuturi 2013).

    Examples
    --------
    >>> sinkhorn(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    for _ in range(iterations):
        scores = scores - scores.logsumexp(0, keepdim=True)
        scores = scores - scores.logsumexp(1, keepdim=True)
    return scores.exp()
