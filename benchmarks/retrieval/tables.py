"""Tables of the retrieval page, from ``results/retrieval*.json`` and ``drift.json``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from scipy.stats import beta

from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.decomposition import NUMBERS
from benchmarks.retrieval.labels import ALPHA, OFTEN, WAYS
from benchmarks.retrieval.measure import RANKINGS
from benchmarks.retrieval.split import ALPHAS

Row = dict[str, Any]
SHOWN, WITH_STRANGERS = (0.9, 0.95), 0.8
SCORES = ("match probability", "label share", "cosine", "ambiguity", "uncertainty", "norm")
CHOSEN_ON = ("fashion-mnist", "cifar10", "birds", "birds, unseen")
"""Problems on which the evidence of the match probability was developed."""
OOD_SETS = ("missing", "mnist", "kmnist", "fashion-mnist", "hierarcaps", "emoji")
SEEN = {
    "none, unknown ones answered": "none, probability alone",
    "none": "none, not unknown",
    "simulated": "pretended, not unknown",
    "in the expected proportion": "as many, not unknown",
}
"""Open-set queries of the calibration, and their name in the record."""
CROSS_FITTED = (0.8, 0.9)
"""Precisions of the table on small collections."""
ON_DIGITS, LOOKED_AT = "digits", ("fashion-mnist, unseen", "cifar10", "texts")
"""The problem of another page; and those after which pretending was thought of."""
MILLI = 1e3
HELD_OUT, TEN = (49, 150, 300, 1000, 1500, 3000), 10
"""Queries of a class, and classes, for which the coverage that can be had is shown."""


def rows() -> list[Row]:
    """One a problem."""
    return list(read_record("retrieval")["rows"])


def promises() -> str:
    """Precision: guaranteed, obtained, kept; compared with a hand-set threshold on the cosine."""
    header = ["problem", "guaranteed", "given", "obtained", "kept", "accepted"]
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


def strangers() -> str:
    """A guarantee of 80 % with open-set queries, by how many of them the calibration had."""
    header, lines = ["problem", "simulation was", "open-set queries", "of all queries"], []
    for name in SEEN:
        header += [f"{name}: given", "right", "kept", "open-set answered"]
    for row in read_record("strangers")["rows"]:
        if row["problem"] == ON_DIGITS:
            continue
        looked_at = "found on it" if row["problem"] in LOOKED_AT else "confirmed on it"
        cells = [row["problem"], looked_at, row["strangers"], f"{row['share']:.0%}"]
        for way in SEEN.values():
            cells += _stranger_cells(row, f"{way}, {WITH_STRANGERS:g}")
        lines.append(cells)
    return markdown(header, lines)


def cross_fit() -> str:
    """Coverage, probabilities and guarantees of small collections that calibrate themselves."""
    header = ["items", "collections", "label sets of 90%", "retrieval sets of 90%", "items in them"]
    header += ["unknown at 10%", "nearest right", "match probability"]
    for target in CROSS_FITTED:
        header += [f"{target:.0%} precision: given", "broken (95% interval)"]
    lines = []
    for row in read_record("cross_fit")["rows"]:
        name = f"{row['problem']} (refused)" if row["refused"] else row["problem"]
        shares = [f"{kind} sets 0.1: coverage" for kind in ("label", "retrieval")]
        cells = [name, f"{row['collections']}", *(_share(row[key]) for key in shares)]
        cells += [f"{row['retrieval sets 0.1: size']['mean']:.1f}", _share(row["unknown 0.1"])]
        cells += [_share(row[key]) for key in ("nearest is right", "match probability")]
        for target in CROSS_FITTED:
            of, told = f"precision {target:g}", ""
            if broken := row.get(f"{of}: broken"):  # given once or more
                low, high = row[f"{of}: broken, interval"]
                told = f"{broken['mean']:.0%} of {broken['n']} ({low:.0%} to {high:.0%})"
            cells += [f"{row[f'{of}: given']['mean']:.0%}", told]
        lines.append(cells)
    return markdown(header, lines)


def _share(number: dict[str, float]) -> str:
    return f"{number['mean']:.3f}".removeprefix("0")


def strangers_on_digits() -> str:
    """A guarantee of 90 % on the page about matches."""
    row = next(r for r in read_record("strangers")["rows"] if r["problem"] == ON_DIGITS)
    header = ["calibrated with", "given", "right, of the answers", "kept"]
    header += ["open-set queries answered", "others answered"]
    lines = []
    for name, way in SEEN.items():
        of = f"{way}, {SHOWN[0]:g}"
        others = f"{row[f'{of}: answered, with a match']['mean']:.0%}"
        lines.append([name, *_stranger_cells(row, of), others])
    return markdown(header, lines)


def _stranger_cells(row: Row, name: str) -> list[str]:
    made = f"{row[f'{name}: made']['mean']:.0%}"
    if row.get(f"{name}: obtained", {"n": 0})["n"] == 0:
        return [made, "", "", ""]
    right, kept = (row[f"{name}: {what}"]["mean"] for what in ("obtained", "kept"))
    let_in = row[f"{name}: answered, strangers"]["mean"]
    return [made, f"{right:.1%}", f"{kept:.0%}", f"{let_in:.0%}"]


def coverage() -> str:
    """Retrieval sets: coverage, size, share that is empty."""
    header, lines = ["problem"], []
    for alpha in ALPHAS:
        header += [f"{1 - alpha:.0%}: coverage", "items", "lowest tenth of classes"]
    for row in rows():
        cells = [row["problem"]]
        for name in (f"sets {1 - alpha:g}" for alpha in ALPHAS):
            if f"{name} coverage" not in row:
                cells += ["", "", ""]
                continue
            held, size, low = (row[f"{name} {w}"] for w in ("coverage", "size", "lowest class"))
            cells += [f"{held['mean']:.1%} ± {held['sd']:.1%}", f"{size['mean']:.1f}"]
            cells.append(f"{low['mean']:.0%}")
        lines.append([*cells, f"{row['sets 0.8 empty']['mean']:.0%}"])
    return markdown([*header, "empty at 80%"], lines)


def label_sets() -> str:
    """Pooled label sets and those class by class, side by side."""
    header = ["problem", "levels were", "sets", "coverage", "lowest tenth of classes"]
    header += [f"worst class of {OFTEN} queries or more", "the same, mean of splits first"]
    header += ["labels", "times pooled", "in every set"]
    lines = []
    for row in read_record("retrieval_labels")["rows"]:
        chosen = "chosen on it" if row["problem"] in CHOSEN_ON else "confirmed on it"
        for name in WAYS:
            covered, low, worst, size, everywhere = (
                row[f"{name} {what}"]
                for what in ("coverage", "lowest tenth", "worst often", "size", "everywhere")
            )
            means = [
                x["mean"]
                for key, x in row.items()
                if key.startswith(f"{name} class ") and x["n"] == row["splits"]
            ]
            cells = [f"{covered['mean']:.1%} ± {covered['sd']:.1%}", f"{low['mean']:.0%}"]
            cells += [f"{worst['mean']:.1%}" if worst["n"] else ""]
            cells += [f"{min(means):.1%}" if means else ""]
            times = size["mean"] / row["pooled size"]["mean"]
            cells += [f"{size['mean']:.2f}", f"{times:.2f}", f"{everywhere['mean']:.1f}"]
            lines.append([row["problem"], chosen, name, *cells])
    return markdown(header, lines)


def label_arithmetic() -> str:
    """What held-out queries of a class can promise: exact, from the Beta law of the coverage."""
    header = ["held-out queries of each class, second half", "expected", "standard deviation"]
    header += ["worst of ten classes, median", "all of ten at least 88%"]
    lines = []
    for n in HELD_OUT:
        rank = int(ALPHA * (n + 1) + 1e-9)
        law = beta(n + 1 - rank, rank)
        worst = law.ppf(1 - 0.5 ** (1 / TEN))
        all_of = law.sf(0.88) ** TEN
        lines.append([f"{n:,}", *(f"{x:.1%}" for x in (law.mean(), law.std(), worst, all_of))])
    return markdown(header, lines)


def ranking() -> str:
    """What orders right before wrong nearest neighbours, and how honest the probability is."""
    header = ["problem", "evidence was", *(f"AUROC {name}" for name in SCORES)]
    header += ["Brier", "of the base rate", "ECE", "evidence chosen"]
    lines = []
    for row in rows():
        scores = [thousandths(row[f"auroc {name}"]["mean"]) for name in SCORES]
        best = max(scores, key=float)
        cells = [f"**{score}**" if score == best else score for score in scores]
        cells += [thousandths(row[n]["mean"]) for n in ("brier", "brier of the base rate", "ece")]
        everything = sum(n for name, n in row["chosen"].items() if name.startswith("all"))
        role = "chosen on it" if row["problem"] in CHOSEN_ON else "confirmed on it"
        lines.append([row["problem"], role, *cells, f"all in {everything} of {row['splits']}"])
    return markdown(header, lines)


def answers() -> str:
    """The label that all neighbours answer with, beside that of the nearest."""
    header = ["problem", "nearest right", "answer right", "AUROC label probability", "ECE"]
    lines = []
    for row in rows():
        shares = [f"{row[name]['mean']:.1%}" for name in ("top", "answered")]
        scores = [thousandths(row[name]["mean"]) for name in ("answer auroc", "answer ece")]
        lines.append([row["problem"], *shares, *scores])
    return markdown(header, lines)


def noise() -> str:
    """Spearman of each number with planted label noise, what people say, and each other."""
    record = read_record("decomposition")
    header, lines = ["queries", "share", *NUMBERS], []
    for name, queries in dict.fromkeys((r["problem"], r["queries"]) for r in record["noise"]):
        found = [r for r in record["noise"] if (r["problem"], r["queries"]) == (name, queries)]
        cells = [f"{fmean(r['share'] for r in found):.0%}"]
        cells += [_span([r[number] for r in found]) for number in NUMBERS]
        lines.append([f"{name}, planted noise, {queries}", *cells])
    people = [f"{record['people'][number]:.2f}" for number in NUMBERS]
    lines.append(["cifar10, votes of people (CIFAR-10H)", "100%", *people])
    for row in record["within"]:
        cells = [f"{row[number]:.2f}" for number in NUMBERS[:2]]
        lines.append([f"{row['problem']}, epistemic number", "100%", *cells, "", ""])
    return markdown(header, lines)


def data() -> str:
    """A tenth of the points over all of them."""
    record = read_record("decomposition")
    names = (*NUMBERS[:2], "posterior variance", "far / N")
    lines = []
    for problem in dict.fromkeys(r["problem"] for r in record["data"]):
        found = [r for r in record["data"] if r["problem"] == problem]
        lines.append([problem, *(_span([r[name] for r in found]) for name in names)])
    return markdown(["a tenth of the data, over all", *names], lines)


def _span(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def unknown() -> str:
    """Share called unknown at a rate of 5 %, and how well the p-value tells the two apart."""
    lines = []
    for row in rows():
        known = row["unknown of known"]
        cells = [row["problem"], f"{known['mean']:.1%} ± {known['sd']:.1%}"]
        for name in OOD_SETS:
            flagged, score = (row.get(f"{w} {name}", {}) for w in ("unknown of", "auroc"))
            both = f"{flagged['mean']:.0%} ({thousandths(score['mean'])})" if score else ""
            cells.append(both)
        lines.append(cells)
    return markdown(["problem", "with a match", *OOD_SETS], lines)


def recall() -> str:
    """recall@1 of each way to rank, and credible sets."""
    header = ["problem", "items", "queries", *(f"`{name}`" for name in RANKINGS)]
    header += ["credible set, 95%: holds a match", "items"]
    lines = []
    for row in rows():
        shares = [row["recall@1"][name] for name in RANKINGS]
        cells = [f"**{thousandths(s)}**" if s == max(shares) else thousandths(s) for s in shares]
        held, size = thousandths(row["credible"]["coverage"]), f"{row['credible']['size']:.1f}"
        sizes = [f"{row['items']:,}", f"{row['queries']:,}"]
        lines.append([row["problem"], *sizes, *cells, held, size])
    return markdown(header, lines)


def cost() -> str:
    """Milliseconds a query, and the same over plain FAISS."""
    record = read_record("retrieval_cost")
    structures = {row["structure"]: row["seconds"] for row in record["flat"]}
    lines = []
    for name in next(iter(structures.values())):
        single = name.startswith("one query")
        cells = []
        for seconds in structures.values():
            base = seconds["one query, plain FAISS" if single else "plain FAISS"]
            each = seconds[name] / (1 if single else record["queries"])
            cells += [f"{MILLI * each:.2f} ms", f"{seconds[name] / base:.2f}"]
        lines.append([name, *cells])
    header = ["1,000 queries at once; or one"]
    for structure in structures:
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


def large() -> str:
    """Compact indices of many items."""
    lines = []
    for row in read_record("retrieval_large")["rows"]:
        took = row["seconds"]
        size = f"{row['bytes'] / 1e9:.1f} GB", f"{row['peak_mb'] / 1e3:.1f} GB"
        batch = (f"{MILLI * took[n]:.2f} ms" for n in ("plain FAISS", "search"))
        one = (f"{MILLI * took[n]:.1f} ms" for n in ("one query, plain FAISS", "one query"))
        found = f"{row['recall@10']:.3f}"
        built = f"{row['built']:.0f} s"
        lines.append([f"{row['items']:,}", row["engine"], built, *size, found, *batch, *one])
    header = ["items", "engine", "built in", "kept", "peak memory", "recall@10"]
    header += ["a query of 1,000, FAISS", "with all evidence", "one query, FAISS", "one query"]
    return markdown(header, lines)


TABLES = {
    "retrieval-promises": promises,
    "retrieval-strangers": strangers,
    "retrieval-cross-fit": cross_fit,
    "retrieval-coverage": coverage,
    "retrieval-labels": label_sets,
    "retrieval-label-arithmetic": label_arithmetic,
    "retrieval-ranking": ranking,
    "retrieval-unknown": unknown,
    "retrieval-answers": answers,
    "retrieval-noise": noise,
    "retrieval-data": data,
    "retrieval-recall": recall,
    "retrieval-cost": cost,
    "retrieval-engines": engines,
    "retrieval-mapped": mapped,
    "retrieval-large": large,
}


def false_alarms(record: Row | None = None) -> str:
    """False alarms without drift."""
    header = ["stream without drift", "rate asked", "streams", "ever an alarm", "95% interval"]
    lines = []
    for row in (record or read_record("drift"))["quiet"]:
        low, high = row["alarm_interval"]
        moved = f"{row['moved']:.1%} ± {row['moved_error']:.1%}"
        numbers = [f"{row['rate']:.0%}", f"{row['streams']:,}", f"{row['alarm_rate']:.1%}"]
        lines.append([row["stream"], *numbers, f"{low:.1%} to {high:.1%}", moved])
    return markdown([*header, "windows moved"], lines)


def delays(record: Row | None = None) -> str:
    """Queries until it is told, and the share of windows that each test tells."""
    record = record or read_record("drift")
    header = ["queries that change", "streams told", "queries till the alarm", "start found within",
              "till a window moved", "windows told", "by Kolmogorov-Smirnov alone"]  # fmt: skip
    lines = []
    for row, power in zip(record["delays"], record["power"], strict=True):
        assert (row["change"], row["share"]) == (power["change"], power["share"])
        counts = [row[key] for key in ("delay", "since_error", "window_delay")]
        cells = [f"{row['share']:.0%} {row['change']}", f"{row['alarms']} of {row['streams']}"]
        cells += ["" if count is None else f"{count:,.0f}" for count in counts]
        lines.append([*cells, *(f"{power[key]:.0%}" for key in ("three", "alone"))])
    return markdown(header, lines)
