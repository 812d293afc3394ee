"""The claims of each paper as tables of the page, and the count of their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from benchmarks.records import markdown, noted_reads
from benchmarks.report.claims import explicit_concentration, mcinfonce, prolip, url
from benchmarks.report.claims.criterion import CONTRADICTED, OPEN, REPRODUCED, Claim

VERDICTS = REPRODUCED, CONTRADICTED, OPEN
PAPERS: dict[str, tuple[str, tuple[Claim, ...]]] = {
    "url": ("URL, Kirchhof et al. 2023b", url.CLAIMS),
    "mcinfonce": ("MCInfoNCE, Kirchhof et al. 2023a", mcinfonce.CLAIMS),
    "explicit": ("Explicit concentration, 2024", explicit_concentration.CLAIMS),
    "prolip": ("ProLIP, Chun et al. 2025", prolip.CLAIMS),
}
"""Name of a table -> title of the paper, and its claims."""
HEADER = (
    "where", "claim", "printed", "asked", "ours", "verdict", "record", "conditions, reason",
)  # fmt: skip


def cells(claim: Claim) -> list[str]:
    """Return the row of a claim, with the records that it was computed from."""
    with noted_reads() as read:
        ours = claim.ours()
    verdict = claim.asked.verdict(ours, claim.conditions)
    return [
        claim.where, claim.what, claim.printed, claim.asked.text, ours.text,
        verdict if verdict == OPEN else f"**{verdict}**",
        ", ".join(f"`{name}`" for name in sorted(read)), claim.why,
    ]  # fmt: skip


def paper(name: str) -> str:
    """Return the table of a paper's claims."""
    return markdown(HEADER, [cells(claim) for claim in PAPERS[name][1]])


def count() -> str:
    """Return how many claims of each paper have each verdict."""
    lines = []
    for title, claims in PAPERS.values():
        found = Counter(claim.verdict() for claim in claims)
        lines.append([title, *(str(found[verdict]) for verdict in VERDICTS)])
    return markdown(["paper", *VERDICTS], lines)


def printed() -> str:
    """Return everything as text for a terminal."""
    parts = [count()]
    parts += [f"{title}\n{paper(name)}" for name, (title, _) in PAPERS.items()]
    return "\n\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "claims": count,
    **{f"claims-{name}": partial(paper, name) for name in PAPERS},
}
