"""The encoders of both sides, and the folder that a fit writes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils import files
from laplace_metric._utils.progress import ItemBar
from laplace_metric.cli._loading import distrust
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._recipe import SavedRecord, is_seed, is_share, reads_inputs
from laplace_metric.cli.models import check_inputs, load_model
from laplace_metric.cli.sources import Pixels
from laplace_metric.errors import InputError
from laplace_metric.models import device_of, evaluation_mode

IMAGES, TEXTS = "images", "texts"


@dataclass(frozen=True)
class PairsRecipe(SavedRecord):
    """What a later search needs: models, how images are read, where the table was.

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
        """Of files below the folder of the table, or with a whole path."""
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
