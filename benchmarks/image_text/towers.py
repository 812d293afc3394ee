"""Encoders with uncertainty tokens that train from nothing: images as patches, texts as pieces.

Patches or word pieces with learnt positions (Dosovitskiy et al. 2021) and two learnt tokens, [CLS]
and [UNC] (Chun et al. 2025, section 3.1), through pre-norm layers of torch. With ``share``, a part
of the patches or of the words is hidden, of each input another one, drawn from torch's global
generator: ``masked`` makes such inputs for ``ImageTextEmbedder.fit(masked=)``.

Word pieces: WordPiece (Schuster and Nakajima 2012) of Hugging Face's ``tokenizers``, with a
vocabulary that is trained on the texts at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric.image_text import ImageTextPairs

STD = 0.02
"""Of tokens and positions at the start."""
PADDING, UNKNOWN, INSIDE = "[PAD]", "[UNK]", "##"


def masked(pairs: ImageTextPairs, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """All images and texts of ``pairs``, for encoders that hide a share of each anew every step."""
    return (
        {"images": pairs.images, "share": torch.full((pairs.n_images,), share)},
        {"texts": pairs.texts, "share": torch.full((pairs.n_texts,), share)},
    )


class TwoTokens(nn.Module):
    """Puts [CLS] and [UNC] before a sequence [B, T, W], and returns what becomes of the two."""

    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout,
            nn.functional.gelu,
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        for copy in self.layers.layers:  # torch copies one layer, weights and all
            for part in copy.modules():
                if isinstance(part, nn.Linear):
                    part.reset_parameters()
                if isinstance(part, nn.MultiheadAttention):
                    part._reset_parameters()
        self.tokens = nn.Parameter(STD * torch.randn(2, width))

    def forward(
        self, x: Float[Tensor, "B T W"], padding: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B 2 W"]:
        """Features of [CLS] and [UNC]; ``padding`` is True where there is nothing to see."""
        tokens = self.tokens.expand(len(x), -1, -1)
        if padding is not None:
            padding = nn.functional.pad(padding, (2, 0), value=False)
        y: Tensor = self.layers(torch.cat([tokens, x], 1), src_key_padding_mask=padding)
        return y[:, :2]


def unit(images: Tensor) -> Tensor:
    """Images in [0, 1]: bytes are divided by 255."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


