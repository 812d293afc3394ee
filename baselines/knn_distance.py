"""Distance to the k-th nearest training embedding (Sun et al. 2022).

u(x) = |x - x_(k)|          x = z / |z|, x_(k) the k-th nearest of the N training vectors
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes
from baselines.base.neighbours import check_fraction, kept_rows, most_similar
from laplace_metric._utils.validation import check_count


@dataclass(eq=False, kw_only=True)
class KNNDistance(Detector):
    """Distance to the training set; costs one forward pass and N Z products, and keeps N Z numbers.

    ``uncertainty`` is the Euclidean distance of the unit vectors, in [0, 2]. On the training set
    itself the nearest neighbour is the input, at distance 0.

    Parameters
    ----------
    k : int
        Number of the neighbour whose distance counts; Sun et al. take 50 for CIFAR-10, and more for
        larger sets. Default: 50.
    fraction : float in (0, 1]
        Share of the training set that is kept, drawn at random. Default: 1.
    seed : torch.Generator or None
        Generator of this draw, on the CPU. None, the default: the same draw each time.

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
    seed: torch.Generator | None = field(default=None, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("k", self.k)
        self.fraction = check_fraction(self.fraction)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return an empty memory of training vectors."""
        return {"memory": Memory("vectors")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Store the unit vectors of the training set, or a part of them."""
        kept = kept_rows(len(vectors), self.k, self.fraction, self.seed)
        memory = self.parts["memory"]
        assert isinstance(memory, Memory)
        memory.store(vectors=nn.functional.normalize(vectors[kept], dim=-1))

    def score(self, vectors: Tensor) -> Tensor:
        """Return distance [B] to the k-th nearest."""
        x, memory = nn.functional.normalize(vectors, dim=-1), self.parts["memory"].vectors
        assert isinstance(memory, Tensor)
        _, nearest = most_similar(x, memory, self.k)
        return (x - memory[nearest[:, -1]]).norm(dim=-1)  # not sqrt(2 - 2 cos): that cancels near 0
