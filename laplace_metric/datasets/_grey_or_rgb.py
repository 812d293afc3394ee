"""Pictures turned upright, on white, in grey or RGB."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from laplace_metric.io import only_regular

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F")
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")


def as_grey_or_rgb(image: Any, channels: int) -> Any:
    """Return a PIL image turned upright, on white where it is transparent, in mode "L" or "RGB".

    Raises
    ------
    ValueError
        If a channel has more than 8 bits.

    Examples
    --------
    >>> from PIL import Image
    >>> as_grey_or_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0)), 3).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode.startswith(DEEP):
        raise ValueError(f"{image.mode} pixels have more than 8 bits")
    from PIL import Image, ImageOps  # only here and below: most users read no photographs

    with suppress(Exception):  # a damaged note of the camera spoils no picture
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in TRANSPARENT or "transparency" in image.info:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured)
    return image.convert("L" if channels == 1 else "RGB")


def is_grey(path: Path) -> tuple[bool, str] | None:
    """Return whether an image file is grey, and its mode; None where it cannot be read."""
    from PIL import Image

    try:
        with open(path, "rb", opener=only_regular) as file, Image.open(file) as image:
            return image.mode in GREY, image.mode
    except Exception:
        return None
