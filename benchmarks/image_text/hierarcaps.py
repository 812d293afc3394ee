"""HierarCaps: photographs with four captions from general to specific; nothing is trained on it.

Asked of embeddings that were trained elsewhere: does the way from [ROOT] to a photograph lead past
its own captions?
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
from benchmarks.image_text.emoji import encoded_list
from benchmarks.image_text.questions import Row
from benchmarks.image_text.traversal import (
    inclusion_root,
    inclusions,
    traversal,
    traversal_scores,
)
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.image_text.objectives._csd import similarities


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
    """

    images: Tensor
    texts: Tensor
    empty: Tensor
    own: Tensor


def load_hierarcaps(cache: Path, data: str | None, limit: int | None = None) -> HierarCaps:
    """Read and encode (once: the cache keeps the features)."""
    where = (cache, data, "hierarcaps", "test", limit, SIDE)
    images, _ = encoded_images(*where, progress=False, side=SIDE)
    levels = captions("hierarcaps", "test", data, limit)
    place: dict[str, int] = {}
    own = [[place.setdefault(text, len(place)) for text in texts] for texts in levels]
    features = encoded_list(cache, "hierarcaps captions", ["", *place])
    return HierarCaps(images, features[1:], features[:1], torch.tensor(own))


def certain(embedding: Embedding) -> Embedding:
    """The same means without variances."""
    return Embedding(Gaussian(embedding.mean, torch.zeros_like(embedding.mean)))


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


def _other_root(texts: Embedding, asked: Tensor) -> Embedding:
    """The text other than ``asked`` that includes the text ``asked`` of each image most."""
    different, rows = asked.unique(return_inverse=True)
    inc = inclusions(texts[different], texts)
    inc = inc.scatter(1, different[:, None], -torch.inf)
    return texts[inc.argmax(1)[rows]]
