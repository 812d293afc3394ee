"""Tables of the pages from the committed JSON: ``python -m benchmarks.tables`` rewrites them.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. A test checks that the pages
hold exactly what the JSON gives, so no number is typed by hand.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.costs import guard, promises, serve
from benchmarks.costs import tables as cost_tables
from benchmarks.image_text import tables as image_text_tables
from benchmarks.posterior import costs as posterior_costs
from benchmarks.posterior import discount, frozen, layers, miners, rivals
from benchmarks.posterior import tables as posterior
from benchmarks.records import RESULTS, read_record
from benchmarks.report import papers, three_numbers
from benchmarks.report.cells import quality_table
from benchmarks.report.claims import tables as claims
from benchmarks.report.method_table import methods
from benchmarks.retrieval import (
    evidence,
    forty,
    growing,
    guarantees,
    power,
    tags,
    twenty,
    unfamiliar,
)
from benchmarks.variants import online_tables

ROOT = Path(__file__).parent.parent
PAGES = (
    *(
        ROOT / folder / "README.md"
        for folder in (
            "", "baselines", "benchmarks", "benchmarks/costs", "benchmarks/image_text",
            "benchmarks/papers", "benchmarks/retrieval", "benchmarks/variants",
        )
    ),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("engines", "match", "online", "posterior", "promises", "settings")
    ),
)  # fmt: skip
PROTOCOL_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "lam-fashion": (
        "lam", "fashion-mnist", ("recall@1", "r_auroc", "ece", "auroc mnist", "auroc kmnist"),
    ),
    "url-cub": (
        "url", "cub", ("recall@1", "r_auroc", "crop rank", "mixture r_auroc", "new classes"),
    ),
    "human-soft": ("human", "cifar10h-soft", ("entropy rank", "crop rank", "recall@1", "r_auroc")),
    "corruption": (
        "corruption", "cifar10",
        ("severity mean", "failure auroc", "k-nn auroc mnist", "k-nn+u auroc mnist"),
    ),
    "pretrained-cub-unseen": (
        "pretrained", "pretrained-cub-unseen", ("recall@1", "r_auroc", "ece", "auroc new species"),
    ),
}  # fmt: skip
"""Name -> protocol, task, metrics."""


def small(protocol: str) -> dict[str, Any]:
    """What was collected at the size of two cores."""
    return read_record(protocol, RESULTS / "small")


def protocol_table(name: str) -> str:
    """Return one task of a protocol, means only: the report has their errors."""
    protocol, task, metrics = PROTOCOL_TABLES[name]
    record = small(protocol)
    return quality_table(record, task, metrics, complete(record, task), errors=False)


def complete(record: dict[str, Any], task: str) -> list[str]:
    """Return the methods with as many seeds as any."""
    seeds = Counter(row["method"] for row in record["rows"] if row["task"] == task)
    most = max(seeds.values())
    return [m for m, n in seeds.items() if n == most]


TABLES: dict[str, Callable[[], str]] = {
    **{name: partial(protocol_table, name) for name in PROTOCOL_TABLES},
    "front": three_numbers.front,
    "ood-pairs": three_numbers.pairs,
    "proxies": papers.proxies,
    "unprinted": papers.unprinted,
    **claims.TABLES,
    "methods": lambda: methods(small("url"), "cifar10-unseen"),
    **online_tables.TABLES,
    "first-search": posterior.first_page,
    "posterior": posterior.ablation_table,
    "posterior-shares": posterior.at_equal_shares,
    "priors": posterior.priors_table,
    "variance": posterior.variance_table,
    "posterior-costs": posterior_costs.table,
    "discount": discount.table,
    "rivals": rivals.table,
    "miners": miners.table,
    "frozen": frozen.table,
    "layers": layers.table,
    "views": layers.views_table,
    "first-errors": evidence.first_page,
    **evidence.TABLES,
    **guarantees.TABLES,
    **power.TABLES,
    **growing.TABLES,
    **twenty.TABLES,
    **forty.TABLES,
    **tags.TABLES,
    **unfamiliar.TABLES,
    **image_text_tables.TABLES,
    **cost_tables.TABLES,
    **promises.TABLES,
    **serve.TABLES,
    **guard.TABLES,
}


ELSEWHERE = frozenset({"speed_gpu", "promises"})
"""Records that are no part of the run: of one accelerator, and of ``python -m tests.hostile``."""


def filled(text: str) -> str:
    """``text`` with every marked table replaced by what the JSON gives."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- table:([\w-]+) -->)\n.*?<!-- end -->", table, text, flags=re.S)


def run(options: Namespace | None = None) -> None:
    """Rewrite the pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    run()
