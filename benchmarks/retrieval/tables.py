"""Tables of the retrieval page, from ``results/retrieval*.json`` and ``drift.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.split import ALPHAS
from laplace_metric.search import RANKINGS

Row = dict[str, Any]
SHOWN = (0.9, 0.95)
SCORES = ("match probability", "cosine", "uncertainty", "norm")
OOD_SETS = ("missing", "mnist", "kmnist", "fashion-mnist")
MILLI = 1e3


def rows() -> list[Row]:
    """One a problem."""
    found: list[Row] = read_record("retrieval")["rows"]
    return found


def promises() -> str:
    """Precision: promised, obtained, kept; beside a threshold on the cosine set by hand."""
    header = ["problem", "promised", "promise made", "obtained", "kept", "accepted"]
    header += ["cosine by hand: obtained", "kept", "accepted", "a recall of 90% kept"]
    lines = []
    for row in rows():
        for target in SHOWN:
            ours, hand = (_promise(row, f"{kind} {target:g}") for kind in ("precision", "cosine"))
            made = f"{row[f'precision {target:g} made']['mean']:.0%}"
            recall = f"{row['recall 0.9 kept']['mean']:.0%}" if target == SHOWN[0] else ""
            lines.append([row["problem"], f"{target:.0%}", made, *ours, *hand, recall])
    return markdown(header, lines)


def _promise(row: Row, name: str) -> list[str]:
    if row[f"{name} obtained"]["n"] == 0:
        return ["", "", ""]
    means = [row[f"{name} {what}"]["mean"] for what in ("obtained", "kept", "accepted")]
    return [f"{means[0]:.1%}", f"{means[1]:.0%}", f"{means[2]:.1%}"]


def coverage() -> str:
    """Retrieval sets: coverage, size, share that is empty."""
    header = ["problem"]
    for alpha in ALPHAS:
        header += [f"{1 - alpha:.0%}: coverage", "items", "lowest tenth of classes"]
    return markdown([*header, "empty at 80%"], [_covered(row) for row in rows()])


def _covered(row: Row) -> list[str]:
    cells = [row["problem"]]
    for alpha in ALPHAS:
        name = f"sets {1 - alpha:g}"
        if f"{name} coverage" not in row:
            cells += ["", "", ""]
            continue
        held, size, low = (row[f"{name} {w}"] for w in ("coverage", "size", "lowest class"))
        cells += [f"{held['mean']:.1%} ± {held['sd']:.1%}", f"{size['mean']:.1f}"]
        cells.append(f"{low['mean']:.0%}")
    return [*cells, f"{row['sets 0.8 empty']['mean']:.0%}"]


def ranking() -> str:
    """What orders right before wrong nearest neighbours, and how honest the probability is."""
    header = ["problem", *(f"AUROC {name}" for name in SCORES)]
    header += ["Brier", "of the base rate", "ECE", "evidence chosen"]
    return markdown(header, [_ranked(row) for row in rows()])


def _ranked(row: Row) -> list[str]:
    scores = [thousandths(row[f"auroc {name}"]["mean"]) for name in SCORES]
    best = max(scores, key=float)
    cells = [f"**{score}**" if score == best else score for score in scores]
    names = ("brier", "brier of the base rate", "ece")
    everything = sum(n for name, n in row["chosen"].items() if name.startswith("all"))
    share = f"all in {everything} of {row['splits']}"
    return [row["problem"], *cells, *(thousandths(row[n]["mean"]) for n in names), share]


def unknown() -> str:
    """Share called unknown at a rate of 5 %, and how well the p-value tells the two apart."""
    header = ["problem", "with a match", *(f"{name}" for name in OOD_SETS)]
    return markdown(header, [_flagged(row) for row in rows()])


def _flagged(row: Row) -> list[str]:
    cells = []
    for name in OOD_SETS:
        there = f"auroc {name}" in row
        flagged, score = (row.get(f"{w} {name}", {}) for w in ("unknown of", "auroc"))
        cells.append(f"{flagged['mean']:.0%} ({thousandths(score['mean'])})" if there else "")
    known = row["unknown of known"]
    return [row["problem"], f"{known['mean']:.1%} ± {known['sd']:.1%}", *cells]


def recall() -> str:
    """recall@1 of each way to rank, and credible sets."""
    header = ["problem", "items", "queries", *(f"`{name}`" for name in RANKINGS)]
    header += ["credible set, 95%: holds a match", "items"]
    return markdown(header, [_recalled(row) for row in rows()])


def _recalled(row: Row) -> list[str]:
    shares = [row["recall@1"][name] for name in RANKINGS]
    cells = [f"**{thousandths(s)}**" if s == max(shares) else thousandths(s) for s in shares]
    credible = row["credible"]
    sizes = [f"{row['items']:,}", f"{row['queries']:,}"]
    held = [thousandths(credible["coverage"]), f"{credible['size']:.1f}"]
    return [row["problem"], *sizes, *cells, *held]


def cost() -> str:
    """Milliseconds a query, and the same over plain FAISS."""
    record = read_record("retrieval_cost")
    found = {row["structure"]: row["seconds"] for row in record["flat"]}
    lines = []
    for name in next(iter(found.values())):
        single = name.startswith("one query")
        cells = []
        for seconds in found.values():
            base = seconds["one query, plain FAISS" if single else "plain FAISS"]
            each = seconds[name] / (1 if single else record["queries"])
            cells += [f"{MILLI * each:.2f} ms", f"{seconds[name] / base:.2f}"]
        lines.append([name, *cells])
    header = ["1,000 queries at once; or one"]
    for structure in found:
        header += [f"{structure}: a query", "times plain"]
    return markdown(header, lines)


def engines() -> str:
    """recall@10 of approximate engines."""
    record = read_record("retrieval_cost")
    header = ["engine", "items", "built in", "recall@10", "a query", "exact"]
    lines = [
        [
            f"`{row['kind']}`",
            f"{row['items']:,}",
            f"{row['built']:.0f} s",
            f"{row['recall@10']:.3f}",
            *(f"{MILLI * row[way] / record['queries']:.2f} ms" for way in ("seconds", "flat")),
        ]
        for row in record["approximate"]
    ]
    return markdown(header, lines)


def mapped() -> str:
    """An index on disk."""
    row = read_record("retrieval_cost")["mapped"]
    header = ["items", "size", "save", "load", "load with mmap", "1,000 queries then"]
    seconds = [f"{row[n]:.2f} s" for n in ("save", "load", "load mapped", "search mapped")]
    return markdown(header, [[f"{row['items']:,}", f"{row['bytes'] / 1e9:.1f} GB", *seconds]])


TABLES = {
    "retrieval-promises": promises,
    "retrieval-coverage": coverage,
    "retrieval-ranking": ranking,
    "retrieval-unknown": unknown,
    "retrieval-recall": recall,
    "retrieval-cost": cost,
    "retrieval-engines": engines,
    "retrieval-mapped": mapped,
}


DRIFT = "drift"
Record = dict[str, Any]


def false_alarms(record: Record | None = None) -> str:
    """False alarms without drift."""
    header = ["stream without drift", "rate asked", "streams", "ever an alarm", "95% interval"]
    return markdown([*header, "windows moved"], [_false_alarm(row) for row in _of(record)["quiet"]])


def _false_alarm(row: Row) -> list[str]:
    low, high = row["alarm_interval"]
    moved = f"{row['moved']:.1%} ± {row['moved_error']:.1%}"
    numbers = [f"{row['rate']:.0%}", f"{row['streams']:,}", f"{row['alarm_rate']:.1%}"]
    return [row["stream"], *numbers, f"{low:.1%} to {high:.1%}", moved]


def delays(record: Record | None = None) -> str:
    """Queries until it is told, and the share of windows that each test tells."""
    found = _of(record)
    pairs = zip(found["delays"], found["power"], strict=True)
    header = ["queries that change", "streams told", "queries till the alarm", "start found within",
              "till a window moved", "windows told", "by Kolmogorov-Smirnov alone"]  # fmt: skip
    return markdown(header, [_delay(row, power) for row, power in pairs])


def _delay(row: Row, power: Row) -> list[str]:
    assert (row["change"], row["share"]) == (power["change"], power["share"])
    return [
        f"{row['share']:.0%} {row['change']}",
        f"{row['alarms']} of {row['streams']}",
        *(_count(row[key]) for key in ("delay", "since_error", "window_delay")),
        *(f"{power[key]:.0%}" for key in ("three", "alone")),
    ]


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _of(record: Record | None) -> Record:
    return read_record(DRIFT) if record is None else record
