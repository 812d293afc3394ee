"""Measured comparisons, run from a checkout: ``python -m benchmarks.<name>``."""
