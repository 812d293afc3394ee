"""Thumbnails of items of an index, and of what a client sent."""

from __future__ import annotations

import base64
import io

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.serve._limits import RequestRefused
from laplace_metric.cli.serve._reader import QueryReader
from laplace_metric.cli.sources import IMAGES, Pixels, path_below
from laplace_metric.errors import InputError

SIDE = 160
"""Longest side in pixels; a smaller image stays as it is."""
NOT_FOUND = 404


def thumbnail(gallery: LoadedIndex, row: str) -> bytes:
    """A PNG of the item at a row of the index.

    Raises
    ------
    RequestRefused
        If there is no such item, or its image is not below the folder that was indexed.
    """
    if gallery.posterior.recipe.kind != IMAGES:
        raise RequestRefused("the items of this index are no images.", NOT_FOUND)
    if not (row.isascii() and row.isdigit() and len(row) < 10 and int(row) < len(gallery.index)):
        raise RequestRefused(f"there is no item {row!r:.40}.", NOT_FOUND)
    try:
        folder = gallery.image_folder()
        path = path_below(folder, str(gallery.index.ids[int(row)]))
    except InputError as error:  # its message holds paths of this machine
        raise RequestRefused(
            f"the image of item {row} lies outside of the folder that the server may read: start "
            "it with --data, the folder that holds the items.",
            NOT_FOUND,
        ) from error
    if not path.is_file():
        raise RequestRefused(f"the image of item {row} is not there any more.", NOT_FOUND)
    try:
        return png(Pixels(folder, None, 3).decoded(str(path)))
    except InputError as error:
        raise RequestRefused(f"the image of item {row} cannot be read.", NOT_FOUND) from error


def query_picture(content: bytes, reader: QueryReader) -> str:
    """What a client sent, as a data URI; it was read once already."""
    with reader.picture(content) as image:
        return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def png(image: Image.Image) -> bytes:
    """At most ``SIDE`` pixels a side."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
