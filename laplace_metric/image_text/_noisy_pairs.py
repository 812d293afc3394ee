"""Scores that find wrong pairs of a data set, by models that have not seen the image.

A model that was trained on a wrong pair has learnt it. So the images are dealt into K folds; heads
trained on the others score the pairs of a fold (cross-fitting; Northcutt et al. 2021 do so for
labels). Larger says wrong:

    match        -s(i, t)                                       CSD, or the cosine
    other_text   log mean_u exp f(i, u) - f(i, t)               u: all texts
    other_image  log mean_k exp f(k, t) - f(i, t)               k: the images of the fold
    inclusion    -inc(i, t) / D                                 with variances
    ambiguity    tr S_i + tr S_t                                with variances

with ``f = a s + b`` as it was trained. ``match`` is the loss of a pair but for its constants; the
next two ask whether another text of the data set fits the image better, and whether another image
fits the text better. They take away how often an image or a text matches at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import ArrayLike, as_labels, check_count, check_function
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.image_text.objectives._csd import similarities
from laplace_metric.image_text.objectives._inclusion import inclusion_score
from laplace_metric.inputs._by_row import take_inputs

SHARPNESS = 10.0
"""a, for an objective that has none of its own."""


@dataclass(frozen=True)
class PairScores:
    """Scores of P pairs, in the order of ``pairs.pairs``; larger = more likely wrong.

    Parameters
    ----------
    scores : dict of Tensor [P]
        Scores by the names ``match``, ``other_text``, ``other_image``, and with variances
        ``inclusion`` and ``ambiguity``.
    fold : Tensor [P]
        Fold of the image of each pair.
    images : Tensor [P]
        Row of the image of each pair.
    """

    scores: dict[str, Float[Tensor, " P"]]
    fold: Int[Tensor, " P"]
    images: Int[Tensor, " P"]

    def by_image(self) -> dict[str, Float[Tensor, " N"]]:
        """Return the mean over the pairs of each image [N]: for images whose texts are all wrong.

        Examples
        --------
        >>> scores = {"match": torch.tensor([1.0, 3.0, 5.0])}
        >>> PairScores(scores, torch.zeros(3).long(), torch.tensor([0, 0, 1])).by_image()
        {'match': tensor([2., 5.])}
        """
        counts = self.images.bincount()
        return {
            name: torch.zeros(len(counts)).to(values).index_add(0, self.images, values) / counts
            for name, values in self.scores.items()
        }


def noisy_pairs(
    fit: Callable[[ImageTextPairs], ImageTextEmbedder],
    pairs: ImageTextPairs,
    *,
    folds: int = 5,
    groups: ArrayLike | None = None,
    seed: Seed = None,
) -> PairScores:
    """Score every pair by heads that were not fitted to its image; holds [N / K, M] scores.

    Parameters
    ----------
    fit : function of ImageTextPairs
        Function that returns a fitted ``ImageTextEmbedder``; it is called once a fold.
    pairs : ImageTextPairs
        Pairs to be scored.
    folds : int
        Number K of folds, at least 2. Default: 5.
    groups : whole numbers [N] or None
        Group of each image; images of one group, such as near-duplicates, are in one fold. None,
        the default: each image is a group.
    seed : torch.Generator, int or None
        Generator or seed of the folds. None, the default: torch's global generator.

    Raises
    ------
    InputError
        For fewer groups than folds, and arguments of another kind.

    Examples
    --------
    >>> from laplace_metric.models import Precomputed
    >>> pairs = ImageTextPairs(torch.randn(12, 8), torch.eye(3),
    ...                        torch.stack([torch.arange(12), torch.arange(12) % 3], 1))
    >>> def fit(part):
    ...     embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4)
    ...     return embedder.fit(part, epochs=2, progress=False, seed=0)
    >>> found = noisy_pairs(fit, pairs, folds=3, seed=0)
    >>> found.scores["match"].shape, found.fold.unique()
    (torch.Size([12]), tensor([0, 1, 2]))
    """
    check_function("fit", fit, "pairs")
    if not isinstance(pairs, ImageTextPairs):
        raise InputError(f"pairs is a {type(pairs).__name__}: pass ImageTextPairs.")
    fold = _folds(pairs, folds, groups, as_generator(seed))
    images, texts = pairs.pairs.unbind(1)
    parts: list[tuple[Tensor, dict[str, Tensor]]] = []
    for k in range(folds):
        mine = fold == k
        embedder = fit(subset(pairs, ~mine))
        if not isinstance(embedder, ImageTextEmbedder):
            raise InputError(f"fit gave a {type(embedder).__name__}: return ImageTextEmbedder.")
        rows = mine[images].nonzero().flatten()
        own, place = images[rows].unique(return_inverse=True)
        image = embedder.embed_image(take_inputs(pairs.images, own))
        text = embedder.embed_text(pairs.texts)
        parts.append((rows, _scored(embedder, image, text, place, texts[rows])))
    scores = {}
    for name in parts[0][1]:
        values = torch.cat([part[name] for _, part in parts])
        scores[name] = values[torch.cat([rows for rows, _ in parts]).argsort()]
    return PairScores(scores, fold[images], images)


def subset(pairs: ImageTextPairs, keep: Tensor) -> ImageTextPairs:
    """Return some images [N] with their texts; texts without an image fall away.

    Examples
    --------
    >>> pairs = ImageTextPairs.of(["a.png", "b.png"], [["red", "car"], ["red"]])
    >>> subset(pairs, torch.tensor([False, True])).texts
    ['red']
    """
    rows = pairs.pairs[keep[pairs.pairs[:, 0]]]
    images, i = rows[:, 0].unique(return_inverse=True)
    texts, t = rows[:, 1].unique(return_inverse=True)
    return ImageTextPairs(
        take_inputs(pairs.images, images), take_inputs(pairs.texts, texts), torch.stack([i, t], 1)
    )


def _folds(
    pairs: ImageTextPairs, folds: int, groups: ArrayLike | None, generator: torch.Generator | None
) -> Tensor:
    """Return the fold of each image [N]."""
    k = check_count("folds", folds, 2)
    group = torch.arange(pairs.n_images)
    if groups is not None:
        group = as_labels("groups", groups, group[:, None], "images").cpu()
        group = group.unique(return_inverse=True)[1]
    n = int(group.max()) + 1
    if n < k:
        raise InputError(f"folds={k}: there are {n} images or groups of them.")
    return (torch.randperm(n, generator=generator) % k)[group]


def _scored(
    embedder: ImageTextEmbedder, image: Embedding, text: Embedding, i: Tensor, t: Tensor
) -> dict[str, Tensor]:
    """Return every score of the pairs (i, t)."""
    a, b = embedder.fitted_.heads.objective.scale() or (SHARPNESS, 0.0)
    s = similarities(image, text)
    f = a * s + b
    own = f[i, t]
    rows, columns = f.logsumexp(1) - math.log(f.shape[1]), f.logsumexp(0) - math.log(f.shape[0])
    scores = {"match": -s[i, t], "other_text": rows[i] - own, "other_image": columns[t] - own}
    if bool((image.variance > 0).all()):
        scores["inclusion"] = -inclusion_score(image[i], text[t])
        scores["ambiguity"] = image.uncertainty[i] + text.uncertainty[t]
    return scores
