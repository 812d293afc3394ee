"""The verdict of a report: what was obtained, what was guaranteed, and what more would take.

The queries of the page did not calibrate the index, so they can confirm or contradict its guarantee
or be too few to tell: ``GuaranteeTest``.
"""

from __future__ import annotations

from typing import Any

from laplace_metric.cli._guarantee_test import GuaranteeTest
from laplace_metric.cli._share import Share, percent
from laplace_metric.cli._templates import templates
from laplace_metric.search import IndexReport
from laplace_metric.search._report import GuaranteedPrecision

WORTH = 0.5
"""A guarantee of less than this is worth nothing."""
VERDICT = templates().get_template("verdict.txt.j2")


def headline(measures: IndexReport) -> dict[str, Any]:
    """Compose the opening of a page.

    Returns
    -------
    dict
        ``title``, a sentence with a number; ``lines``, those that follow; ``tone``: outcome of the
        test of the guarantee by these queries, open-set ones among them, "none" without an answer;
        ``made``: this guarantee, the smallest usual one, else the largest that can be made; None.
    """
    n, made, guarantees = measures.queries, guaranteed(measures), measures.guarantees
    answered, right, let_in, tone = Share(0, 0), Share(0, 0), list[str](), "none"
    unmatched, strange, test = Share(0, 0), Share(0, 0), None
    if made is not None:
        answered, right = counts(made, n)
        unmatched = Share.of(made.without_match, round((1 - measures.known_share) * n))
        strange = Share.of(made.ood, measures.ood.items if measures.ood else 0)
        if answered.k:
            everything = Share(right.k, answered.k + strange.k)
            test = GuaranteeTest(everything, made.guaranteed)
            tone = test.outcome
        names = {"queries without a match in the index": unmatched, "open-set queries": strange}
        let_in = [f"{s.k:,} of {s.n:,} {name} ({s.percent})" for name, s in names.items() if s.n]
    told = None if made is None else made.threshold
    others = [p for p in guarantees if p.threshold not in (None, told)]
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
        test=test,
        without_open_set=test and GuaranteeTest(right, test.guaranteed).outcome,
        covered=covered(measures, unmatched.n + strange.n, n + strange.n),
        others=[(percent(p.guaranteed), *counts(p, n)) for p in others],
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
            "The guarantee covers queries that have a match in the index. Of these queries "
            f"{here} have none: calibrate with such queries, or index with "
            "--open-set-fraction."
        )
    return (
        f"The guarantee covers queries of which {percent(share)} have no match in the index, as "
        f"those that calibrated it; of these {here} have none."
    )


def guaranteed(measures: IndexReport) -> GuaranteedPrecision | None:
    """Return the guarantee of the title: the first that can be made, if it is worth one.

    Of guarantees with one threshold, which answer the same queries, the highest leads.
    """
    offered = (*measures.guarantees[:1], measures.largest_guarantee)
    found = [p for p in offered if p is not None and p.threshold is not None]
    first = next((p for p in found if p.guaranteed >= WORTH), None)
    same = [p for p in measures.guarantees if first and p.threshold == first.threshold]
    return max(same, key=lambda p: p.guaranteed, default=first)


def counts(made: GuaranteedPrecision, n_queries: int) -> tuple[Share, Share]:
    """Return the share of queries that are answered, and of answers that are right."""
    answered = Share.of(made.answered, n_queries)
    return answered, Share.of(made.obtained, answered.k)
