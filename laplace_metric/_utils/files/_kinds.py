"""What a folder holds, and what its files are called."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FileKind:
    """What a folder holds: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> FileKind("checkpoint", "a training checkpoint", 1).index
    'checkpoint.json'
    """

    name: str
    title: str
    version: int

    @property
    def format(self) -> str:
        """What the JSON calls it."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"

    def owns(self, name: str) -> bool:
        """Whether ``write`` may have given a file this name."""
        pattern = rf"{re.escape(self.name)}-[0-9a-f]{{16}}\.(safetensors|foreign)"
        return re.fullmatch(pattern, name) is not None


POSTERIOR = FileKind("posterior", "a saved posterior", 2)
INDEX = POSTERIOR.index
