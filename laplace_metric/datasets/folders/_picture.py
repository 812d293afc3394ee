"""An open image file as a picture that is upright, and grey or RGB."""

from __future__ import annotations

from typing import Any

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F")
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
ORIENTATION = 0x0112  # the tag of Exif
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What makes an image upright that a camera wrote with this orientation (Exif 2.32, 4.6.4)."""


def as_grey_or_rgb(image: Any, channels: int) -> Any:
    """A PIL image turned upright, on white where it is transparent, in mode "L" or "RGB".

    Raises
    ------
    ValueError
        For more than 8 bits a channel.

    Examples
    --------
    >>> from PIL import Image
    >>> as_grey_or_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0)), 3).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode.startswith(DEEP):
        raise ValueError(f"{image.mode} pixels have more than 8 bits")
    return _upright(_on_white(image).convert("L" if channels == 1 else "RGB"), image)


def _upright(picture: Any, image: Any) -> Any:
    from PIL.Image import Transpose  # only here: most users read no photographs

    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:  # a damaged note of the camera spoils no picture
        return picture
    return picture if turn is None else picture.transpose(Transpose[turn])


def _on_white(image: Any) -> Any:
    if image.mode not in TRANSPARENT and "transparency" not in image.info:
        return image
    from PIL import Image

    coloured = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured)


def centre_square(image: Any, size: int) -> Any:
    """Resize the shorter side of a PIL image to `size` (bilinear), and cut out the centre."""
    from PIL.Image import Resampling

    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))
