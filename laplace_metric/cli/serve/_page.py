"""Pages for people: drop an image, read the answer; and what the paths take and give."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.pages import templates
from laplace_metric.cli.serve._guard import NOT_FOUND, RequestRefused
from laplace_metric.cli.serve._query import ALPHA, Question
from laplace_metric.cli.serve._service import SearchService
from laplace_metric.cli.sources import IMAGES, Pixels, path_below
from laplace_metric.errors import InputError, LaplaceMetricError

TEMPLATES = templates()
SCRIPT = TEMPLATES.get_template("search.js.j2").render()
"""The one script: it sends the form when an image is dropped or chosen. The page works without."""
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
SAFE = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; "
    f"style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of pages."""
USUAL = 0.9
"""Precision that the form asks for, where the index can guarantee it."""
SIDE = 160
"""Longest side of a thumbnail in pixels; a smaller image stays as it is."""


def search_page(service: SearchService, content: Mapping[str, Any]) -> str:
    """Return the page with the form, the ``fields`` that were sent, an ``answer`` or an ``error``.

    Parameters
    ----------
    service : SearchService
    content : mapping
        Any of these three.
    """
    served, fields = service.served, content.get("fields", {})
    answer, picture = content.get("answer"), None
    kind, usual = served.reader.kind, _usual_precision(service)
    if answer is not None and kind == IMAGES:
        with served.reader.picture(fields["image"]) as image:
            picture = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    return TEMPLATES.get_template("search.html.j2").render(
        kind=kind,
        n_items=len(served.index),
        fields=fields,
        k=fields.get("k") or 5,
        precision=fields.get("precision", "" if usual is None else usual),
        not_guaranteed=USUAL if usual is None else None,
        answer=answer,
        error=content.get("error"),
        picture=picture,
        drift=service.drift(),
        cross_fitted=is_cross_fitted(service),
        script=SCRIPT,
    )


def is_cross_fitted(service: SearchService) -> bool:
    """Return True if the index is calibrated by cross-fitting."""
    calibration = service.served.index.calibration
    return calibration is not None and calibration.cross_fitted


def _usual_precision(service: SearchService) -> float | None:
    if service.precision is not None:
        return service.precision
    try:
        service.served.guaranteed(USUAL, ALPHA)
    except LaplaceMetricError:
        return None
    return USUAL


def documentation(schema: Mapping[str, Any]) -> str:
    """Return every path of an OpenAPI schema as a page that asks for nothing from outside."""
    routes = [
        {"path": path, "method": method.upper(), **route}
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    answers = schema["components"]["schemas"]
    template = TEMPLATES.get_template("routes.html.j2")
    return template.render(routes=routes, answers=answers, info=schema["info"])


def thumbnail(gallery: LoadedIndex, row: str) -> bytes:
    """Return a PNG of the item at a row of the index.

    Raises
    ------
    RequestRefused
        If there is no such item, or its image is not below the folder that was indexed.
    """
    if gallery.posterior.recipe.kind != IMAGES:
        raise RequestRefused("the items of this index are not images.", NOT_FOUND)
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
    try:
        return png(Pixels(folder, None, 3).decoded(str(path)))
    except InputError as error:
        raise RequestRefused(f"the image of item {row} cannot be read.", NOT_FOUND) from error


def png(image: Image.Image) -> bytes:
    """Return an image as PNG with at most ``SIDE`` pixels a side."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


# Parts of the OpenAPI schema: bodies, parameters and errors.


_FIELDS = Question.model_json_schema()["properties"]
PARAMETERS = [
    {"name": name, "in": "query", "schema": schema, "description": schema["description"]}
    for name, schema in _FIELDS.items()
    if name in ("k", "threshold", "precision", "alpha")
]
REQUEST_BODY = {
    "required": True,
    "description": "One query, of the kind of the index. Options stand next to it, or in the "
    "address.",
    "content": {
        "image/*": {"schema": {"type": "string", "format": "binary"}},
        "text/plain": {"schema": {"type": "string"}},
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {x: schema for x, schema in _FIELDS.items() if x != "image"},
                "example": {"vector": [0.1, 0.2, 0.3], "k": 5, "precision": 0.9},
            }
        },
        "multipart/form-data": {"schema": {"type": "object", "properties": _FIELDS}},
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A question that cannot be answered; the message says why."},
    413: {"description": "A body or an image that is too large."},
    415: {"description": "A body of another kind than the index takes, or not an image."},
    503: {"description": "Too many requests at once."},
}
