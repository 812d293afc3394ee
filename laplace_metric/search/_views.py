"""Several views of one thing as one query: the frames of a track, the photographs of a listing.

With v_i the vectors by which an index ranks (about the mean of its items where these are no
directions) and n views of one id,

    a_i = 1 / (n - 1) sum_{j != i} cos(v_i, v_j)       agreement with the other views
    w_i = max(a_i, 0)^2 / sum_j max(a_j, 0)^2          1 / n where none agrees with any other
    h   = sum_i w_i h_i                                and so embedding and uncertainty

A wrong frame agrees with few others and counts less. Weights depend on no label, so that ids are
as exchangeable as their views, and a calibration by ids tests one answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column
from laplace_metric.search._encoded import Encoded

POWER = 2
"""Power of the agreement. With 4, embeddings of four networks were right for .697 in place of .691
(.671 with equal weights), and raw pixels under strong noise for .02 fewer."""

CANCELLED = 1e-6
"""Length of the mean of views at length 1 below which it is rounding."""
CENTRED_ON = 2_000
"""Items about whose mean vectors are compared that are no directions, evenly spaced."""


@dataclass(frozen=True)
class Views:
    """Views of Q things: which view is of which.

    Parameters
    ----------
    ids : array [Q]
        Id of each thing, in the order of its first view.
    of : Tensor [n]
        Place in ``ids`` of each view.
    """

    ids: np.ndarray[Any, Any]
    of: Int[Tensor, " n"]

    @classmethod
    def read(cls, of: Any, n: int) -> Views:
        """Read the ids of n views.

        Raises
        ------
        InputError
            For another number of ids than of views, missing ones, and texts next to numbers.

        Examples
        --------
        >>> views = Views.read(["b", "a", "b"], 3)
        >>> views.ids.tolist(), views.of.tolist()
        (['b', 'a'], [0, 1, 0])
        """
        if isinstance(of, (str, bytes, Mapping, AbstractSet)) or np.ndim(of) != 1:
            raise InputError(f"of={of!r:.60}: pass the id of each of the {n:,} views, a list [n].")
        column = Column.of("of", of, n).values
        names, first, place = np.unique(column, return_index=True, return_inverse=True)
        order = first.argsort(kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return cls(names[order], torch.from_numpy(rank[place]))

    def __len__(self) -> int:
        return len(self.ids)

    def one_each(self, name: str, values: Any) -> np.ndarray[Any, Any]:
        """Return the value of each thing [Q], of one value for each view.

        Raises
        ------
        InputError
            For another number of values than of views, and views of one thing with two values.
        """
        n = len(self.of)
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
        if len(listed) != n:
            raise InputError(f"{name} has {len(listed):,} entries for {n:,} views: pass one each.")
        own: dict[int, Any] = {}
        for place, value in zip(self.of.tolist(), listed, strict=True):
            if own.setdefault(place, value) != value:
                raise InputError(
                    f"{name}: views of id {self.ids.tolist()[place]!r} have {own[place]!r} and "
                    f"{value!r}: one thing has one; pass another id for each."
                )
        array = np.empty(len(own), dtype=object)
        array[:] = [own[place] for place in range(len(own))]
        return array if array.dtype == object and isinstance(own[0], str) else np.array([*array])

    @full_precision()
    def weights(self, v: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return the weight of each view; those of one thing add up to 1.

        Parameters
        ----------
        v : Tensor [n, d]
            Vectors of the views, whose cosines say how alike two are.

        Examples
        --------
        >>> views = Views.read([7, 7, 7], 3)
        >>> views.weights(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).tolist()
        [0.5, 0.5, 0.0]
        """
        of = self.of.to(v.device)
        least = torch.finfo(v.dtype).tiny
        u = nn.functional.normalize(v / v.abs().amax(1, keepdim=True).clamp_min(least), dim=1)
        count = torch.bincount(of, minlength=len(self)).to(u)[of]
        others = (u * self._sums(u, of)[of]).sum(1) - u.square().sum(1)
        agreement = (others / (count - 1).clamp_min(1)).clamp_min(0) ** POWER
        total = self._sums(agreement[:, None], of)[:, 0][of]
        rounding = torch.finfo(u.dtype).eps ** POWER
        return torch.where(total > rounding, agreement / total.clamp_min(rounding), 1 / count)

    @full_precision()
    def pooled(self, encoded: Encoded, v: Float[Tensor, "n d"], *, spherical: bool) -> Encoded:
        """Return one row for each thing, the mean of its views by their weights.

        The uncertainty is the mean one, too: the views of one thing share what is unknown of it.

        Parameters
        ----------
        encoded : Encoded
            All n views.
        v : Tensor [n, d]
            Vectors of the views, as for ``weights``.
        spherical : bool
            True if embeddings are directions.

        Raises
        ------
        InputError
            If the views of one thing point in opposite directions.
        """
        w, of = self.weights(v), self.of.to(v.device)

        def mean(x: Tensor) -> Tensor:
            return self._sums(x * w.to(x)[:, None], of)

        earlier = encoded.earlier
        z = mean(encoded.mean)
        if spherical and (short := z.square().sum(1) < CANCELLED**2).any():
            raise InputError(
                f"the views of id {self.ids.tolist()[int(short.nonzero()[0])]!r} cancel: their "
                "mean has no direction. Pass views of one thing under one id, or ask each alone."
            )
        return Encoded(
            nn.functional.normalize(z, dim=1) if spherical else z,
            mean(encoded.trace[:, None])[:, 0],
            mean(encoded.epistemic[:, None])[:, 0],
            mean(encoded.basis_inputs),
            None if earlier is None else nn.functional.normalize(mean(earlier), dim=1),
        )

    def _sums(self, x: Float[Tensor, "n d"], of: Int[Tensor, " n"]) -> Float[Tensor, "Q d"]:
        return x.new_zeros(len(self), x.shape[1]).index_add(0, of, x)
