"""ViM (Wang et al. 2022): what the principal subspace leaves over, as one more logit.

    o = -W^+ b                                           the origin where all logits are 0
    r(x) = |(I - P P^T)(x - o)|                          P the D largest eigenvectors of
                                                         (X - o)^T (X - o), X the training vectors
    alpha = sum_n max_c l_c(x_n) / sum_n r(x_n)          l = W x + b
    u(x) = alpha r(x) - log sum_c exp l_c(x)

(eqs. 4-7; the paper's probability of the virtual logit is ``sigmoid(u)``, which ranks the same.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import ClassifierDetector, Memory, Sizes
from laplace_metric.errors import InputError


@dataclass(eq=False, kw_only=True)
class ViM(ClassifierDetector):
    """Residual and logits together; costs one forward pass, Z (Z - D) and Z C products.

    ``uncertainty`` is alpha r minus the log sum of exponentials, in nats; it may be negative.

    Parameters
    ----------
    dimension : int or None
        Dimension D of the principal subspace, in 0..Z-1. None, the default: 1000 for Z >= 2048 and
        512 for Z >= 768, as in the paper's experiments, else half of Z, rounded down.
    classifier : nn.Linear or None
        Linear layer that gives logits [B, C] of the vectors [B, Z]. None, the default:
        scikit-learn's logistic regression, fitted to the standardised vectors. ``ViM.of(method)``
        takes that of a fitted ``CrossEntropy``.

    Raises
    ------
    InputError
        If the dimension leaves nothing over, or the classifier does not fit the vectors.
    LabelError
        From ``fit`` without a classifier, for a single class.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = ViM(nn.Linear(4, 2)).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    """

    dimension: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension is not None and self.dimension < 0:
            raise InputError(f"dimension={self.dimension!r}: pass a whole number >= 0, or None.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the memory of classifier, origin and complement."""
        return {"memory": Memory("weight", "bias", "origin", "complement", "alpha")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Keep the classifier, its origin, and what the principal subspace leaves over."""
        weight, bias = self.linear_classifier(vectors, labels)
        x = vectors.double()
        origin = -torch.linalg.pinv(weight) @ bias
        basis = torch.linalg.eigh((x - origin).T @ (x - origin)).eigenvectors  # ascending
        complement = basis[:, : x.shape[1] - self._dimension()]
        largest = (x @ weight.T + bias).amax(1).sum()
        residual = ((x - origin) @ complement).norm(dim=1).sum()
        if residual <= 1e-9 * (x - origin).norm(dim=1).sum():
            raise InputError(
                f"dimension={self._dimension()} leaves only directions in which the training "
                f"vectors never vary ({self.on}): pass a smaller dimension."
            )
        alpha = largest / residual
        self._memory.store(
            weight=weight, bias=bias, origin=origin, complement=complement, alpha=alpha
        )

    def score(self, vectors: Tensor) -> Tensor:
        """Return the virtual logit minus the energy [B]."""
        m, x = self._memory, vectors.double()
        residual = ((x - m.origin) @ m.complement).norm(dim=1)
        energy = nn.functional.linear(x, m.weight, m.bias).logsumexp(1)
        return (m.alpha * residual - energy).to(vectors.dtype)

    def _dimension(self) -> int:
        z = self.fitted_.sizes.width(self.on)
        chosen = default_dimension(z) if self.dimension is None else self.dimension
        if chosen >= z:
            raise InputError(f"dimension={chosen} leaves nothing over of {z}: pass less.")
        return chosen

    @property
    def _memory(self) -> Any:
        return self.parts["memory"]


def default_dimension(z: int) -> int:
    """Return D for vectors of z numbers.

    Examples
    --------
    >>> [default_dimension(z) for z in (2048, 768, 128, 1)]
    [1000, 512, 64, 0]
    """
    return 1000 if z >= 2048 else 512 if z >= 768 else z // 2
