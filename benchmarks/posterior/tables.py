"""Tables of the ablation and of the study of variances.

Intervals are those of Student's t over networks: seeds of one network, and collections that are
searched through it, are averaged first, since they are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.posterior.kernels import MOMENTS, ONE_OBSERVATION, TRAINED_WEIGHTS
from benchmarks.records import RESULTS, markdown, read_record

ABLATION, VARIANCE = "posterior", "variance"
"""Names of the records."""
PARTS, RIVALS = ("development", "confirmation"), ("noise", "h whitened", MOMENTS)
ROWS = ("mean z", "drawn z", "h", "h whitened", MOMENTS, "noise", "posterior", "auto")
SAID = {
    "mean z": "embedding, as without this library",
    "h": "what enters the last layer",
    "h whitened": "the same, whitened within classes",
    MOMENTS: "the same, whitened half, without labels",
    "noise": "embedding and noise that no data shaped",
    "auto": "embedding and posterior: ours, without an earlier layer",
}
"""What the first page calls the rows."""
MEASURES = ("first", "label", "auroc")
PRIORS = {ONE_OBSERVATION: ONE_OBSERVATION, TRAINED_WEIGHTS: "posterior"}
"""Prior of the posterior -> the row that searches under it."""
NOISE, OURS = "noise", "auto"
Row = dict[str, Any]


def over_networks(rows: Sequence[Row], values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over networks, and half of its 95 % interval."""
    by_network: dict[str, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        by_network.setdefault(row["network"], []).append(value)
    means = np.array([np.nanmean(some) for some in by_network.values()])
    if len(means) < 2:
        return float(means.mean()), float("nan")
    half = student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return float(means.mean()), float(half)


def _gap(rows: Sequence[Row], one: Sequence[float], other: Sequence[float]) -> str:
    gap, half = over_networks(rows, [a - b for a, b in zip(one, other, strict=True)])
    return f"{gap:+.3f} ± {half:.3f}"


def _of_part(record: Row, part: str) -> list[Row]:
    return [row for row in record["rows"] if row["part"] == part]


def _found(rows: Sequence[Row], name: str, measure: str) -> list[float]:
    return [row["chosen"][name][measure] for row in rows]


def ablation_table(folder: Path = RESULTS) -> str:
    """Return means of every row, and the posterior's difference to it."""
    record = read_record(ABLATION, folder)
    header = ["part", "row", "nearest item right", "label right", "AUROC of the vote"]
    header += ["posterior ahead: nearest", "label", "AUROC"]
    lines = []
    for part in PARTS:
        rows = _of_part(record, part)
        for name in ROWS if rows else ():
            found = {m: _found(rows, name, m) for m in MEASURES}
            means = [f"{over_networks(rows, found[m])[0]:.3f}" for m in MEASURES]
            ours = {m: _found(rows, "posterior", m) for m in MEASURES}
            ahead = [_gap(rows, ours[m], found[m]) for m in MEASURES]
            lines.append([part, name, *means, *(ahead if name != "posterior" else ["", "", ""])])
    return markdown(header, lines)


def first_page() -> str:
    """Return how often the first item is right through networks that nobody looked at before."""
    rows = _of_part(read_record(ABLATION), "confirmation")
    ours, lines = _found(rows, OURS, "first"), []
    for name, said in SAID.items():
        found = [_found(rows, name, measure) for measure in ("first", "label")]
        means = [f"{over_networks(rows, values)[0]:.3f}" for values in found]
        ahead = "" if name == OURS else _gap(rows, ours, found[0])
        lines.append([said, *means, ahead])
    return markdown(
        ["ranked by", "nearest item right", "label right", "ours ahead, nearest item"], lines
    )


def at_equal_shares() -> str:
    """Return nearest item right of the posterior less that of its rivals, at each share."""
    record = read_record(ABLATION)
    header = ["share", *(f"{part}: against {name}" for part in PARTS for name in RIVALS)]
    lines = []
    for place, share in enumerate(record["shares"]):
        cells = [f"{share:g}"]
        for part in PARTS:
            rows = _of_part(record, part)
            at = {
                name: [row["by_share"][name]["first"][place] for row in rows]
                for name in ("posterior", *RIVALS)
            }
            cells += [_gap(rows, at["posterior"], at[name]) for name in RIVALS]
        lines.append(cells)
    return markdown(header, lines)


def priors_table() -> str:
    """Return errors, foreign images and search under each prior, and their differences."""
    header = ["part", "prior", "errors", "errors, foreign images", "foreign images"]
    header += ["nearest item right"]
    lines = []
    for part in PARTS:
        rows = _of_part(read_record(ABLATION), part)
        own = [row for row in rows if not row["foreign"]]
        others = [row for row in rows if row["foreign"]]
        asked = [(own, "errors"), (others, "errors"), (others, "foreign"), (rows, "first")]
        columns = [_under_priors(some, measure) for some, measure in asked]
        names = [*PRIORS, "difference"]
        lines += [[part, *line] for line in zip(names, *columns, strict=True)]
    return markdown(header, lines)


def _under_priors(rows: list[Row], measure: str) -> list[str]:
    values = {}
    for prior, name in PRIORS.items():
        found = [row[measure][prior] for row in rows] if measure != "first" else None
        values[prior] = _found(rows, name, measure) if found is None else found
    one, other = values.values()
    cells = [f"{over_networks(rows, each)[0]:.3f}" for each in (one, other)]
    return [*cells, _gap(rows, one, other)]


def variance_table(folder: Path = RESULTS) -> str:
    """Return rank correlation and size of each posterior, and how far it is ahead of noise."""
    record = read_record(VARIANCE, folder)
    header = ["part", "posterior"]
    for images in ("", ", foreign images"):
        header += [f"rank{images}", f"ahead of noise{images}", f"size{images}"]
    lines = []
    for part in PARTS:
        rows = _of_part(record, part)
        for name in (*PRIORS, NOISE) if rows else ():
            cells = [part, name]
            for known in (True, False):
                some = [row for row in rows if row["known"] == known]
                ranks, of_noise = ([row[x]["rank"] for row in some] for x in (name, NOISE))
                cells.append(f"{over_networks(some, ranks)[0]:.2f}")
                sizes = [row[name]["size"] for row in some]
                told = [_gap(some, ranks, of_noise), f"{min(sizes):.2g} to {max(sizes):.2g}"]
                cells += told if name != NOISE else ["", ""]
            lines.append(cells)
    return markdown(header, lines)
