"""The papers as tests: what they print, next to closed forms, published runs and our records."""
