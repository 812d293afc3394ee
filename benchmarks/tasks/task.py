"""One task: parts of data sets, the network that learns to embed them, and where data lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.sizes import Size
from laplace_metric.datasets import ImageSet


@dataclass(frozen=True)
class Workspace:
    """What every task and every run is given.

    Parameters
    ----------
    data : path or None
        Folder of the image sets; None: the environment variable ``LAPLACE_METRIC_DATA``.
    cache : Path
        Finished runs, trained networks and encoded images.
    size : Size
    download : bool
        Whether missing image sets are fetched.
    """

    data: str | None
    cache: Path
    size: Size
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    download: bool = False
    progress: bool = True

    def load(self, name: str, split: str, limit: int | None = None, **options: int) -> ImageSet:
        """An image set of the data folder."""
        return load(name, split, self.data, limit, download=self.download, **options)  # type: ignore[arg-type]

    def generator(self, seed: int) -> torch.Generator:
        """Draws on the device of the tensors."""
        return torch.Generator(self.device).manual_seed(seed)


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs of a network with their labels, and what they look like.

    Parameters
    ----------
    inputs : Tensor [N, ...]
        uint8 pixels, which networks see as float32 in [0, 1], or float32 features.
    labels : Tensor [N]
    images : ImageSet or None
        Row by row, to be looked at.
    soft : Tensor [N, C] or None
        Probabilities of the labels; each batch then draws labels anew.
    """

    inputs: Tensor
    labels: Tensor
    images: ImageSet | None = None
    soft: Tensor | None = None

    @classmethod
    def of(cls, images: ImageSet) -> Part:
        """Pixels."""
        return cls(images.images, images.labels, images)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """What a network is given for some rows."""
        x = self.inputs[rows]
        return x.float() / 255 if x.dtype == torch.uint8 else x

    @property
    def digest(self) -> str:
        """Twelve letters that stand for the pixels."""
        assert self.images is not None
        pixels = self.images.images.contiguous().numpy().tobytes()
        return hashlib.sha256(pixels).hexdigest()[:12]

    def subset(self, rows: Tensor) -> Part:
        """Some rows (numbers, or a mask [N]), in that order."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().flatten()
        return Part(
            self.inputs[rows],
            self.labels[rows],
            None if self.images is None else self.images.subset(rows),
            None if self.soft is None else self.soft[rows],
        )

    def spread(self, n: int) -> Part:
        """At most n rows, evenly spaced."""
        if n >= len(self):
            return self
        return self.subset(torch.arange(n) * len(self) // n)

    def loader(self, size: int = 250) -> Batches:
        """Batches in order, as often as they are asked for."""
        return Batches(self, size)


@dataclass(frozen=True, eq=False)
class Batches:
    """(inputs, labels) of a part, in order."""

    part: Part
    size: int

    def __len__(self) -> int:
        return -(-len(self.part) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(len(self.part)).split(self.size):
            yield self.part.read(rows), self.part.labels[rows]


def together(one: Part, other: Part) -> Part:
    """One after the other; the labels mean the same in both."""
    images = None
    if one.images is not None and other.images is not None:
        a, b = one.images, other.images
        pixels, labels = torch.cat([a.images, b.images]), torch.cat([a.labels, b.labels])
        images = ImageSet(pixels, labels, f"{a.name} and {b.name}", a.class_names)
    inputs, labels = torch.cat([one.inputs, other.inputs]), torch.cat([one.labels, other.labels])
    return Part(inputs, labels, images)


def joined(*parts: Part) -> Part:
    """One after the other, with the labels of each kept apart."""
    first = 0
    labels = []
    for part in parts:
        labels.append(part.labels + first)
        first += int(part.labels.max()) + 1
    return Part(torch.cat([part.inputs for part in parts]), torch.cat(labels))


@dataclass(frozen=True, eq=False)
class Task:
    """Train on one part, choose on another, be asked once with a third.

    Parameters
    ----------
    name, words : str
    train, validation, test : Part
        In an open set the three have different classes.
    out : mapping of str to Part
        OOD inputs.
    network : function of Z
        A new network with the weights of torch's global generator.
    whole : Part or None
        The test part before it was thinned to what is asked.
    seen : Part or None
        Other images of the training classes, where the test classes are new.
    encode : function of a name and of a function that makes images, or None
        What a network is given for new images; None: the images.
    per_class : int or None
        Images of one class in a batch, where classes are many.
    own_tuning : bool
        Whether each seed chooses its settings on its own validation part.
    tuned_on : str or None
        The task whose choices are taken instead.
    pretrained : bool
        Whether ``network`` needs no training: post-hoc methods are put on it as it is.
    """

    name: str
    words: str
    train: Part
    validation: Part
    test: Part
    out: Mapping[str, Part]
    network: Callable[[int], nn.Sequential]
    seen: Part | None = None
    whole: Part | None = None
    encode: Callable[[str, Callable[[], Tensor]], Tensor] | None = None
    per_class: int | None = None
    own_tuning: bool = False
    tuned_on: str | None = None
    pretrained: bool = False

    def made(self, key: str, images: Callable[[], Tensor]) -> Tensor:
        """What a network is given for images [N, C, H, W] in [0, 1] that are made, not read.

        ``key`` names them: ``images`` is not called where their encoding is in the cache.
        """
        return images() if self.encode is None else self.encode(key, images)

    def shown(self, n: int) -> Task:
        """With at most n images in each part that is asked or out of distribution."""
        return replace(
            self,
            validation=self.validation.spread(n),
            test=self.test.spread(n),
            out={name: part.spread(n) for name, part in self.out.items()},
            seen=None if self.seen is None else self.seen.spread(n),
            whole=self.test,
        )
