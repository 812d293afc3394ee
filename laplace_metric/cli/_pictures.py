"""Images below a folder, each decoded when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from laplace_metric.cli._image_source import path_below
from laplace_metric.datasets._pixels import Pixels


@dataclass(frozen=True)
class Pictures(Sequence[Image.Image]):
    """Images below a folder, upright RGB, each decoded when it is asked for.

    With ``inside``, what a name or a link leads to must lie below the folder.
    """

    folder: Path
    names: Any = ()
    inside: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: Any) -> Any:
        return self.picture(str(self.names[row]))

    def picture(self, name: str) -> Image.Image:
        """Decode an image.

        Raises
        ------
        InputError
            If it lies elsewhere, or cannot be read.
        """
        if self.inside:
            path_below(self.folder, name)
        picture: Image.Image = Pixels(self.folder, None, 3).decoded(name)
        return picture
