"""NNGuide (Park et al. 2023): the energy of a classifier, guided by the nearest training vectors.

    e(x) = log sum_c exp l_c(x)                             l = W x + b, the energy score
    g(x) = 1/k sum_{i in top k} e(x_i) cos(x, x_i)          the k largest of the bank
    u(x) = -e(x) g(x)

(ICCV 2023, arXiv 2309.14888.) A classifier alone is sure of much that lies far from its training
set, in the direction of a class; there the cosines are small, and so is g.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, ClassifierDetector, Memory, Sizes
from baselines.base.neighbours import check_fraction, kept_rows, most_similar, unit_rows
from baselines.base.settings import check_counts


@dataclass(eq=False, kw_only=True)
class NNGuide(ClassifierDetector):
    """Energy times nearness; costs one forward pass and N Z products, and keeps N Z numbers.

    ``uncertainty`` is -e g, in squared nats, of any sign. With the logistic regression e is at
    least log C, since the logits of an input add up to 0; a classifier that is passed may have
    negative energies, and then the product means nothing.

    Parameters
    ----------
    k : int
        Number of neighbours in the bank; 10 as in the code of the authors. Default: 10.
    fraction : float in (0, 1]
        Share of the training set that is the bank, drawn at random (the authors: 1% of ImageNet).
        Default: 1.
    seed : torch.Generator or None
        Generator of this draw, on the CPU. None, the default: the same draw each time.
    classifier : nn.Linear or None
        Linear layer that gives logits [B, C] of the vectors [B, Z]. None, the default, as an
        embedder has none: scikit-learn's logistic regression, as for ViM. ``NNGuide.of(method)``
        takes that of a fitted ``CrossEntropy``.

    Raises
    ------
    InputError
        If k or the fraction is out of range, or the classifier does not fit the vectors; from
        ``fit``, if the bank has fewer than k vectors.
    LabelError
        From ``fit`` without a classifier, for a single class.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = NNGuide(nn.Linear(4, 2)).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    """

    k: int = 10
    fraction: float = 1.0
    seed: torch.Generator | None = field(default=None, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "k")
        self.fraction = check_fraction(self.fraction)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the memory of the classifier and of the bank."""
        return {"memory": Memory("weight", "bias", "bank")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Keep the classifier, and the bank of unit vectors times their energies."""
        kept = kept_rows(len(vectors), self.k, self.fraction, self.seed)
        weight, bias = self.linear_classifier(vectors, labels)
        self._memory.store(weight=weight, bias=bias)
        x = vectors[kept]
        self._memory.store(bank=(self._energy(x)[:, None] * unit_rows(x)).to(x))

    def score(self, vectors: Tensor) -> Tensor:
        """Return minus the energy times the guidance [B]; 0 for a vector of zeros."""
        scaled, _ = most_similar(unit_rows(vectors), self._memory.bank, self.k)
        return -(self._energy(vectors) * scaled.mean(1)).to(vectors)

    def _energy(self, x: Tensor) -> Tensor:
        """Return ``e`` [B], in float64."""
        m = self._memory
        return nn.functional.linear(x.double(), m.weight, m.bias).logsumexp(1)

    @property
    def _memory(self) -> Any:
        return self.parts["memory"]
