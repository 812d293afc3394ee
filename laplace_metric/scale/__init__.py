"""Fits that outgrow one process: several ranks, checkpoints, and map-then-merge frameworks."""
