"""Tables of the uses, from ``results/image_text_uses.json``."""

from __future__ import annotations

RECORD = "image_text_uses"
TABLES: dict = {}