class ImageTransformer(nn.Module):
    """Images [B, 3, H, H] in [0, 1], or bytes, -> features [B, 2, F] of [CLS] and [UNC].

    Pixels are centred by the channels of ``images``, those of the training: where they are not, all
    features are alike at first, and the training may stay there.

    Parameters
    ----------
    images : Tensor [N, 3, H, H]
    patch : int
        Side of a patch, in pixels; H is a multiple of it.
    """

    def __init__(
        self,
        images: Shaped[Tensor, "N 3 H H"],
        patch: int = 4,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        seed: Seed = None,
    ) -> None:
        super().__init__()
        pixels = [unit(images)[:, channel].double() for channel in range(3)]
        self.mean, self.std = ([float(f(x)) for x in pixels] for f in (torch.mean, torch.std))
        n_patches = (images.shape[-1] // patch) ** 2
        with own_randomness(seed, torch.device("cpu")):
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.positions = nn.Parameter(STD * torch.randn(n_patches, width))
            self.two = TwoTokens(width, depth, heads, dropout)

    def forward(
        self, images: Shaped[Tensor, "B 3 H H"], share: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B 2 F"]:
        """Features of [CLS] and [UNC], without ``share`` of the patches (all rows alike)."""
        x = unit(images).to(self.positions)
        mean, std = (x.new_tensor(c)[:, None, None] for c in (self.mean, self.std))
        x = self.patches((x - mean) / std).flatten(2).mT + self.positions
        if share is not None:
            stay = stays(x.shape[1], float(share[0]))
            places = kept_places(len(x), x.shape[1], stay, x.device)
            x = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        return self.two(x)


class TextTransformer(nn.Module):
    """B texts -> features [B, 2, F] of [CLS] and [UNC], in both directions.

    Parameters
    ----------
    texts : sequence of str
        Those that the vocabulary, of at most ``size`` pieces, is trained on.
    length : int
        Pieces of a text, at most; what is longer is cut.
    """

    def __init__(
        self,
        texts: Sequence[str],
        size: int = 4000,
        length: int = 32,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        seed: Seed = None,
    ) -> None:
        super().__init__()
        self.pieces = WordPieces(texts, size, length)
        with own_randomness(seed, torch.device("cpu")):
            self.embedding = nn.Embedding(len(self.pieces), width)
            nn.init.normal_(self.embedding.weight, std=STD)
            self.positions = nn.Parameter(STD * torch.randn(length, width))
            self.two = TwoTokens(width, depth, heads, dropout)

    def forward(
        self, texts: Sequence[str], share: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B 2 F"]:
        """Features of [CLS] and [UNC], without ``share`` of the words (all rows alike)."""
        seen = list(texts) if share is None else drop_words(texts, float(share[0]))
        numbers, padding = (x.to(self.positions.device) for x in self.pieces(seen))
        return self.encode(numbers, padding)

    def encode(
        self, numbers: Int[Tensor, "B T"], padding: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B 2 F"]:
        """Features of numbers of pieces; ``padding`` is True where there is none."""
        return self.two(self.embedding(numbers) + self.positions[: numbers.shape[1]], padding)


def stays(n: int, share: float) -> int:
    """Return how many of n are left without a share of them, at least one."""
    return max(1, round(n * (1 - share)))


def kept_places(batch: int, n: int, stay: int, device: torch.device) -> Int[Tensor, "batch stay"]:
    """Places that stay, of each of a batch others, in ascending order."""
    order = torch.rand(batch, n, device=device).argsort(1)
    return order[:, :stay].sort(1).values


def drop_words(texts: Sequence[str], share: float) -> list[str]:
    """Texts without ``share`` of their words, of each others; at least one stays, in its order."""
    left = []
    for text in texts:
        words = text.split()
        order = torch.randperm(len(words))
        kept = order[: stays(len(words), share)].sort().values
        left.append(" ".join(words[place] for place in kept.tolist()))
    return left


class WordPieces:
    """Texts -> numbers of word pieces, in lower case; all letters of ``texts`` are pieces."""

    def __init__(self, texts: Sequence[str], size: int, length: int) -> None:
        from tokenizers.trainers import WordPieceTrainer

        made = _tokenizer_of({UNKNOWN: 0})
        lower = [made.normalizer.normalize_str(text) for text in texts]
        signs = sorted({sign for text in lower for sign in text if not sign.isspace()})
        # named first, so that their order, and with it that of merges of equal count, is one order
        first = [PADDING, UNKNOWN, *signs, *(f"{INSIDE}{sign}" for sign in signs)]
        trainer = WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
        made.train_from_iterator(lower, trainer)
        self._tokenizer = _tokenizer_of(made.get_vocab(with_added_tokens=True))
        self._tokenizer.enable_truncation(length)
        self._padding = self._tokenizer.token_to_id(PADDING)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def __call__(self, texts: list[str]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Numbers of pieces, and where there are none: as wide as the longest text."""
        rows = [e.ids for e in self._tokenizer.encode_batch(texts)]
        width = max(map(len, rows))
        numbers = [ids + [self._padding] * (width - len(ids)) for ids in rows]
        lengths = torch.tensor([len(ids) for ids in rows])
        return torch.tensor(numbers), torch.arange(width) >= lengths[:, None]


def _tokenizer_of(vocabulary: dict[str, int]) -> Any:
    """Words in lower case, cut into the pieces of a vocabulary."""
    import tokenizers

    model = tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN)
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return made
