"""Image embeddings with uncertainty, no training: ``python -m benchmarks.examples.images``.

EfficientNet-Lite0 features of CIFAR-10 as arrays, as they come from a vector database, through
``LaplaceEmbedder.from_embeddings``; FashionMNIST images are the unknown ones. Features are encoded
once and kept in the cache folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.encoders.features import encoded_images
from benchmarks.examples.summary import Summary, summarise
from laplace_metric import LaplaceEmbedder


def run(data: str | None, cache: Path, limit: int = 10_000, structure: str = "kron") -> Summary:
    """Fit on a labelled gallery of embeddings, look at known and unknown queries."""
    n_queries = min(limit, 2_500)
    gallery, labels = encoded_images(cache, data, "cifar10", "train", limit)
    queries, query_labels = encoded_images(cache, data, "cifar10", "test", n_queries)
    ood, _ = encoded_images(cache, data, "fashion-mnist", "test", n_queries)
    embedder = LaplaceEmbedder.from_embeddings(gallery, labels, structure=structure)
    embedder.optimize_prior_precision()
    title = "EfficientNet-Lite0 on CIFAR-10, FashionMNIST unknown"
    known = (embedder(gallery), labels, embedder(queries), query_labels)
    return summarise(title, *known, embedder(ood))


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--cache", required=True, type=Path, help="where features are kept")
    parser.add_argument("--limit", type=int, default=10_000, help="images of the gallery")
    options = parser.parse_args()
    print(run(options.data, options.cache, options.limit))


if __name__ == "__main__":
    main()
