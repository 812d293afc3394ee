"""A model of sentence-transformers: ``python -m benchmarks.examples.models.sentences``.

Strings in, distributions over embeddings out. MiniLM's weights come with the extra ``pretrained``.
"""

from __future__ import annotations

import argparse

from sentence_transformers import SentenceTransformer

from benchmarks.encoders.minilm import folder
from benchmarks.examples.summary import Summary
from benchmarks.examples.texts import look
from laplace_metric import LaplaceEmbedder
from laplace_metric.models import Sentences


def run(limit: int | None = None) -> Summary:
    """MiniLM as sentence-transformers has it."""
    embedder = LaplaceEmbedder(Sentences(SentenceTransformer(folder())), head="append")
    return look("sentence-transformers MiniLM", embedder, limit)


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, help="texts of each part")
    print(run(parser.parse_args().limit))


if __name__ == "__main__":
    main()
