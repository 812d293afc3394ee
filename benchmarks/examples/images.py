"""Image embeddings with uncertainty, no training: ``python -m benchmarks.examples.images``.

EfficientNet-Lite0 features of CIFAR-10 as arrays, as they come from a vector database, through
``LaplaceEmbedder.from_embeddings``; FashionMNIST images are the unknown ones. Features are encoded
once and kept in the cache folder.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.encoders.features import encoded_images
from benchmarks.examples.summary import DATA, IMAGES, Summary, command, summarise
from laplace_metric import LaplaceEmbedder

CACHE = {"required": True, "type": Path, "help": "where features are kept"}


def run(data: str | None, cache: Path, limit: int = 10_000, structure: str = "kron") -> Summary:
    """Fit on a labelled gallery of embeddings, look at known and unknown queries."""
    n_queries = min(limit, 2_500)
    gallery, labels = encoded_images(cache, data, "cifar10", "train", limit)
    queries, query_labels = encoded_images(cache, data, "cifar10", "test", n_queries)
    ood, _ = encoded_images(cache, data, "fashion-mnist", "test", n_queries)
    embedder = LaplaceEmbedder.from_embeddings(
        gallery, labels, structure=structure, distance="arccos"
    )
    embedder.tune_prior()
    title = "EfficientNet-Lite0 on CIFAR-10, FashionMNIST unknown"
    known = (embedder(gallery), labels, embedder(queries), query_labels)
    return summarise(title, *known, embedder(ood))


if __name__ == "__main__":
    command(__doc__, run, data=DATA, cache=CACHE, limit=IMAGES)
