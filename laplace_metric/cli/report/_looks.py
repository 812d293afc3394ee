"""What queries and items look like: small pictures and excerpts, where the data are still there."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.sources import (
    IMAGES,
    TEXTS,
    Pixels,
    ReadOptions,
    Source,
    open_source,
    path_below,
    root_of,
)
from laplace_metric.errors import InputError, LaplaceMetricError

SIDE = 112
"""Longest side of a picture in pixels; a smaller image stays as it is."""
SMALL = 64
"""Up to here a picture is PNG, exact; above, JPEG."""
LONGEST = 220
"""Characters of a text; the last says that there are more."""


@dataclass(frozen=True)
class Look:
    """A picture as a data URI, or a text; neither for arrays, and for what is gone."""

    picture: str | None = None
    text: str | None = None
    small: bool = False


LookOf = Callable[[str], Look]
"""Of the item of an id."""


def nothing(_: str) -> Look:
    """Of arrays, which look like nothing."""
    return Look()


def looks_of_queries(source: Source) -> LookOf:
    """Of a source that the command line names."""
    if source.kind == IMAGES:
        return lambda name: picture_of_file(root_of(source.path), name)
    return _texts_of(source) if source.kind == TEXTS else nothing


def looks_of_items(gallery: LoadedIndex, reporter: Reporter) -> LookOf:
    """Of the items of an index; nothing where its data are not known, have gone, or changed.

    A file of the index names these data: images are read below paths of the command line alone, and
    of a table only what it names.
    """
    recipe, origin = gallery.posterior.recipe, gallery.origin
    if origin.data is None or recipe.kind not in (IMAGES, TEXTS):
        return nothing
    path = gallery.item_data()
    try:
        if recipe.kind == IMAGES:
            folder = gallery.image_folder()
            if path.is_dir():
                return lambda name: picture_of_file(folder, name, inside=True)
        source = open_source(path, ReadOptions(**{**recipe.read_options, **origin.read_options}))
    except (LaplaceMetricError, OSError) as error:
        reporter.note(f"the items are named, not shown: {error}")
        return nothing
    if source.fingerprint != origin.fingerprint:
        reporter.note(f"the items are named, not shown: {path} has changed")
        return nothing
    known, look = set(source.ids), looks_of_queries(source)
    if recipe.kind == IMAGES and not gallery.is_listed():
        return lambda name: picture_of_file(folder, name, inside=True)
    return lambda name: look(name) if name in known else Look()


def _texts_of(source: Source) -> LookOf:
    rows = {name: row for row, name in enumerate(source.ids)}

    def look(name: str) -> Look:
        text = str(source.read([rows[name]])[0])
        return Look(text=text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")

    return look


def picture_of_file(folder: Path, name: str, *, inside: bool = False) -> Look:
    """A file below a folder; nothing where it cannot be read, or lies elsewhere and may not."""
    try:
        if inside:
            path_below(folder, name)
        image = Pixels(folder, None, 3).decoded(name)
    except InputError:
        return Look()
    small = max(image.size) <= SMALL
    return Look(picture=picture_uri(image), small=small)


def picture_uri(image: Image.Image) -> str:
    """A data URI of at most ``SIDE`` pixels a side.

    Examples
    --------
    >>> picture_uri(Image.new("RGB", (4, 4)))[:22], picture_uri(Image.new("RGB", (400, 300)))[:23]
    ('data:image/png;base64,', 'data:image/jpeg;base64,')
    """
    image, form = image.copy(), "PNG" if max(image.size) <= SMALL else "JPEG"
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, form, optimize=True, quality=85)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
