"""The sentence of ``docs/promises.md`` on hostile calls (``results/promises.json``).

The record is of ``python -m tests.hostile``, not of a benchmark.
"""

from __future__ import annotations

from scipy.stats import binomtest

from benchmarks.records import read_record


def unseen() -> str:
    """Return crashes and wrong results on new seeds, with an exact 95 % interval."""
    runs = [run for run in read_record("promises")["hostile"] if run["unseen"]]
    calls = sum(run["calls"] for run in runs)
    crashes, wrong = (
        sum(run["classes"][name] for run in runs) for name in ("unnamed crash", "wrong result")
    )
    shares = binomtest(crashes + wrong, calls).proportion_ci(method="exact")
    low, high = (f"{1e4 * share:.1f}" for share in shares)
    rate = f"{1e4 * (crashes + wrong) / calls:.2g}"
    versions = " and ".join(sorted({run["version"] for run in runs}))
    return (
        f"At {versions}, {len(runs)} new seeds made {calls:,} calls. {crashes} crashed without an "
        f"error of this library, and {wrong} gave wrong results: {rate} in ten thousand (95 % "
        f"interval {low} to {high}, Clopper and Pearson)."
    )


TABLES = {"promises-unseen": unseen}
