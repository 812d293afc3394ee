"""Templates of the web pages that a command writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def templates(*folders: Path) -> Environment:
    """Return the templates of these folders, with the styles and macros that pages share."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow, and for pages alone

    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "pages"]),
        autoescape=lambda name: name is None or not name.endswith(".txt.j2"),  # text is no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
