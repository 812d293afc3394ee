"""What the posterior of a head adds to search: ``python -m benchmarks posterior``."""
