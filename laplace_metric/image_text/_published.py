"""Published checkpoints of ProLIP: ``load_prolip`` reads config, towers and heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text.towers._prolip_towers import (
    PublishedImages,
    PublishedTexts,
    Tokenizer,
)
from laplace_metric.image_text.towers._towers import FittedHeads

WEIGHTS, CONFIG = "model.safetensors", "config.json"


class Published(nn.Module):
    """A checkpoint: its ``state_dict`` has the published names and shapes.

    ``content`` is that of ``config.json``.

    Raises
    ------
    InputError
        For fields that are missing, or no numbers; and for towers of another kind.
    """

    def __init__(self, content: Any, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        try:
            self.dim = check_count("embed_dim", content["embed_dim"], 2)
            quick = bool(content.get("quick_gelu", False))
            self.visual = PublishedImages(content["vision_cfg"], self.dim, quick=quick)
            self.text = PublishedTexts(content["text_cfg"], self.dim, tokenizer, quick=quick)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"config.json is not of ProLIP: {error!r}.") from error
        self.logit_scale, self.logit_bias = (nn.Parameter(torch.zeros(())) for _ in range(2))


def load_prolip(
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    prior_precision: float = 1.0,
    n_effective: float | None = None,
) -> ImageTextEmbedder:
    """Load a published checkpoint of ProLIP, such as ProLIP-ViT-B-16-DC-1B-12_8B, ready to embed.

    Means, variances, scale and offset are those of the published code (github.com/naver-ai/prolip),
    to rounding; its output "std" is ``log v``. There is no posterior, so that ``weight_variance``
    is an error until ``fit_posterior(pairs)`` with pairs of your own.

    Parameters
    ----------
    path : path
        Folder with ``model.safetensors`` and ``config.json``, as on the model hub, or such a file
        with its config next to it. Weights become float32.
    tokenizer : function or None
        Function from a list of B texts to numbers of pieces [B, L], padded to the length of the
        config; for most checkpoints that of "timm/ViT-B-16-SigLIP", of texts in lower case without
        punctuation. None, the default: ``embed_text`` takes the numbers.
    prior_precision, n_effective
        Settings of the posterior, as of ``ImageTextEmbedder``. Default: 1 and None.

    Raises
    ------
    FileFormatError
        For a file that is missing, damaged, no safetensors, or has other tensors than a ProLIP.
    InputError
        For a config of another model.

    Examples
    --------
    >>> embedder = load_prolip("ProLIP-ViT-B-16-DC-1B-12_8B", tokenizer)  # doctest: +SKIP
    >>> embedder.embed_image(images).uncertainty  # images [B, 3, 224, 224]  # doctest: +SKIP
    """
    path = as_path("path", path)
    weights = path / WEIGHTS if path.is_dir() else path
    if weights.suffix != ".safetensors":
        raise FileFormatError(
            f"{weights} is no safetensors file: other formats are pickles, which run what they "
            "hold, and are not read. Take model.safetensors of the same model."
        )
    try:
        content = json.loads((weights.parent / CONFIG).read_bytes())
        tensors = {name: tensor.float() for name, tensor in load_file(weights).items()}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"the checkpoint in {weights.parent} cannot be read: {error}. It has {WEIGHTS} and "
            f"{CONFIG}, as on the model hub."
        ) from error
    with torch.device("meta"):  # names and shapes only
        published = Published(content, tokenizer)
        embedder = ImageTextEmbedder(
            published.visual,
            published.text,
            published.dim,
            tokens="uncertainty",
            layer_norm=False,
            prior_precision=prior_precision,
            n_effective=n_effective,
        )
        heads = embedder._new_heads((published.visual.width, published.text.width))
    try:
        published.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise FileFormatError(f"{weights} is not of the ProLIP of its {CONFIG}: {error}") from error
    published.eval().requires_grad_(False)
    heads.load_state_dict(_state_of_heads(tensors), assign=True)
    embedder._fitted = FittedHeads(heads.eval())
    return embedder


def _state_of_heads(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return projections, scale and offset; the mean of an image has no offset: zeros."""
    weight = tensors["visual.proj"].mT.contiguous()
    heads = {
        "image.mean.weight": weight,
        "image.mean.bias": torch.zeros(len(weight)),
        "objective.log_a": tensors["logit_scale"],
        "objective.b": tensors["logit_bias"],
    }
    for ours, theirs in (
        ("image.log_variance", "visual.uncertainty_proj"),
        ("text.mean", "text.text_projection"),
        ("text.log_variance", "text.text_uncertainty_projection"),
    ):
        for part in ("weight", "bias"):
            heads[f"{ours}.{part}"] = tensors[f"{theirs}.{part}"]
    return heads
