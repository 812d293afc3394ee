"""Templates of web pages that ask for nothing from outside."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["templates"]


def templates(*folders: Path) -> Environment:
    """Return the templates of these folders, with the styles and macros that pages share."""
    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
