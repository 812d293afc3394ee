"""Processes whose freed blocks of memory go back to the system at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def given_back() -> Iterator[None]:
    """Let glibc give freed blocks back at once in processes that begin inside."""
    name = "MALLOC_MMAP_THRESHOLD_"
    before = os.environ.get(name)
    os.environ[name] = str(2**18)
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
