"""Deal items out to folds, class by class, and refuse collections that are too small for it."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.errors import DependentQueriesWarning, InputError, callers_line
from laplace_metric.inputs._columns import Column

MOST_IN_PAIRS = 0.25
"""Share of the items that may be in classes of two."""


def class_places(labels: Column) -> Int[Tensor, " N"]:
    return torch.from_numpy(np.unique(labels.values, return_inverse=True)[1])


def folds_of(codes: Int[Tensor, " N"], folds: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """Return a fold [N] for each item: the classes are dealt out one after the other.

    Folds have N / K items and n_c / K of each class, up to one.

    Examples
    --------
    >>> folds_of(torch.tensor([0, 0, 0, 1, 1, 1]), 3, torch.Generator().manual_seed(0)).tolist()
    [1, 2, 0, 1, 2, 0]
    """
    shuffled = torch.randperm(len(codes), generator=generator)
    order = shuffled[codes[shuffled].argsort(stable=True)]
    fold = torch.empty_like(codes)
    fold[order] = torch.arange(len(codes)) % folds
    return fold


def folds_of_groups(
    codes: Int[Tensor, " N"],
    group: Int[Tensor, " N"],
    folds: int,
    generator: torch.Generator,
) -> Int[Tensor, " N"]:
    """Return a fold [N] for each item, the same for all items of a group.

    Groups are dealt out class by class, of the class of their first item.

    Examples
    --------
    >>> codes, group = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 2, 2, 3])
    >>> folds_of_groups(codes, group, 2, torch.Generator().manual_seed(0)).tolist()
    [0, 0, 1, 1, 1, 0]
    """
    first = torch.from_numpy(np.unique(group.numpy(), return_index=True)[1])
    return folds_of(codes[first], folds, generator)[group]


def connected(group: npt.NDArray[np.intp], same: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return groups [N] of rows that are linked by their group or by being equal.

    Examples
    --------
    >>> connected(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
    [0, 0, 0, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = int(group.max()) + 1
    links = coo_array((np.ones(len(group)), (group, n + same)), shape=(n + len(same),) * 2)
    found: npt.NDArray[np.intp] = connected_components(links, directed=False)[1][group]
    return found.astype(np.intp)


def check_classes_apart(labels: Column, group: npt.NDArray[np.intp]) -> None:
    """Refuse groups that leave a class without an item outside of each of its groups.

    Raises
    ------
    InputError
        If every class has one group alone.

    Warns
    -----
    DependentQueriesWarning
        If some have: their items count as queries without a match.
    """
    codes = class_places(labels).numpy()
    pairs = np.unique(np.stack([codes, group]), axis=1)[0]
    classes, count = np.unique(pairs, return_counts=True)
    alone = classes[count == 1]
    if not len(alone):
        return
    names = ", ".join(map(repr, np.unique(labels.values)[alone[:3]].tolist()))
    names += ", ..." if len(alone) > 3 else ""
    if len(alone) == len(classes):
        raise InputError(
            f"groups: all {len(classes)} classes have one group each ({names}), so that no "
            "item has another of its class in another group to find. Pass smaller groups, or "
            "queries of other groups: Guard(..., held_out=)."
        )
    items = int(np.isin(codes, alone).sum())
    warnings.warn(
        f"groups: {len(alone)} of {len(classes)} classes have one group alone ({names}): "
        f"their {items:,} items find none of their class in another group, and count as queries "
        "without a match.",
        DependentQueriesWarning,
        stacklevel=callers_line(),
    )


def check_sizes(labels: Column, of: str = "items") -> None:
    """Refuse collections whose classes are too small to calibrate themselves.

    A query of a class of two finds one item of it in the index that calibrates, where a new query
    finds two; and every other class still has both: the evidence of the labels points away from the
    right class. From three items a class on the error is small (``benchmarks/retrieval``).

    Raises
    ------
    InputError
        If more than ``MOST_IN_PAIRS`` of the items that have another one of their class are in
        classes of two.
    """
    sizes = np.unique(labels.values, return_counts=True)[1]
    pairs, mates = 2 * int((sizes == 2).sum()), int(sizes[sizes > 1].sum())
    if pairs > MOST_IN_PAIRS * mates:
        small = pairs // 2
        raise InputError(
            f"labels: {small} of {len(sizes)} classes {'has' if small == 1 else 'have'} only two "
            f"{of}. To calibrate by its own items, a class needs three or more; classes of two "
            f"may hold {MOST_IN_PAIRS:.0%} of the items whose class has another, and hold {pairs} "
            f"of {mates}. Add items to these classes, or hold queries out: "
            "Guard(..., held_out=(queries, labels)), or index.calibrate(queries, labels)."
        )


def check_folds(folds: int, labels: Column, of: str = "items") -> None:
    largest = int(np.unique(labels.values, return_counts=True)[1].max(initial=0))
    if len(labels) > 2 and largest < 2:
        which = "" if of == "items" else f"of {of} "
        raise InputError(
            f"all {len(labels)} labels {which}differ, so that no item has another of its class to "
            "find: are these ids or row numbers? Pass the class of each item."
        )
    if folds > len(labels) or largest < 2:
        raise InputError(
            f"{len(labels)} {of}, {largest} at most of one class, are too few for folds={folds}: "
            "each fold needs an item, each item another of its class. Add items, or hold some out."
        )
