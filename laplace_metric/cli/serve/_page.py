"""The pages for people: drop an image, read the answer; and what the paths take and give."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.pages import templates
from laplace_metric.cli.serve._guard import RequestRefused
from laplace_metric.cli.serve._question import ALPHA
from laplace_metric.cli.serve._reader import QueryReader
from laplace_metric.cli.sources import IMAGES, Pixels, path_below
from laplace_metric.errors import InputError, LaplaceMetricError

if TYPE_CHECKING:
    from laplace_metric.cli.serve._service import SearchService


SCRIPT = """
const form = document.forms[0], file = form.elements.image;
if (file) {
  const drop = document.getElementById("drop");
  file.addEventListener("change", () => { if (file.files.length) form.requestSubmit(); });
  for (const name of ["dragenter", "dragover"])
    addEventListener(name, event => { event.preventDefault(); drop.classList.add("over"); });
  addEventListener("dragleave", () => drop.classList.remove("over"));
  addEventListener("drop", event => {
    event.preventDefault();
    drop.classList.remove("over");
    if (!event.dataTransfer.files.length) return;
    file.files = event.dataTransfer.files;
    form.requestSubmit();
  });
}
"""
"""All of it: it sends the form when an image is dropped or chosen. The page works without."""
USUAL = 0.9
"""Precision that the form asks for, where the index can promise it."""


class SearchPage:
    """The page with the form, and with an answer below it.

    Attributes
    ----------
    script_hash : str
        Of the one script that may run, for the page's security policy.
    """

    def __init__(self) -> None:
        self._template = templates().get_template("search.html.j2")
        digest = hashlib.sha256(SCRIPT.encode()).digest()
        self.script_hash = base64.b64encode(digest).decode()

    def render(self, service: SearchService, content: Mapping[str, Any]) -> str:
        """With the fields that were sent, an ``answer`` or an ``error``, if there are any."""
        served, fields = service.served, content.get("fields", {})
        answer, error, picture = content.get("answer"), content.get("error"), None
        calibration = served.gallery.index.calibration
        kind, usual = served.reader.kind, _usual_precision(service)
        if answer is not None and kind == IMAGES:
            picture = query_picture(fields["image"], served.reader)
        return self._template.render(
            kind=kind,
            n_items=len(served.gallery.index),
            fields=fields,
            k=fields.get("k") or 5,
            precision=fields.get("precision", usual),
            unpromised=None if usual != "" else USUAL,
            answer=answer,
            error=error,
            picture=picture,
            drift=service.drift(),
            cross_fitted=calibration is not None and calibration.cross_fitted,
            script=SCRIPT,
        )


def _usual_precision(service: SearchService) -> float | str:
    if service.precision is not None:
        return service.precision
    try:
        service.served.promised(USUAL, ALPHA)
    except LaplaceMetricError:
        return ""
    return USUAL


def documentation(schema: Mapping[str, Any]) -> str:
    """Every path of an OpenAPI schema as a page that asks for nothing from outside."""
    routes = [
        {"path": path, "method": method.upper(), **route}
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    answers = schema.get("components", {}).get("schemas", {})
    template = templates().get_template("routes.html.j2")
    return template.render(routes=routes, answers=answers, info=schema["info"])


# Thumbnails of items of an index, and of what a client sent.


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
    """Return an uploaded image as a data URI; it was read once already."""
    with reader.picture(content) as image:
        return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def png(image: Image.Image) -> bytes:
    """At most ``SIDE`` pixels a side."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


# What the OpenAPI schema says of bodies, parameters and errors.


_NUMBER = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "k": ({"type": "integer", "minimum": 1, "default": 5}, "Neighbours."),
    "threshold": (
        {"type": "number", "minimum": 0, "maximum": 1},
        "Match probability from which to answer.",
    ),
    "precision": (_NUMBER, "In its place: share of the answers that are right, promised."),
    "alpha": (
        {**_NUMBER, "default": 0.05},
        "Share of queries with a match that may be called unknown.",
    ),
}
_PROPERTIES = {name: {**schema, "description": about} for name, (schema, about) in _OPTIONS.items()}
PARAMETERS = [
    {"name": name, "in": "query", "required": False, "schema": schema, "description": about}
    for name, (schema, about) in _OPTIONS.items()
]
REQUEST_BODY = {
    "required": True,
    "description": "One query, of the kind of the index. Options stand beside it, or in the "
    "address.",
    "content": {
        "image/*": {"schema": {"type": "string", "format": "binary"}},
        "text/plain": {"schema": {"type": "string"}},
        "application/json": {
            "schema": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "text": {"type": "string"},
                    "vector": {"type": "array", "items": {"type": "number"}},
                    **_PROPERTIES,
                },
                "example": {"vector": [0.1, 0.2, 0.3], "k": 5, "precision": 0.9},
            }
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "image": {"type": "string", "format": "binary"},
                    "text": {"type": "string"},
                    **_PROPERTIES,
                },
            }
        },
    },
}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_SAID = {
    400: "A question that cannot be answered; the message says why.",
    413: "A body or an image that is too large.",
    415: "A body of another kind than the index takes, or no image.",
    503: "Too many requests at once.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "content": {"application/json": {"schema": _ERROR}}}
    for status, about in _SAID.items()
}
