r"""Names that are not text: any bytes in, one escape out.

A file name on POSIX is bytes. Python reads a byte that is not UTF-8, such as FF, as the lone
surrogate U+DCFF, which opens the same file again but has no encoding. Names keep that form inside
the package. Where they leave it, the surrogate is written as ``\udcff``: in a JSON that is the
escape of the same character, so that a reader gets the exact name back.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SURROGATE = re.compile("[\ud800-\udfff]")
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def utf8(text: str) -> bytes:
    r"""Encode a text; lone surrogates become ``\udcff``.

    Examples
    --------
    >>> utf8("caf\udcff.png")
    b'caf\\udcff.png'
    """
    return text.encode("utf-8", "backslashreplace")


def one_line(text: str) -> str:
    r"""Escape what a terminal or a figure cannot show: lone surrogates and control characters.

    Examples
    --------
    >>> print(one_line("a\nb\x1b[31m\udcff"))
    a\nb\x1b[31m\udcff
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextmanager
def utf8_path(path: Path) -> Iterator[Path]:
    """Yield a path that native code can open: ``path``, or a link to it if it is not UTF-8."""
    if not SURROGATE.search(str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(path.absolute())
        yield link
