"""Looks of queries and items in a page: a picture, a text, or a name."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex, excerpt
from laplace_metric.cli._image_source import root_of
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._source import IMAGES, TEXTS, Source
from laplace_metric.errors import InputError, LaplaceMetricError

# Thumbnails and excerpts of queries and items, where the data are still there.

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
"""Of the query or the item of an id."""


def look_by(item: Callable[[str], Any], name: str) -> Look:
    """Return the look of what ``item`` gives; empty where it cannot be read, or lies elsewhere."""
    try:
        shown = item(name)
    except (InputError, LookupError):
        return Look()
    if isinstance(shown, str):
        return Look(text=excerpt(shown, LONGEST))
    return Look(picture=picture_uri(shown), small=max(shown.size) <= SMALL)


def look_of(source: Source) -> LookOf:
    """Return the looks of the items of a source that the command line names."""
    if source.kind == IMAGES:
        return partial(look_by, Pictures(root_of(source.path)).picture)
    return partial(look_by, (source.texts() if source.kind == TEXTS else {}).__getitem__)


def item_look(gallery: LoadedIndex, reporter: Reporter) -> LookOf:
    """Return the looks of the items of an index, if its data are known, there and unchanged."""
    if gallery.origin.data is not None and gallery.posterior.recipe.kind == IMAGES:
        try:
            return partial(look_by, gallery.item_pictures().picture)
        except (LaplaceMetricError, OSError) as error:
            reporter.note(f"the items are named, not shown: {error}")
    return partial(look_by, gallery.item_texts(reporter).__getitem__)


def picture_uri(image: Image.Image) -> str:
    """Return a data URI of at most ``SIDE`` pixels a side.

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
