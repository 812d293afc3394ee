"""What the OpenAPI schema says of bodies, parameters and errors."""

from __future__ import annotations

from typing import Any

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
