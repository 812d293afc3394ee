"""Galleries, queries and OOD inputs on real data, each with a fitted embedder.

fashion-mnist           a dense network trained on all ten classes, which are those of the
                        gallery; OOD inputs from MNIST and KMNIST
fashion-mnist, unseen   trained and fitted on classes 0, 2, 4, 6, 8; the gallery holds 1, 3, 5,
                        7, queries are of these and of 9, which has no match
cifar10                 EfficientNet-Lite0 features as arrays, nothing trained
cifar10, unseen         a linear head 1280 -> 64 on them; classes as above
omniglot                EfficientNet-Lite0 features as arrays, fitted on the background
                        alphabets; gallery of ten drawings of 500 other characters, queries
                        other drawings of them and of 159 characters that it lacks
birds                   EfficientNet-Lite0 features of 100 species (CUB) as arrays, the published
                        split; OOD inputs from photographs of other things and emoji
birds, unseen           fitted on 50 species; gallery and queries are of the other 50, of which
                        the gallery lacks 5
emoji                   EfficientNet-Lite0 features of drawings by subgroup as arrays; queries are
                        other drawings, each in one skin tone and gender
texts                   MiniLM embeddings of SciPy's summaries, labelled by sub-package, three
                        of which the gallery lacks

Four more, only to confirm what was developed on others:

digits                  scikit-learn's digits, pixels as arrays
cell nuclei             Wisconsin's breast cancer table of scikit-learn, standardised columns as
                        arrays: 284 items, 285 queries, two classes
cifar10, corrupted      the gallery of cifar10; every query in one of 15 corruptions, at one of five
                        severities
cifar10, people         half of CIFAR-10's test images as the gallery, the others as queries; the
                        label of each is what one person said
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from benchmarks.corruptions import SEVERITIES, TYPES, corrupted
from benchmarks.datasets import load
from benchmarks.encoders.features import Encoding, encoded, encoded_images, encoded_texts
from benchmarks.encoders.pretrained import EFFICIENTNET_PACKAGES, EfficientNetLite0
from benchmarks.encoders.texts import CLASSES
from benchmarks.examples.texts import UNKNOWN
from laplace_metric import LaplaceEmbedder
from laplace_metric.training import train_embedder

SIDE, GALLERY, N_OOD = 64, 10_000, 2_500
REPORTED, BATCH = TYPES[:15], 100
TRAINED, HELD, MISSING = (0, 2, 4, 6, 8), (1, 3, 5, 7), 9
CHARACTERS, DRAWN = 500, 10
WHOLE, SPECIES, LACKING = 96, 100, 5
"""Pixels of birds and emoji; species of birds, and how many of the unseen the gallery lacks."""
Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """An embedder, its gallery, labelled queries to calibrate and to test, and OOD inputs.

    Parameters
    ----------
    gallery, pool : (inputs [N, ...], labels [N])
    ood : dict of name to inputs
        Of no class at all.
    depth : int
        Neighbours that sets choose from.
    """

    name: str
    embedder: LaplaceEmbedder
    gallery: Labelled
    pool: Labelled
    ood: dict[str, Tensor]
    depth: int = 50


@dataclass(frozen=True)
class Source:
    """Where data come from: the folder of image sets, and a cache of features."""

    data: str | None
    cache: Path

    def features(self, name: str, split: str, limit: int | None = None) -> Labelled:
        """EfficientNet-Lite0 features."""
        size = SIDE if name == "omniglot" else None
        folder = self.cache / "encoded"
        return encoded_images(folder, self.data, name, split, limit, size, progress=False)

    def corrupted(self, limit: int) -> Labelled:
        """EfficientNet-Lite0 features of CIFAR-10's first test images, each corrupted once.

        Image i by corruption ``i mod 15`` at severity ``1 + (i div 15) mod 5``.
        """
        images = load("cifar10", "test", self.data, limit)

        def one(i: int) -> Tensor:
            severity = SEVERITIES[i // len(REPORTED) % len(SEVERITIES)]
            x = images.pixels(slice(i, i + 1))
            return corrupted(x, REPORTED[i % len(REPORTED)], severity, 0, start=i)

        def several(start: int) -> Labelled:
            rows = range(start, min(start + BATCH, limit))
            return torch.cat([one(i) for i in rows]), images.labels[rows.start : rows.stop]

        packages = (*EFFICIENTNET_PACKAGES, "imagecorruptions-imaug")
        name = "cifar10-corrupted"
        key = Encoding("efficientnet-lite0", name, "test", limit, packages, f"side {SIDE}")
        batches = lambda: map(several, range(0, limit, BATCH))  # noqa: E731
        return encoded(key, lambda: EfficientNetLite0(SIDE), batches, self.cache / "encoded", False)

    def whole(self, name: str, split: str) -> Labelled:
        """EfficientNet-Lite0 features of images that are larger than the encoder's."""
        folder = self.cache / "encoded"
        return encoded_images(
            folder, self.data, name, split, None, WHOLE, progress=False, side=WHOLE
        )

    def pixels(self, name: str, split: str, limit: int | None = None) -> Labelled:
        """Grey images [N, 1, 28, 28]."""
        images = load(name, split, self.data, limit)
        return images.pixels(slice(None)), images.labels


