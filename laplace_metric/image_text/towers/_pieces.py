"""Word pieces: a vocabulary trained on the user's own texts, and texts as its numbers.

WordPiece (Schuster and Nakajima 2012; Devlin et al. 2019) of Hugging Face's ``tokenizers``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric.errors import InputError, MissingPackageError

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
