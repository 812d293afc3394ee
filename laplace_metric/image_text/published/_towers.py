"""What the towers of published checkpoints compute, up to the last projections.

As they were trained, which is not quite as the paper says: the last norm of an image's [CLS] is
applied twice; padding of a text is attended to; and the log variance of a text is not projected
from [UNC], but from its projected [CLS]:

    log v = U (W h + b) + c

So both features of a text are of [CLS], h and W h + b; those of an image are of [CLS] and [UNC].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.image_text.published._config import PublishedConfig, PublishedTower
from laplace_metric.image_text.towers import check_images, transformer

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
