"""Honest uncertainty for any trained metric-learning embedder."""
