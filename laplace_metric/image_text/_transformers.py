"""Parts of both encoders: pre-norm transformer layers of torch, and two learnt tokens.

Word pieces: a vocabulary trained on the user's own texts, and texts as its numbers.

WordPiece (Schuster and Nakajima 2012; Devlin et al. 2019) of Hugging Face's ``tokenizers``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_real, check_share
from laplace_metric.errors import InputError, MissingPackageError

STD = 0.02
"""Of tokens and positions at the start."""


def transformer(
    width: int,
    depth: int,
    heads: int,
    *,
    feedforward: int | None = None,
    dropout: float = 0.0,
    activation: Callable[[Tensor], Tensor] = nn.functional.gelu,
    epsilon: float = 1e-5,
) -> nn.TransformerEncoder:
    """Pre-norm layers with GELU, batch first, without a last norm.

    Raises
    ------
    InputError
        For sizes below 1, heads that do not divide the width, and a dropout outside of [0, 1).

    Examples
    --------
    >>> transformer(8, 2, 2)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """
    check_count("depth", depth)
    if check_count("width", width) % check_count("heads", heads):
        raise InputError(f"width={width} is no multiple of heads={heads}: pass one that is.")
    if not 0 <= check_real("dropout", dropout) < 1:
        raise InputError(f"dropout={dropout!r}: pass a number in [0, 1).")
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        feedforward or 4 * width,
        dropout,
        activation,
        epsilon,
        batch_first=True,
        norm_first=True,
    )
    layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    for copy in layers.layers:  # it copies one layer, weights and all
        _draw(copy)
    return layers


def _draw(layer: nn.Module) -> None:
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
        if isinstance(part, nn.MultiheadAttention):
            part._reset_parameters()


class TwoTokens(nn.Module):
    """Puts [CLS] and [UNC] before a sequence [B, T, W], and returns what becomes of the two.

    Examples
    --------
    >>> TwoTokens(8, 1, 2, 0.0)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 2, 8])
    """

    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.layers = transformer(width, depth, heads, dropout=dropout)
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


# Which patches and words stay when a share of them is hidden.


def n_kept(n: int, share: float) -> int:
    """Return how many of n are kept, at least one.

    Examples
    --------
    >>> n_kept(64, 0.75), n_kept(2, 0.75), n_kept(1, 0.75)
    (16, 1, 1)
    """
    return max(1, round(n * (1 - check_share("share", share))))


def kept_places(
    batch: int, n: int, share: float, device: torch.device
) -> Int[Tensor, "batch kept"]:
    """Places that stay, of each of a batch others, in ascending order."""
    stay = n_kept(n, share)
    order = torch.rand(batch, n, device=device).argsort(1)
    return order[:, :stay].sort(1).values


def drop_words(texts: Sequence[str], share: float, generator: Seed = None) -> list[str]:
    """Texts without ``share`` of their words, of each others; at least one stays, in its order.

    Parameters
    ----------
    texts : sequence of str
    share : float in (0, 1)
    generator : torch.Generator, seed or None
        None: torch's global one.

    Raises
    ------
    InputError
        For a share that is not between 0 and 1.

    Examples
    --------
    >>> [len(text.split()) for text in drop_words(["a red car in the rain", "dog"], 0.75)]
    [2, 1]
    """
    source, left = as_generator(generator), []
    for text in texts:
        words = text.split()
        order = torch.randperm(len(words), generator=source)
        kept = order[: n_kept(len(words), share)].sort().values
        left.append(" ".join(words[place] for place in kept.tolist()))
    return left


PADDING, UNKNOWN, INSIDE = "[PAD]", "[UNK]", "##"
PACKAGE = "tokenizers"


class WordPieces:
    """Texts -> numbers of word pieces, by a vocabulary that is one JSON text.

    Parameters
    ----------
    vocabulary : str
        JSON of ``tokenizers``.
    length : int
        Pieces of a text, at most; what is longer is cut.

    Raises
    ------
    MissingPackageError
        Without ``tokenizers``.
    InputError
        For what is no such JSON.

    Examples
    --------
    >>> pieces = WordPieces(WordPieces.learn(["a red car", "red cars"], 40), 8)
    >>> numbers, padding = pieces(["red", "a red car"])
    >>> numbers.shape, padding.sum(1).tolist()
    (torch.Size([2, 3]), [2, 0])
    """

    def __init__(self, vocabulary: str, length: int) -> None:
        tokenizers = _tokenizers()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(vocabulary)
        except Exception as error:  # it raises no other
            raise InputError(f"vocabulary is no JSON of tokenizers: {error}.") from error
        self._tokenizer.enable_truncation(length)
        self._tokenizer.no_padding()
        padding = self._tokenizer.token_to_id(PADDING)
        if padding is None:
            raise InputError(f"vocabulary has no {PADDING}: use the one that TextTransformer has.")
        self._padding: int = padding

    def __len__(self) -> int:
        n: int = self._tokenizer.get_vocab_size()
        return n

    @staticmethod
    def learn(texts: Sequence[str], size: int) -> str:
        """A vocabulary of ``size`` pieces at most, in lower case, as JSON; all letters are in it.

        Raises
        ------
        MissingPackageError
            Without ``tokenizers``.
        """
        made = _tokenizer_of({UNKNOWN: 0})
        texts = [made.normalizer.normalize_str(text) for text in check_texts(texts)]
        signs = sorted({sign for text in texts for sign in text if not sign.isspace()})
        # named first, so that their order, and with it that of merges of equal count, is one order
        first = [PADDING, UNKNOWN, *signs, *(f"{INSIDE}{sign}" for sign in signs)]
        trainer = _tokenizers().trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=first, show_progress=False
        )
        made.train_from_iterator(texts, trainer)
        json: str = _tokenizer_of(made.get_vocab(with_added_tokens=True)).to_str()
        return json

    def __call__(self, texts: Sequence[str]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Numbers of pieces, and where there are none: as wide as the longest text.

        Raises
        ------
        InputError
            For what is no text, and texts without a piece, which it names.
        """
        rows = [e.ids for e in self._tokenizer.encode_batch(check_texts(texts))]
        for row, (ids, text) in enumerate(zip(rows, texts, strict=True)):
            if not ids:
                raise InputError(f"texts[{row}] = {text!r:.40} has no word: leave it out.")
        width = max(map(len, rows))
        numbers = [ids + [self._padding] * (width - len(ids)) for ids in rows]
        lengths = torch.tensor([len(ids) for ids in rows])
        return torch.tensor(numbers), torch.arange(width) >= lengths[:, None]


def check_texts(texts: Any) -> list[str]:
    """A list of texts that are not empty, or ``InputError``."""
    if isinstance(texts, str) or not isinstance(texts, (list, tuple)) or not texts:
        raise InputError(f"texts is a {type(texts).__name__}: pass a list of at least one text.")
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts[{row}] is {text!r:.40}: pass texts that are not empty.")
    return list(texts)


def _tokenizer_of(vocabulary: dict[str, int]) -> Any:
    """Words in lower case, cut into the pieces of a vocabulary."""
    tokenizers = _tokenizers()
    model = tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN)
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return made


def _tokenizers() -> Any:
    if importlib.util.find_spec(PACKAGE) is None:
        raise MissingPackageError(PACKAGE, "TextTransformer", "pip install tokenizers")
    import tokenizers

    return tokenizers
