"""Images as patches: a small vision transformer."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import check_count, check_floating
from laplace_metric.errors import InputError
from laplace_metric.image_text.towers._layers import STD, TwoTokens
from laplace_metric.image_text.towers._masking import kept_places


def check_images(images: Any, size: int) -> Tensor:
    """Images [B, 3, size, size] in [0, 1], or ``InputError``."""
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


class ImageTransformer(nn.Module):
    """Images [B, 3, H, H] in [0, 1] -> features [B, 2, F] of [CLS] and [UNC].

    Patches with learnt positions (Dosovitskiy et al. 2021) and an uncertainty token (Chun et al.
    2025, section 3.1), through pre-norm layers of torch. To be trained: ``ImageTextEmbedder(...,
    tokens="uncertainty", train_encoders=True)``.

    Parameters
    ----------
    size, patch : int
        H and the side of a patch, in pixels; H is a multiple of it.
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
        self.settings = {"size": size, "patch": patch, "width": width, "depth": depth,
                         "heads": heads, "dropout": dropout}  # fmt: skip
        with own_randomness(generator, torch.device("cpu")):
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.positions = nn.Parameter(STD * torch.randn(self.n_patches, width))
            self.two = TwoTokens(width, depth, heads, dropout)

    @property
    def n_patches(self) -> int:
        """Of one image."""
        return (self.size // self.patch) ** 2

    def forward(self, images: Float[Tensor, "B 3 H H"]) -> Float[Tensor, "B 2 F"]:
        """Features of [CLS] and [UNC].

        Raises
        ------
        InputError
            For images of another size, or not in [0, 1].
        """
        return self.two(self._placed(images))

    def masked(self, images: Float[Tensor, "B 3 H H"], share: float) -> Float[Tensor, "B 2 F"]:
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
        x = check_images(images, self.size).to(self.positions) * 2 - 1
        return self.patches(x).flatten(2).mT + self.positions
