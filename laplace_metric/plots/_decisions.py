"""Decisions of a rule, drawn on queries: a mark and a frame tell them apart without words."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnchoredText
from matplotlib.patches import BoxStyle

from laplace_metric.plots._style import STYLES

FADED = 0.3
"""Opacity of what a query found that is not answered."""


@dataclass(frozen=True)
class Decision:
    """Sign, colour, frame and words of one outcome.

    Parameters
    ----------
    sign, colour, line : str
        Character in the corner of the query; colour of its frame and its words; line of the frame.
    words : str
        Outcome in words.
    """

    sign: str
    colour: str
    line: str
    words: str


ANSWERED = Decision("✓", STYLES[2].colour, "solid", "answered")
ABSTENTIONS = {
    "uncertain": Decision("?", "#8F5A00", "dashed", "no answer: uncertain"),
    "unfamiliar": Decision("⊘", "#5B5470", "dotted", "no answer: unfamiliar"),
}
"""By the reason to abstain, as ``Answers.reason`` has it."""


def decision_of(reason: str) -> Decision:
    """Return the decision of a reason to abstain; "" is an answer."""
    return ABSTENTIONS[reason] if reason else ANSWERED


def mark(axes: Axes, decision: Decision) -> None:
    """Frame a query as its decision says, and put the sign into its corner."""
    for spine in axes.spines.values():
        spine.set(color=decision.colour, linewidth=3, linestyle=decision.line)
    sign = AnchoredText(
        decision.sign,
        loc="lower right",
        pad=0.25,
        borderpad=0.15,
        prop={"color": "white", "size": 13, "weight": "bold"},
    )
    sign.patch.set(facecolor=decision.colour, edgecolor="white", boxstyle=BoxStyle("Circle"))
    axes.add_artist(sign)


def fade(axes: Axes) -> None:
    """Fade an image or a text, its frame and its title."""
    for artist in (*axes.images, *axes.texts, *axes.spines.values()):
        artist.set_alpha(FADED)
    axes.title.set_alpha(2 * FADED)  # still to be read


def decision_keys() -> list[Line2D]:
    """Return the meaning of the signs, for a legend."""
    return [
        Line2D([], [], ls="", marker=f"${one.sign}$", ms=9, color=one.colour, label=one.words)
        for one in (ANSWERED, *ABSTENTIONS.values())
    ]
