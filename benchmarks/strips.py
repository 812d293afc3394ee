"""Queries of both ends of an uncertainty, with their neighbours as pictures."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from laplace_metric.datasets import ImageSet


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


def strips(
    uncertainty: Tensor, neighbours: Tensor, images: ImageSet, shown: int
) -> tuple[list[Strip], list[Strip]]:
    """Up to ``shown`` queries from both ends of uncertainty [Q], with neighbours [Q, k] (rows)."""
    order = uncertainty.argsort(stable=True).cpu()
    shown = min(shown, len(order) // 2)
    certain, unsure = (
        [strip(f"{float(uncertainty[row]):.3g}", row, neighbours[row], images) for row in end]
        for end in (order[:shown].tolist(), order.flip(0)[:shown].tolist())
    )
    return certain, unsure


def strip(caption: str, query: int, neighbours: Tensor, images: ImageSet) -> Strip:
    """A query (a row of ``images``) and its neighbours [k] (rows), with a caption beside them."""
    labels, names = images.labels, images.class_names
    pictures = [
        Picture(
            data_uri(images.pixels(slice(row, row + 1))[0]),
            names[int(labels[row])],
            None if place == 0 else bool(labels[row] == labels[query]),
        )
        for place, row in enumerate([query, *neighbours.cpu().tolist()])
    ]
    return Strip(caption, tuple(pictures))


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
