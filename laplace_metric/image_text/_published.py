"""Published checkpoints of ProLIP: config, towers, ``load_prolip``.

The towers are named as the published code names them (github.com/naver-ai/prolip), so that a
checkpoint is their state. They compute what they were trained with, which is not quite what the
paper says: the last norm of an image's [CLS] is applied twice; padding of a text is attended to;
and the log variance of a text is not projected from [UNC], but from its projected [CLS]:

    log v = U (W h + b) + c

So both features of a text are of [CLS], h and W h + b; those of an image are of [CLS] and [UNC].
The last projections are applied by the heads of ``ImageTextEmbedder``.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from laplace_metric._utils.validation import as_path, check_count, check_floating, check_positive
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._towers import FittedHeads

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PIXELS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of channels that OpenAI's CLIP centres by (Radford et al. 2021)."""

Tokenizer = Callable[[Sequence[str]], Any]
"""B texts -> numbers of their pieces [B, L]."""


class _QuickGELU(nn.Module):
    """``x sigmoid(1.702 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class _Block(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float, *, quick: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, epsilon)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, epsilon)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, inner),
                gelu=_QuickGELU() if quick else nn.GELU(),
                c_proj=nn.Linear(inner, width),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class _Tower(nn.Module):
    """Common part of both towers.

    Parameters
    ----------
    content : mapping
        ``vision_cfg`` or ``text_cfg``, with the defaults of the published code.
    heads : int
    quick : bool
        ``x sigmoid(1.702 x)`` in place of GELU.

    Raises
    ------
    InputError
        For numbers out of range, and towers of another kind.
    """

    def __init__(self, content: Mapping[str, Any], heads: int, *, quick: bool) -> None:
        super().__init__()
        other = content.get("timm_model_name") or content.get("hf_model_name")
        if other or not content.get("embed_unc", False):
            raise InputError("config.json is of towers without [UNC] tokens: only ProLIP's load.")
        self.width = check_count("width", content["width"])
        ratio = check_positive("mlp_ratio", content.get("mlp_ratio", 4.0))
        self.epsilon = (content.get("norm_kwargs") or {}).get("eps", 1e-5)
        layer = self.width, check_count("heads", heads), int(self.width * ratio), self.epsilon
        depth = check_count("layers", content["layers"])
        blocks = nn.Sequential(*(_Block(*layer, quick=quick) for _ in range(depth)))
        self.transformer = nn.ModuleDict({"resblocks": blocks})

    def transformed(self, x: Tensor) -> Tensor:
        """Run all layers."""
        return self.transformer["resblocks"](x)

    def tokens(self, *names: str, n: int) -> Float[Tensor, "n k W"]:
        """Learnt vectors, for each of n inputs."""
        return torch.stack([getattr(self, name) for name in names]).expand(n, -1, -1)


class PublishedImages(_Tower):
    """Images [B, 3, H, H] in [0, 1], or bytes, -> features [B, 2, F] of [CLS] and [UNC].

    They are not to be normalised before: that is done here.
    """

    def __init__(self, content: Mapping[str, Any], dim: int, *, quick: bool) -> None:
        super().__init__(content, content["width"] // content.get("head_width", 64), quick=quick)
        width, self.size = self.width, check_count("image_size", content["image_size"])
        patch = check_count("patch_size", content["patch_size"])
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.unc_embedding = nn.Parameter(torch.zeros(width))
        n_places = (self.size // patch) ** 2 + 2
        self.positional_embedding = nn.Parameter(torch.zeros(n_places, width))
        self.ln_pre = nn.LayerNorm(width, self.epsilon)
        self.ln_post = nn.LayerNorm(width, self.epsilon)
        self.proj = nn.Parameter(torch.zeros(width, dim))
        self.uncertainty_proj = nn.Linear(width, dim)

    def forward(self, images: Shaped[Tensor, "B 3 H H"]) -> Float[Tensor, "B 2 F"]:
        """Features.

        Raises
        ------
        InputError
            For images of another size, or not in [0, 1].
        """
        if isinstance(images, Tensor) and images.dtype == torch.uint8:
            images = images.float() / 255
        check_floating("images", images, "[B, 3, H, W]")
        if images.shape[1:] != (3, self.size, self.size):
            raise InputError(
                f"images have shape {list(images.shape)}: pass [B, 3, {self.size}, {self.size}]."
            )
        low, high = (float(x) for x in images.detach().aminmax())
        if not -1e-6 <= low <= high <= 1 + 1e-6:
            raise InputError(
                f"images lie in [{low:.3g}, {high:.3g}]: pass values in [0, 1], not normalised."
            )
        x = images.to(self.proj)
        mean, std = (x.new_tensor(c)[:, None, None] for c in PIXELS)
        patches = self.conv1((x - mean) / std).flatten(2).mT
        tokens = self.tokens("class_embedding", "unc_embedding", n=len(x))
        x = torch.cat([tokens, patches], 1) + self.positional_embedding
        two = self.ln_post(self.transformed(self.ln_pre(x))[:, :2])
        return torch.stack([self.ln_post(two[:, 0]), two[:, 1]], 1)


class PublishedTexts(_Tower):
    """Texts, or numbers of their pieces [B, L], -> features [B, 2, F], both of [CLS].

    ``tokenizer``: B texts -> [B, L]; None: the inputs are numbers.
    """

    def __init__(
        self, content: Mapping[str, Any], dim: int, tokenizer: Tokenizer | None, *, quick: bool
    ) -> None:
        super().__init__(content, content.get("heads", 12), quick=quick)
        if self.width != dim:
            raise InputError(
                f"config.json has texts of width {self.width} and embed_dim {dim}: "
                "published models have both alike, since variances of texts are projected twice."
            )
        self.length = check_count("context_length", content["context_length"])
        vocabulary, self.tokenizer = check_count("vocab_size", content["vocab_size"]), tokenizer
        self.token_embedding = nn.Embedding(vocabulary, dim)
        self.cls_emb = nn.Parameter(torch.zeros(dim))
        self.unc_emb = nn.Parameter(torch.zeros(dim))
        self.positional_embedding = nn.Parameter(torch.zeros(self.length + 2, dim))
        self.ln_final = nn.LayerNorm(dim, self.epsilon)
        self.text_projection = nn.Linear(dim, dim)
        self.text_uncertainty_projection = nn.Linear(dim, dim)

    def forward(self, texts: Any) -> Float[Tensor, "B 2 F"]:
        """Features.

        Raises
        ------
        InputError
            For texts without a tokenizer, another length, and numbers beyond the vocabulary.
        """
        if not isinstance(texts, Tensor):
            if self.tokenizer is None:
                raise InputError(
                    "texts need a tokenizer: pass load_prolip(..., tokenizer=), or numbers of "
                    f"pieces [B, {self.length}]."
                )
            texts = self.tokenizer(texts)
        if texts.is_floating_point() or texts.shape[1:] != (self.length,):
            raise InputError(
                f"numbers of pieces are {texts.dtype} {list(texts.shape)}: pass whole numbers [B, "
                f"{self.length}], padded to this length, as the towers were trained."
            )
        low, high = (int(x) for x in texts.aminmax())
        if not 0 <= low <= high < self.token_embedding.num_embeddings:
            raise InputError(
                f"numbers of pieces go from {low} to {high}, and the vocabulary has "
                f"{self.token_embedding.num_embeddings}: use the tokenizer of the checkpoint."
            )
        x = self.token_embedding(texts.long().to(self.cls_emb.device))
        x = torch.cat([x, self.tokens("unc_emb", "cls_emb", n=len(x))], 1)
        h = self.ln_final(self.transformed(x + self.positional_embedding)[:, -1])
        return torch.stack([h, self.text_projection(h)], 1)


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
    prior_precision, n_effective
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
        heads = embedder._new_heads(published.visual.width, published.text.width)
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
