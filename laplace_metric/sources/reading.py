"""How data are read, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Say = Callable[[str], None]
"""Where guesses are said aloud."""


@dataclass(frozen=True)
class Reading:
    """What the reader is told; None leaves the choice to what is found, and it is said aloud.

    Parameters
    ----------
    size : int or None
        Side of the square that images are scaled to, in pixels; None: as they are.
    channels : 1, 3 or None
        Grey or RGB; None: as the first image is (with a transform, RGB).
    skip_unreadable : bool
        Leave out images that cannot be read; otherwise they are an error.
    text_column, label_column, id_column : str or None
        Of tables; None: ``text``, ``label``, ``id``, where there are such columns.
    labels : Path or None
        Labels of an .npy file: .npy, or one a line.
    transform : callable or None
        PIL image -> tensor [C, H, W]; replaces ``size``.
    """

    size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    text_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    labels: Path | None = None
    transform: Callable[[Any], Any] | None = None
