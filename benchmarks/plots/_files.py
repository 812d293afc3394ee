"""Figures as files: SVG that follows the reader's light or dark page, PNG, and SVG inside a page.

An SVG brings its own ground. Ground and ink change together with ``prefers-color-scheme``, so the
letters can be read on any page, also where the page and the browser do not agree.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from laplace_metric.plots._style import INK, STYLES
from laplace_metric.plots._svg import inline_svg, svg_of

DPI, COLOURS = 144, 256
LIGHT, DARK = ("#ffffff", "#1f2328"), ("#1e2129", "#e4e6eb")
"""Ground and ink."""
BLUE, BRIGHT = STYLES[0].colour.lower(), "#4ba6e0"
"""The one colour that is too dark for the dark ground, and what replaces it there."""
STYLE = re.compile(r' style="([^"]*)"')


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write ``path`` as PNG and, beside it, as SVG."""
    drawing = path.with_suffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.write_text(svg_file(figure))
    save_png(figure, path)
    return [path, drawing]


def svg_file(figure: Figure) -> str:
    """An SVG for an ``<img>``: letters as outlines, the same text for the same figure."""
    with rc_context({"svg.hashsalt": "laplace_metric"}):
        svg = svg_of(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = _light(_compact(_renamed(svg).replace(INK, "currentColor")))
    svg, rules = _classed(svg)
    head, rest = svg.split(">", 1)
    return f"{head}>{_scheme(rules)}{rest}\n"


def _renamed(svg: str) -> str:
    """Short ids: letters are referred to by theirs, once each."""
    ids = {old: f"a{i:x}" for i, old in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{ids[m[1]]}"', svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + ids[m[2]], svg)


def _light(svg: str) -> str:
    """Without comments, gaps between tags, and fractions of a font's units."""
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(<use [^>]*translate\(\d+)\.\d+ 0\)", r"\1 0)", svg)
    return re.sub(r">\s+<", "><", svg)


def _classed(svg: str) -> tuple[str, dict[str, str]]:
    """Every style once, as a class; class -> style."""
    names = {style: f"c{i:x}" for i, style in enumerate(dict.fromkeys(re.findall(STYLE, svg)))}
    svg = re.sub(STYLE, lambda match: f' class="{names[match[1]]}"', svg)
    return svg, {name: style.replace(": ", ":").replace("; ", ";") for style, name in names.items()}


def _scheme(rules: Mapping[str, str]) -> str:
    """Style and ground."""
    light = "".join(f".{name}{{{style}}}" for name, style in rules.items())
    bright = "".join(
        f".{name}{{{style.replace(BLUE, BRIGHT)}}}"
        for name, style in rules.items()
        if BLUE in style
    )
    of = [f"svg{{color:{ink}}}.ground{{fill:{ground}}}" for ground, ink in (LIGHT, DARK)]
    css = f"{of[0]}{light}@media (prefers-color-scheme:dark){{{of[1]}{bright}}}"
    return f'<style>{css}</style><rect class="ground" width="100%" height="100%" rx="6"/>'


def svg_plot(figure: Figure, prefix: str, description: str) -> Markup:
    """The figure inside a page, its letters as text.

    Parameters
    ----------
    prefix : str
        Of the ids, unique on the page.
    description : str
        Read out instead of the figure.
    """
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}):
        svg = str(inline_svg(figure, prefix, description))
    return Markup(_compact(svg.replace("<svg", '<svg class="plot"', 1)))


def _compact(svg: str) -> str:
    """Without line breaks, ids that nothing refers to, and less than hundredths of a pixel.

    What is scaled keeps its digits: letters are drawn at 64 times their size.
    """
    svg = re.sub(r"\s*\n\s*", " ", svg)
    svg = re.sub(r"scale\([^)]*\)|(\d\.\d\d)\d+", lambda match: match[1] or match[0], svg)
    used = set(re.findall(r"#([\w-]+)", svg))
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)


def save_png(figure: Figure, path: Path) -> None:
    """A PNG with a palette: a third of the size, and no eye sees it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, facecolor="white")
    image = Image.open(buffer).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
