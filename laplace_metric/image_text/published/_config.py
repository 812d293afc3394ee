"""What a published checkpoint is made with: the ``config.json`` beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laplace_metric._utils.validation import check_count, check_positive
from laplace_metric.errors import InputError


@dataclass(frozen=True)
class PublishedTower:
    """Sizes of one tower."""

    width: int
    depth: int
    heads: int
    feedforward: int
    epsilon: float


@dataclass(frozen=True)
class PublishedConfig:
    """Sizes of both towers, and of what they take.

    Parameters
    ----------
    dim : int
        D.
    image, text : PublishedTower
    size, patch : int
        Of images, in pixels.
    length, vocabulary : int
        Of texts, in pieces.
    quick_gelu : bool
        ``x sigmoid(1.702 x)`` in place of GELU.
    """

    dim: int
    image: PublishedTower
    text: PublishedTower
    size: int
    patch: int
    length: int
    vocabulary: int
    quick_gelu: bool

    @property
    def n_patches(self) -> int:
        """Of one image."""
        return (self.size // self.patch) ** 2

    @classmethod
    def of(cls, content: Any) -> PublishedConfig:
        """From the JSON, with the defaults of the published code.

        Raises
        ------
        InputError
            For fields that are missing, or no numbers; and for towers of another kind.
        """
        try:
            image, text = content["vision_cfg"], content["text_cfg"]
            heads = image["width"] // image.get("head_width", 64)
            config = cls(
                check_count("embed_dim", content["embed_dim"], 2),
                _tower(image, heads),
                _tower(text, text.get("heads", 12)),
                check_count("image_size", image["image_size"]),
                check_count("patch_size", image["patch_size"]),
                check_count("context_length", text["context_length"]),
                check_count("vocab_size", text["vocab_size"]),
                bool(content.get("quick_gelu", False)),
            )
            unknown = [tower for tower in (image, text) if not tower.get("embed_unc", False)]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"config.json is not of ProLIP: {error!r}.") from error
        if unknown or image.get("timm_model_name") or text.get("hf_model_name"):
            raise InputError("config.json is of towers without [UNC] tokens: only ProLIP's load.")
        if config.text.width != config.dim:
            raise InputError(
                f"config.json has texts of width {config.text.width} and embed_dim {config.dim}: "
                "published models have both alike, since variances of texts are projected twice."
            )
        return config


def _tower(content: Mapping[str, Any], heads: int) -> PublishedTower:
    width = check_count("width", content["width"])
    ratio = check_positive("mlp_ratio", content.get("mlp_ratio", 4.0))
    epsilon = (content.get("norm_kwargs") or {}).get("eps", 1e-5)
    depth = check_count("layers", content["layers"])
    return PublishedTower(width, depth, check_count("heads", heads), int(width * ratio), epsilon)
