"""Tables of how it scales, from ``results/scale.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.records import markdown, read_record
from benchmarks.scale.common import NAME

Row = dict[str, Any]


def points() -> str:
    """Time and memory of a fit against N, with the slope of each structure."""
    part = read_record(NAME)["points"]
    lines = [
        [
            f"{row['structure']}, N = {row['n']:,}",
            time(row["wall_seconds"]),
            f"{1e6 * row['wall_seconds'] / row['n']:.1f} \u00b5s",
            str(row["passes"]),
            *(f"{row[f'{name}_share']:.0%}" for name in ("generating", "writing", "reading")),
            f"{row['features_mb']:,.0f} MB",
            f"{row['peak_mb']:.0f} MB ({row['base_mb']:.0f})",
        ]
        for row in part["rows"]
    ]
    slopes = part["slopes"]
    lines += [
        [f"{name}, slope of time", f"{value:.3f}", *[""] * 7] for name, value in slopes.items()
    ]
    header = ["fit", "time", "a point", "passes", "making", "writing", "reading", "features"]
    return markdown([*header, "peak memory (after imports)"], lines)


def processes() -> str:
    """One process and two."""
    part = read_record(NAME)["processes"]
    lines = [
        [f"{row['processes']}", time(row["wall_seconds"]), f"{row['float64_gflops']:.0f}"]
        for row in part["rows"]
    ]
    lines.append(["times as fast", f"{part['times_as_fast']:.2f}", ""])
    return markdown(["processes of one thread", "fit", "float64 product, GF/s"], lines)


def margin() -> str:
    """Exact margin and class sums against N, and their slopes."""
    part = read_record(NAME)["margin"]
    lines = [
        [
            f"margin, N = {row['n']:,}",
            time(row["wall_seconds"]),
            f"{row['gflops']:.0f} of {row['matmul_gflops']:.0f}",
            f"{row['share']:.0%}",
        ]
        for row in part["exact"]
    ]
    lines += [
        [f"no margin, N = {row['n']:,}", time(row["wall_seconds"]), "", ""]
        for row in part["class sums"]
    ]
    exact, sums = part["slopes"]["exact"], part["slopes"]["class sums"]
    lines.append(["slope of time: margin, no margin", f"{exact:.2f}, {sums:.2f}", "", ""])
    extrapolated = part["extrapolated_exact_hours"]
    label = f"margin, N = {extrapolated['n']:,}, extrapolated by N^2"
    lines.append([label, f"{extrapolated['hours']:.1f} h", "", ""])
    header = ["fit", "time", "achieved of the machine's product, GF/s", "share"]
    return markdown(header, lines)


def reference() -> str:
    """Estimates from reference points: cost at large N, and honesty of the standard error."""
    part = read_record(NAME)["margin"]
    known = {row["reference"]: row for row in part["errors"]}
    lines = [
        [
            f"{row['reference']:,}",
            time(row["wall_seconds"]),
            f"{row['relative_standard_error']:.2%}",
            f"{known[row['reference']]['relative_error']:.2%}",
            f"{known[row['reference']]['in_standard_errors']:.2f}",
        ]
        for row in part["reference"]
    ]
    n, m = part["reference"][0]["n"], part["errors"][0]["n"]
    large, small = f"N = {n:,}", f"N = {m:,}"
    header = ["reference points", f"time, {large}", f"standard error, {large}"]
    return markdown([*header, f"error, {small}", f"in standard errors, {small}"], lines)


def gallery() -> str:
    """Uncertainties of a gallery beside one product."""
    lines = [
        [
            f"{row['structure']}, {row['geometry']}{', z known' * row['embeddings_known']}",
            time(row["seconds"]),
            time(row["product_seconds"]),
            f"{row['ratio']:.2f}",
            f"{row['ratio_to_new_memory']:.2f}",
        ]
        for row in read_record(NAME)["gallery"]["rows"]
    ]
    header = ["posterior", "all uncertainties", "one product", "ratio"]
    return markdown([*header, "to a product in new memory"], lines)


def device() -> str:
    """The wide head on every device that was at hand."""
    record = read_record(NAME)
    lines = []
    for name in (name for name in record if name.startswith("device ")):
        for row in record[name]["rows"]:
            for stage in ("fit", "embed", "sample"):
                cost = row[stage]
                shares = [cost[f"share_of_{x}"] for x in ("float32_product", "copy")]
                label = f"{record[name]['device']}, {row['structure']}: {stage}"
                lines.append([label, time(cost["seconds"]), *(f"{x:.1%}" for x in shares)])
    return markdown(["device, structure: what", "time", "of float32 product", "of copy"], lines)


def time(seconds: float) -> str:
    """In the unit that suits it.

    Examples
    --------
    >>> time(0.0123), time(1.5), time(900)
    ('12.3 ms', '1.50 s', '15.0 min')
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
