"""What the items of an index say, where the table that was indexed is still there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.sources import TEXTS, ReadOptions, open_source
from laplace_metric.errors import LaplaceMetricError

LONGEST = 1_000
"""Characters of a text that an answer shows; the last says that there are more."""


def item_texts(gallery: LoadedIndex, reporter: Reporter) -> Mapping[Any, str]:
    """The text of each id; none for images and arrays, and for a table that has gone or changed."""
    recipe, origin = gallery.posterior.recipe, gallery.origin
    if origin.data is None or recipe.kind != TEXTS:
        return {}
    options = ReadOptions(**{**recipe.read_options, **origin.read_options})
    try:
        source = open_source(Path(origin.data), options)
    except (LaplaceMetricError, OSError) as error:
        reporter.note(f"the texts of the items are not shown: {error}")
        return {}
    if source.fingerprint != origin.fingerprint:
        reporter.note(f"the texts of the items are not shown: {origin.data} has changed")
        return {}
    held, texts = set(gallery.index.ids.tolist()), source.read(range(len(source)))
    pairs = zip(source.ids, texts, strict=True)
    return {name: excerpt(text) for name, text in pairs if name in held}


def excerpt(text: str) -> str:
    """At most ``LONGEST`` characters.

    Examples
    --------
    >>> len(excerpt("x" * 2_000)), excerpt("x" * 2_000)[-2:], excerpt("short")
    (1000, 'x…', 'short')
    """
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
