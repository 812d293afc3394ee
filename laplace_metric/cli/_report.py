"""``laplace-metric report``: measure, choose what to show, write the page.

The page opens with how many queries are answered, how precisely, and what more would take. The
share of answers was measured on queries that the guarantee has not seen; a guarantee that they
contradict, with the whole 95 % interval of what was obtained below it, is called broken.
"""

from __future__ import annotations

import base64
import io
import math
import platform
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from laplace_metric import plots
from laplace_metric._utils import __version__
from laplace_metric.cli._gallery import LoadedIndex, excerpt, load_gallery
from laplace_metric.cli._index import measured
from laplace_metric.cli._options import command_text
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._search import columns_of
from laplace_metric.cli._sources import IMAGES, TEXTS, Source, require_data, root_of
from laplace_metric.cli._table_files import rows_of
from laplace_metric.cli._templates import templates
from laplace_metric.errors import InputError, LaplaceMetricError, UndefinedMetricWarning
from laplace_metric.evaluation import (
    auroc,
    bootstrap_interval,
    r_auroc,
    sparsification,
)
from laplace_metric.evaluation._bootstrap import BootstrapInterval
from laplace_metric.evaluation._probability_quality import quality
from laplace_metric.evaluation._share_interval import share_interval
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from laplace_metric.io import write_atomically
from laplace_metric.plots import Figure
from laplace_metric.plots._svg import inline_svg
from laplace_metric.search import Index, IndexReport
from laplace_metric.search._report import DISTANCE, EPISTEMIC, GuaranteedPrecision


def report(options: Namespace) -> None:
    """Measure and write the page."""
    reporter = reporter_of(options, options.output)
    require_data(options)
    gallery = load_gallery(options.index, options, reporter)
    measures, queries = measured(gallery, options, reporter)
    verdict = headline(measures)
    groups = grouped(measures, verdict["made"])
    shown = _shown(gallery, queries, groups, measures, verdict["made"], options)
    page = (
        templates()
        .get_template("trust.html.j2")
        .render(
            verdict=verdict,
            groups=groups,
            shown=shown,
            item_look=item_look(gallery, reporter),
            measures=measures,
            guarantees=_guarantees(measures),
            charts=charts(measures),
            inline_svg=inline_svg,
            resampled=resampled(measures),
            share=Share.of,
            percent=percent,
            gallery=gallery,
            queries=queries,
            options=options,
            versions=f"laplace_metric {__version__}, torch {torch.__version__}, numpy "
            f"{np.__version__}, Python {platform.python_version()}",
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            run=command_text(options),
            most=SHOWN,
        )
    )
    write_atomically(options.output, page)
    reporter.say(verdict["title"])
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**measures.to_json(), "output": str(options.output)})


