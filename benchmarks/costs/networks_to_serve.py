"""Models that ``--model`` of the commands names, for the load test of the server."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.encoders.pretrained import EfficientNetLite0, minilm_folder
from laplace_metric.models import Sentences


def small_network() -> nn.Module:
    """[B, 1, 28, 28] -> [B, 16]; as it is before any training, since only its time is measured."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16))


def efficientnet() -> nn.Module:
    """[B, 3, H, W] -> [B, 1280], scaled to 224 pixels."""
    return EfficientNetLite0(224)


def minilm() -> nn.Module:
    """Texts -> [B, 384], by the MiniLM of the extra ``pretrained``."""
    from sentence_transformers import SentenceTransformer

    return Sentences(SentenceTransformer(minilm_folder(), device="cpu"))
