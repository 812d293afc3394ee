"""Responses whose text may hold names of files that are not UTF-8."""

from __future__ import annotations

import json
from typing import Any

from fastapi import responses

from laplace_metric._utils.names import utf8


class JSONResponse(responses.JSONResponse):
    r"""JSON, in which a lone surrogate is its own escape, such as ``\udcff``."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return utf8(text)


class HTMLResponse(responses.HTMLResponse):
    """A page, in which a lone surrogate stands as its escape."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return utf8(content)
