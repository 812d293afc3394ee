"""Published checkpoints of ProLIP: names and shapes, config, towers, ``load_prolip``.

What the towers of published checkpoints compute, up to the last projections.

As they were trained, which is not quite as the paper says: the last norm of an image's [CLS] is
applied twice; padding of a text is attended to; and the log variance of a text is not projected
from [UNC], but from its projected [CLS]:

    log v = U (W h + b) + c

So both features of a text are of [CLS], h and W h + b; those of an image are of [CLS] and [UNC].
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from laplace_metric._utils.validation import as_path, check_count, check_positive
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._fit import FittedHeads, new_heads
from laplace_metric.image_text._heads import HeadSettings
from laplace_metric.image_text._towers import check_images
from laplace_metric.image_text._training import TwoHeads
from laplace_metric.image_text._transformers import transformer

Shapes = dict[str, tuple[int, ...]]
BLOCKS = "transformer.resblocks."
LAYER = {
    "ln_1": "norm1",
    "attn.in_proj_": "self_attn.in_proj_",
    "attn.out_proj": "self_attn.out_proj",
    "ln_2": "norm2",
    "mlp.c_fc": "linear1",
    "mlp.c_proj": "linear2",
}
"""Parts of a layer: published, and of ``torch.nn.TransformerEncoderLayer``."""
PARTS = {
    "conv1": "patches",
    "token_embedding": "embedding",
    "positional_embedding": "positions",
    "ln_pre": "first_norm",
    "ln_post": "last_norm",
    "ln_final": "last_norm",
    "text_projection": "projection",
}


def published_shapes(config: PublishedConfig) -> Shapes:
    """Every tensor of a checkpoint, by its published name."""
    w, d = config.image.width, config.dim
    image = {
        "conv1.weight": (w, 3, config.patch, config.patch),
        "class_embedding": (w,),
        "unc_embedding": (w,),
        "positional_embedding": (config.n_patches + 2, w),
        **_norm("ln_pre", w),
        **_blocks(config.image),
        **_norm("ln_post", w),
        "proj": (w, d),
        **_linear("uncertainty_proj", w, d),
    }
    w = config.text.width
    text = {
        "token_embedding.weight": (config.vocabulary, w),
        "cls_emb": (w,),
        "unc_emb": (w,),
        "positional_embedding": (config.length + 2, w),
        **_blocks(config.text),
        **_norm("ln_final", w),
        **_linear("text_projection", w, d),
        **_linear("text_uncertainty_projection", w, d),
    }
    shapes: Shapes = {"logit_scale": (), "logit_bias": ()}
    shapes |= {f"visual.{name}": shape for name, shape in image.items()}
    return shapes | {f"text.{name}": shape for name, shape in text.items()}


def _blocks(tower: PublishedTower) -> Shapes:
    w = tower.width
    one = {
        **_norm("ln_1", w),
        "attn.in_proj_weight": (3 * w, w),
        "attn.in_proj_bias": (3 * w,),
        **_linear("attn.out_proj", w, w),
        **_norm("ln_2", w),
        **_linear("mlp.c_fc", w, tower.feedforward),
        **_linear("mlp.c_proj", tower.feedforward, w),
    }
    return {f"{BLOCKS}{i}.{name}": s for i in range(tower.depth) for name, s in one.items()}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def check_tensors(where: str, tensors: dict[str, Tensor], config: PublishedConfig) -> None:
    """Check names and shapes.

    Raises
    ------
    FileFormatError
        For tensors that are missing, unknown or of another shape; it names the first.
    """
    wanted = published_shapes(config)
    if missing := [name for name in wanted if name not in tensors]:
        raise FileFormatError(
            f"{where} lacks {len(missing)} of {len(wanted)} tensors, the first is {missing[0]!r}: "
            "is it a checkpoint of ProLIP, and config.json its own?"
        )
    if unknown := [name for name in tensors if name not in wanted]:
        raise FileFormatError(
            f"{where} has {len(unknown)} tensors that ProLIP has not, the first is {unknown[0]!r}."
        )
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise FileFormatError(
                f"{where}: {name!r} has shape {list(tensors[name].shape)}, and config.json says "
                f"{list(shape)}."
            )
        if not tensors[name].is_floating_point():
            raise FileFormatError(f"{where}: {name!r} is {tensors[name].dtype}, no weights.")


def renamed(name: str) -> str:
    """A tensor of a tower, as it is called here.

    Examples
    --------
    >>> renamed("transformer.resblocks.3.mlp.c_fc.bias"), renamed("ln_post.weight")
    ('layers.layers.3.linear1.bias', 'last_norm.weight')
    """
    if name.startswith(BLOCKS):
        number, part = name.removeprefix(BLOCKS).split(".", 1)
        own = next(part.replace(a, b, 1) for a, b in LAYER.items() if part.startswith(a))
        return f"layers.layers.{number}.{own}"
    first, dot, rest = name.partition(".")
    return f"{PARTS.get(first, first)}{dot}{rest}"


# What a published checkpoint is made with: the ``config.json`` beside its weights.


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
        """Number of patches of one image."""
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


PIXELS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of channels that OpenAI's CLIP centres by (Radford et al. 2021)."""

