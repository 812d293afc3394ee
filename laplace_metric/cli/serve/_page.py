"""The pages for people: drop an image, read the answer; and what the paths take and give."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laplace_metric.cli.pages import templates
from laplace_metric.cli.serve._pictures import query_picture
from laplace_metric.cli.serve._question import ALPHA
from laplace_metric.cli.sources import IMAGES
from laplace_metric.errors import LaplaceMetricError

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
