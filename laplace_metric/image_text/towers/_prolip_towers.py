"""The towers of published checkpoints of ProLIP: a vision and a text transformer.

The towers are named as the published code names them (github.com/naver-ai/prolip), so that a
checkpoint is their state. They compute what they were trained with, which is not quite what the
paper prints: the last norm of an image's [CLS] is applied twice; padding of a text is attended to;
and the log variance of a text is not projected from [UNC], but from its projected [CLS]:

    log v = U (W h + b) + c

So both features of a text are of [CLS], h and W h + b; those of an image are of [CLS] and [UNC].
The last projections are applied by the heads of ``ImageTextEmbedder``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count, check_floating, check_positive
from laplace_metric.errors import InputError

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
        Number of attention heads.
    quick : bool
        Use ``x sigmoid(1.702 x)`` in place of GELU.

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
        """Return learnt vectors, for each of n inputs."""
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
        """Return the features.

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
        """Return the features.

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
