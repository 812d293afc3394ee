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
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from laplace_metric import plots
from laplace_metric._utils.version import __version__
from laplace_metric.cli._gallery import LoadedIndex, excerpt, load_gallery
from laplace_metric.cli._index import measured, require_queries
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli._parser import run_text
from laplace_metric.cli._sources import IMAGES, TEXTS, Source, path_below, root_of
from laplace_metric.cli.pages import templates
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LaplaceMetricError, UndefinedMetricWarning
from laplace_metric.evaluation import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    r_auroc,
    sparsification,
)
from laplace_metric.evaluation._intervals import share_interval
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from laplace_metric.io import write_atomically
from laplace_metric.plots import Figure
from laplace_metric.plots._style import inline_svg
from laplace_metric.search import Index, IndexReport
from laplace_metric.search._report import DISTANCE, EPISTEMIC, MATCH, GuaranteedPrecision


def report(options: Namespace) -> None:
    """Measure and write the page."""
    reporter = reporter_of(options, options.output)
    require_queries(options)
    gallery = load_gallery(options.index, options, reporter)
    measures, queries = measured(gallery, options, reporter)
    verdict = headline(measures)
    groups = grouped(measures, verdict["made"] and verdict["made"].threshold)
    shown = _shown(gallery, queries, groups, measures, verdict["made"], options, reporter)
    page = (
        templates()
        .get_template("trust.html.j2")
        .render(
            verdict=verdict,
            groups=groups,
            shown=shown,
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
            run=run_text(options),
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
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Add the neighbours to the queries of each group; open-set queries are the last group."""
    look_of_item = looks_of_items(gallery, reporter)

    def found(source: Source, truth: Any) -> list[dict[str, Any]]:
        looks = looks_of_queries(source), look_of_item
        return asked(gallery.index, source, truth, looks, options.batch_size)

    some = queries.take([row for group in groups for row in group["places"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluation said it already
        answers = iter(found(some, gallery.classes_of(some)))
        shown = [{**g, "queries": [next(answers) for _ in g["places"]]} for g in groups]
        if measures.ood is not None:
            source = gallery.posterior.source(options.open_set, options, Reporter(quiet=True))
            strange = replace(source.take(evenly(len(source), SHOWN)), classes=None)
            n, notes = measures.ood.items, []
            if measures.ood.unknown is not None:
                notes.append(f"{Share.of(measures.ood.unknown, n).k:,} are called unknown")
            if made is not None and made.ood is not None:
                notes.append(f"{Share.of(made.ood, n).k:,} are answered")
            group = {"key": "open_set", "title": "Open-set queries", "note": ", ".join(notes)}
            shown.append({**group, "n": n, "queries": found(strange, None)})
    return shown


def _guarantees(measures: IndexReport) -> list[dict[str, Any]]:
    """The rows of the table of thresholds; what cannot be guaranteed for one reason is one row."""
    rows: list[dict[str, Any]] = []
    for made in filter(None, (measures.largest_guarantee, *measures.guarantees)):
        answered, right = counts(made, measures.queries)
        goal, why = percent(made.guaranteed), lacks(made)[0]
        if why and rows and rows[-1]["lacks"] == why:
            rows[-1]["goal"] += f", {goal}"
            continue
        row = {"goal": goal, "made": made, "answered": answered, "right": right, "lacks": why}
        rows.append(row)
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


def rounded_up(n: int) -> int:
    """To two digits.

    Examples
    --------
    >>> [rounded_up(n) for n in (7, 99, 131, 140, 20_502)]
    [7, 99, 140, 140, 21000]
    """
    step = 10 ** max(0, len(str(n)) - 2)
    return -(-n // step) * step


# The verdict.

WORTH = 0.5
"""A guarantee of less than this is worth nothing."""
CROSS_FITTED = (
    "The index is calibrated by cross-fitting, by its own items: this precision is supported by "
    "simulation, not by a theorem, and by the queries of this page."
)
EVEN = 0.5
"""With a smaller chance that any number of queries would be enough, none are advised."""
CALIBRATE = (
    "The index is not calibrated, so that there are no match probabilities, and nothing to abstain "
    "by: fit with --holdout 0.4, or index with --calibrate DATA or --cross-fit 5."
)
UNLIKE = (
    "These queries are unlike those that calibrated the index, or its items have changed: "
    "calibrate on queries such as these."
)
LACKS = {
    "queries": (
        "not yet; with about {more:,} more queries",
        f"Calibrate on about {{more:,}} more queries to guarantee {{goal}} (with a chance of "
        f"80{SPACE}%, if they are answered as those so far).",
    ),
    "perhaps": (
        "not yet; how many more queries it takes cannot be estimated",
        "How many more queries it takes to guarantee {goal} cannot be estimated from the "
        "calibration: of its {missing.surest:,} surest answers {missing.right:,} are right; "
        "{missing.flawless:,} without an error would be enough.",
    ),
    "quality": (
        "not likely, with any number of queries",
        "A guarantee of {goal} needs a better embedder or cleaner labels rather than more queries "
        "for the calibration: of its {missing.surest:,} surest answers {missing.right:,} are "
        "right.",
    ),
}
"""Texts for a precision that cannot be guaranteed: a few words, and a sentence."""


def lacks(made: GuaranteedPrecision) -> tuple[str, str]:
    """Describe what a precision would take to be guaranteed; empty texts if it is."""
    missing = made.queries_needed
    if missing is None:
        return "", ""
    kind = "queries" if missing.more else "perhaps" if missing.ever > EVEN else "quality"
    goal, more = percent(made.guaranteed), rounded_up(missing.more or 0)
    short, sentence = (t.format(goal=goal, more=more, missing=missing) for t in LACKS[kind])
    return short, sentence


def headline(measures: IndexReport) -> dict[str, Any]:
    """Compose the opening of a page.

    Returns
    -------
    dict
        ``title``, a sentence with a number; ``lines``, those that follow; ``tone``: "kept",
        "broken" or "none", by whether there is a guarantee, and these queries agree with it;
        ``made``: this guarantee, the smallest usual one, else the largest that can be made; None.
    """
    n = measures.queries
    nearest = Share.of(measures.answers_right, n)
    advice = [text for p in measures.guarantees if (text := lacks(p)[1])][:1]
    made = guaranteed(measures) if measures.guarantees else None
    if made is None:
        found = (
            f"Of {n:,} queries the nearest item is a match for {nearest.k:,} (95{SPACE}% interval "
            f"{nearest.interval})."
        )
        lacking = "and nothing can be guaranteed" if measures.guarantees else "without a guarantee"
        title = f"Right for {nearest.percent} of queries, {lacking}."
        lines = [found, *(advice if measures.guarantees else [CALIBRATE])]
        return {"title": title, "lines": lines, "tone": "none", "made": None}
    answered, right = counts(made, n)
    goal = percent(made.guaranteed)
    if answered.k == 0:
        title = f"Answers none of {n:,} queries at {goal} precision."
        return {"title": title, "lines": advice, "tone": "none", "made": made}
    obtained = (
        f"Of {n:,} queries {answered.k:,} were answered, {right.k:,} of them rightly: "
        f"{right.percent} (95{SPACE}% interval {right.interval})."
    )
    if right.ends[1] < made.guaranteed:
        title = f"Do not rely on it: {goal} precision was guaranteed, {right.percent} is obtained."
        return {"title": title, "lines": [obtained, UNLIKE], "tone": "broken", "made": made}
    lines = [obtained]
    unmatched = Share.of(made.without_match, round((1 - measures.known_share) * n))
    strange = Share.of(made.ood, measures.ood.items if measures.ood else 0)
    let_in = {"queries without a match in the index": unmatched, "open-set queries": strange}
    if told := [f"{s.k:,} of {s.n:,} {name} ({s.percent})" for name, s in let_in.items() if s.n]:
        lines.append(f"It lets in {' and '.join(told)}.")
    more = [p for p in measures.guarantees if p.threshold is not None and p is not made]
    told = [f"{counts(p, n)[0].percent} at {percent(p.guaranteed)} precision" for p in more]
    if told:
        lines.append(f"It answers {' and '.join(told)}.")
    lines += [*advice, *([CROSS_FITTED] if measures.cross_fitted else [])]
    title = f"Answers {answered.percent} of queries at {goal} precision."
    return {"title": title, "lines": lines, "tone": "kept", "made": made}


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
    """Compute the cells of each score (AUROC, AUSC), and of the match probability."""
    right, p = measures.right, measures.match_probability

    def error(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    def brier(p: Tensor, y: Tensor) -> float:
        return float((p.double() - y.double()).square().mean())

    def ausc(unsure: Tensor, y: Tensor) -> float:
        return sparsification(unsure, y).ausc

    found: dict[str, dict[str, Cells]] = {"r_auroc": {}, "ausc": {}, "auroc": {}, "honesty": {}}
    for name, score in measures.scores.items():
        found["r_auroc"][name] = _cells(r_auroc, score, right)
        found["ausc"][name] = _cells(ausc, score, right)
    for name, score in measures.ood_scores.items():
        found["auroc"][name] = _cells(auroc, measures.scores[name], score, paired=False)
    if p is not None:
        found["honesty"] = {"ece": _cells(error, p, right), "brier": _cells(brier, p, right)}
    return found


def _cells(
    metric: Callable[[Tensor, Tensor], float], *arrays: Tensor, paired: bool = True
) -> Cells:
    data: list[Any] = [x.detach().cpu().to(torch.float64) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        found = bootstrap_interval(metric, *data, n=RESAMPLES, paired=paired)
    n = f"{len(data[0]):,}" if paired else f"{len(data[0]):,} and {len(data[1]):,}"
    if math.isnan(found.estimate):
        return "n/a", "", n
    return f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}", n


# The figures of a page; the template says how to read them.


def charts(measures: IndexReport) -> dict[str, Figure]:
    """Draw two figures, and a third where there are match probabilities."""
    first = MATCH if MATCH in measures.scores else EPISTEMIC
    made = [p for p in (measures.largest_guarantee, *measures.guarantees) if p is not None]
    marks = {percent(p.guaranteed): 1 - p.threshold for p in made if p.threshold is not None}
    shown = {name: measures.scores[name] for name in (first, DISTANCE)}
    if measures.called_unknown is not None:  # which no threshold answers
        shown[first] = shown[first] + measures.called_unknown.to(shown[first])
    figures = {"gain": plots.answering_plot(shown, measures.right, marks=marks)}
    if measures.reliability is not None:
        figures["honest"] = plots.reliability_plot({MATCH: measures.reliability})
    epistemic, others = measures.scores[EPISTEMIC], {}
    if len(wrong := epistemic[~measures.right]):
        others["nearest item wrong"] = _within(wrong)
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
"""Of the item of an id."""


def looks_of_queries(source: Source) -> LookOf:
    """Return the looks of a source that the command line names."""
    if source.kind == IMAGES:
        return lambda name: picture_of_file(root_of(source.path), name)
    if source.kind != TEXTS:
        return lambda _: Look()
    rows = {name: row for row, name in enumerate(source.ids)}
    return lambda name: Look(text=excerpt(str(source.read([rows[name]])[0]), LONGEST))


def looks_of_items(gallery: LoadedIndex, reporter: Reporter) -> LookOf:
    """Return the looks of the items of an index; empty where its data are unknown, gone or changed.

    A file of the index names these data: images are read below paths of the command line alone, and
    of a table only what it names.
    """
    recipe, origin = gallery.posterior.recipe, gallery.origin
    if origin.data is None or recipe.kind not in (IMAGES, TEXTS):
        return lambda _: Look()
    try:
        if recipe.kind == IMAGES:
            folder = gallery.image_folder()
            if gallery.item_data().is_dir() or not gallery.is_listed():
                return lambda name: picture_of_file(folder, name, inside=True)
        source = gallery.items()
    except (LaplaceMetricError, OSError) as error:
        reporter.note(f"the items are named, not shown: {error}")
        return lambda _: Look()
    known, look = set(source.ids), looks_of_queries(source)
    return lambda name: look(name) if name in known else Look()


def picture_of_file(folder: Path, name: str, *, inside: bool = False) -> Look:
    """A file below a folder; nothing where it cannot be read, or lies elsewhere and may not."""
    try:
        if inside:
            path_below(folder, name)
        image = Pixels(folder, None, 3).decoded(name)
    except InputError:
        return Look()
    small = max(image.size) <= SMALL
    return Look(picture=picture_uri(image), small=small)


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
    index: Index,
    queries: Source,
    truth: Sequence[Any] | None,
    looks: tuple[LookOf, LookOf],
    batch_size: int,
) -> list[dict[str, Any]]:
    """Search every query of a source; ``looks`` are of queries and of items.

    Of a query: ``name``, its true ``label`` or None, ``unknown`` (None without a calibration),
    ``look`` and ``neighbours``. Of a neighbour: ``name``, ``label``, ``match`` (probability, else
    distance), ``right`` (None where a label is missing) and ``look``.
    """
    if not len(queries):
        return []
    result = index.search(queries.inputs(batch_size), min(NEIGHBOURS, len(index)))
    found = []
    for row, name in enumerate(queries.ids):
        unknown = None if result.unknown is None else bool(result.unknown[row])
        true = None if truth is None else truth[row]
        neighbours = []
        for rank in range(result.ids.shape[1]):
            if int(result.positions[row, rank]) < 0:
                continue
            item = str(result.ids[row, rank])
            label = None if result.labels is None else result.labels[row, rank]
            match = f"distance {float(result.distance[row, rank]):.3g}"
            if result.match_probability is not None:
                match = percent(float(result.match_probability[row, rank]))
            right = None if label is None or true is None else bool(label == true)
            neighbour = {"name": item, "label": label, "match": match, "right": right}
            neighbours.append({**neighbour, "look": looks[1](item)})
        query = {"name": name, "label": true, "unknown": unknown, "look": looks[0](name)}
        found.append({**query, "neighbours": neighbours})
    return found


# What became of the queries: answered rightly or wrongly, abstained, unknown.


SHOWN = 4
"""Queries of a group that are shown."""


def grouped(measures: IndexReport, threshold: float | None) -> list[dict[str, Any]]:
    """Divide the queries into groups; an empty group is left out.

    What is called unknown is not answered; without a threshold all else is. Of a group: ``key``,
    ``title``, ``note``, ``n`` and ``places``, the rows to show, spread evenly from the surest to
    the least sure.
    """
    right, p, called = measures.right, measures.match_probability, measures.called_unknown
    unknown = torch.zeros_like(right) if called is None else called
    answered = ~unknown if threshold is None or p is None else (p >= threshold) & ~unknown
    left = ~answered & ~unknown
    unsure = measures.scores[MATCH if MATCH in measures.scores else EPISTEMIC]
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
