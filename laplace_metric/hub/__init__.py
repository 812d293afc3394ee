"""Folders that a hub can hold: posterior, weights and a model card."""
