"""Checks of the size that an archive or an array claims, before memory is taken for it."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

RATIO = 100
"""Most bytes out of one compressed byte, beyond ``FREE``."""
FREE = 2**28
DAMAGE = (
    EOFError,
    MemoryError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What readers raise at damaged or hostile files; the checks below raise ``ValueError``."""


def check_size(n_bytes: int, compressed: int) -> None:
    """Check that what is unpacked stands in proportion to the file.

    Raises
    ------
    ValueError
        If it is more than 256 MiB and 100 times as large.

    Examples
    --------
    >>> check_size(10**8, 1000)
    """
    if n_bytes > max(FREE, RATIO * compressed):
        raise ValueError(
            f"its {compressed:,} bytes would unpack to {n_bytes:,}, more than {RATIO} times as many"
        )


def check_zip(path: Path) -> None:
    """Check the members of a zip file, and of those that are arrays the shape.

    Raises
    ------
    ValueError
        If one is encrypted, packed by an unknown method, or out of proportion.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_size(sum(member.file_size for member in members), path.stat().st_size)
        for member in members:
            if member.flag_bits & 1:
                raise ValueError(f"{member.filename!r} is encrypted")
            check_size(member.file_size, member.compress_size)
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    _check_array(file, member.file_size)


def check_npy(path: Path) -> None:
    """Check that an .npy file is as long as its header says.

    Raises
    ------
    ValueError
        If it is shorter, or its shape is impossible.
    """
    with path.open("rb") as file:
        _check_array(file, path.stat().st_size)


def _check_array(file: IO[bytes], size: int) -> None:
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        return  # names of fields beyond Latin-1, which are not numbers: refused when it is read
    shape, _, dtype = readers[version](file)
    if any(side < 0 for side in shape):
        raise ValueError(f"an array of shape {shape}")
    n_bytes, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if not dtype.hasobject and n_bytes > left:
        raise ValueError(f"an array of shape {shape} has {n_bytes:,} bytes, the file {left:,}")