def _shown(
    gallery: LoadedIndex,
    queries: Source,
    groups: list[dict[str, Any]],
    measures: IndexReport,
    made: GuaranteedPrecision | None,
    options: Namespace,
) -> list[dict[str, Any]]:
    """Add the neighbours to the queries of each group; open-set queries are the last group."""
    index, size = gallery.index, options.batch_size
    some = queries.take([row for group in groups for row in group["places"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        answers = iter(asked(index, some, gallery.classes_of(some), size))
        query = look_of(queries)
        shown = [
            {**g, "queries": [next(answers) for _ in g["places"]], "look": query} for g in groups
        ]
        if measures.ood is not None:
            source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
            strange = source.take(evenly(len(source), SHOWN))
            n, notes = measures.ood.items, []
            if measures.ood.unknown is not None:
                notes.append(f"{Share.of(measures.ood.unknown, n).k:,} are called unknown")
            if made is not None and made.ood is not None:
                notes.append(f"{Share.of(made.ood, n).k:,} are answered")
            group = {"key": "open_set", "title": "Open-set queries", "note": ", ".join(notes)}
            found = asked(index, strange, None, size)
            shown.append({**group, "n": n, "queries": found, "look": look_of(strange)})
    return shown


def _guarantees(measures: IndexReport) -> list[dict[str, Any]]:
    """The rows of the table of thresholds."""
    rows = []
    for made in filter(None, (measures.largest_guarantee, *measures.guarantees)):
        answered, right = counts(made, measures.queries)
        if made.threshold is not None:
            goal = percent(made.guaranteed)
            rows.append({"goal": goal, "made": made, "answered": answered, "right": right})
    return rows


# Shares in per cent.

SPACE = "\u00a0"
"""That does not break, before a per cent sign."""


@dataclass(frozen=True)
class Share:
    r"""k of n.

    Examples
    --------
    >>> share = Share(9, 10)
    >>> share.percent, share.interval
    ('90\xa0%', '55 to 100\xa0%')
    """

    k: int
    n: int

    @classmethod
    def of(cls, value: float | None, n: int) -> Share:
        """A share that was divided already; nothing where it is not known."""
        return cls(0, 0) if value is None else cls(round(value * n), n)

    @property
    def percent(self) -> str:
        """Without decimals, but 0 and 100 only where they are exact."""
        return "n/a" if self.n == 0 else percent(self.k / self.n)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the exact 95 % interval."""
        low, high = share_interval(self.k, self.n)
        return float(low), float(high)

    @property
    def interval(self) -> str:
        """In per cent; outward, so that it holds as it is written."""
        if self.n == 0:
            return ""
        low, high = self.ends
        return f"{math.floor(100 * low)} to {math.ceil(100 * high)}{SPACE}%"


def percent(share: float) -> str:
    """A share in per cent; with a decimal where it would look like all or nothing and is neither.

    Examples
    --------
    >>> [percent(share).replace(SPACE, " ") for share in (0.0, 0.624, 0.999, 0.9999, 1.0)]
    ['0 %', '62 %', '99.9 %', '99.9 %', '100 %']
    """
    hundred = 100 * share
    if 0 < hundred < 0.5 or 99.5 <= hundred < 100:
        return f"{min(99.9, max(0.1, hundred)):.1f}{SPACE}%"
    return f"{hundred:.0f}{SPACE}%"


# The verdict.

WORTH = 0.5
"""A guarantee of less than this is worth nothing."""
VERDICT = templates().get_template("verdict.txt.j2")


def headline(measures: IndexReport) -> dict[str, Any]:
    """Compose the opening of a page.

    Returns
    -------
    dict
        ``title``, a sentence with a number; ``lines``, those that follow; ``tone``: "kept",
        "broken" or "none", by whether there is a guarantee, and these queries, open-set ones
        among them, agree with it;
        ``made``: this guarantee, the smallest usual one, else the largest that can be made; None.
    """
    n, made, guarantees = measures.queries, guaranteed(measures), measures.guarantees
    answered, right, let_in, tone = Share(0, 0), Share(0, 0), list[str](), "none"
    unmatched = strange = everything = Share(0, 0)
    if made is not None:
        answered, right = counts(made, n)
        unmatched = Share.of(made.without_match, round((1 - measures.known_share) * n))
        strange = Share.of(made.ood, measures.ood.items if measures.ood else 0)
        everything = Share(right.k, answered.k + strange.k)
        if answered.k:
            broken = everything.ends[1] < made.guaranteed
            tone = "broken" if broken else "kept"
        names = {"queries without a match in the index": unmatched, "open-set queries": strange}
        let_in = [f"{s.k:,} of {s.n:,} {name} ({s.percent})" for name, s in names.items() if s.n]
    others = [p for p in guarantees if p.threshold is not None and p is not made]
    text = VERDICT.render(
        n=f"{n:,}",
        all_right=Share.of(measures.answers_right, n),
        measures=measures,
        tone=tone,
        made=made,
        goal="" if made is None else percent(made.guaranteed),
        answered=answered,
        right=right,
        let_in=let_in,
        open_set=strange,
        everything=everything,
        covered=covered(measures, unmatched.n + strange.n, n + strange.n),
        more=[f"{counts(p, n)[0].percent} at {percent(p.guaranteed)} precision" for p in others],
        missing=next((p for p in guarantees if p.threshold is None), None),
        percent=percent,
    )
    title, *lines = text.splitlines()
    return {"title": title, "lines": lines, "tone": tone, "made": made}


def covered(measures: IndexReport, without_match: int, of: int) -> str:
    """Return which queries the guarantee covers, where some have no match; else nothing."""
    share = measures.calibrated_without_match
    if share is None or not without_match:
        return ""
    here = percent(without_match / of)
    if share == 0:
        return (
            "The guarantee covers queries that have a match in the index, and "
            f"{here} of these have none: calibrate with such queries, or index with "
            "--open-set-fraction."
        )
    return (
        f"The guarantee covers queries of which {percent(share)} have no match in the index, as "
        f"those that calibrated it; of these {here} have none."
    )


def guaranteed(measures: IndexReport) -> GuaranteedPrecision | None:
    """The guarantee of the title: the first that can be made, if it is worth one."""
    offered = (*measures.guarantees[:1], measures.largest_guarantee)
    found = [p for p in offered if p is not None and p.threshold is not None]
    return next((p for p in found if p.guaranteed >= WORTH), None)


def counts(made: GuaranteedPrecision, n_queries: int) -> tuple[Share, Share]:
    """Answered, of all queries; and right, of those."""
    answered = Share.of(made.answered, n_queries)
    return answered, Share.of(made.obtained, answered.k)


# Numbers whose intervals are resampled: value, 95 % interval and of how many, as they are shown.


RESAMPLES = 200
Cells = tuple[str, str, str]


def resampled(measures: IndexReport) -> dict[str, dict[str, Cells]]:
    """Compute the cells of each score (AUROC, AUSC), and of the probability of the answers."""
    right, scores, n = measures.right, measures.scores, f"{measures.queries:,}"

    def ausc(unsure: Tensor, y: Tensor) -> float:
        return sparsification(unsure, y).ausc

    def against(metric: Callable[[Tensor, Tensor], float]) -> dict[str, Cells]:
        intervals = {name: _interval(metric, score, right) for name, score in scores.items()}
        return {name: _cells(interval, n) for name, interval in intervals.items()}

    found = {"r_auroc": against(r_auroc), "ausc": against(ausc), "auroc": {}, "honesty": {}}
    for name, strange in measures.ood_scores.items():
        interval = _interval(auroc, scores[name], strange, paired=False)
        found["auroc"][name] = _cells(interval, f"{n} and {len(strange):,}")
    if measures.probability is not None:
        honest = quality(measures.probability, right, n=RESAMPLES)
        found["honesty"] = {"ece": _cells(honest.ece, n), "brier": _cells(honest.brier, n)}
    return found


def _interval(
    metric: Callable[[Tensor, Tensor], float], *arrays: Tensor, paired: bool = True
) -> BootstrapInterval:
    data = [x.detach().cpu().to(torch.float64) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        return bootstrap_interval(metric, *data, n=RESAMPLES, paired=paired)


def _cells(found: BootstrapInterval, n: str) -> Cells:
    if math.isnan(found.estimate):
        return "n/a", "", n
    return f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}", n


# The figures of a page; the template says how to read them.


def charts(measures: IndexReport) -> dict[str, Figure]:
    """Draw two figures, and a third where there are match probabilities."""
    first = measures.ranked_by
    made = [p for p in (measures.largest_guarantee, *measures.guarantees) if p is not None]
    marks = {percent(p.guaranteed): 1 - p.threshold for p in made if p.threshold is not None}
    shown = {name: measures.scores[name] for name in (first, DISTANCE)}
    if measures.called_unknown is not None:  # which no threshold answers
        shown[first] = shown[first] + measures.called_unknown.to(shown[first])
    figures = {"gain": plots.answering_plot(shown, measures.right, marks=marks)}
    if measures.reliability is not None:
        figures["honest"] = plots.reliability_plot({first: measures.reliability})
    epistemic, others = measures.scores[EPISTEMIC], {}
    if len(wrong := epistemic[~measures.right]):
        others["answer wrong"] = _within(wrong)
    if EPISTEMIC in measures.ood_scores:
        others["open-set"] = _within(measures.ood_scores[EPISTEMIC])
    figures["fall"] = plots.uncertainty_plot(
        _within(epistemic), others, name=f"{EPISTEMIC} (standard deviations)"
    )
    return figures


def _within(epistemic: Tensor) -> Tensor:
    """Leave out inputs of zeros, whose stand-in of 1e6 hides all others."""
    there = epistemic[epistemic < NOTHING_ENTERS]
    return there if len(there) else epistemic


# Thumbnails and excerpts of queries and items, where the data are still there.

SIDE = 112
"""Longest side of a picture in pixels; a smaller image stays as it is."""
SMALL = 64
"""Up to here a picture is PNG, exact; above, JPEG."""
LONGEST = 220
"""Characters of a text; the last says that there are more."""


@dataclass(frozen=True)
class Look:
    """A picture as a data URI, or a text; neither for arrays, and for what is gone."""

    picture: str | None = None
    text: str | None = None
    small: bool = False


LookOf = Callable[[str], Look]
"""Of the query or the item of an id."""


def look_by(item: Callable[[str], Any], name: str) -> Look:
    """Return the look of what ``item`` gives; empty where it cannot be read, or lies elsewhere."""
    try:
        shown = item(name)
    except (InputError, LookupError):
        return Look()
    if isinstance(shown, str):
        return Look(text=excerpt(shown, LONGEST))
    return Look(picture=picture_uri(shown), small=max(shown.size) <= SMALL)


def look_of(source: Source) -> LookOf:
    """Return the looks of the items of a source that the command line names."""
    if source.kind == IMAGES:
        return partial(look_by, Pictures(root_of(source.path)).picture)
    return partial(look_by, (source.texts() if source.kind == TEXTS else {}).__getitem__)


def item_look(gallery: LoadedIndex, reporter: Reporter) -> LookOf:
    """Return the looks of the items of an index, if its data are known, there and unchanged."""
    if gallery.origin.data is not None and gallery.posterior.recipe.kind == IMAGES:
        try:
            return partial(look_by, gallery.item_pictures().picture)
        except (LaplaceMetricError, OSError) as error:
            reporter.note(f"the items are named, not shown: {error}")
    return partial(look_by, gallery.item_texts(reporter).__getitem__)


def picture_uri(image: Image.Image) -> str:
    """A data URI of at most ``SIDE`` pixels a side.

    Examples
    --------
    >>> picture_uri(Image.new("RGB", (4, 4)))[:22], picture_uri(Image.new("RGB", (400, 300)))[:23]
    ('data:image/png;base64,', 'data:image/jpeg;base64,')
    """
    image, form = image.copy(), "PNG" if max(image.size) <= SMALL else "JPEG"
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, form, optimize=True, quality=85)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


# Queries with their neighbours, as a page shows them.


NEIGHBOURS = 5


def asked(
    index: Index, queries: Source, truth: Sequence[Any] | None, batch_size: int
) -> list[dict[str, Any]]:
    """Search every query: its ``name``, true ``label`` or None, ``neighbours`` (``columns_of``)."""
    if not len(queries):
        return []
    result = index.search(queries.batches(batch_size), min(NEIGHBOURS, len(index)))
    rows, found = iter(rows_of(columns_of(result, queries.ids))), []
    for number, name in enumerate(queries.ids):
        positions = result.positions[number].tolist()  # -1: an approximate engine found fewer
        own = [next(rows) for _ in positions]
        near = [row for row, at in zip(own, positions, strict=True) if at >= 0]
        label = None if truth is None else truth[number]
        found.append({"name": name, "label": label, "neighbours": near})
    return found


# What became of the queries: answered rightly or wrongly, abstained, unknown.


SHOWN = 4
"""Queries of a group that are shown."""


def grouped(measures: IndexReport, made: GuaranteedPrecision | None) -> list[dict[str, Any]]:
    """Divide the queries into groups; an empty group is left out.

    The threshold of ``made`` decides which are answered; without one all that are not called
    unknown. Of a group: ``key``,
    ``title``, ``note``, ``n`` and ``places``, the rows to show, spread evenly from the surest to
    the least sure.
    """
    right, called = measures.right, measures.called_unknown
    unknown = torch.zeros_like(right) if called is None else called
    answered = ~unknown if made is None or made.accepted is None else made.accepted
    left = ~answered & ~unknown
    unsure = measures.scores[measures.ranked_by]
    strange_note = ""
    if measures.has_match is not None:
        strange = int((~measures.has_match[unknown]).sum())
        strange_note = f"{strange:,} have no match in the index"
        strange_note = strange_note if strange else "falsely: all have a match"
    parts = (
        ("right", "Answered, right", answered & right, ""),
        ("wrong", "Answered, wrong", answered & ~right, ""),
        ("abstained", "Abstained", left, f"{int(right[left].sum()):,} would have been right"),
        ("unknown", "Called unknown", unknown, strange_note),
    )
    groups = []
    for key, title, members, note in parts:
        rows = members.nonzero().flatten()
        rows = rows[unsure[rows].argsort(stable=True)]
        places = [int(rows[place]) for place in evenly(len(rows), SHOWN)]
        if places:
            group = {"key": key, "title": title, "note": note, "n": len(rows), "places": places}
            groups.append(group)
    return groups


def evenly(n: int, most: int) -> list[int]:
    """At most so many of n places, both ends among them.

    Examples
    --------
    >>> evenly(10, 4), evenly(3, 4), evenly(7, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    if n <= most:
        return list(range(n))
    return [round(place * (n - 1) / max(1, most - 1)) for place in range(most)]
