"""The von Mises-Fisher loss of Scott, Gallagher and Mozer (2021).

Classes are ``vMF(w_c/|w_c|, |w_c|)`` and embeddings ``z_s ~ vMF(mu, kappa)``:

    loss = -mean_s log [ C(|w_y|) e^{w_y.z_s} / sum_c C(|w_c|) e^{w_c.z_s} ]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base import Directional, Sizes
from baselines.base.directional import SampledLoss
from baselines.distributions import log_vmf_normalizer


class VMFLoss(SampledLoss):
    """``loss(embeddings, labels, concentration)``, in nats.

    Parameters
    ----------
    n_classes, embedding_size : int
        Sizes C of the classes and Z of the embedding; labels are 0..C-1.
    class_concentration : float > 0
        Initial length |w_c| of every class; it is learnt.
    n_samples : int
        Number of draws of each embedding (10 in the paper).

    Examples
    --------
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(VMFLoss(2, 3)(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(
        self,
        n_classes: int,
        embedding_size: int,
        *,
        class_concentration: float = 16.0,
        n_samples: int = 10,
    ) -> None:
        super().__init__(n_samples)
        start = nn.functional.normalize(torch.randn(n_classes, embedding_size), dim=-1)
        self.weight = nn.Parameter(class_concentration * start)

    def logits(self, z: Tensor) -> Tensor:
        """Return ``log C(|w_c|) + w_c.z`` [..., C] of directions z [..., Z]."""
        kappa = torch.linalg.vector_norm(self.weight, dim=-1)
        return z @ self.weight.mT + log_vmf_normalizer(kappa, self.weight.shape[-1])

    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy among vMF classes, mean over draws [S, B, Z]."""
        logits = self.logits(z)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(self.n_samples))


@dataclass(eq=False, kw_only=True)
class ScottVMF(Directional):
    """vMF embeddings among vMF classes; by default kappa is the length of the embedding times c.

    Parameters
    ----------
    concentration : "head" | "norm"
        Source of kappa, as of ``Directional``. Default: "norm".
    class_concentration : float > 0
        Initial length |w_c| of every class; it is learnt. Default: 16.
    n_samples : int
        Number of draws in training. Default: 10.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = ScottVMF(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    concentration: str = "norm"
    class_concentration: float = 16.0
    n_samples: int = 10

    positive = ("class_concentration",)
    counts = ("n_samples",)

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return the cross-entropy among vMF classes."""
        return VMFLoss(
            sizes.classes,
            sizes.embedding,
            class_concentration=self.class_concentration,
            n_samples=self.n_samples,
        )
