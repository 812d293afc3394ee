"""Distances of a point of the fit set under statistics without it, in closed form.

Let a row u of class c occur k times among N, n_c of them in its class. With x = u - m_c and
g = k n_c / (n_c - k), the sum of squares about the class means loses ``g x x'`` when the k rows
leave; about mu, with y = u - mu and h = k N / (N - k), it loses ``h y y'``. With f = N - C degrees
of freedom, A = W + e I, and primes for what is left,

    A' = (f / f') (A - gamma x x' - e rho I)     gamma = g / f,  rho = 1 - (f' e') / (f e)

where e' = tr W' / D. By Sherman and Morrison 1950, for any difference v,

    v' (A - gamma x x')^-1 v = v' A^-1 v + gamma q^2 / (1 - gamma s)    q = x' A^-1 v, s = x' A^-1 x

For a difference of u to the mean of another class v is u - m_c; its own class's mean moves, so that
v grows by n_c / (n_c - k). T and far have the same form with y, h / N and N' / N in the places of
x, gamma and f' / f. A row whose copies have r labels takes r such terms (Woodbury 1950).

All products follow from squared distances: with v = u - b and x = u - m, ``2 x' A^-1 v`` is
``|u - m|^2 + |u - b|^2 - |b - m|^2``.

What the ridge loses, ``e rho I``, is of order 1 / N. It is taken to first order where points are
few: with d = v' B v, ``B = (A - gamma x x')^-1``, as ``d / (1 - e rho v' B B v / d)``, which is
exact where all of v is in directions of one eigenvalue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.familiarity._scatter import Scatter

SLOTS = 4
"""Labels of one row whose copies leave with it; the copies under further labels stay."""


class Removed(NamedTuple):
    """Factors of the rank-one terms of each row.

    Parameters
    ----------
    share : Tensor [n, r]
        Factors gamma of each row's r terms, 0 for a row with fewer labels.
    scale : Tensor [n, 1]
        Factor f' / f of the distances.
    ridge : Tensor [n, 1]
        Loss e rho of the ridge.
    """

    share: Tensor
    scale: Tensor
    ridge: Tensor


class Seen(NamedTuple):
    """Squared distances under A^-1 (or A^-2) of each row u, m points b and r centres m_p.

    Parameters
    ----------
    squared : Tensor [n, m]
        Squared lengths of the differences v = u - b.
    own : Tensor [n, r]
        Squared lengths of the terms x = u - m_p.
    between : Tensor [n, r, m]
        Squared distances of the points b to the centres m_p.
    centres : Tensor [n, r, r]
        Squared distances of the centres m_p to each other.
    """

    squared: Tensor
    own: Tensor
    between: Tensor
    centres: Tensor

    @property
    def mixed(self) -> Float[Tensor, "n r m"]:
        """Products ``q = x' A^-1 v``, by polarisation."""
        return (self.own[:, :, None] + self.squared[:, None] - self.between) / 2

    @property
    def gram(self) -> Float[Tensor, "n r r"]:
        """Products ``s = x_p' A^-1 x_o`` of the terms."""
        return (self.own[:, :, None] + self.own[:, None] - self.centres) / 2


def without_row(seen: Seen, removed: Removed, twice: Seen | None = None) -> Float[Tensor, "n m"]:
    """Return ``|u - b|^2`` of each row u under statistics without the row.

    Parameters
    ----------
    seen : Seen
        Squared distances under A^-1.
    removed : Removed
        Factors of the terms.
    twice : Seen or None
        The same under A^-2, for the first order of the ridge. None, the default: it is left out.
    """
    root = removed.share.sqrt()[:, :, None]  # [n, r, 1]
    w, s = root * seen.mixed, root * seen.gram * root.mT
    rest = torch.eye(s.shape[1]).to(s) - s
    z = w / rest if s.shape[1] == 1 else torch.linalg.solve(rest, w)
    d = seen.squared + (w * z).sum(1)
    if twice is not None:
        # B v = A^-1 (v + sum_p a_p x_p), with a = sqrt(gamma) z [n, r, m]
        a = root * z
        doubled = twice.squared + (a * (2 * twice.mixed + twice.gram @ a)).sum(1)
        d = d / (1 - removed.ridge * doubled / d.clamp_min(torch.finfo(d.dtype).tiny))
    return d * removed.scale


