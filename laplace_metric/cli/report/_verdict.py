"""What a page opens with: how many queries are answered, how precisely, and what more would take.

The share of answers was measured on queries that the promise has not seen; a promise that they
contradict, with the whole 95 % interval of what was obtained below it, is called broken.
"""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.cli.report._words import SPACE, Share, percent, rounded_up
from laplace_metric.search import IndexReport, PromisedPrecision

WORTH = 0.5
"""A promise of less than this is none."""
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
        Whether there is a promise, and these queries agree with it.
    promise : PromisedPrecision or None
        That the title speaks of.
    """

    title: str
    lines: tuple[str, ...]
    tone: str
    promise: PromisedPrecision | None


def headline(measures: IndexReport) -> Headline:
    """Of the smallest usual precision that is promised; of the most that can be where none is."""
    right = Share.of(measures.answers_right, measures.queries)
    nearest = (
        f"Of {right.n:,} queries the nearest item is a match for {right.k:,} (95{SPACE}% "
        f"interval "
        f"{right.interval})."
    )
    if not measures.promises:
        title = f"Right for {right.percent} of queries, without a promise."
        return Headline(title, (nearest, CALIBRATE), "none", None)
    promise = promised(measures)
    advice = _advice(measures)
    if promise is None:
        title = f"Right for {right.percent} of queries, and nothing can be promised."
        return Headline(title, (nearest, *advice), "none", None)
    return _of_promise(promise, measures, advice)


def promised(measures: IndexReport) -> PromisedPrecision | None:
    """The promise that a title speaks of: the first that can be made, if it is worth one."""
    offered = (measures.promises[:1], (measures.largest_promise,))
    found = [p for part in offered for p in part if p is not None and p.threshold is not None]
    return next((p for p in found if p.promised >= WORTH), None)


def counts(promise: PromisedPrecision, n_queries: int) -> tuple[Share, Share]:
    """Answered, of all queries; and right, of those."""
    answered = Share.of(promise.answered, n_queries)
    return answered, Share.of(promise.obtained, answered.k)


def _of_promise(
    promise: PromisedPrecision, measures: IndexReport, advice: tuple[str, ...]
) -> Headline:
    answered, right = counts(promise, measures.queries)
    goal = percent(promise.promised)
    if answered.k == 0:
        title = f"Answers none of {answered.n:,} queries at {goal} precision."
        return Headline(title, advice, "none", promise)
    obtained = (
        f"Of {answered.n:,} queries {answered.k:,} were answered, {right.k:,} of them rightly: "
        f"{right.percent} (95{SPACE}% interval {right.interval})."
    )
    if right.ends[1] < promise.promised:
        title = f"Do not rely on it: {goal} precision was promised, {right.percent} is obtained."
        why = (
            "These queries are unlike those that calibrated the index, or its items have changed: "
            "calibrate on queries such as these."
        )
        return Headline(title, (obtained, why), "broken", promise)
    title = f"Answers {answered.percent} of queries at {goal} precision."
    lines = (obtained, *_strangers(promise, measures), *_higher(promise, measures), *advice)
    if measures.cross_fitted:
        lines = (*lines, CROSS_FITTED)
    return Headline(title, lines, "kept", promise)


def _strangers(promise: PromisedPrecision, measures: IndexReport) -> tuple[str, ...]:
    """How many of those that cannot be answered rightly are answered all the same."""
    unmatched = round((1 - measures.known_share) * measures.queries)
    parts = {
        "queries without a match in the index": Share.of(promise.without_match, unmatched),
        "strangers": Share.of(promise.ood, measures.ood.items if measures.ood else 0),
    }
    told = [f"{s.k:,} of {s.n:,} {name} ({s.percent})" for name, s in parts.items() if s.n]
    return (f"It lets in {' and '.join(told)}.",) if told else ()


def _higher(promise: PromisedPrecision, measures: IndexReport) -> tuple[str, ...]:
    more = [p for p in measures.promises if p.threshold is not None and p is not promise]
    if not more:
        return ()
    parts = [
        f"{counts(p, measures.queries)[0].percent} at {percent(p.promised)} precision" for p in more
    ]
    return (f"It answers {' and '.join(parts)}.",)


def _advice(measures: IndexReport) -> tuple[str, ...]:
    """What the smallest precision that cannot be promised lacks."""
    lacking = [p for p in measures.promises if p.shortfall is not None]
    if not lacking:
        return ()
    goal, missing = percent(lacking[0].promised), lacking[0].shortfall
    assert missing is not None
    if missing.more:
        return (
            f"Calibrate on about {rounded_up(missing.more):,} more queries to promise {goal} "
            f"(with a chance of 80{SPACE}%, if they are answered as those so far).",
        )
    so_far = f"of its {missing.surest:,} surest answers {missing.right:,} are right"
    if missing.ever > EVEN:
        return (
            f"How many more queries it takes to promise {goal} cannot be told from the "
            f"calibration: {so_far}; {missing.flawless:,} without an error would be enough.",
        )
    return (
        f"A promise of {goal} needs a better embedder or cleaner labels rather than more queries "
        f"for the calibration: {so_far}.",
    )


def lacks(promise: PromisedPrecision) -> str:
    """In a few words, what a precision that cannot be promised would take."""
    missing = promise.shortfall
    if missing is None:
        return ""
    if missing.more:
        return f"not yet; with about {rounded_up(missing.more):,} more queries"
    if missing.ever > EVEN:
        return "not yet; how many more queries it takes cannot be told"
    return "not likely, with any number of queries"
