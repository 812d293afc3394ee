"""``Encoded``: uncertain embeddings, as small as a search allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LARGE_BYTES = 2**26
"""Of means, from which batches are joined."""


@dataclass(frozen=True)
class Encoded:
    """N uncertain embeddings, as small as search allows.

    Parameters
    ----------
    mean : Tensor [N, Z]
        The embedding to search with (unit length on the sphere).
    trace : Tensor [N]
        Trace of its covariance: ``Embedding.uncertainty``.
    epistemic : Tensor [N]
        Epistemic number, as ``Embedding.epistemic``: the uncertainty again if the fit stores no
        points to compare with, and 1e6 where only zeros enter the head.
    basis_inputs : Tensor [N, A]
        Inputs of the head, in the eigenbasis of the posterior if it has one: from them follows how
        the errors of two embeddings depend on their shared weights. Images and texts, which share
        no weights, have the variance of each coordinate; a compact index has A = 0.
    """

    mean: Float[Tensor, "N Z"]
    trace: Float[Tensor, " N"]
    epistemic: Float[Tensor, " N"]
    basis_inputs: Float[Tensor, "N A"]

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, rows: Any) -> Encoded:
        """Return the rows at ``rows``, anything that indexes a tensor."""
        return Encoded(*(getattr(self, f.name)[rows] for f in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Encoded]) -> Encoded:
        """Return the rows of all parts, one part behind the other."""
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def joined(parts: Iterable[Encoded]) -> Encoded | None:
    """Join embeddings that come batch by batch, in the memory of all of them once; None for none.

    Small tensors that are freed stay with the process; so batches are joined to large ones first,
    and those are freed one after the other as they are copied.

    Examples
    --------
    >>> x = torch.ones(2, 3)
    >>> joined(Encoded(x, x[:, 0], x[:, 0], x[:, :0]) for _ in range(4)).mean.shape
    torch.Size([8, 3])
    """
    large, small, small_bytes = list[Encoded](), list[Encoded](), 0
    for part in parts:
        small.append(part)
        small_bytes += part.mean.nbytes
        if small_bytes > LARGE_BYTES:
            large.append(Encoded.concatenate(small))
            small, small_bytes = [], 0
    left, start = [*large, *small][::-1], 0
    del large, small
    n = sum(map(len, left))
    if n == 0:
        return None
    if len(left) == 1:  # copied, since it may be a caller's memory
        return Encoded.concatenate(left)
    whole = Encoded(*(c.new_empty(n, *c.shape[1:]) for c in vars(left[0]).values()))
    while left:
        part = left.pop()
        for column, rows in zip(vars(whole).values(), vars(part).values(), strict=True):
            column[start : start + len(part)] = rows
        start += len(part)
    return whole
