"""Files below a folder, and which of them are images: by their first bytes."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from laplace_metric.errors import InputError, LaplaceMetricWarning, callers_line
from laplace_metric.io import only_regular

ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif")
"""Of files that should be images, in small letters: damaged ones are told when they are read."""
FIRST = 32
"""Bytes that tell a format."""


def _brands(*names: bytes) -> Callable[[bytes], bool]:
    """Return whether an ISO media file names one of these brands first."""
    return lambda begin: begin[4:8] == b"ftyp" and begin[8:12] in names


FORMATS: Mapping[str, Callable[[bytes], bool]] = {
    "JPEG": lambda begin: begin.startswith(b"\xff\xd8\xff"),
    "PNG": lambda begin: begin.startswith(b"\x89PNG\r\n\x1a\n"),
    "GIF": lambda begin: begin[:6] in (b"GIF87a", b"GIF89a"),
    # two letters alone begin texts, too: bytes 14 to 17 hold the size of the second header
    "BMP": lambda begin: begin[:2] == b"BM" and begin[15:18] == b"\0\0\0" and begin[14:15] >= b"\f",
    "TIFF": lambda begin: begin[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "WEBP": lambda begin: begin[:4] == b"RIFF" and begin[8:12] == b"WEBP",
    "JPEG2000": lambda begin: begin.startswith((b"\0\0\0\x0cjP  \r\n", b"\xff\x4f\xff\x51")),
    "AVIF": _brands(b"avif", b"avis"),
    "HEIF": _brands(b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"),
}
"""Names that Pillow gives to formats, and whether the first bytes of a file are of it."""


def images_below(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder, and its other files, as paths seen from it, sorted.

    What begins with a dot is left out, links are followed.

    Raises
    ------
    InputError
        If there is no image; the message says what there is. If a folder cannot be listed.

    Warns
    -----
    LaplaceMetricWarning
        If images are left out because Pillow has no decoder of their format.
    """
    images, others, closed = list[str](), list[str](), Counter[str]()
    for path in files_below(folder):
        is_one, format = _seen(path)
        (images if is_one else others).append(path.relative_to(folder).as_posix())
        if format is not None and not is_one:
            closed[format] += 1
    listed = ", ".join(f"{n:,} {format}" for format, n in sorted(closed.items()))
    if not images:
        raise InputError(f"{folder} holds no image{_instead(others, listed)}.")
    if closed:
        warnings.warn(
            f"{folder}: {sum(closed.values()):,} images are left out, because Pillow cannot open "
            f"them here ({listed}): convert them to .jpg or .png, or install and register a plugin "
            "such as pillow-heif.",
            LaplaceMetricWarning,
            stacklevel=callers_line(),
        )
    return sorted(images), sorted(others)


def is_image(path: Path) -> bool:
    """Return whether a file is an image that Pillow opens, or is called like one.

    Examples
    --------
    >>> is_image(Path("not_there.JPG")), is_image(Path("not_there.txt"))
    (True, False)
    """
    return _seen(path)[0]


def _seen(path: Path) -> tuple[bool, str | None]:
    """Return whether to read a file as an image, and its format by its first bytes, if any."""
    try:
        with open(path, "rb", opener=only_regular) as file:
            begin = file.read(FIRST)
    except OSError:
        begin = b""
    format = next((name for name, fits in FORMATS.items() if fits(begin)), None)
    if format is None:
        return path.name.lower().endswith(ENDINGS), None
    from PIL import Image

    Image.init()  # with those of plugins that are registered
    return format in Image.OPEN, format


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden; links that lead back up are not followed.

    Raises
    ------
    InputError
        If a folder cannot be listed.
    """
    here = folder.resolve()
    if here in above:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({error.strerror}).") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from files_below(Path(entry.path), (*above, here))
        else:
            yield Path(entry.path)


def _instead(others: Sequence[str], closed: str) -> str:
    if not others:
        return "; it is empty"
    if closed:
        return f" that Pillow can open here, but {closed}: convert them to .jpg or .png first"
    counts = Counter(PurePosixPath(name).suffix.lower() or "no ending" for name in others)
    listed = ", ".join(f"{n:,} {ending}" for ending, n in counts.most_common(3))
    return f"; its files: {listed}. Convert images to .jpg or .png first"
