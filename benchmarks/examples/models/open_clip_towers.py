"""Both towers of an open_clip model: ``python -m benchmarks.examples.models.open_clip_towers``.

A CLIP ends in a matrix that is no layer, so each tower gets an identity-initialised linear layer
after it. Weights are random here; with the internet, ``open_clip.create_model`` has trained ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import open_clip
import torch

from benchmarks.examples.summary import shapes_and_times
from laplace_metric import LaplaceEmbedder
from laplace_metric.models import Call

NAME = "ViT-S-32-alt"


def run(n: int = 8) -> Iterator[str]:
    """What is said of the image tower, then of the text tower."""
    clip = open_clip.create_model(NAME)
    images = torch.rand(n, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    tokens = open_clip.get_tokenizer(NAME)([f"a photograph of {i} cats" for i in range(n)])
    for method, inputs in (("encode_image", images), ("encode_text", tokens)):
        embedder = LaplaceEmbedder(Call(clip, method, normalize=True), head="append")
        yield shapes_and_times(f"open_clip {NAME}, {method}", embedder, inputs, n)


if __name__ == "__main__":
    print(*run(), sep="\n")
