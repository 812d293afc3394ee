"""No training at all: an encoder as it comes, and one linear layer that starts as the identity.

A seed takes another half of the queries and of what is fitted; of the texts and of the birds with
unknown species, other unknown classes.
Embeddings are ten times as wide as elsewhere, so that half as many queries are asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.encoders.features import encoded_texts
from benchmarks.encoders.texts import CLASSES
from benchmarks.tasks.frozen import (
    FEATURES,
    OOD_SETS,
    SPECIES,
    features_of,
    square,
)
from benchmarks.tasks.grey import of_classes
from benchmarks.tasks.task import Part, Task, Workspace
from laplace_metric.heads._locate import identity_head

UNKNOWN = 3
"""Sub-packages of SciPy that the fit never sees."""


def identity(size: int, _embedding_size: int) -> nn.Sequential:
    """A linear layer that changes nothing yet."""
    return nn.Sequential(identity_head(size, torch.empty(0)))


def halved(part: Part, seed: int) -> Part:
    """A random half."""
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))
    return part.subset(order[: len(part) // 2])


def cifar10(space: Workspace, seed: int) -> Task:
    """EfficientNet-Lite0 on CIFAR-10."""
    train = halved(features_of(space, "cifar10", "train", space.size.train), seed)
    test = features_of(space, "cifar10", "test")
    return _task(
        "pretrained-cifar10",
        "CIFAR-10 through EfficientNet-Lite0, no training",
        train,
        halved(test, seed),
        {name: features_of(space, name, "test", space.size.queries) for name in OOD_SETS},
        FEATURES,
    ).shown(space.size.queries // 2)


def cub_unseen(space: Workspace, seed: int) -> Task:
    """EfficientNet-Lite0 on birds: half of the species are kept away."""
    train, test = (square(space, "cub", split) for split in ("train", "test"))
    generator = torch.Generator().manual_seed(seed)
    known, new = torch.randperm(SPECIES, generator=generator).tensor_split(2)
    return _task(
        "pretrained-cub-unseen",
        "CUB through EfficientNet-Lite0, no training: 50 of 100 species are kept away",
        of_classes(train, known.tolist()),
        of_classes(test, known.tolist()),
        {"new species": of_classes(test, new.tolist())},
        FEATURES,
    ).shown(space.size.queries // 2)


def texts(space: Workspace, seed: int) -> Task:
    """MiniLM on what SciPy's functions say they do; some sub-packages are kept away."""
    train, test = (
        Part(*encoded_texts(space.cache / "encoded", split, space.progress))
        for split in ("train", "test")
    )
    order = torch.randperm(len(CLASSES), generator=torch.Generator().manual_seed(seed)).tolist()
    unknown, known = order[:UNKNOWN], order[UNKNOWN:]
    return _task(
        "pretrained-text",
        f"summaries of SciPy's functions through MiniLM, no training: {UNKNOWN} of "
        f"{len(CLASSES)} sub-packages are kept away",
        of_classes(train, known),
        of_classes(test, known),
        {"unknown sub-packages": of_classes(test, unknown)},
        train.inputs.shape[1],
    )


def digits(space: Workspace, seed: int) -> Task:
    """Pixels of scikit-learn's digits as if they were embeddings."""
    parts = [Part.of(space.load("digits", split)) for split in ("train", "test")]
    ood = Part.of(space.load("photographs", "test"))
    train, test, out = (Part(p.inputs.flatten(1), p.labels, p.images) for p in (*parts, ood))
    return _task(
        "pretrained-digits", "pixels of digits, no training", halved(train, seed),
        halved(test, seed), {"photographs": out}, 64,
    ).shown(space.size.queries // 2)  # fmt: skip


def _task(
    name: str,
    words: str,
    fitted: Part,
    test: Part,
    out: dict[str, Part],
    size: int,
    validation: Part | None = None,
    new_classes: bool = False,
) -> Task:
    """A fifth of what could be fitted validates, unless another part is there for it."""
    if validation is None:
        order = torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0))
        held = len(fitted) // 5
        fitted, validation = fitted.subset(order[held:]), fitted.subset(order[:held])
    network: Callable[[int], nn.Sequential] = partial(identity, size)
    return Task(
        name, words, fitted, validation, test, out, network,
        new_classes=new_classes, own_tuning=True, pretrained=True,
    )  # fmt: skip
