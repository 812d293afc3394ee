"""Encoders of our own: a vision transformer, a text transformer, and their saved form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import check_count, check_floating, check_real
from laplace_metric.errors import InputError
from laplace_metric.image_text._transformers import (
    STD,
    TwoTokens,
    WordPieces,
    check_texts,
    drop_words,
    kept_places,
)


def check_images(images: Any, size: int) -> Tensor:
    """Images [B, 3, size, size] in [0, 1], bytes divided by 255, or ``InputError``."""
    if isinstance(images, Tensor) and images.dtype == torch.uint8:
        images = images.float() / 255
    check_floating("images", images, "[B, 3, H, W]")
    if images.shape[1:] != (3, size, size):
        raise InputError(
            f"images have shape {list(images.shape)}: pass [B, 3, {size}, {size}], resized."
        )
    low, high = (float(x) for x in images.detach().aminmax())
    if not -1e-6 <= low <= high <= 1 + 1e-6:
        raise InputError(
            f"images lie in [{low:.3g}, {high:.3g}]: pass finite values in [0, 1], not normalised."
        )
    return images


def _channels(name: str, values: Sequence[float]) -> list[float]:
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise InputError(f"{name}={values!r:.60}: pass three numbers, one a channel.")
    return [check_real(name, value) for value in values]


class ImageTransformer(nn.Module):
    """Images [B, 3, H, H], floats in [0, 1] or bytes -> features [B, 2, F] of [CLS] and [UNC].

    Patches with learnt positions (Dosovitskiy et al. 2021) and an uncertainty token (Chun et al.
    2025, section 3.1), through pre-norm layers of torch. To be trained: ``ImageTextEmbedder(...,
    tokens="uncertainty", train_encoders=True)``. Make one by ``ImageTransformer.of(images)``: where
    pixels are not centred, all features are alike at first, and the training may stay there.

    Parameters
    ----------
    size, patch : int
        H and the side of a patch, in pixels; H is a multiple of it.
    mean, std : three floats
        Of the channels of images in [0, 1].
    width, depth, heads : int
        F, layers, heads of each.
    dropout : float in [0, 1)
    generator : torch.Generator, seed or None
        Of the first weights.

    Raises
    ------
    InputError
        For sizes that do not divide each other, and numbers out of range.

    Examples
    --------
    >>> encoder = ImageTransformer(16, 8, width=12, depth=1, heads=2, generator=0)
    >>> encoder(torch.rand(3, 3, 16, 16)).shape
    torch.Size([3, 2, 12])
    """

    def __init__(
        self,
        size: int = 32,
        patch: int = 4,
        *,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        generator: Seed = None,
    ) -> None:
        super().__init__()
        if check_count("size", size) % check_count("patch", patch):
            raise InputError(f"size={size} is no multiple of patch={patch}: pass one that is.")
        self.size, self.patch = size, patch
        self.mean, self.std = _channels("mean", mean), _channels("std", std)
        if min(self.std) <= 0:
            raise InputError(f"std={self.std}: pass three numbers above 0.")
        self.settings = {"size": size, "patch": patch, "mean": self.mean, "std": self.std,
                         "width": width, "depth": depth, "heads": heads,
                         "dropout": dropout}  # fmt: skip
        with own_randomness(generator, torch.device("cpu")):
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.positions = nn.Parameter(STD * torch.randn(self.n_patches, width))
            self.two = TwoTokens(width, depth, heads, dropout)

    @classmethod
    def of(
        cls,
        images: Shaped[Tensor, "N 3 H H"],
        patch: int = 4,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        generator: Seed = None,
    ) -> ImageTransformer:
        """For images of this size, with the mean and the deviation of their channels.

        Raises
        ------
        InputError
            For what are no such images, images that are all one colour, numbers out of range.
        """
        images = check_images(images, getattr(images, "shape", (0,))[-1])
        pixels = [images[:, channel].double() for channel in range(3)]
        mean, std = ([float(f(x)) for x in pixels] for f in (torch.mean, torch.std))
        if not min(std) > 0:
            raise InputError("images are all of one colour: pass some that differ.")
        how: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "dropout": dropout}
        size = images.shape[-1]
        return cls(size, patch, mean=mean, std=std, **how, generator=generator)

    @property
    def n_patches(self) -> int:
        """Number of patches of one image."""
        return (self.size // self.patch) ** 2

    def forward(self, images: Shaped[Tensor, "B 3 H H"]) -> Float[Tensor, "B 2 F"]:
        """Features of [CLS] and [UNC].

        Raises
        ------
        InputError
            For images of another size, or not in [0, 1].
        """
        return self.two(self._placed(images))

    def masked(self, images: Shaped[Tensor, "B 3 H H"], share: float) -> Float[Tensor, "B 2 F"]:
        """Without ``share`` of the patches, of each image others, at least one of which stays.

        Drawn from torch's global generator, as dropout is.

        Raises
        ------
        InputError
            For a share that is not between 0 and 1, and images as above.
        """
        x = self._placed(images)
        kept = kept_places(len(x), self.n_patches, share, x.device)
        return self.two(x.gather(1, kept[..., None].expand(-1, -1, x.shape[-1])))

    def _placed(self, images: Tensor) -> Tensor:
        """Patches with their positions [B, T, F]."""
        x = check_images(images, self.size).to(self.positions)
        mean, std = (x.new_tensor(c)[:, None, None] for c in (self.mean, self.std))
        x = (x - mean) / std
        return self.patches(x).flatten(2).mT + self.positions


# Texts as word pieces: a small text transformer.


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


# Encoders of this package as a JSON description and their weights.


OWN: dict[str, type[ImageTransformer] | type[TextTransformer]] = {
    "image transformer": ImageTransformer,
    "text transformer": TextTransformer,
}


def described(encoder: Any) -> dict[str, Any] | None:
    """Kind and settings; None for an encoder of the user's own, subclasses among them."""
    for kind, cls in OWN.items():
        if type(encoder) is cls:
            return {"kind": kind, **encoder.settings}
    return None


def rebuilt(description: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """Rebuild the encoder of ``described``, with its weights, in evaluation mode."""
    settings = dict(description)
    encoder = OWN[settings.pop("kind")](**settings)
    with torch.no_grad():
        encoder.to(weights["positions"].dtype).load_state_dict(weights)
    return encoder.eval()
