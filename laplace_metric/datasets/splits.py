"""Hold classes out, to test on classes that training never saw."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from laplace_metric.datasets.image_set import ImageSet
from laplace_metric.errors import InputError


def split_classes(
    image_set: ImageSet, train_classes: int | Iterable[int]
) -> tuple[ImageSet, ImageSet]:
    """Split by class into (seen, unseen), the protocol of zero-shot retrieval.

    Parameters
    ----------
    image_set : ImageSet
    train_classes : int or iterable of int
        The seen classes: the first so many, or a list of labels. Labels and class names keep
        their meaning in both halves.

    Raises
    ------
    InputError
        If a class is out of range, or one half would hold no class.

    Examples
    --------
    >>> images = torch.zeros(4, 1, 2, 2)
    >>> four = ImageSet(images, torch.tensor([0, 1, 2, 1]), "four", ("a", "b", "c"))
    >>> seen, unseen = split_classes(four, 2)
    >>> seen.labels, unseen.labels
    (tensor([0, 1, 1]), tensor([2]))
    """
    n_classes = len(image_set.class_names)
    chosen = range(train_classes) if isinstance(train_classes, int) else train_classes
    seen = sorted({int(label) for label in chosen})
    if not 0 < len(seen) < n_classes or seen[0] < 0 or seen[-1] >= n_classes:
        raise InputError(
            f"train_classes={train_classes!r} must name at least one and not all of the "
            f"{n_classes} classes 0..{n_classes - 1}."
        )
    mask = torch.isin(image_set.labels, torch.tensor(seen))
    return image_set.subset(mask), image_set.subset(~mask)
