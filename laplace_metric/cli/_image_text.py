"""Image-text commands: the table of pairs, the models of both sides, the saved recipe."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.progress import ItemBar
from laplace_metric.cli._loading import SavedRecord, distrust, is_seed, is_share, reads_inputs
from laplace_metric.cli._models import check_inputs, load_model
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.sources import Notify, Pixels, read_table
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextPairs
from laplace_metric.models._calling import device_of, evaluation_mode

Rows = list[tuple[str, str]]


def read_captions(path: Path, image_column: str, text_column: str) -> Rows:
    """(image, text) of each row.

    Raises
    ------
    InputError
        If there is no such file or column, a row is without its image or its text, or there is
        no row.
    """
    if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{path} is no table: give a .csv or .tsv that exists.")
    header, lines = read_table(path)
    places = []
    for name, option in ((image_column, "--image-column"), (text_column, "--text-column")):
        if name not in header:
            listed = ", ".join(map(repr, header)) or "none"
            raise InputError(
                f"{path} has no column {name!r}. Name it with {option}; its columns: {listed}."
            )
        places.append(header.index(name))
    rows = [(line[places[0]].strip(), line[places[1]].strip()) for line in lines]
    for number, row in enumerate(rows, 1):
        for name, value in zip((image_column, text_column), row, strict=True):
            if not value:
                raise InputError(
                    f"{path}: row {number} has an empty {name!r}. Fill it in, or leave the row out."
                )
    if not rows:
        raise InputError(f"{path} holds no row.")
    return rows


def pairs_of(rows: Rows, readable: set[str]) -> ImageTextPairs:
    """Names of images and texts, each once, without images that cannot be read."""
    captions: dict[str, list[str]] = {}
    for image, text in rows:
        if image in readable:
            captions.setdefault(image, []).append(text)
    return ImageTextPairs.of(list(captions), list(captions.values()))


def say_if_one_to_one(pairs: ImageTextPairs, path: Path, notify: Notify) -> None:
    """Such pairs say nothing of how general a text is."""
    if len(pairs) == pairs.n_images == pairs.n_texts:
        notify(
            f"{path}: every image has one text and every text one image. How general a text is, "
            "and how ambiguous an image, cannot be learnt from such pairs: ambiguity will say "
            "little. Texts that name several images, or images with several texts, would teach it"
        )


@dataclass(frozen=True)
class HeldOut:
    """The pairs that the fit leaves out: those of any of these images or texts.

    Parameters
    ----------
    images, texts : Tensor, ascending rows
    """

    images: Tensor
    texts: Tensor

    @classmethod
    def of(cls, pairs: ImageTextPairs, share: float, seed: int) -> HeldOut:
        """A share of both, at random.

        Raises
        ------
        InputError
            If the fit would have less than two pairs.
        """
        g = torch.Generator().manual_seed(seed)

        def some(n: int) -> Tensor:
            return torch.randperm(n, generator=g)[: round(share * n)].sort().values

        held = cls(some(pairs.n_images), some(pairs.n_texts))
        n_kept = int(held.kept(pairs).sum())
        if n_kept < 2:
            raise InputError(
                f"--holdout {share:g} leaves {n_kept} of {len(pairs)} pairs to fit: give a smaller "
                "share, or more pairs."
            )
        return held

    def kept(self, pairs: ImageTextPairs) -> Tensor:
        """Return whether each pair [P] belongs to the fit."""
        i, j = pairs.pairs.unbind(1)
        return ~(torch.isin(i, self.images) | torch.isin(j, self.texts))


def fit_part(pairs: ImageTextPairs, held: HeldOut, images: Tensor, texts: Tensor) -> ImageTextPairs:
    """Pairs of features without what is held out, and without what has no partner then."""
    links = pairs.pairs[held.kept(pairs)]
    (i, i_rows), (j, j_rows) = (side.unique(return_inverse=True) for side in links.unbind(1))
    return ImageTextPairs(images[i], texts[j], torch.stack([i_rows, j_rows], 1))


# The encoders of both sides, and the folder that a fit writes.


IMAGES, TEXTS = "images", "texts"


@dataclass(frozen=True)
class PairsRecipe(SavedRecord):
    """Everything a later search needs: models, how images are read, where the table was.

    Parameters
    ----------
    model, text_model : str
        As the command line took them.
    read_options : dict
        Size and channels of images.
    data : str
        The table: the path, as it was resolved; images are named as seen from it.
    holdout : float
        Share of images and of texts that the fit left out.
    seed : int
    """

    KIND = files.FileKind("pairs", "a folder of laplace-metric image-text", 1)
    VALID = {  # noqa: RUF012
        "model": lambda x: isinstance(x, str),
        "text_model": lambda x: isinstance(x, str),
        "read_options": reads_inputs,
        "data": lambda x: isinstance(x, str),
        "holdout": is_share,
        "seed": is_seed,
    }

    model: str
    text_model: str
    read_options: dict[str, Any]
    data: str
    holdout: float
    seed: int

    def trusted(self, folder: Path, options: Namespace, side: str) -> str:
        """The model of one side, if the user named it or trusts the folder.

        Raises
        ------
        InputError
            If not.
        """
        told, own, option = options.model, self.model, "--model"
        if side == TEXTS:
            told, own, option = options.text_model, self.text_model, "--text-model"
        if told is None and not options.trust_recipe:
            raise InputError(distrust(folder / self.KIND.index, own, option))
        return told or own


class ImageReader(nn.Module):
    """Names of B images -> features [B, F]: reads the files, then runs the model."""

    def __init__(self, model: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, names: Sequence[str]) -> Tensor:
        """Read files below the folder of the table, or given by a whole path."""
        return self.model(self.pixels.batch(names).to(device_of(self.model)))


def text_encoder(name: str, device: str | None) -> nn.Module:
    """The model of texts.

    Raises
    ------
    InputError
        If it takes no texts.
    """
    model = load_model(name, device).model
    check_inputs(name, model, ["a text"])
    return model


def encoded_by(
    encoder: nn.Module, inputs: Sequence[str], size: int, name: str, reporter: Reporter
) -> Tensor:
    """Features [N, F], a batch of ``size`` after the other.

    Raises
    ------
    InputError
        If the model gives no vector for each.
    """
    parts = []
    with ItemBar(f"Encoding {name}", len(inputs), shown=reporter.progress) as bar:
        for start in range(0, len(inputs), size):
            batch = list(inputs[start : start + size])
            with evaluation_mode(encoder):
                features = encoder(batch)
            if not isinstance(features, Tensor) or features.shape[:1] != (len(batch),):
                raise InputError(
                    f"the model of {name} gives no features [B, F] of {len(batch)} {name}."
                )
            parts.append(features.flatten(1).cpu())
            bar.advance(len(batch))
    return torch.cat(parts)
