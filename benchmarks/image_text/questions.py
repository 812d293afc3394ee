"""What is asked of a fitted pair of heads, each question with its control."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn.functional import normalize
from wordfreq import zipf_frequency

from benchmarks.image_text.emoji import EmojiPart, EmojiProblem
from benchmarks.image_text.traversal import traversal
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import (
    ImageTextEmbedder,
    csd,
    inclusion_difference,
    log_inclusion,
)

Row = dict[str, float]
RIDGE = 10.0
"""Penalty."""
WAYS = 8
"""Drawings to which a way is shown."""


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
        "epistemic": rank_correlation(text.epistemic.numpy(), counts),
        "keywords": float(len(keywords)),
    }


def examples(
    embedder: ImageTextEmbedder, problem: EmojiProblem, keywords: list[str]
) -> dict[str, Any]:
    """For figures: ambiguity of trained and new keywords, of test drawings by row, ways to some.

    A way leads from the mean of all keywords, as [ROOT] (Desai et al. 2023), through keywords.
    """
    groups = {}
    for title, texts in (("trained keywords", keywords), ("new keywords", sorted(problem.new))):
        trace = embedder.embed_text(problem.texts(texts)).ambiguity
        counts = [problem.images[text] for text in texts]
        groups[title] = {"texts": texts, "trace": trace.tolist(), "images": counts}
    part = problem.parts["test"]
    image, names = embedder.embed_image(part.features), sorted(problem.images)
    drawings = dict(zip(part.rows.tolist(), image.ambiguity.tolist(), strict=True))
    shown = torch.linspace(0, len(part) - 1, WAYS).long()
    known, some = embedder.embed_text(problem.texts(names)), image[shown]
    root = Embedding(Gaussian(normalize(known.mean.mean(0, keepdim=True)), known.variance[:1]))
    ways = traversal(some, known, root).distinct
    of = {
        row: [names[k] for k in way]
        for row, way in zip(part.rows[shown].tolist(), ways, strict=True)
    }
    return {"texts": groups, "drawings": drawings, "ways": of}


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


def inclusion(
    embedder: ImageTextEmbedder, problem: EmojiProblem, part: EmojiPart, seed: int = 0
) -> Row:
    """AUROC of drawings in their own keyword against a random one and against a sibling's.

    A sibling is a keyword of another drawing of the same subgroup that the drawing does not have.
    Beside ``inc``: H, CSD and the cosine; and the share of pairs with H > 0.
    """
    pairs, _ = problem.pairs(part)
    image, text = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    match = pairs.match(torch.arange(pairs.n_images), torch.arange(pairs.n_texts))
    siblings = sibling_keywords(part.subgroup, match)
    i, own = pairs.pairs.unbind(1)
    generator = torch.Generator().manual_seed(seed)
    has_sibling = siblings[i].any(1)
    columns = {
        "own": (i, own),
        "random": (i, torch.multinomial((~match[i]).double(), 1, generator=generator)[:, 0]),
        "sibling": (
            i[has_sibling],
            torch.multinomial(siblings[i[has_sibling]].double(), 1, generator=generator)[:, 0],
        ),
    }
    scores = {kind: scored(image[rows], text[texts]) for kind, (rows, texts) in columns.items()}
    row: Row = {}
    for other in ("random", "sibling"):
        mine = slice(None) if other == "random" else has_sibling
        for name, values in scores["own"].items():
            row[f"{name}, {other}"] = auroc(scores[other][name], values[mine])
    if "H" in scores["own"]:
        for kind in ("own", "random"):
            row[f"H > 0, {kind}"] = float((scores[kind]["H"] > 0).double().mean())
    return row


def out_of_distribution(embedder: ImageTextEmbedder, problem: EmojiProblem) -> Row:
    """AUROC of what is no emoji against test drawings.

    By the posterior, by the learnt variance, and by 1 / |z|, the raw mean's length.
    """
    known = image_numbers(embedder, problem.parts["test"].features)
    row: Row = {}
    for name, features in problem.ood.items():
        other = image_numbers(embedder, features)
        row |= {f"{name} {key}": auroc(known[key], other[key]) for key in known}
    return row


def image_numbers(embedder: ImageTextEmbedder, features: Tensor) -> dict[str, Tensor]:
    """What there is to say of images [N]: both uncertainties, and 1 / |z| as the control."""
    embedding = embedder.embed_image(features)
    assert embedding.head_inputs is not None
    raw = embedder.fitted_.heads.image.mean(embedding.head_inputs).detach()
    return {
        "1/norm": 1 / raw.norm(dim=1),
        "epistemic": embedding.epistemic,
        "ambiguity": embedding.uncertainty,
    }


def severity(embedder: ImageTextEmbedder, levels: Sequence[Tensor]) -> dict[str, Any]:
    """Spearman's correlation of each number with the level, drawing by drawing, then the mean.

    ``levels`` are features [N, 1280] of the same drawings, from whole to hardly anything left.
    Under "by level" the mean of each number over drawings.
    """
    numbers = [image_numbers(embedder, features) for features in levels]
    means = {key: [float(level[key].mean()) for level in numbers] for key in numbers[0]}
    row: dict[str, Any] = {"by level": means}
    for key in numbers[0]:
        values = torch.stack([level[key] for level in numbers], 1).double().numpy()  # [N, L]
        ranks = rankdata(values, axis=1) - (len(levels) + 1) / 2
        place = np.arange(len(levels)) - (len(levels) - 1) / 2
        length = np.linalg.norm(ranks, axis=1).clip(min=1e-12) * np.linalg.norm(place)
        row[key] = float((ranks @ place / length).mean())
    return row


def sibling_keywords(subgroup: Tensor, match: Tensor) -> Tensor:
    """Keywords of other drawings of the same subgroup that a drawing does not have [N, M]."""
    by_group: dict[int, Tensor] = defaultdict(lambda: torch.zeros(match.shape[1]).bool())
    for group, own in zip(subgroup.tolist(), match, strict=True):
        by_group[group] = by_group[group] | own
    return torch.stack([by_group[group] for group in subgroup.tolist()]) & ~match


def scored(image: Embedding, text: Embedding) -> dict[str, Tensor]:
    """Every score of pairs, row by row; larger says that they belong together."""
    cosine = {"cosine": (image.mean * text.mean).sum(1)}
    if not bool((text.variance > 0).all()):
        return cosine
    parts = image.mean, image.variance.log(), text.mean, text.variance.log()
    return {
        "inc": log_inclusion(*parts),
        "H": inclusion_difference(*parts),
        "csd": -csd(*parts),
        **cosine,
    }
