"""Distance to the k-th nearest training embedding (Sun et al. 2022).

u(x) = |x - x_(k)|          x = z / |z|, x_(k) the k-th nearest of the N training vectors
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes
from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError

BLOCK = 65_536
"""Training vectors that are compared at once."""


@dataclass(eq=False, kw_only=True)
class KNNDistance(Detector):
    """How far the training set is; costs one forward pass and N Z products, and keeps N Z numbers.

    ``uncertainty`` is the Euclidean distance of the unit vectors, in [0, 2]. On the training set
    itself the nearest neighbour is the input, at distance 0.

    Parameters
    ----------
    k : int
        Sun et al. take 50 for CIFAR-10, and more for larger sets.
    fraction : float in (0, 1]
        Of the training set that is kept, drawn at random.
    generator : torch.Generator or None
        Draws it (on the CPU); None: the same draw each time.

    Raises
    ------
    InputError
        If k or the fraction is out of range; from ``fit``, if fewer than k vectors are kept.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = KNNDistance(nn.Linear(4, 2), k=5).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    """

    k: int = 50
    fraction: float = 1.0
    generator: torch.Generator | None = field(default=None, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("k", self.k)
        if not 0 < self.fraction <= 1:
            raise InputError(f"fraction={self.fraction!r}: pass a number in (0, 1].")
        self.fraction = float(self.fraction)  # files take plain numbers

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """An empty memory of training vectors."""
        return {"memory": Memory("vectors")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Store the unit vectors of the training set, or a part of them."""
        n = len(vectors)
        n_stored = max(1, round(self.fraction * n))
        if self.k > n_stored:
            raise InputError(
                f"k={self.k}, but only {n_stored} of {n} training vectors are kept: pass a smaller "
                "k, a larger fraction or more data."
            )
        memory = self.parts["memory"]
        assert isinstance(memory, Memory)
        memory.store(vectors=nn.functional.normalize(vectors[self._choice(n, n_stored)], dim=-1))

    def score(self, vectors: Tensor) -> Tensor:
        """Distance [B] to the k-th nearest."""
        x, memory = nn.functional.normalize(vectors, dim=-1), self.parts["memory"].vectors
        assert isinstance(memory, Tensor)
        nearest = kth_nearest(x, memory, self.k)
        return (x - memory[nearest]).norm(dim=-1)  # not sqrt(2 - 2 cos): that cancels near 0

    def _choice(self, n: int, n_stored: int) -> Tensor:
        if n_stored == n:
            return torch.arange(n)
        generator = self.generator or torch.Generator().manual_seed(0)
        return torch.randperm(n, generator=generator)[:n_stored].sort().values


def kth_nearest(x: Tensor, memory: Tensor, k: int) -> Tensor:
    """Index [B] of the k-th nearest of the unit vectors ``memory`` [N, Z] to unit vectors [B, Z].

    Examples
    --------
    >>> kth_nearest(torch.eye(2), torch.eye(2), 2)
    tensor([1, 0])
    """
    best, index = x.new_empty(len(x), 0), memory.new_empty(len(x), 0, dtype=torch.long)
    for start in range(0, len(memory), BLOCK):
        cosine = x @ memory[start : start + BLOCK].T
        numbers = torch.arange(cosine.shape[1], device=x.device) + start
        best = torch.cat([best, cosine], dim=1)
        index = torch.cat([index, numbers.expand(len(x), -1)], dim=1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        index = index.gather(1, order)
    return index[:, k - 1]
