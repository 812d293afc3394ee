"""What later commands need to know of a fit: the model's name, and how its inputs are read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laplace_metric import files
from laplace_metric.errors import FileFormatError

KIND = files.Kind("recipe", "a posterior of the command line", 1)


@dataclass(frozen=True)
class Recipe:
    """Kept beside a posterior.

    Parameters
    ----------
    model : str or None
        As ``--model`` took it; None: the data are embeddings.
    head : str or None
    kind : str
        Of the inputs: images, texts, arrays.
    reading : dict
        Fields of ``Reading`` that decide what an input looks like.
    """

    model: str | None
    head: str | None
    kind: str
    reading: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Make it the recipe of ``folder``."""
        files.write(folder, asdict(self), {}, KIND)

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """What ``write`` wrote.

        Raises
        ------
        FileFormatError
            If there is none, or it is damaged.
        """
        content, _ = files.read(folder, KIND)
        try:
            return cls(**{name: content[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise FileFormatError(f"{folder / KIND.index} is damaged: no {error}.") from error
