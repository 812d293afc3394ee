"""Sentence embeddings that know what they do not know: ``python -m benchmarks.examples.texts``.

MiniLM ends in a mean and a normalisation, so ``head="append"`` gives the posterior an
identity-initialised linear layer behind it. The gallery are one-line summaries of SciPy functions,
labelled by sub-package; some sub-packages are kept away, and their summaries are the unknown ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.encoders.pretrained import MiniLM
from benchmarks.encoders.texts import CLASSES, TextSet, load_texts
from benchmarks.examples.summary import TEXTS, Summary, command, summarise
from laplace_metric import LaplaceEmbedder

UNKNOWN = ("fft", "sparse.csgraph", "ndimage")


def known(texts: TextSet, *, yes: bool, limit: int | None = None) -> TextSet:
    """The texts of sub-packages that the gallery has, or of those that it lacks."""
    unknown = torch.tensor([CLASSES.index(name) for name in UNKNOWN])
    rows = torch.isin(texts.labels, unknown).logical_xor(torch.tensor(yes)).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:limit]]
    return TextSet(tuple(texts.texts[row] for row in rows.tolist()), texts.labels[rows])


def run(limit: int | None = None, structure: str = "kron") -> Summary:
    """Fit on the known gallery, look at known and unknown queries."""
    embedder = LaplaceEmbedder(MiniLM(), head="append", structure=structure)
    return look("MiniLM on SciPy summaries", embedder, limit)


def look(
    title: str,
    embedder: LaplaceEmbedder,
    limit: int | None = None,
    prepared: Callable[[list[str]], Any] = list,
) -> Summary:
    """The same with any embedder; ``prepared`` makes its inputs of a list of texts."""
    train, test = load_texts("train"), load_texts("test")
    gallery = known(train, yes=True, limit=limit)
    queries, ood = (known(test, yes=yes, limit=limit) for yes in (True, False))

    def batches(texts: TextSet) -> Iterator[tuple[Any, Tensor]]:
        return ((prepared(part), labels) for part, labels in texts.batches(64))

    embedder.fit(batches(gallery), progress=False)
    embedder.tune_prior()
    parts = [embedder.embed(batches(part), progress=False) for part in (gallery, queries)]
    unknown, _ = embedder.embed(batches(ood), progress=False)
    return summarise(title, *parts[0], *parts[1], unknown)


if __name__ == "__main__":
    command(__doc__, run, limit=TEXTS)
