"""The sentence of ``docs/promises.md`` on hostile calls (``results/promises.json``).

The record is of ``python -m tests.hostile``, not of a benchmark.
"""

from __future__ import annotations

from scipy.stats import binomtest

from benchmarks.records import read_record


def unseen() -> str:
    """Unnamed crashes on seeds that were never run before, with an exact 95 % interval."""
    runs = [run for run in read_record("promises")["hostile"] if run["unseen"]]
    calls = sum(run["calls"] for run in runs)
    crashes = sum(run["classes"]["unnamed crash"] for run in runs)
    shares = binomtest(crashes, calls).proportion_ci(method="exact")
    low, high = (f"{1e4 * share:.1f}" for share in shares)
    rate = f"{1e4 * crashes / calls:.1f}"
    versions = " and ".join(sorted({run["version"] for run in runs}))
    return (
        f"At {versions}, {len(runs)} seeds that were never run before gave {crashes} unnamed "
        f"crashes in {calls:,} calls: {rate} in ten thousand (95 % interval {low} to {high}, "
        "Clopper and Pearson)."
    )


TABLES = {"promises-unseen": unseen}
