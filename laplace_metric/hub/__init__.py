"""Folders that a hub can hold: posterior and weights."""
