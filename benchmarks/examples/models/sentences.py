"""A model of sentence-transformers: ``python -m benchmarks.examples.models.sentences``.

Strings in, distributions over embeddings out. MiniLM's weights come with the extra ``pretrained``.
"""

from __future__ import annotations

from sentence_transformers import SentenceTransformer

from benchmarks.encoders.pretrained import minilm_folder
from benchmarks.examples.summary import TEXTS, Summary, command
from benchmarks.examples.texts import look
from laplace_metric import LaplaceEmbedder
from laplace_metric.models import Sentences


def run(limit: int | None = None) -> Summary:
    """MiniLM as sentence-transformers has it."""
    embedder = LaplaceEmbedder(Sentences(SentenceTransformer(minilm_folder())), head="append")
    return look("sentence-transformers MiniLM", embedder, limit)


if __name__ == "__main__":
    command(__doc__, run, limit=TEXTS)
