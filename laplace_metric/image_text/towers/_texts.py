"""Texts as word pieces: a small text transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import check_count
from laplace_metric.image_text.towers._layers import STD, TwoTokens
from laplace_metric.image_text.towers._masking import drop_words
from laplace_metric.image_text.towers._pieces import WordPieces, check_texts


class TextTransformer(nn.Module):
    """B texts -> features [B, 2, F] of [CLS] and [UNC].

    Word pieces with learnt positions and an uncertainty token (Chun et al. 2025, section 3.1),
    through pre-norm layers of torch, in both directions. Make one by ``TextTransformer.of(texts)``.

    Parameters
    ----------
    vocabulary : str
        JSON of ``tokenizers``, as ``of`` makes it.
    length : int
        Pieces of a text, at most; what is longer is cut.
    width, depth, heads : int
        F, layers, heads of each.
    dropout : float in [0, 1)
    generator : torch.Generator, seed or None
        Of the first weights.

    Raises
    ------
    MissingPackageError
        Without the package ``tokenizers``.
    InputError
        For another vocabulary, and numbers out of range.

    Examples
    --------
    >>> encoder = TextTransformer.of(["a red car", "dogs"], width=12, depth=1, heads=2, generator=0)
    >>> encoder(["a car", "a dog"]).shape
    torch.Size([2, 2, 12])
    """

    def __init__(
        self,
        vocabulary: str,
        length: int = 32,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        generator: Seed = None,
    ) -> None:
        super().__init__()
        self.pieces = WordPieces(vocabulary, check_count("length", length))
        self.settings = {"vocabulary": vocabulary, "length": length, "width": width,
                         "depth": depth, "heads": heads, "dropout": dropout}  # fmt: skip
        with own_randomness(generator, torch.device("cpu")):
            self.embedding = nn.Embedding(len(self.pieces), width)
            nn.init.normal_(self.embedding.weight, std=STD)
            self.positions = nn.Parameter(STD * torch.randn(length, width))
            self.two = TwoTokens(width, depth, heads, dropout)

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        size: int = 4000,
        length: int = 32,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        generator: Seed = None,
    ) -> TextTransformer:
        """With a vocabulary of at most ``size`` pieces, trained on texts of your own.

        Raises
        ------
        MissingPackageError
            Without the package ``tokenizers``.
        InputError
            For what are no texts, and numbers out of range.
        """
        vocabulary = WordPieces.learn(check_texts(texts), check_count("size", size, 3))
        sizes = {"width": width, "depth": depth, "heads": heads}
        return cls(vocabulary, length, **sizes, dropout=dropout, generator=generator)

    def forward(self, texts: Sequence[str]) -> Float[Tensor, "B 2 F"]:
        """Features of [CLS] and [UNC].

        Raises
        ------
        InputError
            For what are no texts, and empty ones.
        """
        numbers, padding = self.pieces(texts)
        device = self.positions.device
        return self.encode(numbers.to(device), padding.to(device))

    def masked(self, texts: Sequence[str], share: float) -> Float[Tensor, "B 2 F"]:
        """Without ``share`` of the words, of each text others, at least one of which stays.

        Drawn from torch's global generator, as dropout is.

        Raises
        ------
        InputError
            For a share that is not between 0 and 1, and texts as above.
        """
        return self(drop_words(check_texts(texts), share))

    def encode(
        self, numbers: Int[Tensor, "B T"], padding: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B 2 F"]:
        """Features of numbers of pieces; ``padding`` is True where there is none."""
        x = self.embedding(numbers) + self.positions[: numbers.shape[1]]
        return self.two(x, padding)
