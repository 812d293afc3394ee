"""Classes as texts: emoji by their subgroups, photographs of CIFAR-10; prompts and a few shots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import encoded_images
from benchmarks.image_text.degraded import SIDE
from benchmarks.image_text.emoji import EmojiProblem, encoded_list
from benchmarks.image_text.questions import Row, rank_correlation
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.image_text import (
    ImageTextEmbedder,
    prompt_filter,
    prompt_weights,
    zero_shot,
)
from laplace_metric.image_text._prompts import by_class
from laplace_metric.image_text.objectives._csd import similarities

TEMPLATES = (
    "{}", "emoji of {}", "a picture of {}", "a drawing of {}", "a photo of {}", "an icon of {}",
    "a cartoon of {}", "a symbol for {}", "things like {}", "a blurry photo of {}",
)  # fmt: skip
SHOTS = (1, 5)
NEAREST, PRIOR = 5, 5.0
"""Images a class and alpha where none has a label (Chun et al. 2025, appendix C.6)."""
BINS = 10


@dataclass(frozen=True)
class ClassProblem:
    """Images to be told apart, and others of the same classes to choose prompts with.

    Parameters
    ----------
    prompts : Tensor [C T, 384]
    images : Tensor [N, 1280]
    labels : Tensor [N]
    shots : Tensor [S, 1280]
        None of them is among ``images``.
    shot_labels : Tensor [S]
    """

    prompts: Tensor
    images: Tensor
    labels: Tensor
    shots: Tensor
    shot_labels: Tensor


def emoji_subgroups(problem: EmojiProblem, cache: Path, data: str | None) -> ClassProblem:
    """Test drawings by the names of their subgroups; shots are training drawings."""
    names = [name.split(" > ")[-1] for name in load("emoji", "test", data, 1, size=8).class_names]
    test, train = problem.parts["test"], problem.parts["train"]
    present, labels = test.subgroup.unique(return_inverse=True)
    prompts = _prompts(cache, "emoji subgroups", [names[c] for c in present.tolist()])
    kept = torch.isin(train.subgroup, present)
    place = torch.searchsorted(present, train.subgroup[kept])
    return ClassProblem(prompts, test.features, labels, train.features[kept], place)


def cifar10(cache: Path, data: str | None, limit: int | None) -> ClassProblem:
    """Test photographs; every tenth gives shots and is not evaluated."""
    where = (cache, data, "cifar10", "test", limit)
    images, labels = encoded_images(*where, progress=False, side=SIDE)
    names = load("cifar10", "test", data, 1).class_names
    for_shots = torch.arange(len(images)) % 10 == 0
    rest = ~for_shots
    parts = images[rest], labels[rest], images[for_shots], labels[for_shots]
    return ClassProblem(_prompts(cache, "cifar10 classes", names), *parts)


def _prompts(cache: Path, name: str, classes: list[str] | tuple[str, ...]) -> Tensor:
    words = [own.replace("-", " ").lower() for own in classes]
    return encoded_list(cache, name, [t.format(own) for own in words for t in TEMPLATES])


def told_apart(embedder: ImageTextEmbedder, problem: ClassProblem, seed: int) -> Row:
    """Accuracy of one prompt, of all, of the most certain half, and with weights from K shots.

    K = 0 takes the nearest images, whatever their class.

    ``mean of K shots`` uses no text: the class whose K images are nearest on average, which is
    what K labelled images give by themselves.
    """
    t = len(TEMPLATES)
    image, prompts = embedder.embed_image(problem.images), embedder.embed_text(problem.prompts)

    def right(similarity: Tensor) -> Tensor:
        return (similarity.argmax(1) == problem.labels).double()

    def accuracy(similarity: Tensor) -> float:
        return float(right(similarity).mean())

    row = {
        "one prompt": accuracy(zero_shot(image, prompts[torch.arange(0, len(prompts), t)])),
        "all prompts": accuracy(zero_shot(image, prompts, t)),
        "chance": float(problem.labels.bincount().double().max() / len(problem.labels)),
    }
    if bool((prompts.variance > 0).all()):
        kept = prompt_filter(prompts, t, t // 2)
        row["most certain half"] = accuracy(zero_shot(image, prompts, t, kept))
        printed = similarities(image, printed_ensemble(prompts, t))
        row["all prompts, mean variance"] = accuracy(printed)
        pi = unlabelled_weights(embedder.embed_image(problem.shots), prompts, t, seed)
        row["weights, 0 shots"] = accuracy(zero_shot(image, prompts, t, pi))
        row |= by_uncertainty(image.uncertainty, right(printed))
    for k in SHOTS:
        rows = few(problem.shot_labels, k, seed)
        shots, labels = embedder.embed_image(problem.shots[rows]), problem.shot_labels[rows]
        if bool((prompts.variance > 0).all()):
            pi = prompt_weights(shots, labels, prompts, t, seed=seed)
            row[f"weights, {k} shots"] = accuracy(zero_shot(image, prompts, t, pi))
        row[f"mean of {k} shots"] = accuracy(image.mean @ _class_means(shots, labels, prompts).mT)
    return row


def printed_ensemble(prompts: Embedding, templates: int) -> Embedding:
    """Classes as N(mean of the means, mean of the variances) (Chun et al. 2025, section 4.2).

    ``class_embeddings`` has the variance of an average instead, and makes the mean unit length.
    """
    mu, variance = by_class(prompts, templates)
    return Embedding(Gaussian(mu.mean(1), variance.mean(1)))


def unlabelled_weights(image: Embedding, prompts: Embedding, templates: int, seed: int) -> Tensor:
    """Weights [C, T] without labels: the images nearest to a class count as images of it (K = 0).

    The nearest are the most similar to all prompts of the class; one image may count for several.
    """
    near = zero_shot(image, prompts, templates).topk(min(NEAREST, len(image.mean)), dim=0).indices
    labels = torch.arange(near.shape[1]).repeat_interleave(len(near))
    shots = image[near.mT.flatten()]
    return prompt_weights(shots, labels, prompts, templates, alpha=PRIOR, seed=seed)


def by_uncertainty(uncertainty: Tensor, right: Tensor) -> Row:
    """Accuracy in ten bins of equally many images, and Spearman of bin and accuracy (C.7)."""
    bins = [float(rows.mean()) for rows in right[uncertainty.argsort()].tensor_split(BINS)]
    return {
        "bins: spearman": rank_correlation(np.arange(BINS), np.array(bins)),
        **{f"bin {k + 1}": value for k, value in enumerate(bins)},
    }


def few(labels: Tensor, k: int, seed: int) -> Tensor:
    """Up to k rows of each class, at random."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rows = [order[labels[order] == c][:k] for c in labels.unique().tolist()]
    return torch.cat(rows)


def _class_means(shots: Embedding, labels: Tensor, prompts: Embedding) -> Tensor:
    """Unit means [C, D]; zero for a class without shots."""
    sums = torch.zeros(len(prompts) // len(TEMPLATES), shots.mean.shape[1])
    return torch.nn.functional.normalize(sums.index_add(0, labels, shots.mean), dim=1)
