"""``Encoded``: uncertain embeddings, as small as a search allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.io import saved

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
    earlier : Tensor [N, E] or None
        Rows that entered earlier layers; of an index, the unit vectors of the one by which it ranks
        (``laplace/_earlier_layer``). None, the default: there are none.
    """

    mean: Float[Tensor, "N Z"]
    trace: Float[Tensor, " N"] = saved(0)
    epistemic: Float[Tensor, " N"] = saved()
    basis_inputs: Float[Tensor, "N A"] = saved()
    earlier: Float[Tensor, "N E"] | None = saved(default=None)

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, rows: Any) -> Encoded:
        """Return the rows at ``rows``, anything that indexes a tensor."""
        return self._each(lambda column: column[rows])

    def to(self, device: torch.device) -> Encoded:
        """Return the same rows on a device."""
        return self._each(lambda column: column.to(device))

    def room(self, n: int) -> Encoded:
        """Return room for n embeddings like these."""
        return self._each(lambda column: column.new_empty(n, *column.shape[1:]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Encoded:
        own = {name: None if x is None else change(x) for name, x in vars(self).items()}
        return Encoded(**own)  # type: ignore[arg-type]

    def write(self, part: Encoded, start: int) -> None:
        """Copy ``part`` to the rows from ``start`` on."""
        for column, rows in zip(vars(self).values(), vars(part).values(), strict=True):
            if column is not None:
                column[start : start + len(part)] = rows

    @classmethod
    def concatenate(cls, parts: Sequence[Encoded]) -> Encoded:
        """Return the rows of all parts, one part behind the other."""
        whole = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return cls(**{name: torch.cat(x) for name, x in whole.items() if x[0] is not None})


def joined(parts: Iterable[Encoded], count: int | None = None) -> Encoded | None:
    """Join embeddings that come batch by batch; None for none.

    Where their number is known, each batch is written to its place. Small tensors that are freed
    stay with the process; so others are joined to large ones first, and those are freed one after
    the other as they are copied.

    Parameters
    ----------
    parts : iterable of Encoded
        Batches, one behind the other, of one model and type.
    count : int or None
        Number of embeddings that are expected. None, the default: it is not known.

    Examples
    --------
    >>> x = torch.ones(2, 3)
    >>> joined(Encoded(x, x[:, 0], x[:, 0], x[:, :0]) for _ in range(4)).mean.shape
    torch.Size([8, 3])
    """
    large, small, small_bytes = list[Encoded](), list[Encoded](), 0
    parts, start = iter(parts), 0
    if count is not None and (first := next(parts, None)) is not None:
        room = first.room(count)
        for part in chain([first], parts):
            if start + len(part) > count:  # more than were expected
                parts = chain([part], parts)
                break
            room.write(part, start)
            start += len(part)
        if start < count:  # rows that are not used must not be kept, nor written with the others
            room = Encoded.concatenate([room.take(slice(start))])
        large = [room] if start else []
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
    if len(left) == 1 and not small_bytes:
        return left[0]
    whole = left[0].room(n)
    while left:
        part = left.pop()
        whole.write(part, start)
        start += len(part)
    return whole
