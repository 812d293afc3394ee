"""Classes of images by their paths: the folder that an image lies in, or a function of the path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from laplace_metric.errors import InputError, LabelError


def top_folders(folder: Path, ids: Sequence[str]) -> list[str] | None:
    """Return the folder right below the root that each image lies in; None where none does.

    Raises
    ------
    InputError
        If some images lie in such folders and some next to them.

    Examples
    --------
    >>> top_folders(Path("photos"), ["cat/1.jpg", "cat/2024/2.jpg", "dog/1.jpg"])
    ['cat', 'cat', 'dog']
    """
    outside = [name for name in ids if "/" not in name]
    if not outside:
        return [name.split("/", 1)[0] for name in ids]
    if len(outside) < len(ids):
        within = next(name for name in ids if "/" in name)
        raise InputError(
            f"{folder} holds images in class folders ({within}) and next to them ({outside[0]}): "
            "move them all into class folders, or none."
        )
    return None


def labels_by(label_of: Callable[[str], Any], ids: Sequence[str]) -> list[str]:
    """Apply a user's function to each path.

    Raises
    ------
    LabelError
        If the function fails, or returns anything but a name.
    """
    labels = []
    for name in ids:
        try:
            label = label_of(name)
        except Exception as error:
            raise LabelError(f"label_of({name!r}) fails: {error!r}.") from error
        if not isinstance(label, str) or not label:
            raise LabelError(f"label_of({name!r}) is {label!r:.60}: return the name of a class.")
        labels.append(label)
    return labels
