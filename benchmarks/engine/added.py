"""What a fitted method is: the numbers it keeps beyond the network's own, its settings."""

from __future__ import annotations

from typing import Any

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


def resolved(method: ProbabilisticEmbedder) -> dict[str, Any]:
    """What the defaults of a Laplace posterior came to, its prior precision included."""
    return method.settings.to_json() if isinstance(method, LaplaceEmbedder) else {}
