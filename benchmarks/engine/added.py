"""How many numbers a method keeps beyond the network's own."""

from __future__ import annotations

from baselines.base import Baseline
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder


def added_numbers(method: ProbabilisticEmbedder) -> int:
    """Members, heads, proxies, memories; of Laplace the spectrum and the bases."""
    if isinstance(method, LaplaceEmbedder):
        basis = method.hessian_.basis
        blocks = getattr(basis, "blocks", ())
        sides = sum(block.left.numel() + block.right.numel() for block in blocks)
        return method.hessian_.eigenvalues.numel() + sides
    assert isinstance(method, Baseline)
    return sum(t.numel() for t in method.parts.state_dict().values())
