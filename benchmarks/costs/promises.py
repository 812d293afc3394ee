"""Tables of ``docs/promises.md``: what attacks and checks ended in (``results/promises.json``)."""

from __future__ import annotations

from typing import Any

from scipy.stats import binomtest

from benchmarks.records import markdown, read_record, thousandths


def hostile() -> str:
    """Return how 10,000 bad calls ended, one row per release and seed."""
    runs = read_record("promises")["hostile"]
    names = list(runs[0]["classes"])
    lines = [
        [f"{run['version']}, {run['seed']}", *(f"{run['classes'][n]:,}" for n in names)]
        for run in runs
    ]
    return markdown(["release, seed", *names], lines)


def unseen() -> str:
    """Unnamed crashes on seeds that were never run before, with an exact 95 % interval."""
    runs = [run for run in read_record("promises")["hostile"] if run["unseen"]]
    calls = sum(run["calls"] for run in runs)
    crashes = sum(run["classes"]["unnamed crash"] for run in runs)
    shares = binomtest(crashes, calls).proportion_ci(method="exact")
    low, high = (f"{1e4 * share:.1f}" for share in shares)
    rate = f"{1e4 * crashes / calls:.1f}"
    return (
        f"{len(runs)} seeds that were never run before gave {crashes} unnamed crashes in {calls:,} "
        f"calls: {rate} in ten thousand (95 % interval {low} to {high}, Clopper and Pearson)."
    )


DAMAGE = {
    "kill -9": ("killed", ("lost", "left")),
    "damaged files": ("damages", ("unnamed", "wrong")),
    "full disk": ("trials", ("lost", "unnamed")),
    "two writers and a reader": ("writes", ("lost", "wrong", "failed")),
}
"""Of each table of ``tests.damage``: the column of trials, and columns that should be 0."""


def damage() -> str:
    """Kills, damages, full disks and races: sums over the writers of one run."""
    lines = []
    for title, rows in read_record("promises")["damage"]["tables"].items():
        trials, bad = DAMAGE[title]
        sums = {key: sum(row[key] for row in rows) for key in list(rows[0])[1:]}
        others = [k for k in sums if k not in (trials, *bad, "steps", "trials")]
        counts = ", ".join(f"{sums[key]:,} {key}" for key in (*bad, *others))
        lines.append([title, str(len(rows)), f"{sums[trials]:,} {trials}", counts])
    return markdown(["attack", "writers", "trials", "counts"], lines)


def changes() -> str:
    """Searches while another thread adds and removes items."""
    header = ["engine", "threads", "searches", "changes", "errors", "wrong"]
    keys = ("threads", "calls", "changes", "errors", "wrong")
    rows = read_record("promises")["changes"]["rows"]
    return markdown(header, [[r["engine"], *(f"{r[key]:,}" for key in keys)] for r in rows])


def attacks() -> str:
    """The second attack: what fell, how often, before and after it was fixed."""
    rows: list[dict[str, Any]] = read_record("promises")["attacks"]
    keys = ("attack", "trials", "before", "after")
    cells = [[*(str(row[key]) for key in keys), f"`{row['command']}`"] for row in rows]
    return markdown([*keys, "command"], cells)


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
    "promises-unseen": unseen,
    "promises-changes": changes,
    "promises-attacks": attacks,
    "promises-damage": damage,
    "promises-threads": threads,
    "promises-float32": float32,
    "promises-imbalance": imbalance,
}
