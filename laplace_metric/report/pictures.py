"""Queries with their nearest neighbours, as pictures inside the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from laplace_metric.datasets import ImageSet
from laplace_metric.evaluation_protocol import MethodResult

SHOWN = 5
"""Queries shown at each end."""


@dataclass(frozen=True)
class Picture:
    """One image as a data URI, its class, and whether it is the query's (None: the query)."""

    uri: str
    label: str
    right: bool | None


@dataclass(frozen=True)
class Strip:
    """A query and its neighbours, nearest first."""

    uncertainty: str
    pictures: tuple[Picture, ...]


def gallery(result: MethodResult, images: ImageSet) -> tuple[list[Strip], list[Strip]]:
    """The most certain queries and the least certain ones, most extreme first."""
    return strips(result.queries.uncertainty, result.neighbours.indices, images, SHOWN)


def strips(
    uncertainty: Tensor, neighbours: Tensor, images: ImageSet, shown: int
) -> tuple[list[Strip], list[Strip]]:
    """Up to ``shown`` queries from both ends of uncertainty [Q], with neighbours [Q, k] (rows)."""
    order = uncertainty.argsort(stable=True).cpu()
    shown = min(shown, len(order) // 2)
    ends = (order[:shown], order.flip(0)[:shown])
    certain, unsure = (
        [strip(f"{float(uncertainty[row]):.3g}", int(row), neighbours[row], images) for row in end]
        for end in ends
    )
    return certain, unsure


def strip(caption: str, query: int, neighbours: Tensor, images: ImageSet) -> Strip:
    """A query (a row) with other rows, and what stands beside it."""
    own = int(images.labels[query])
    pictures = [Picture(data_uri(_pixels(images, query)), images.class_names[own], None)]
    for row in neighbours.cpu().tolist():
        label = int(images.labels[row])
        uri = data_uri(_pixels(images, row))
        pictures.append(Picture(uri, images.class_names[label], label == own))
    return Strip(caption, tuple(pictures))


def _pixels(images: ImageSet, row: int) -> Tensor:
    return images.pixels(slice(row, row + 1))[0]


def data_uri(image: Tensor) -> str:
    """A PNG of an image [C, H, W] in [0, 1], C = 1 or 3.

    Examples
    --------
    >>> data_uri(torch.zeros(1, 2, 2))[:22]
    'data:image/png;base64,'
    """
    pixels = (image.detach().cpu() * 255).round().clamp(0, 255).to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