@dataclass(frozen=True)
class OwnRows:
    """Rows that leave with each row of a sample: those of its direction, under each of its labels.

    Parameters
    ----------
    classes : Tensor [n, r]
        Classes of the row's direction, its own first; its own again where there are fewer.
    copies : Tensor [n, r] float64
        Number k of rows of that direction and class; 0 where there are fewer classes.
    """

    classes: Tensor
    copies: Tensor

    @classmethod
    def of(
        cls, equal: Int[Tensor, " n"], labels: Int[Tensor, " n"], copies: Int[Tensor, " n"]
    ) -> OwnRows:
        """Return them for rows with the number of their direction, their class and their copies."""
        pairs, index = torch.stack([equal, labels]).unique(dim=1, return_inverse=True)
        held = torch.zeros_like(pairs[0]).index_copy_(0, index, copies)
        # pairs are sorted by direction: those of a direction follow each other
        size = pairs[0].bincount()
        first = size.cumsum(0) - size
        slots = torch.arange(min(SLOTS, int(size.max())), device=equal.device)
        there = size[equal][:, None]
        own = (index - first[equal])[:, None]
        at = first[equal][:, None] + (own + slots) % there
        counts = held[at].double().masked_fill(slots >= there, 0)
        return cls(torch.where(slots < there, pairs[1][at], labels[:, None]), counts)

    @property
    def number(self) -> Float[Tensor, " n"]:
        """Number of rows that leave with each row, itself included."""
        return self.copies.sum(1)

    def left(self, scatter: Scatter) -> Float[Tensor, "n r"]:
        """Return the number of points that each of the classes has without these rows."""
        return scatter.counts[self.classes].double() - self.copies

    def growth(self, scatter: Scatter) -> Float[Tensor, "n C"]:
        """Return ``n_c / (n_c - k)``, by which u - m_c grows; infinite where no member is left."""
        start = torch.where(scatter.counts > 0, 1.0, torch.inf).double()
        own = scatter.counts[self.classes] / self.left(scatter)
        return start.repeat(len(own), 1).scatter_reduce_(1, self.classes, own, "amax")


def removed_within(
    scatter: Scatter, own: OwnRows, sizes: Float[Tensor, "n r"]
) -> tuple[Removed, Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the terms of W, and e' and f' of each row; ``sizes`` are |x|^2."""
    counts, left = scatter.counts[own.classes].double(), own.left(scatter)
    f, trace = float(scatter.degrees), float(scatter.within.trace())
    ridge = trace / f / scatter.width
    g = torch.where(left > 0, own.copies * counts / left.clamp_min(1), 0)
    vanished = ((left <= 0) & (own.copies > 0)).sum(1)
    rest = f - own.number + vanished
    lost = (g * sizes).sum(1) / trace  # f' e' = (tr S - sum g |x|^2) / D, so that rho = lost
    removed = Removed(g / f, (rest / f)[:, None], (ridge * lost)[:, None])
    return removed, ridge * f / rest.clamp_min(1) * (1 - lost), rest


def removed_total(
    scatter: Scatter, own: OwnRows, sizes: Float[Tensor, " n"], rest_ridge: Tensor | None
) -> tuple[Removed, Float[Tensor, " n"]]:
    """Return the term of T, and e' of each row; ``sizes`` are |y|^2.

    ``rest_ridge`` is the e' of W [n], which T has, too. None: e is the mean eigenvalue of T.
    """
    n, k = float(scatter.counts.sum()), own.number
    h, source = k * n / (n - k), scatter.total if rest_ridge is None else scatter.within
    trace = float(source.trace())
    ridge = trace / (n if rest_ridge is None else scatter.degrees) / scatter.width
    if rest_ridge is None:
        rest_ridge = ridge * n / (n - k) * (1 - h * sizes / trace)
    lost = ridge - rest_ridge * (n - k) / n
    return Removed((h / n)[:, None], ((n - k) / n)[:, None], lost[:, None]), rest_ridge
