"""Is an input like anything that was fitted? Class Gaussians, ``near``, ``far``, ``ambiguity``."""
