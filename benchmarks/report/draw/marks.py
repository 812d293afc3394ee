"""SVG elements, and how a series' style looks as a line and as a marker."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from laplace_metric.plots import Style

Point = tuple[float, float]
DOTTED = "1.5 2.5"
DASHES = {"-": "", "--": "6 3", "-.": "7 2 1.5 2", ":": DOTTED}
SHAPES = {
    "s": "M-4-4H4V4H-4z",
    "^": "M0-5L5 4H-5z",
    "v": "M0 5L5-4H-5z",
    "D": "M0-5.5L5.5 0 0 5.5-5.5 0z",
    "P": "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2z",
    "o": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
}


def element(name: str, *inside: str, **attributes: object) -> Markup:
    """``<name ...>inside</name>``; underscores of attribute names become hyphens.

    Examples
    --------
    >>> element("text", "a < b", x=1.25, text_anchor="end")
    Markup('<text x="1.2" text-anchor="end">a &lt; b</text>')
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value not in (None, "")
    )
    body = Markup("").join(inside)
    return Markup(f"<{name}{words}>{body}</{name}>" if body else f"<{name}{words}/>")


def _plain(value: object) -> str:
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)


def dashes(style: Style) -> str:
    """The dash pattern of a style's line."""
    if isinstance(style.line, str):
        return DASHES[style.line]
    return " ".join(str(length) for length in style.line[1])


def trace(points: Sequence[Point], **attributes: object) -> Markup:
    """A line through points, in pixels."""
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=d, **{"fill": "none", **attributes}) if points else Markup("")


def styled(points: Sequence[Point], style: Style | None, dash: str = DOTTED) -> Markup:
    """A line in a style; none: a thin one in ink, for orientation, with dashes of its own."""
    if style is None:
        return trace(points, stroke="currentColor", stroke_dasharray=dash, opacity=0.7)
    return trace(points, stroke=style.colour, stroke_width=2, stroke_dasharray=dashes(style))


def marker(style: Style, at: Point, scale: float = 1.0, **attributes: object) -> Markup:
    """A style's marker."""
    place = f"translate({at[0]:.1f} {at[1]:.1f})" + (f"scale({scale:.2g})" if scale != 1 else "")
    given = {"fill": style.colour, **attributes}
    return element("path", d=SHAPES[style.marker], transform=place, **given)


def picture(width: float, height: float, label: str, *inside: str) -> Markup:
    """A whole ``<svg>``, as wide as its place; ``label`` is read out instead of it."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *inside, class_="plot", viewBox=box, role="img", aria_label=label)


def sample(style: Style | None, marked: bool = False, dash: str = DOTTED) -> Markup:
    """A piece of a series' line, for a legend."""
    line = styled([(0, 6), (30, 6)], style, dash)
    dot = marker(style, (15, 6)) if marked and style else Markup("")
    given = {"class_": "sample", "viewBox": "0 0 30 12", "width": 30, "height": 12}
    return element("svg", line, dot, aria_hidden="true", **given)
