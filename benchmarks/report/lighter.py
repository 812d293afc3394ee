"""Pictures light enough for a few hundred kilobytes of JSON."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

HEAVY, SIDE, QUALITY = 1_000, 96, 80


def lighter_strips(pictures: dict[str, Any]) -> dict[str, Any]:
    """The strips of a run with every picture made lighter."""
    return {
        kind: [
            {**one, "pictures": [{**p, "uri": lighter(p["uri"])} for p in one["pictures"]]}
            for one in strips
        ]
        for kind, strips in pictures.items()
    }


def lighter(uri: str) -> str:
    """A picture as WebP, no larger than it is shown, where that saves something."""
    if len(uri) < HEAVY or not uri.startswith("data:image/png;base64,"):
        return uri
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY, method=6)
    made = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return min(made, uri, key=len)
