"""Thumbnails of items of an index, and of what a client sent."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.serve._limits import RequestRefused
from laplace_metric.cli.serve._reader import QueryReader, decoded
from laplace_metric.cli.sources import IMAGES, Pixels, root_of
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
    if gallery.origin.data is None or gallery.posterior.recipe.kind != IMAGES:
        raise RequestRefused("the items of this index are no images.", NOT_FOUND)
    if not (row.isascii() and row.isdigit() and len(row) < 10 and int(row) < len(gallery.index)):
        raise RequestRefused(f"there is no item {row!r:.40}.", NOT_FOUND)
    folder = root_of(Path(gallery.origin.data)).resolve()
    path = (folder / str(gallery.index.ids[int(row)])).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise RequestRefused(f"the image of item {row} is not there any more.", NOT_FOUND)
    try:
        return png(Pixels(folder, None, 3).decoded(path.relative_to(folder).as_posix()))
    except InputError as error:
        raise RequestRefused(f"the image of item {row} cannot be read.", NOT_FOUND) from error


def query_picture(content: bytes, reader: QueryReader) -> str:
    """What a client sent, as a data URI; it was read once already."""
    image = decoded(content, reader.pixels, reader.most_pixels)
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def png(image: Image.Image) -> bytes:
    """At most ``SIDE`` pixels a side."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
