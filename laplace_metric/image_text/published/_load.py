"""From a file of published weights to an ``ImageTextEmbedder``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._fit import FittedHeads, new_heads
from laplace_metric.image_text._settings import HeadSettings
from laplace_metric.image_text._training import TwoHeads
from laplace_metric.image_text.published._config import PublishedConfig
from laplace_metric.image_text.published._names import check_tensors, renamed
from laplace_metric.image_text.published._towers import (
    PublishedImages,
    PublishedTexts,
    Tokenizer,
)

WEIGHTS, CONFIG = "model.safetensors", "config.json"
TOKENS = {"visual.": ("class_embedding", "unc_embedding"), "text.": ("cls_emb", "unc_emb")}
HEADS = ("proj", "uncertainty_proj", "text_uncertainty_projection")


def load_prolip(
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    structure: str = HeadSettings.structure,
    prior_precision: float = HeadSettings.prior_precision,
    n_effective: float | None = HeadSettings.n_effective,
) -> ImageTextEmbedder:
    """A published checkpoint of ProLIP, such as ProLIP-ViT-B-16-DC-1B-12_8B, ready to embed.

    Means, variances, scale and offset are those of the published code (github.com/naver-ai/prolip),
    to rounding; its output "std" is ``log v``. There is no posterior, so that ``epistemic`` is an
    error until ``fit_posterior(pairs)`` with pairs of your own.

    Parameters
    ----------
    path : path
        A folder with ``model.safetensors`` and ``config.json``, as on the model hub, or such a
        file with its config beside it. Weights become float32.
    tokenizer : function or None
        A list of B texts -> numbers of pieces [B, L], padded to the length of the config; for most
        checkpoints that of "timm/ViT-B-16-SigLIP", of texts in lower case without punctuation.
        None: ``embed_text`` takes the numbers.
    structure, prior_precision, n_effective
        Of the posterior, as of ``ImageTextEmbedder``.

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
    weights, config = _places(as_path("path", path))
    made_with = PublishedConfig.of(_json(config))
    tensors = _tensors(weights)
    check_tensors(str(weights), tensors, made_with)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    with torch.random.fork_rng(devices=[]):  # first weights, which are not kept
        towers = PublishedImages(made_with), PublishedTexts(made_with, tokenizer)
        embedder = ImageTextEmbedder(
            *towers,
            made_with.dim,
            tokens="uncertainty",
            layer_norm=False,
            structure=structure,
            prior_precision=prior_precision,
            n_effective=n_effective,
        )
        sizes = made_with.image.width, made_with.text.width
        heads = new_heads(sizes, embedder.objective, embedder.settings)
    for tower, prefix in zip(towers, TOKENS, strict=True):
        tower.load_state_dict(_of_tower(tensors, prefix))
        tower.eval().requires_grad_(False)
    _fill(heads, tensors)
    embedder._fitted = FittedHeads(heads.eval())
    return embedder


def _places(path: Path) -> tuple[Path, Path]:
    """Of the weights and of the config."""
    weights = path / WEIGHTS if path.is_dir() else path
    if weights.suffix != ".safetensors":
        raise FileFormatError(
            f"{weights} is no safetensors file: other formats are pickles, which run what they "
            "hold, and are not read. Take model.safetensors of the same model."
        )
    if not weights.is_file():
        raise FileFormatError(f"{weights} is not there: pass the folder of a checkpoint.")
    return weights, weights.parent / CONFIG


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FileFormatError(
            f"{path} cannot be read ({error.strerror}): it lies beside the weights on the hub, and "
            "says how many heads they have."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error


def _of_tower(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The state of a tower, by the names of its module."""
    own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    state = {"tokens": torch.stack([own.pop(name) for name in TOKENS[prefix]])}
    own = {name: tensor for name, tensor in own.items() if name.partition(".")[0] not in HEADS}
    return state | {renamed(name): tensor for name, tensor in own.items()}


@torch.no_grad()
def _fill(heads: TwoHeads, tensors: dict[str, Tensor]) -> None:
    """Projections, scale and offset; the mean of an image has no offset, so that its is 0."""
    image, text = "visual.uncertainty_proj", "text.text_uncertainty_projection"
    zero = torch.zeros_like(heads.image.mean.bias)
    _set(heads.image.mean, tensors["visual.proj"].mT, zero)
    _set(heads.text.mean, *(tensors[f"text.text_projection.{x}"] for x in ("weight", "bias")))
    for head, name in ((heads.image, image), (heads.text, text)):
        assert head.log_variance is not None
        _set(head.log_variance, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    heads.objective.log_a.copy_(tensors["logit_scale"])
    heads.objective.b.copy_(tensors["logit_bias"])


def _set(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