Tokenizer = Callable[[Sequence[str]], Any]
"""B texts -> numbers of their pieces [B, L]."""


def quick_gelu(x: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``."""
    return x * torch.sigmoid(1.702 * x)


class _Tower(nn.Module):
    def __init__(self, tower: PublishedTower, n_places: int, *, quick: bool) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(2, tower.width))
        self.positions = nn.Parameter(torch.zeros(n_places, tower.width))
        self.layers = transformer(
            tower.width,
            tower.depth,
            tower.heads,
            feedforward=tower.feedforward,
            activation=quick_gelu if quick else nn.functional.gelu,
            epsilon=tower.epsilon,
        )
        self.last_norm = nn.LayerNorm(tower.width, tower.epsilon)

    def _expanded(self, n: int) -> Tensor:
        return self.tokens.expand(n, -1, -1)


class PublishedImages(_Tower):
    """Images [B, 3, H, H] in [0, 1], or bytes, -> features [B, 2, F] of [CLS] and [UNC].

    They are not to be normalised before: that is done here.
    """

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__(config.image, config.n_patches + 2, quick=config.quick_gelu)
        width, patch = config.image.width, config.patch
        self.size = config.size
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.first_norm = nn.LayerNorm(width, config.image.epsilon)

    def forward(self, images: Shaped[Tensor, "B 3 H H"]) -> Float[Tensor, "B 2 F"]:
        """Features.

        Raises
        ------
        InputError
            For images of another size, or not in [0, 1].
        """
        x = check_images(images, self.size).to(self.positions)
        mean, std = (x.new_tensor(c)[:, None, None] for c in PIXELS)
        patches = self.patches((x - mean) / std).flatten(2).mT
        x = torch.cat([self._expanded(len(x)), patches], 1) + self.positions
        two = self.last_norm(self.layers(self.first_norm(x))[:, :2])
        return torch.stack([self.last_norm(two[:, 0]), two[:, 1]], 1)


class PublishedTexts(_Tower):
    """Texts, or numbers of their pieces [B, L], -> features [B, 2, F], both of [CLS].

    Parameters
    ----------
    config : PublishedConfig
    tokenizer : function or None
        B texts -> [B, L]; None: the inputs are numbers.
    """

    def __init__(self, config: PublishedConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config.text, config.length + 2, quick=config.quick_gelu)
        self.length, self.tokenizer = config.length, tokenizer
        self.embedding = nn.Embedding(config.vocabulary, config.text.width)
        self.projection = nn.Linear(config.text.width, config.dim)

    def forward(self, texts: Any) -> Float[Tensor, "B 2 F"]:
        """Features.

        Raises
        ------
        InputError
            For texts without a tokenizer, another length, and numbers beyond the vocabulary.
        """
        x = self.embedding(self._numbers(texts))
        unc_and_cls = self._expanded(len(x)).flip(1)
        x = torch.cat([x, unc_and_cls], 1) + self.positions
        h = self.last_norm(self.layers(x)[:, -1])
        return torch.stack([h, self.projection(h)], 1)

    def _numbers(self, texts: Any) -> Tensor:
        if not isinstance(texts, Tensor):
            if self.tokenizer is None:
                raise InputError(
                    f"texts is a {type(texts).__name__}, and there is no tokenizer: pass "
                    f"load_prolip(..., tokenizer=), or numbers of pieces [B, {self.length}]."
                )
            texts = self.tokenizer(texts)
        whole = isinstance(texts, Tensor) and not (texts.is_floating_point() or texts.is_complex())
        if not whole or texts.ndim != 2 or texts.shape[1] != self.length:
            what = list(texts.shape) if isinstance(texts, Tensor) else type(texts).__name__
            raise InputError(
                f"numbers of pieces are {what}: pass whole numbers [B, {self.length}], padded to "
                "this length, as the towers were trained."
            )
        low, high = (int(x) for x in texts.aminmax())
        if not 0 <= low <= high < self.embedding.num_embeddings:
            raise InputError(
                f"numbers of pieces go from {low} to {high}, and the vocabulary has "
                f"{self.embedding.num_embeddings}: use the tokenizer of the checkpoint."
            )
        return texts.long().to(self.positions.device)


# From a file of published weights to an ``ImageTextEmbedder``.


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
    """Return the places of the weights and of the config."""
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
