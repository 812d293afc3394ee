"""The embeddings and the index of the search tests."""

from __future__ import annotations

from tests.search.conftest import embedder, points, quick

__all__ = ["embedder", "points", "quick"]
