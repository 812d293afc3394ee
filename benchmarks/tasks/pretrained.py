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
    if_there,
    ood_sets,
    square,
)
from benchmarks.tasks.grey import of_classes
from benchmarks.tasks.task import Part, Task, Workspace
from laplace_metric.heads._locate import identity_head

OMNIGLOT = 5_000
UNKNOWN = 3
"""Sub-packages of SciPy that the fit never sees."""


def identity(size: int, _embedding_size: int) -> nn.Sequential:
    """A linear layer that changes nothing yet."""
    return nn.Sequential(identity_head(size, torch.empty(0)))


def halved(part: Part, seed: int) -> Part:
    """A random half."""
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))
    return part.subset(order[: len(part) // 2])


def half_of_classes(part: Part, seed: int) -> Part:
    """All rows of a random half of the classes, where each has a few."""
    classes = part.labels.unique()
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return of_classes(part, classes[order[: len(order) // 2]].tolist())


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


def omniglot(space: Workspace, seed: int) -> Task:
    """EfficientNet-Lite0 on Omniglot: fitted on background characters, asked with others."""
    n, side = space.size.queries, space.size.side
    background = features_of(space, "omniglot", "train", OMNIGLOT, size=side)
    characters = background.labels.unique()
    order = torch.randperm(len(characters), generator=torch.Generator().manual_seed(seed))
    held = of_classes(background, characters[order[: len(order) // 5]].tolist())
    train = of_classes(background, characters[order[len(order) // 5 :]].tolist())
    return _task(
        "pretrained-omniglot",
        "Omniglot through EfficientNet-Lite0, no training: characters that the fit never saw",
        train,
        half_of_classes(features_of(space, "omniglot", "test", n, size=side), seed),
        {name: features_of(space, name, "test", n) for name in OOD_SETS},
        FEATURES,
        held,
        new_classes=True,
    ).shown(n // 2)


def cub(space: Workspace, seed: int) -> Task:
    """EfficientNet-Lite0 on birds: the species that are asked are those of the fit."""
    train, test = (halved(square(space, "cub", split), seed) for split in ("train", "test"))
    return _task(
        "pretrained-cub",
        "100 species of CUB through EfficientNet-Lite0, no training",
        train,
        test,
        if_there(space, "hierarcaps", "emoji") or ood_sets(space),
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


def emoji(space: Workspace, seed: int) -> Task:
    """EfficientNet-Lite0 on emoji by subgroup; no drawing is in two parts.

    Queries are one emoji a base: another skin tone of a drawing is too easy a neighbour.
    """
    train, test = (square(space, "emoji", split) for split in ("train", "test"))
    fitted, held = by_base(by_base(train, 1 / 2, seed)[0], 4 / 5, 0)
    n = space.size.queries
    drawings = features_of(space, "omniglot", "test", n, size=space.size.side)
    return _task(
        "pretrained-emoji",
        "emoji by subgroup through EfficientNet-Lite0, no training: drawings that the fit saw in "
        "no skin tone or gender",
        fitted,
        one_a_base(test),
        {"omniglot": drawings, **if_there(space, "hierarcaps")},
        FEATURES,
        one_a_base(held),
    ).shown(n // 2)


def one_a_base(part: Part) -> Part:
    """The first emoji of each base."""
    assert part.images is not None
    base = part.images.extras["base"]
    order = base.argsort(stable=True)
    first = torch.ones_like(base, dtype=torch.bool)
    first[1:] = base[order][1:] != base[order][:-1]
    return part.subset(order[first].sort().values)


def by_base(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """All emoji of a random share of the bases, and those of the others."""
    assert part.images is not None
    base = part.images.extras["base"]
    bases = base.unique()
    order = torch.randperm(len(bases), generator=torch.Generator().manual_seed(seed))
    chosen = torch.isin(base, bases[order[: round(share * len(bases))]])
    return part.subset(chosen), part.subset(~chosen)


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
