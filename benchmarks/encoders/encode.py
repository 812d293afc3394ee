"""Encode the sets of the benchmarks: ``python -m benchmarks.encoders.encode --data D --cache C``.

EfficientNet-Lite0 on CIFAR-10, Omniglot (evaluation characters) and FashionMNIST, MiniLM on the
summaries of SciPy. What the cache has is not encoded again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from benchmarks.encoders import efficientnet, minilm, texts
from benchmarks.encoders.features import Encoding, encoded
from laplace_metric.datasets import ImageSet, load

SIDE = 64
# (set, split, limit, size that the reader resizes to)
IMAGES: tuple[tuple[str, str, int, int | None], ...] = (
    ("cifar10", "train", 10_000, None),
    ("cifar10", "test", 2_500, None),
    ("omniglot", "test", 2_500, SIDE),
    ("fashion-mnist", "test", 2_500, None),
)

Result = tuple[Tensor, Tensor]


def rgb(images: ImageSet, size: int = 200) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches with three channels; a grey image has three equal ones."""
    for x, y in images.loader(size):
        yield x.expand(-1, 3, -1, -1), y


def encoded_images(
    cache: Path,
    data: str | None,
    dataset: str,
    split: str,
    limit: int | None,
    size: int | None = None,
    progress: bool = True,
    side: int = SIDE,
) -> Result:
    """Features [N, 1280] and labels of one image set, every image resized to ``side`` pixels."""
    options = f"side {side}" + ("" if size is None else f", read at {size}")
    key = Encoding("efficientnet-lite0", dataset, split, limit, efficientnet.PACKAGES, options)
    batches = lambda: rgb(load(dataset, split, data, limit, size=size))  # noqa: E731
    return encoded(key, lambda: efficientnet.EfficientNetLite0(side), batches, cache, progress)


def encoded_texts(cache: Path, split: str, progress: bool = True) -> Result:
    """Features [N, 384] of length 1 and labels of the SciPy summaries."""
    key = Encoding("minilm", "scipy", split, None, (*minilm.PACKAGES, *texts.PACKAGES))
    batches = lambda: texts.load_texts(split).batches(64)  # noqa: E731
    return encoded(key, minilm.MiniLM, batches, cache, progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--cache", required=True, type=Path)
    options = parser.parse_args()
    for dataset, split, limit, size in IMAGES:
        features, _ = encoded_images(options.cache, options.data, dataset, split, limit, size)
        print(dataset, split, list(features.shape))
    for split in texts.SPLITS:
        print("scipy", split, list(encoded_texts(options.cache, split)[0].shape))


if __name__ == "__main__":
    main()