def fashion(source: Source) -> Problem:
    """All ten classes, images of other sets beside them."""
    gallery = source.pixels("fashion-mnist", "train", GALLERY)
    pool = source.pixels("fashion-mnist", "test")
    embedder = LaplaceEmbedder(_trained(_dense(), gallery)).fit([gallery], progress=False)
    names = ("mnist", "kmnist")
    ood = {name: source.pixels(name, "test", N_OOD)[0] for name in names}
    return Problem("fashion-mnist", embedder, gallery, pool, ood)


def fashion_unseen(source: Source) -> Problem:
    """Classes that training never saw."""
    train, test = source.pixels("fashion-mnist", "train"), source.pixels("fashion-mnist", "test")
    fitted = _of(train, TRAINED, GALLERY)
    embedder = LaplaceEmbedder(_trained(_dense(), fitted)).fit([fitted], progress=False)
    gallery, pool = _of(train, HELD, GALLERY), _of(test, (*HELD, MISSING))
    return Problem("fashion-mnist, unseen", embedder, gallery, pool, {})


def cifar10(source: Source) -> Problem:
    """Features as arrays, nothing trained."""
    gallery, pool = source.features("cifar10", "train", GALLERY), source.features("cifar10", "test")
    embedder = LaplaceEmbedder.from_embeddings(*gallery, distance="arccos")
    names = ("fashion-mnist", "mnist")
    ood = {name: source.features(name, "test", N_OOD)[0] for name in names}
    return Problem("cifar10", embedder, gallery, pool, ood)


def cifar10_unseen(source: Source) -> Problem:
    """A linear head, classes that it never saw."""
    train, pool = source.features("cifar10", "train", GALLERY), source.features("cifar10", "test")
    fitted = _of(train, TRAINED)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Linear(1280, 64)
    embedder = LaplaceEmbedder(_trained(head, fitted)).fit([fitted], progress=False)
    gallery = _of(train, HELD)
    return Problem("cifar10, unseen", embedder, gallery, _of(pool, (*HELD, MISSING)), {})


def omniglot(source: Source) -> Problem:
    """Many characters that the fit never saw."""
    background, evaluation = (source.features("omniglot", split) for split in ("train", "test"))
    embedder = LaplaceEmbedder.from_embeddings(*background, distance="arccos")
    drawing = _rank_in_class(evaluation[1])
    enrolled = (evaluation[1] < CHARACTERS) & (drawing < DRAWN)
    asked = drawing >= DRAWN
    parts = [tuple(part[rows] for part in evaluation) for rows in (enrolled, asked)]
    ood = {"fashion-mnist": source.features("fashion-mnist", "test", N_OOD)[0]}
    return Problem("omniglot", embedder, parts[0], parts[1], ood, 200)  # type: ignore[arg-type]


def birds(source: Source) -> Problem:
    """Fine-grained classes, features as arrays."""
    gallery, pool = source.whole("cub", "train"), source.whole("cub", "test")
    ood = {name: source.whole(name, "test")[0] for name in ("hierarcaps", "emoji")}
    return Problem(
        "birds", LaplaceEmbedder.from_embeddings(*gallery, distance="arccos"), gallery, pool, ood
    )


