"""Tables of the pages from the committed JSON: ``python -m benchmarks.tables`` rewrites them.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. A test checks that the pages
hold exactly what the JSON gives, so no number is typed by hand.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.costs import chords, engines, guard, promises, serve
from benchmarks.costs import tables as cost_tables
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.image_text import matching_tables, token_tables, uses_tables
from benchmarks.image_text import tables as image_text_tables
from benchmarks.posterior import ablation as posterior
from benchmarks.posterior import agreement as posterior_agreement
from benchmarks.posterior import costs as posterior_costs
from benchmarks.posterior import refits as posterior_refits
from benchmarks.protocols.open_set import OTHERS
from benchmarks.records import RESULTS, markdown, read_record, thousandths
from benchmarks.recovery.runs import recovered
from benchmarks.report import papers, three_numbers
from benchmarks.report.cells import quality_table
from benchmarks.report.method_table import methods
from benchmarks.retrieval import (
    cases,
    decisions,
    evidence,
    growing,
    guarantees,
    new_classes,
    pairs,
    power,
    proof,
    shifted,
    unfamiliar,
)
from benchmarks.retrieval import tables as retrieval_tables
from benchmarks.scale import billion
from benchmarks.scale import tables as scale_tables
from benchmarks.variants import defaults, online_tables, people, schedule, transfer, views

ROOT = Path(__file__).parent.parent
PAGES = (
    *(
        ROOT / folder / "README.md"
        for folder in (
            "", "baselines", "benchmarks", "benchmarks/costs", "benchmarks/image_text",
            "benchmarks/retrieval", "benchmarks/scale", "benchmarks/variants",
        )
    ),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("engines", "posterior", "promises")
    ),
)  # fmt: skip
SEEDS = 3
RETRIEVAL = ("recall@1", "r_auroc", "ausc")
READY = ("recall@1", "r_auroc", "ece")
TRANSFER = ("recall@1", "r_auroc", "crop rank", "mixture r_auroc", "new classes")
SHOTS = tuple(f"{kind} {k} shots" for kind in ("recall@1", "r_auroc") for k in (0, 2, 5, 10))
OTHER_SHOTS = tuple(f"{name}{OTHERS}" for name in SHOTS)
PEOPLE = ("entropy rank", "crop rank", "recall@1", "r_auroc")
CORRUPTED = (
    "severity mean", "severity pooled", "failure auroc", "k-nn auroc mnist", "k-nn+u auroc mnist",
    "k-nn auroc fashion-mnist", "k-nn+u auroc fashion-mnist",
)  # fmt: skip

COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "recall@1": lambda row: row["recall@1"],
    "mAP@5": lambda row: row["map@5"],
    "AUROC MNIST": lambda row: row["out"]["mnist"]["auroc"],
    "AUPRC MNIST": lambda row: row["out"]["mnist"]["auprc"],
    "AUROC KMNIST": lambda row: row["out"]["kmnist"]["auroc"],
    "AUPRC KMNIST": lambda row: row["out"]["kmnist"]["auprc"],
    "AUSC": lambda row: row["ausc"],
    "ECE": lambda row: row["retrieval_ece"],
}


def detected(*sets: str) -> tuple[str, ...]:
    """Retrieval, calibration, and how well each OOD set is found."""
    found = (f"{kind} {name}" for kind in ("auroc", "auprc") for name in sets)
    return (*RETRIEVAL, "ece", *found)


PROTOCOL_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "lam-fashion": ("lam", "fashion-mnist", detected("mnist", "kmnist")),
    "lam-cifar10": ("lam", "cifar10", detected("mnist", "fashion-mnist")),
    "lam-omniglot": ("lam", "omniglot", detected("fashion-mnist", "kmnist")),
    "lam-cub": ("lam", "cub", detected("cifar10", "photographs", "emoji")),
    "url-omniglot": ("url", "omniglot", TRANSFER),
    "url-cifar10": ("url", "cifar10-unseen", TRANSFER),
    "url-cub": ("url", "cub", TRANSFER),
    "fewshot": ("fewshot", "cub-96", SHOTS),
    "fewshot-drawings": ("fewshot", "omniglot", SHOTS),
    "fewshot-others": ("fewshot", "cub-96", OTHER_SHOTS),
    "fewshot-omniglot": ("fewshot", "omniglot", OTHER_SHOTS),
    "human-soft": ("human", "cifar10h-soft", PEOPLE),
    "human-hard": ("human", "cifar10h-hard", PEOPLE),
    "corruption": ("corruption", "cifar10", CORRUPTED),
    "pretrained-cifar10": (
        "pretrained", "pretrained-cifar10", (*READY, "auroc mnist", "auroc fashion-mnist"),
    ),
    "pretrained-omniglot": (
        "pretrained", "pretrained-omniglot", (*READY, "auroc mnist", "auroc fashion-mnist"),
    ),
    "pretrained-cub": (
        "pretrained", "pretrained-cub", (*READY, "auroc photographs", "auroc emoji"),
    ),
    "pretrained-cub-unseen": (
        "pretrained", "pretrained-cub-unseen", (*READY, "auroc new species"),
    ),
    "pretrained-emoji": (
        "pretrained", "pretrained-emoji", (*READY, "auroc omniglot", "auroc photographs"),
    ),
    "pretrained-text": (
        "pretrained", "pretrained-text", (*READY, "auroc unknown sub-packages"),
    ),
}  # fmt: skip
"""Name -> protocol, task, metrics."""


def small(protocol: str) -> dict[str, Any]:
    """What was collected at the size of two cores."""
    return read_record(protocol, RESULTS / "small")


def protocol_table(name: str) -> str:
    """One task of a protocol."""
    protocol, task, metrics = PROTOCOL_TABLES[name]
    record = small(protocol)
    return quality_table(record, task, metrics, complete(record, task))


def complete(record: dict[str, Any], task: str) -> list[str]:
    """Methods with as many seeds as any, on the network of metric learning or their own."""
    seeds = Counter(row["method"] for row in record["rows"] if row["task"] == task)
    most = max(seeds.values())
    return [m for m, n in seeds.items() if n == most and three_numbers.same_network(m)]


def cell(values: Sequence[float]) -> str:
    """Mean ± standard error over seeds, in thousandths."""
    summary = mean_and_standard_error(values)
    return f"{thousandths(summary.mean)} ± {thousandths(summary.standard_error)}"


def lam_table(size: int, prior: str) -> str:
    """Every method at one embedding size; Laplace under one rule for its prior precision."""
    rows = [row for row in read_record("variants")["rows"] if row["embedding_size"] == size]
    methods = dict.fromkeys(row["method"] for row in rows)
    shown = [m for m in methods if "|" not in m] + [m for m in methods if m.endswith(prior)]
    return method_table(rows, shown)


def method_table(rows: Sequence[dict[str, Any]], methods: Sequence[str]) -> str:
    """One line a method, over the seeds."""
    lines = []
    for method in methods:
        of = [row for row in rows if row["method"] == method]
        assert len(of) == SEEDS, f"{method}: {len(of)} seeds"
        numbers = [cell([read(row) for row in of]) for read in COLUMNS.values()]
        lines.append([method.split(" | ")[0], *numbers])
    return markdown(["method", *COLUMNS], lines)


TABLES: dict[str, Callable[[], str]] = {
    "lam-3": lambda: lam_table(3, "default"),
    "lam-64": lambda: lam_table(64, "default"),
    "lam-3-marglik": lambda: lam_table(3, "marglik"),
    "lam-64-marglik": lambda: lam_table(64, "marglik"),
    "defaults": defaults.table,
    "pairs": defaults.pairs_table,
    **online_tables.TABLES,
    "speed": cost_tables.speed,
    "fits": cost_tables.fits,
    "on_device": cost_tables.on_device,
    "predictions": cost_tables.predictions,
    "determined": cost_tables.determined,
    **{name: partial(protocol_table, name) for name in PROTOCOL_TABLES},
    "front": three_numbers.front,
    "first-search": posterior.first_page,
    "first-errors": evidence.first_page,
    "ood-pairs": three_numbers.pairs,
    "ood-pairs-infonce": lambda: three_numbers.pairs(three_numbers.INFONCE),
    "errors": three_numbers.errors,
    "proxies": papers.proxies,
    "closing": papers.closing,
    "views": views.table,
    "people": people.table,
    "transfer": transfer.table,
    "schedule": schedule.table,
    "methods": lambda: methods(small("url"), "cifar10-unseen"),
    "recovery": recovered,
    "posterior": posterior.table,
    "posterior-shares": posterior.at_equal_shares,
    "posterior-collections": posterior.by_collection,
    "posterior-agreement": posterior_agreement.table,
    "posterior-costs": posterior_costs.table,
    "posterior-refits": posterior_refits.table,
    "vmf": cost_tables.vmf,
    "jacobians": cost_tables.jacobians,
    "structures": cost_tables.structures,
    "structures-64": lambda: cost_tables.structures("efficientnet-64"),
    "analytic": cost_tables.analytic,
    "approximations": cost_tables.approximations,
    "chords": chords.table,
    "distances": cost_tables.distances,
    "export": cost_tables.exported,
    "modes": cost_tables.modes,
    "scale-points": scale_tables.points,
    "scale-processes": scale_tables.processes,
    "scale-margin": scale_tables.margin,
    "scale-reference": scale_tables.reference,
    "scale-gallery": scale_tables.gallery,
    "scale-device": scale_tables.device,
    "billion": billion.table,
    **image_text_tables.TABLES,
    **matching_tables.MATCHING_TABLES,
    **uses_tables.TABLES,
    **uses_tables.WORDNET_TABLES,
    **token_tables.TABLES,
    **retrieval_tables.TABLES,
    **decisions.TABLES,
    **pairs.TABLES,
    **cases.TABLES,
    **guarantees.TABLES,
    **power.TABLES,
    **growing.TABLES,
    **shifted.TABLES,
    **new_classes.TABLES,
    **evidence.TABLES,
    **unfamiliar.TABLES,
    **proof.TABLES,
    "strangers-on-digits": retrieval_tables.strangers_on_digits,
    **promises.TABLES,
    **serve.TABLES,
    **engines.TABLES,
    **guard.TABLES,
    "drift-quiet": retrieval_tables.false_alarms,
    "drift-delays": retrieval_tables.delays,
}


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
