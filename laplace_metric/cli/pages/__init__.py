"""Templates of web pages that ask for nothing from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Chart", "templates"]


@dataclass(frozen=True)
class Chart:
    """A figure as SVG, and its title."""

    title: str
    svg: Markup


def templates(*folders: Path) -> Environment:
    """Return the templates of these folders, with the styles and macros that pages share."""
    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