def birds_unseen(source: Source) -> Problem:
    """Species that the fit never saw."""
    train, test = source.whole("cub", "train"), source.whole("cub", "test")
    embedder = LaplaceEmbedder.from_embeddings(
        *_of(train, tuple(range(SPECIES // 2))), distance="arccos"
    )
    held = tuple(range(SPECIES // 2, SPECIES))
    return Problem("birds, unseen", embedder, _of(train, held[:-LACKING]), _of(test, held), {})


def emoji(source: Source) -> Problem:
    """Drawings by subgroup."""
    gallery, (x, y) = source.whole("emoji", "train"), source.whole("emoji", "test")
    base = load("emoji", "test", source.data).extras["base"].numpy()
    first = torch.from_numpy(np.sort(np.unique(base, return_index=True)[1]))
    pool = x[first], y[first]
    ood = {"hierarcaps": source.whole("hierarcaps", "test")[0]}
    return Problem(
        "emoji", LaplaceEmbedder.from_embeddings(*gallery, distance="arccos"), gallery, pool, ood
    )


def texts(source: Source) -> Problem:
    """Summaries by sub-package, some of which the gallery lacks."""
    train, test = (
        encoded_texts(source.cache / "encoded", split, False) for split in ("train", "test")
    )
    known = tuple(i for i, name in enumerate(CLASSES) if name not in UNKNOWN)
    gallery = _of(train, known)
    embedder = LaplaceEmbedder.from_embeddings(*gallery, distance="arccos")
    return Problem("texts", embedder, gallery, test, {})


PROBLEMS: dict[str, Callable[[Source], Problem]] = {
    "fashion-mnist": fashion,
    "fashion-mnist, unseen": fashion_unseen,
    "cifar10": cifar10,
    "cifar10, unseen": cifar10_unseen,
    "birds": birds,
    "birds, unseen": birds_unseen,
    "omniglot": omniglot,
    "emoji": emoji,
    "texts": texts,
}


def digits(_: Source) -> Problem:
    """Pixels as arrays."""
    parts = (load("digits", split) for split in ("train", "test"))
    gallery, pool = ((part.pixels(slice(None)).flatten(1), part.labels) for part in parts)
    return Problem(
        "digits", LaplaceEmbedder.from_embeddings(*gallery, distance="arccos"), gallery, pool, {}
    )


def cell_nuclei(_: Source) -> Problem:
    """A small table of numbers."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    items, asked = np.split(order, [len(order) // 2])
    scaled = (x - x[items].mean(0)) / x[items].std(0)
    parts = [(torch.from_numpy(scaled[at]), torch.from_numpy(y[at])) for at in (items, asked)]
    embedder = LaplaceEmbedder.from_embeddings(*parts[0], distance="arccos")
    return Problem("cell nuclei", embedder, parts[0], parts[1], {})


def cifar10_corrupted(source: Source) -> Problem:
    """Queries that are harder than all items."""
    gallery = source.features("cifar10", "train", GALLERY)
    embedder = LaplaceEmbedder.from_embeddings(*gallery, distance="arccos")
    return Problem("cifar10, corrupted", embedder, gallery, source.corrupted(4_000), {})


def cifar10_people(source: Source) -> Problem:
    """Labels on which people differ."""
    x, _ = source.features("cifar10", "test")
    counts = load("cifar10", "test", source.data).extras["cifar10h_counts"].double()
    generator = torch.Generator().manual_seed(0)
    y = torch.multinomial(counts, 1, generator=generator)[:, 0]
    items, asked = torch.randperm(len(y), generator=generator).tensor_split(2)
    gallery = x[items], y[items]
    embedder = LaplaceEmbedder.from_embeddings(*gallery, distance="arccos")
    return Problem("cifar10, people", embedder, gallery, (x[asked], y[asked]), {})


CONFIRMING: dict[str, Callable[[Source], Problem]] = {
    "digits": digits,
    "cell nuclei": cell_nuclei,
    "cifar10, corrupted": cifar10_corrupted,
    "cifar10, people": cifar10_people,
}
"""Nothing was chosen on these."""


def _of(part: Labelled, classes: tuple[int, ...], limit: int | None = None) -> Labelled:
    """Rows of these classes, the first ``limit`` of a fixed order."""
    x, y = part
    rows = torch.isin(y, torch.tensor(classes)).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:limit]]
    return x[rows], y[rows]


def _rank_in_class(labels: Tensor) -> Tensor:
    """How many of its class stand before each row [N]."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels)) - first
    return rank


def _dense() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 64))


def _trained(model: nn.Module, part: Labelled, epochs: int = 5) -> nn.Module:
    """By the contrastive loss, in an order that is the same every time."""
    x, y = part
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        rows = torch.randperm(len(x), generator=generator).split(256)
        batches = [(x[part], y[part]) for part in rows]
        train_embedder(model, batches, ContrastiveLoss(neg_margin=0.5), epochs=1, progress=False)
    return model.eval()
