"""Which patches and words stay when a share of them is hidden."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_share


def n_kept(n: int, share: float) -> int:
    """Of n, at least one.

    Examples
    --------
    >>> n_kept(64, 0.75), n_kept(2, 0.75), n_kept(1, 0.75)
    (16, 1, 1)
    """
    return max(1, round(n * (1 - check_share("share", share))))


def kept_places(
    batch: int, n: int, share: float, device: torch.device
) -> Int[Tensor, "batch kept"]:
    """Places that stay, of each of a batch others, in ascending order."""
    stay = n_kept(n, share)
    order = torch.rand(batch, n, device=device).argsort(1)
    return order[:, :stay].sort(1).values


def drop_words(texts: Sequence[str], share: float, generator: Seed = None) -> list[str]:
    """Texts without ``share`` of their words, of each others; at least one stays, in its order.

    Parameters
    ----------
    texts : sequence of str
    share : float in (0, 1)
    generator : torch.Generator, seed or None
        None: torch's global one.

    Raises
    ------
    InputError
        For a share that is not between 0 and 1.

    Examples
    --------
    >>> [len(text.split()) for text in drop_words(["a red car in the rain", "dog"], 0.75)]
    [2, 1]
    """
    source, left = as_generator(generator), []
    for text in texts:
        words = text.split()
        order = torch.randperm(len(words), generator=source)
        kept = order[: n_kept(len(words), share)].sort().values
        left.append(" ".join(words[place] for place in kept.tolist()))
    return left
