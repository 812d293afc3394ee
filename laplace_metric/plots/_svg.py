"""Figures as SVG inside a page."""

from __future__ import annotations

import io
import re

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from laplace_metric.plots._style import INK


def svg_of(figure: Figure) -> str:
    """Return the figure as SVG with a transparent ground, letters as outlines."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, prefix: str, description: str) -> Markup:
    """Return an ``<svg>`` to stand inside a page.

    Ids get ``prefix`` and a running number, so that figures on one page do not share any, and
    the same figure always gives the same text. `INK` becomes ``currentColor``.

    Parameters
    ----------
    figure : Figure
        Figure to convert.
    prefix : str
        Beginning of all ids, unique on the page.
    description : str
        Text that screen readers read instead of the figure.
    """
    svg = svg_of(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    ids = {old: f"{prefix}-{i}" for i, old in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{ids[m[1]]}"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + ids[m[2]], svg)
    svg = svg.replace(INK, "currentColor")
    size = r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt"|width="[\d.]+pt"'
    head, rest = svg.split(">", 1)
    head = re.sub(size, "", head)
    return Markup(f'{head} role="img" aria-label="{escape(description)}">{rest}')
