"""Make a data set of a folder of images, one folder a class, or of a table that lists images."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor

from laplace_metric._utils.validation import as_path, check_count, check_function
from laplace_metric.datasets._image_files import images_below
from laplace_metric.datasets._image_folder import ImageFolder
from laplace_metric.datasets._path_labels import labels_by, top_folders
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.datasets._tables import listed_images
from laplace_metric.errors import InputError

_LOG = logging.getLogger(__name__)


def load_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    crop: bool = True,
    channels: int = 3,
    transform: Callable[[Any], Tensor] | None = None,
    label_of: Callable[[str], str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    skip_unreadable: bool = False,
) -> ImageFolder:
    """Return a folder of images, one folder a class, or a table of images; read when needed.

    Parameters
    ----------
    path : path
        ``photos`` with ``photos/<class>/*.jpg``, however deep, or without classes
        ``photos/*.jpg``; or a .csv or .tsv of paths as seen from its own folder. Files are images
        by their content, whatever their ending; hidden ones are left out, links are followed.
    size : int or None
        Side of the square images in pixels. None, the default: as they are, and then all of one
        size.
    crop : bool
        True, the default: the shorter side is scaled to ``size``, then the centre is cut out.
        False, as ``laplace-metric --size`` does: the image is scaled to the square.
    channels : {3, 1}
        Number of channels: 3, the default, for RGB or 1 for grey. Transparent images are put on
        white.
    transform : callable or None
        Function from a PIL image to a tensor [C, H, W], instead of ``size``: the preprocessing that
        a model comes with, or a `CentreCrop`. None, the default: pixels in [0, 1].
    label_of : callable or None
        Function from the path as seen from the folder to the name of its class. None, the default:
        the first folder of the path, or the column of the table.
    path_column, label_column : str or None
        Columns of a table. None, the default: ``path`` or ``image``; ``label``, if there is one.
    skip_unreadable : bool
        Read every image once, and leave out those that cannot be read (the log names them).
        Default: False, an unreadable image is an error when it is read.

    Returns
    -------
    ImageFolder
        Images turned upright as the camera noted (Exif), classes by name, ids by path.

    Raises
    ------
    InputError
        If there is no such path or no image, or images stand both in class folders and next to
        them; for options out of range. An image that cannot be read raises it when it is
        read.
    LabelError
        If ``label_of`` gives no name, or a label of the table is empty.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> photos = Path(tempfile.mkdtemp()) / "photos"
    >>> for name, colour in (("cherry", "red"), ("lime", "green")):
    ...     (photos / name).mkdir(parents=True)
    ...     Image.new("RGB", (30, 20), colour).save(photos / name / "1.JPG")
    >>> folder = load_folder(photos, size=8)
    >>> folder
    ImageFolder('photos', 2 images, 2 classes)
    >>> folder.ids.tolist(), folder.labels.tolist(), folder.pixels().shape
    (['cherry/1.JPG', 'lime/1.JPG'], ['cherry', 'lime'], torch.Size([2, 3, 8, 8]))
    """
    place = as_path("path", path)
    if size is not None:
        check_count("size", size)
    if channels not in (1, 3) or isinstance(channels, bool):
        raise InputError(f"channels={channels!r}: pass 3 for RGB or 1 for grey.")
    if transform is not None and size is not None:
        raise InputError(f"size={size} and a transform: pass one of the two.")
    if transform is not None:
        check_function("transform", transform, "PIL image")
    if label_of is not None:
        check_function("label_of", label_of, "path")
    if place.is_dir():
        if path_column is not None or label_column is not None:
            raise InputError(
                f"{place} is a folder: path_column and label_column are of a table (.csv, .tsv)."
            )
        folder, (ids, others) = place, images_below(place)
        if others:
            _LOG.info("%s: %d files that are no images are left out", place, len(others))
        labels = top_folders(place, ids) if label_of is None else None
    else:
        folder, (ids, labels) = place.parent, listed_images(place, path_column, label_column)
    if label_of is not None:
        labels = labels_by(label_of, ids)
    reader = Pixels(folder, size, channels, transform, crop)
    whole = ImageFolder(place.name or str(place), ids, labels, reader)
    damaged = whole.unreadable() if skip_unreadable else ()
    if not damaged:
        return whole
    if len(damaged) == len(whole):
        reader.decoded(ids[0])  # which says why
    _LOG.warning("left out of %r: %s", whole.name, ", ".join(damaged))
    return whole.subset([name not in damaged for name in whole.ids.tolist()])
