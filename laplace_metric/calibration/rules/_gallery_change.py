"""How a gallery has changed since it was calibrated, and what a guarantee then covers.

A guarantee is about the gallery that calibrated it: its test saw what queries find there. Of items
that were added since, of the same classes and drawn as the others were, one is the nearest of a
query with probability n / (N + n), n of N + n items, so that at a tenth at most one query in eleven
has another nearest item, and that one is more often right than not. That a precision holds then is
simulated (``benchmarks/retrieval``), not proven. Beyond a tenth it is neither. A class that was not
there is another matter at any size: no query of it was tested, and it draws answers from others. So
is a class whose last item was removed: its queries had right answers when they were tested, and
have none now. Items that leave mostly from some classes leave wrong neighbours to their queries: in
simulated worlds a tenth that was all of one class broke 58 of 299 guarantees, a random tenth 1.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array
from laplace_metric.errors import StaleCalibrationWarning, callers_line
from laplace_metric.io import Fields, record, restored, saved

THINNED, TOLERATED = 0.2, 0.02
"""Share of its items from which on a class counts as thinned out; share of queries of such ones."""
GROWTH = 0.1
"""Largest share of the items that may be added or removed until a calibration is stale."""
NAMED = 3
"""Number of new or lost classes that are named."""


@dataclass(frozen=True)
class GalleryChange:
    """Items and classes that came or went since a gallery was calibrated.

    Parameters
    ----------
    items : int
        Number of items when it was calibrated.
    changed : int
        Number of items that were added or removed since.
    n_new_classes : int
        Number of classes that were not there. Default: 0.
    named : tuple of str
        Names of the first three of them. Default: ().
    n_lost_classes : int
        Number of classes that have no items left. Default: 0.
    lost : tuple of str
        Names of the first three of them. Default: ().
    thinned : tuple of str
        Names of up to three classes, those that lost most of their items, if the removed items were
        not drawn as the others were. Default: ().

    Examples
    --------
    >>> print(GalleryChange(700, 50))
    holds for the 700 items that were there; 50 were added or removed since (7.1%), of the same \
classes: simulated up to 10%, not proven
    >>> GalleryChange(700, 50).covered, GalleryChange(700, 90).covered
    (True, False)
    """

    items: int = saved(1)
    changed: int = saved()
    n_new_classes: int = 0
    named: tuple[str, ...] = ()
    n_lost_classes: int = 0
    lost: tuple[str, ...] = ()
    thinned: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        items: int,
        changed: int,
        before: npt.NDArray[Any] | None,
        now: npt.NDArray[Any] | None,
        sizes_before: Array | None = None,
        sizes_now: Array | None = None,
    ) -> GalleryChange:
        """Return the change of a gallery.

        Parameters
        ----------
        items, changed : int
            Number of items when it was calibrated, and of those added or removed since.
        before, now : [C] or None
            Classes when it was calibrated, and now. None: it has none.
        sizes_before, sizes_now : [C] or None
            Number of items of each. None, the default: not known.
        """
        if before is None or now is None:
            return cls(items, changed)
        new, lost = now[~np.isin(now, before)].tolist(), before[~np.isin(before, now)].tolist()
        named, gone = (tuple(map(repr, names[:NAMED])) for names in (new, lost))
        thinned: tuple[str, ...] = ()
        if sizes_before is not None and sizes_now is not None and len(sizes_before) == len(before):
            left = np.zeros(len(before))
            there = np.isin(before, now)
            left[there] = sizes_now[np.isin(now, before)]  # both sorted
            thinned = tuple(map(repr, _thinned(before, sizes_before, left)))
        return cls(items, changed, len(new), named, len(lost), gone, thinned)

    @property
    def covered(self) -> bool:
        """True if a guarantee still holds, by simulation."""
        return not (self.large or self.n_new_classes or self.n_lost_classes or self.thinned)

    @property
    def large(self) -> bool:
        """True if more than a tenth of the items have changed."""
        return self.changed > GROWTH * self.items

    @property
    def size(self) -> str:
        """Text: how many items have changed, and of how many."""
        return (
            f"{self.changed:,} items were added or removed since it was calibrated with "
            f"{self.items:,}"
        )

    def __str__(self) -> str:
        share = f"{self.changed / self.items:.1%}"
        if self.covered:
            return (
                f"holds for the {self.items:,} items that were there; {self.changed:,} were added "
                f"or removed since ({share}), of the same classes: simulated up to {GROWTH:.0%}, "
                "not proven"
            )
        return f"no longer covers the gallery: {self.reason}: calibrate again"

    @property
    def reason(self) -> str:
        """Reason why a guarantee no longer holds, if it does not."""
        told = [self.size]
        if (n := self.n_new_classes) > 0:
            are = "class is new" if n == 1 else "classes are new"
            told.append(f"{n} {are} ({_listed(self.named, n)}), of which no query was tested")
        if (n := self.n_lost_classes) > 0:
            have, its = ("class has", "its") if n == 1 else ("classes have", "their")
            names = _listed(self.lost, n)
            told.append(f"{n} {have} no items left ({names}): {its} queries have no right answer")
        if self.thinned:
            names = ", ".join(self.thinned)
            told.append(f"they were mostly of some classes ({names}), which were thinned out")
        return ", and ".join(told)

    def content(self) -> dict[str, Any]:
        """Return it as the content of a file."""
        return record(self)[0]

    @classmethod
    def of_content(cls, content: Fields) -> GalleryChange:
        """Restore what ``content`` returned.

        Raises
        ------
        FileFormatError
            If a value is missing, of another type, or out of its range.
        """
        return restored(cls, content, {})


def _thinned(
    classes: npt.NDArray[Any], sizes: npt.NDArray[np.float64], left: npt.NDArray[np.float64]
) -> list[Any]:
    """Return up to three classes that lost most, if more queries are of such ones than by chance.

    With n_c of N items in class c, r_c of R removed ones and s the share ``THINNED``, the excess

        sum_c n_c / N max(0, r_c / n_c - s)

    is compared with its mean for R items that are drawn at random (binomial counts).
    """
    from scipy.special import bdtr  # a guard alone needs no scipy

    gone = (sizes - left).clip(min=0)
    n, removed = sizes.sum(), gone.sum()
    if not removed:
        return []
    excess = (gone / sizes.clip(min=1) - THINNED).clip(min=0)
    by_chance = 0.0
    for size, times in zip(*np.unique(sizes, return_counts=True), strict=True):
        counts = np.arange(size + 1)
        beyond = (counts / max(size, 1) - THINNED).clip(min=0)
        share = np.diff(bdtr(counts, int(size), float(removed / n)), prepend=0.0)
        by_chance += times * size / n * float(share @ beyond)
    if float(sizes @ excess) / n - by_chance <= TOLERATED:
        return []
    order = np.argsort(-sizes * excess, kind="stable")[:NAMED]
    return classes[order[excess[order] > 0]].tolist()


def _listed(names: tuple[str, ...], n: int) -> str:
    """Return the first names of n classes."""
    return ", ".join(names) + ", ..." * (n > len(names))


def warn_uncovered(change: GalleryChange) -> None:
    """Warn of a change of the gallery that a guarantee does not cover."""
    warnings.warn(
        f"the guarantee no longer covers the gallery: {change.reason}. Pass queries "
        "like later ones to calibrate(queries, labels), or guard all items again.",
        StaleCalibrationWarning,
        stacklevel=callers_line(),
    )
