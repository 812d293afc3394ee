"""What is asked of a fitted pair of heads, each question with its control."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr
from sklearn.linear_model import Ridge
from torch import Tensor
from wordfreq import zipf_frequency

from benchmarks.image_text.emoji import EmojiPart, EmojiProblem
from laplace_metric.image_text import ImageTextEmbedder

Row = dict[str, float]
RIDGE = 10.0
"""Penalty."""


def retrieval(similarity: Tensor, match: Tensor) -> Row:
    """R@1, R@5 and mAP@R of queries [Q] against items [N], for queries with a match."""
    rows = match.any(1)
    similarity, match = similarity[rows], match[rows]
    hits = match.gather(1, similarity.argsort(1, descending=True)).double()
    n_matches = match.sum(1)
    place = torch.arange(1, hits.shape[1] + 1)
    counted = hits * (place <= n_matches[:, None])
    average = (counted * counted.cumsum(1) / place).sum(1) / n_matches
    return {
        "r@1": float(hits[:, 0].mean()),
        "r@5": float(hits[:, :5].amax(1).mean()),
        "map@r": float(average.mean()),
    }


def both_ways(embedder: ImageTextEmbedder, problem: EmojiProblem, part: EmojiPart) -> Row:
    """Image -> text and text -> image, among everything of the part."""
    pairs, _ = problem.pairs(part)
    image, text = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    s = embedder.similarity(image, text)
    match = pairs.match(torch.arange(pairs.n_images), torch.arange(pairs.n_texts))
    ways = {"image to text": retrieval(s, match), "text to image": retrieval(s.mT, match.mT)}
    return {f"{way} {name}": value for way, row in ways.items() for name, value in row.items()}


def generality(
    embedder: ImageTextEmbedder, problem: EmojiProblem, keywords: list[str], seed: int = 0
) -> Row:
    """Spearman of a keyword's ambiguity and the log number of drawings that it names.

    Beside it: counts shuffled; with the text's length in letters, and with how frequent its words
    are in English, partialled out (of ranks); and the epistemic number in place of the ambiguity.
    """
    text = embedder.embed_text(problem.texts(keywords))
    ambiguity = text.uncertainty.numpy()
    counts = np.log([problem.images[keyword] for keyword in keywords])
    letters = np.array([len(keyword) for keyword in keywords])
    frequency = np.array([zipf_frequency(keyword, "en") for keyword in keywords])
    shuffled = np.random.default_rng(seed).permutation(counts)
    return {
        "spearman": rank_correlation(ambiguity, counts),
        "shuffled": rank_correlation(ambiguity, shuffled),
        "without length": partial_correlation(ambiguity, counts, letters),
        "without frequency": partial_correlation(ambiguity, counts, frequency),
        "epistemic": rank_correlation(text.weight_variance.numpy(), counts),
        "keywords": float(len(keywords)),
    }


def ambiguities(embedder: ImageTextEmbedder, part: EmojiPart) -> dict[int, float]:
    """Return the learnt variance of the drawings of a part, by their rows."""
    found = embedder.embed_image(part.features).ambiguity.tolist()
    return dict(zip(part.rows.tolist(), found, strict=True))


def count_regression(problem: EmojiProblem, trained: list[str]) -> dict[str, Row]:
    """What the text features hold of the counts: a ridge regression of them on trained keywords."""
    parts = {"trained keywords": trained, "new keywords": sorted(problem.new)}
    counts = {
        part: np.log([problem.images[keyword] for keyword in keywords])
        for part, keywords in parts.items()
    }
    x = {part: problem.texts(keywords).numpy() for part, keywords in parts.items()}
    fit = Ridge(alpha=RIDGE).fit(x["trained keywords"], counts["trained keywords"])
    return {part: {"spearman": rank_correlation(fit.predict(x[part]), counts[part])} for part in x}


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(spearmanr(a, b).statistic)


def partial_correlation(a: np.ndarray, b: np.ndarray, other: np.ndarray) -> float:
    """Correlation of the ranks of a and b, each less what a line in those of ``other`` explains.

    Examples
    --------
    >>> x = np.arange(5.0)
    >>> round(partial_correlation(x, x, np.array([0.0, 2, 1, 4, 3])), 6)
    1.0
    """
    ranks = [rankdata(value) - (len(value) + 1) / 2 for value in (a, b, other)]
    length = max(ranks[2] @ ranks[2], 1e-12)  # 0 where the other is constant
    rest = [r - ranks[2] * (r @ ranks[2]) / length for r in ranks[:2]]
    return float(rest[0] @ rest[1] / np.sqrt((rest[0] @ rest[0]) * (rest[1] @ rest[1])))
