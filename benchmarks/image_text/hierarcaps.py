"""HierarCaps: photographs with four captions from general to specific; nothing is trained on it.

Asked of embeddings that were trained elsewhere: are the four levels ordered by ambiguity, and does
the way from [ROOT] to a photograph lead past its own captions?
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import captions
from benchmarks.encoders.features import encoded_images
from benchmarks.image_text.degraded import SIDE
from benchmarks.image_text.questions import Row
from benchmarks.image_text.traversal import (
    Traversal,
    inclusion_root,
    inclusions,
    traversal,
    traversal_scores,
)
from benchmarks.image_text.wordnet import encoded_list
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.image_text._csd import similarities

LEVELS = 4


@dataclass(frozen=True)
class HierarCaps:
    """Features of N photographs and M different captions.

    Parameters
    ----------
    images : Tensor [N, 1280]
    texts : Tensor [M, 384]
    empty : Tensor [1, 384]
        Of the text "".
    own : Tensor [N, 4]
        Rows of the captions, from general to specific.
    words : Tensor [M]
        How many words each caption has.
    """

    images: Tensor
    texts: Tensor
    empty: Tensor
    own: Tensor
    words: Tensor


def load_hierarcaps(cache: Path, data: str | None, limit: int | None = None) -> HierarCaps:
    """Read and encode (once: the cache keeps the features)."""
    where = (cache, data, "hierarcaps", "test", limit, SIDE)
    images, _ = encoded_images(*where, progress=False, side=SIDE)
    levels = captions("hierarcaps", "test", data, limit)
    place: dict[str, int] = {}
    own = [[place.setdefault(text, len(place)) for text in texts] for texts in levels]
    features = encoded_list(cache, "hierarcaps captions", ["", *place])
    words = torch.tensor([len(text.split()) for text in place])
    return HierarCaps(images, features[1:], features[:1], torch.tensor(own), words)


def certain(embedding: Embedding) -> Embedding:
    """The same means without variances."""
    return Embedding(Gaussian(embedding.mean, torch.zeros_like(embedding.mean)))


def ordered(generality: Tensor, own: Tensor, seed: int = 0) -> Row:
    """Whether a number of each text [M] falls from level to level of each photograph.

    ``ordered``: the share of rows in which it falls at every level, 1 / 24 by chance;
    ``neighbours``: the share of neighbouring levels, 1 / 2 by chance; ``shuffled``: rows with
    their levels shuffled.
    """
    values = generality[own].double()  # [N, 4]
    falls = values[:, :-1] > values[:, 1:]
    g = np.random.default_rng(seed)
    mixed = torch.stack([row[torch.as_tensor(g.permutation(LEVELS))] for row in values])
    return {
        "ordered": float(falls.all(1).double().mean()),
        "neighbours": float(falls.double().mean()),
        "shuffled": float((mixed[:, :-1] > mixed[:, 1:]).all(1).double().mean()),
    }


def level_means(generality: Tensor, own: Tensor) -> list[float]:
    """The mean at each level."""
    return [float(x) for x in generality[own].double().mean(0)]


def ways(
    image: Embedding, texts: Embedding, empty: Embedding, own: Tensor, seed: int = 0
) -> dict[str, Row]:
    """Precision, recall, "any" and "root" of 50 steps, by ranking and by [ROOT].

    Without variances the cosine from the empty text. With them also CSD; and, as [ROOT], the text
    that includes the image most, alone and averaged with the empty one; and that which includes
    most the caption retrieved for the image (Chun et al. 2025, B.3). ``other photograph`` is the
    first way with the captions of another photograph, which is what chance gives.
    """
    plain = certain(image), certain(texts)
    paths = {"cosine, empty": traversal(*plain, empty)}
    if bool((texts.variance > 0).all()):
        most = inclusion_root(image, texts)
        both = inclusion_root(image, texts, empty)
        paths |= {
            "csd, empty": traversal(image, texts, empty),
            "cosine, inclusion": traversal(*plain, most),
            "cosine, inclusion and empty": traversal(*plain, both),
            "csd, inclusion and empty": traversal(image, texts, both),
            "csd, inclusion of the caption": traversal(image, texts, retrieved_root(image, texts)),
        }
    shift = int(np.random.default_rng(seed).integers(1, len(own)))
    rows = {name: _means(traversal_scores(path, own)) for name, path in paths.items()}
    rows["other photograph"] = _means(traversal_scores(paths["cosine, empty"], own.roll(shift, 0)))
    return rows


def retrieved_root(image: Embedding, texts: Embedding) -> Embedding:
    """The other text that includes most the text nearest to each image, by CSD (B.3)."""
    return _other_root(texts, similarities(image, texts).argmax(1))


def _means(scores: dict[str, Tensor]) -> Row:
    return {name: float(values.mean()) for name, values in scores.items()}


def text_ways(texts: Embedding, empty: Embedding, own: Tensor, seed: int = 0) -> dict[str, Row]:
    """The same with the most specific caption of each photograph in its place.

    That caption is left out everywhere: as [ROOT], of what was passed, and of what is looked for.
    ``nearest``: the nearest other text as [ROOT], the control of what inclusion adds.
    """
    asked, others = own[:, -1], own[:, :-1]
    image, plain = texts[asked], certain(texts)
    cosine = image.mean @ texts.mean.mT
    nearest = texts[cosine.scatter(1, asked[:, None], -torch.inf).argmax(1)]
    paths = {
        "cosine, empty": traversal(certain(image), plain, empty),
        "cosine, nearest": traversal(certain(image), plain, nearest),
        "cosine, nearest and empty": traversal(certain(image), plain, _averaged(nearest, empty)),
    }
    if bool((texts.variance > 0).all()):
        most = _other_root(texts, asked)
        both = _averaged(most, empty)
        paths |= {
            "csd, empty": traversal(image, texts, empty),
            "cosine, inclusion": traversal(certain(image), plain, most),
            "cosine, inclusion and empty": traversal(certain(image), plain, both),
            "csd, inclusion and empty": traversal(image, texts, both),
        }
    shift = int(np.random.default_rng(seed).integers(1, len(own)))
    passed = {name: _without(path, asked) for name, path in paths.items()}
    rows = {name: _means(traversal_scores(path, others)) for name, path in passed.items()}
    chance = traversal_scores(passed["cosine, empty"], others.roll(shift, 0))
    return {**rows, "other photograph": _means(chance)}


def feature_ways(photographs: HierarCaps) -> dict[str, Row]:
    """``text_ways`` of the features themselves, without any training."""

    def embedding(features: Tensor) -> Embedding:
        mean = torch.nn.functional.normalize(features, dim=1)
        return Embedding(Gaussian(mean, torch.zeros_like(mean)))

    texts, empty = embedding(photographs.texts), embedding(photographs.empty)
    return text_ways(texts, empty, photographs.own)


def _other_root(texts: Embedding, asked: Tensor) -> Embedding:
    """The text other than ``asked`` that includes the text ``asked`` of each image most."""
    different, rows = asked.unique(return_inverse=True)
    inc = inclusions(texts[different], texts)
    inc = inc.scatter(1, different[:, None], -torch.inf)
    return texts[inc.argmax(1)[rows]]


def _averaged(root: Embedding, empty: Embedding) -> Embedding:
    """Unit means between both; only the mean of a root counts."""
    mean = torch.nn.functional.normalize(root.mean + empty.mean, dim=1)
    return Embedding(Gaussian(mean, root.variance))


def _without(path: Traversal, asked: Tensor) -> Traversal:
    """The caption that was asked for gives way to the text that was passed before it."""
    rows = path.rows.clone()
    for k in range(1, rows.shape[1]):
        rows[:, k] = torch.where(rows[:, k] == asked, rows[:, k - 1], rows[:, k])
    return Traversal(rows)
