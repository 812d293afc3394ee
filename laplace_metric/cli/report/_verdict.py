"""Verdict of a page in words, numbers and charts: shares in per cent, with intervals.

What a page opens with: how many queries are answered, how precisely, and what more would take.

The share of answers was measured on queries that the guarantee has not seen; a guarantee that they
contradict, with the whole 95 % interval of what was obtained below it, is called broken.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from laplace_metric import plots
from laplace_metric.errors import UndefinedMetricWarning
from laplace_metric.evaluation import (
    auroc,
    bootstrap_interval,
    expected_calibration_error,
    r_auroc,
    sparsification,
)
from laplace_metric.evaluation._intervals import share_interval
from laplace_metric.plots import Figure
from laplace_metric.plots._style import inline_svg
from laplace_metric.search import IndexReport
from laplace_metric.search._report import DISTANCE, MATCH, UNCERTAINTY, GuaranteedPrecision

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


@dataclass(frozen=True)
class Headline:
    """A sentence with a number, those that follow, and whether to rely on it.

    Parameters
    ----------
    title : str
    lines : tuple of str
    tone : "kept" | "broken" | "none"
        Whether there is a guarantee, and these queries agree with it.
    guarantee : GuaranteedPrecision or None
        The one of the title.
    """

    title: str
    lines: tuple[str, ...]
    tone: str
    guarantee: GuaranteedPrecision | None


def headline(measures: IndexReport) -> Headline:
    """Choose the smallest usual precision that is guaranteed; else the largest that can be."""
    right = Share.of(measures.answers_right, measures.queries)
    nearest = (
        f"Of {right.n:,} queries the nearest item is a match for {right.k:,} (95{SPACE}% "
        f"interval "
        f"{right.interval})."
    )
    if not measures.guarantees:
        title = f"Right for {right.percent} of queries, without a guarantee."
        return Headline(title, (nearest, CALIBRATE), "none", None)
    made = guaranteed(measures)
    advice = _advice(measures)
    if made is None:
        title = f"Right for {right.percent} of queries, and nothing can be guaranteed."
        return Headline(title, (nearest, *advice), "none", None)
    return _of_guarantee(made, measures, advice)


def guaranteed(measures: IndexReport) -> GuaranteedPrecision | None:
    """The guarantee of the title: the first that can be made, if it is worth one."""
    offered = (measures.guarantees[:1], (measures.largest_guarantee,))
    found = [p for part in offered for p in part if p is not None and p.threshold is not None]
    return next((p for p in found if p.guaranteed >= WORTH), None)


def counts(made: GuaranteedPrecision, n_queries: int) -> tuple[Share, Share]:
    """Answered, of all queries; and right, of those."""
    answered = Share.of(made.answered, n_queries)
    return answered, Share.of(made.obtained, answered.k)


def _of_guarantee(
    made: GuaranteedPrecision, measures: IndexReport, advice: tuple[str, ...]
) -> Headline:
    answered, right = counts(made, measures.queries)
    goal = percent(made.guaranteed)
    if answered.k == 0:
        title = f"Answers none of {answered.n:,} queries at {goal} precision."
        return Headline(title, advice, "none", made)
    obtained = (
        f"Of {answered.n:,} queries {answered.k:,} were answered, {right.k:,} of them rightly: "
        f"{right.percent} (95{SPACE}% interval {right.interval})."
    )
    if right.ends[1] < made.guaranteed:
        title = f"Do not rely on it: {goal} precision was guaranteed, {right.percent} is obtained."
        why = (
            "These queries are unlike those that calibrated the index, or its items have changed: "
            "calibrate on queries such as these."
        )
        return Headline(title, (obtained, why), "broken", made)
    title = f"Answers {answered.percent} of queries at {goal} precision."
    lines = (obtained, *_let_in(made, measures), *_higher(made, measures), *advice)
    if measures.cross_fitted:
        lines = (*lines, CROSS_FITTED)
    return Headline(title, lines, "kept", made)


def _let_in(made: GuaranteedPrecision, measures: IndexReport) -> tuple[str, ...]:
    """Count the queries without a match, and open-set queries, that are answered all the same."""
    unmatched = round((1 - measures.known_share) * measures.queries)
    parts = {
        "queries without a match in the index": Share.of(made.without_match, unmatched),
        "open-set queries": Share.of(made.ood, measures.ood.items if measures.ood else 0),
    }
    told = [f"{s.k:,} of {s.n:,} {name} ({s.percent})" for name, s in parts.items() if s.n]
    return (f"It lets in {' and '.join(told)}.",) if told else ()


def _higher(made: GuaranteedPrecision, measures: IndexReport) -> tuple[str, ...]:
    more = [p for p in measures.guarantees if p.threshold is not None and p is not made]
    if not more:
        return ()
    parts = [
        f"{counts(p, measures.queries)[0].percent} at {percent(p.guaranteed)} precision"
        for p in more
    ]
    return (f"It answers {' and '.join(parts)}.",)


def _advice(measures: IndexReport) -> tuple[str, ...]:
    """Describe what is missing for the smallest precision that cannot be guaranteed."""
    lacking = [p for p in measures.guarantees if p.queries_needed is not None]
    if not lacking:
        return ()
    goal, missing = percent(lacking[0].guaranteed), lacking[0].queries_needed
    assert missing is not None
    if missing.more:
        return (
            f"Calibrate on about {rounded_up(missing.more):,} more queries to guarantee {goal} "
            f"(with a chance of 80{SPACE}%, if they are answered as those so far).",
        )
    so_far = f"of its {missing.surest:,} surest answers {missing.right:,} are right"
    if missing.ever > EVEN:
        return (
            f"How many more queries it takes to guarantee {goal} cannot be estimated from the "
            f"calibration: {so_far}; {missing.flawless:,} without an error would be enough.",
        )
    return (
        f"A guarantee of {goal} needs a better embedder or cleaner labels rather than more queries "
        f"for the calibration: {so_far}.",
    )


def lacks(made: GuaranteedPrecision) -> str:
    """In a few words, what a precision that cannot be guaranteed would take."""
    missing = made.queries_needed
    if missing is None:
        return ""
    if missing.more:
        return f"not yet; with about {rounded_up(missing.more):,} more queries"
    if missing.ever > EVEN:
        return "not yet; how many more queries it takes cannot be estimated"
    return "not likely, with any number of queries"


# Every number of an evaluation, with its 95 % interval and of how many it is.


RESAMPLES = 200


@dataclass(frozen=True)
class NumberRow:
    """A heading has a name alone."""

    name: str
    value: str = ""
    interval: str = ""
    n: str = ""


def number_rows(measures: IndexReport) -> list[NumberRow]:
    """Headings, and numbers below them."""
    rows = [NumberRow("Answers"), *_answers(measures)]
    if measures.match_probability is not None:
        rows += [NumberRow("Honest probabilities"), *_honesty(measures)]
        rows += [NumberRow("Sets and unknown queries"), *_sets(measures)]
    rows += [NumberRow("Wrong answers look less sure (R-AUROC; 0.5: guessing)")]
    rows += [
        _resampled(name, r_auroc, score, measures.right) for name, score in measures.scores.items()
    ]
    rows += [NumberRow("Right answers while the least sure are left out (AUSC)")]
    rows += [
        _resampled(name, lambda u, y: sparsification(u, y).ausc, score, measures.right)
        for name, score in measures.scores.items()
    ]
    rows.append(NumberRow("the best possible", f"{measures.ausc_oracle:.3f}", "", rows[-1].n))
    return rows + _open_set_rows(measures)


def _answers(measures: IndexReport) -> list[NumberRow]:
    n, known = measures.queries, Share.of(measures.known_share, measures.queries)
    rows = [
        _share("nearest item is a match", Share.of(measures.answers_right, n)),
        _share("queries with a match in the index", known),
        _share("nearest item is a match, of those", Share.of(measures.recall_at_1, known.k)),
    ]
    if measures.label_accuracy is not None:
        rows.append(_share("label answered is right", Share.of(measures.label_accuracy, n)))
    return rows


def _honesty(measures: IndexReport) -> list[NumberRow]:
    p = measures.match_probability
    assert p is not None
    right, mean = measures.right, measures.mean_match_probability or 0.0

    def error(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    def brier(p: Tensor, y: Tensor) -> float:
        return float((p.double() - y.double()).square().mean())

    return [
        NumberRow("mean match probability of the nearest item", percent(mean), "", f"{len(p):,}"),
        _resampled("calibration error (ECE; 0: honest)", error, p, right),
        _resampled("Brier score (0: certain and right)", brier, p, right),
    ]


def _sets(measures: IndexReport) -> list[NumberRow]:
    sets, unknown = measures.retrieval_sets, measures.unknown
    assert sets is not None
    assert unknown is not None
    n_known = round(measures.known_share * measures.queries)
    name = f"retrieval sets with a match, {percent(sets.guaranteed)} guaranteed"
    rows = [NumberRow(name, sets.explanation or "")]
    if sets.explanation is None:
        size = NumberRow("items in such a set", f"{sets.mean_size or 0:.1f}")
        rows = [_share(name, Share.of(sets.coverage, n_known)), size]
    return [
        *rows,
        _share(
            f"called unknown, though they have a match (5{SPACE}% by design)",
            Share.of(unknown["of_known"], n_known),
        ),
        _share(
            "called unknown, of those without a match",
            Share.of(unknown["of_others"], measures.queries - n_known),
        ),
        NumberRow("smallest p-value of unknown", f"{measures.smallest_p_value:.3f}"),
    ]


def _open_set_rows(measures: IndexReport) -> list[NumberRow]:
    ood = measures.ood
    if ood is None:
        return []
    rows = [NumberRow("Open-set queries look less sure (AUROC; 0.5: guessing)")]
    for name, theirs in measures.ood_scores.items():
        rows.append(_resampled(name, auroc, measures.scores[name], theirs, paired=False))
    if ood.unknown is not None:
        rows.append(_share("open-set queries called unknown", Share.of(ood.unknown, ood.items)))
    made = guaranteed(measures)
    if made is not None:
        name = f"open-set queries answered at {percent(made.guaranteed)} precision"
        rows.append(_share(name, Share.of(made.ood, ood.items)))
    return rows


def _share(name: str, share: Share) -> NumberRow:
    return NumberRow(name, share.percent, share.interval, f"{share.n:,}")


def _resampled(
    name: str, metric: Callable[[Tensor, Tensor], float], *arrays: Tensor, paired: bool = True
) -> NumberRow:
    data: list[Any] = [x.detach().cpu().to(torch.float64) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        found = bootstrap_interval(metric, *data, n=RESAMPLES, paired=paired)
    n = f"{len(data[0]):,}" if paired else f"{len(data[0]):,} and {len(data[1]):,}"
    if math.isnan(found.estimate):
        return NumberRow(name, "n/a", "", n)
    return NumberRow(name, f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}", n)


# The figures of a page, each with what it shows and of how many queries.


@dataclass(frozen=True)
class ExplainedChart:
    """A figure as SVG with its title, how to read it, and what is good."""

    title: str
    svg: Markup
    about: str
    good: str


def charts(measures: IndexReport) -> list[ExplainedChart]:
    """Two, and a third where there are match probabilities."""
    n = f"{measures.queries:,}"
    found = [_answering(measures, n)]
    if measures.reliability is not None:
        figure = plots.reliability_plot({MATCH: measures.reliability})
        about = (
            f"The match probability of the nearest items of {n} queries, in ten bins, and the "
            "share that are a match; larger marks hold more queries, small ones may be chance."
        )
        good = "points on the dotted line. Below it the probability is too sure."
        found.append(_explained("Is the match probability honest?", figure, about, good))
    figure, sizes = _histogram(measures)
    strange = "" if measures.ood is None else ", and open-set queries,"
    good = f"wrong nearest items{strange} lie to the right."
    about = f"Uncertainty, the expected squared error of an embedding: {sizes}."
    found.append(_explained("Where do the uncertain ones fall?", figure, about, good))
    return found


def _answering(measures: IndexReport, n: str) -> ExplainedChart:
    first = MATCH if MATCH in measures.scores else UNCERTAINTY
    made = [p for p in (measures.largest_guarantee, *measures.guarantees) if p is not None]
    marks = {percent(p.guaranteed): 1 - p.threshold for p in made if p.threshold is not None}
    shown = {name: measures.scores[name] for name in (first, DISTANCE)}
    if measures.called_unknown is not None:  # which no threshold answers
        shown[first] = shown[first] + measures.called_unknown.to(shown[first])
    figure = plots.answering_plot(shown, measures.right, marks=marks)
    last = "" if measures.called_unknown is None else ", unknown ones last"
    about = (
        f"{n} queries, answered from the surest on{last}, and how often the "
        f"answers are right; the band is a 95{SPACE}% interval"
        f"{', circles are the guarantees' if marks else ''}."
    )
    good = f"a curve that begins near 100{SPACE}%, falls late, and lies above that of the distance."
    return _explained("What does abstaining gain?", figure, about, good)


def _histogram(measures: IndexReport) -> tuple[Figure, str]:
    others, sizes = {}, [f"{measures.queries:,} queries"]
    wrong = measures.uncertainty[~measures.right]
    if len(wrong):
        others["nearest item wrong"] = wrong
        sizes.append(f"{len(wrong):,} with a wrong nearest item")
    if measures.ood_uncertainty is not None:
        others["open-set"] = measures.ood_uncertainty
        sizes.append(f"{len(measures.ood_uncertainty):,} open-set queries")
    return plots.uncertainty_plot(measures.uncertainty, others), ", ".join(sizes)


def _explained(title: str, figure: Figure, about: str, good: str) -> ExplainedChart:
    prefix = title.split()[-1].strip("?").lower()
    return ExplainedChart(title, inline_svg(figure, prefix, title), about, good)
