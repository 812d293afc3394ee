"""Tables of encoders with uncertainty tokens, from ``results/image_text_tokens.json``."""

RECORD = "image_text_tokens"
TABLES: dict = {}
