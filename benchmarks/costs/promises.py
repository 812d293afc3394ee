"""Tables of ``docs/promises.md``: what attacks and checks ended in (``results/promises.json``)."""

from __future__ import annotations

from benchmarks.records import markdown, read_record, thousandths


def hostile() -> str:
    """How 10,000 bad calls ended, before and now, and on seeds that were never run before."""
    runs = read_record("promises")["hostile"]
    header = ["a call ended in"]
    header += [f"{run['version']}, seed {run['seed']}" for run in runs]
    names = runs[0]["classes"]
    return markdown(header, [[n, *(f"{run['classes'][n]:,}" for run in runs)] for n in names])


def damage() -> str:
    """Kills, damages, full disks and races."""
    rows = read_record("promises")["damage"]
    keys = ("attack", "trials", "result")
    return markdown(list(keys), [[row[key] for key in keys] for row in rows])


def threads() -> str:
    """Calls from 1, 2 and 8 threads."""
    header = ["call", "errors", "wrong", "calls/s at 1, 2, 8 threads", "the model alone"]
    lines = []
    for row in read_record("promises")["threads"]:
        rates = [", ".join(f"{n:,}" for n in row[k]) for k in ("calls_per_second", "model_alone")]
        lines.append([row["call"], str(row["errors"]), str(row["wrong"]), *rates])
    return markdown(header, lines)


def float32() -> str:
    """Largest relative gap of the uncertainty to float64: features around 0 / around 1,000."""
    structures = ("diag", "kron", "full")
    lines = [
        [row["loss"], *(" / ".join(f"{gap:.1e}" for gap in row[s]) for s in structures)]
        for row in read_record("promises")["float32"]
    ]
    return markdown(["distance, hessian", *structures], lines)


def imbalance() -> str:
    """Negative curvature under class imbalance, and what is ranked by each positivity."""
    header = ["images a class", "negative share", "wrong neighbours"]
    header.append("MNIST as out-of-distribution")
    lines = []
    for row in read_record("promises")["imbalance"]:
        pairs = [" / ".join(map(thousandths, row[key])) for key in ("wrong", "mnist")]
        lines.append([row["classes"], thousandths(row["negative_share"]), *pairs])
    return markdown(header, lines)


TABLES = {
    "promises-hostile": hostile,
    "promises-damage": damage,
    "promises-threads": threads,
    "promises-float32": float32,
    "promises-imbalance": imbalance,
}
