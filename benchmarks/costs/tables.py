"""Tables of the page of costs: fits, predictions, one accelerator, exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.records import markdown, read_record

Row = dict[str, Any]


def _seconds(value: float) -> str:
    return f"{value:,.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


STRUCTURE_NAMES = {"kron": "Kronecker", "diag": "diagonal"}


def fits() -> str:
    """Of each shape and structure, times as multiples of the products that none can do without."""
    lines = []
    for row in read_record("limits")["fit"]:
        times = [
            f"{_seconds(row[name])} ({row[name] / row['limit']:.2f} x)"
            for name in ("curvature", "whole")
        ]
        shape = f"{row['n']:,} x {row['d']:,} -> {row['z']:,}"
        lines.append([shape, STRUCTURE_NAMES[row["structure"]], _seconds(row["limit"]), *times])
    return markdown(["points", "structure", "limit", "curvature", "whole `fit`"], lines)


def on_device() -> str:
    """Fits and searches on one accelerator, beside the products that none can do without."""
    record = read_record("speed_gpu")
    lines = []
    for row in record["fit"]:
        inside = _seconds(row["stages"]["with_near_far"])
        shape = f"fit, {row['n']:,} x {row['d']:,} -> {row['z']:,}"
        cost = f"{_seconds(row['whole'])} ({row['ratio']:.0f} x)"
        peak = f"{row['extra_peak_mb']:,.0f} MB"
        lines.append([shape, _seconds(row["limit"]), cost, inside, peak])
    for row in record["blocks"]:
        name = f"curvature alone, blocks of {row['block_mb']} MB"
        lines.append([name, "", _seconds(row["curvature"]), "", ""])
    for row in record["search"]:
        name = f"{row['queries']:,} queries among {row['items']:,} items"
        lines.append([name, _seconds(row["product"]), _seconds(row["search"]), "", ""])
    header = ["what", "its products", "time", "of it `epistemic`", "extra peak memory"]
    return markdown(header, lines)


LIMITS = {
    "mean": "forward",
    "uncertainty": "variance_limit",
    "variance": "variance_limit",
    "epistemic": "epistemic_limit",
}
"""What each number is compared with."""


def predictions() -> str:
    """Of a batch of 2,000, each number as a multiple of its limit."""
    lines = []
    for row in read_record("limits")["predict"]:
        times = [f"{_seconds(row[a])} ({row[a] / row[b]:.2f} x)" for a, b in LIMITS.items()]
        lines.append([f"{row['d']:,} -> {row['z']:,}", STRUCTURE_NAMES[row["structure"]], *times])
    return markdown(["head", "structure", *(f"`{name}`" for name in LIMITS)], lines)


def exported() -> str:
    """Return size, time and error of each way to run an embedder."""
    lines = []
    for row in read_record("export")["rows"]:
        error = max(row[f"error_{name}"] for name in ("mean", "epistemic", "uncertainty"))
        size = "" if row["mb"] is None else f"{row['mb']:.0f} MB"
        times = [f"{row[f'ms_{n}']:.3g} ms" for n in (1, 32)]
        ranks = f"{row['spearman_epistemic']:.3f}"
        first = f"{row['encoder']}, {row['what']}"
        lines.append([first, size, *times, f"{error:.1e}" if error else "", ranks])
    header = ["run by", "file", "1 input", "32 inputs", "largest error", "`epistemic` rank"]
    return markdown(header, lines)


AIMS: dict[str, Callable[[Row], tuple[str, str, str]]] = {
    "fit": lambda row: (
        f"fit of {row['n']:,} x {row['d']:,} -> {row['z']}",
        _seconds(row["whole"]),
        f"{row['ratio']:.1f} x its products",
    ),
    "guard": lambda row: (
        f"guard of {row['n']:,} x {row['d']:,}, calibrated by itself",
        _seconds(row["guard"]),
        f"{row['ratio']:.1f} x a fit",
    ),
    "query": lambda row: (
        f"one query among {row['n']:,} x {row['d']}, FAISS {row['engine']}",
        _seconds(row["ask"]),
        f"search alone {_seconds(row['search'])}",
    ),
    "wide": lambda row: (
        f"fit of {row['n']:,} x {row['d']:,} -> 64 with `epistemic`", _seconds(row["fit"]), "",
    ),
    "memory": lambda row: (
        f"memory that `{row['way']}` of {row['n']:,} x {row['d']} adds",
        f"{row['sizes']:.1f} x its vectors",
        f"{row['kept']:.1f} x where glibc keeps freed blocks",
    ),
    "cold": lambda row: (
        "process from its start to the first answer",
        _seconds(row["first_answer"]),
        f"`import torch` alone {_seconds(row['torch'])}",
    ),
}  # fmt: skip
"""Part of the record -> the cells of a row."""


def aims() -> str:
    """Return what a user waits for, on one thread."""
    record = read_record("aims")
    rows = [list(cells(row)) for name, cells in AIMS.items() for row in record.get(name, [])]
    return markdown(["what", "CPU time", "beside"], rows)


PEERS = ("laplace-torch", "curvlinops", "curvature", "whole")


def peers() -> str:
    """Return fits beside two libraries of curvature, as multiples of laplace-torch's."""
    record = read_record("peers")
    lines = []
    for row in record["rows"]:
        first = row.get(PEERS[0])
        cells = [
            f"{_seconds(row[name])} ({row[name] / first:.2f} x)" if name in row and first else "-"
            for name in PEERS
        ]
        lines.append([f"{row['n']:,} x {row['d']} -> {row['z']}", *cells])
    made = {one["package"]: one["version"] for one in record["versions"]}
    lt, cl = (made.get(name, "") for name in ("laplace-torch", "curvlinops-for-pytorch"))
    header = ["points", f"laplace-torch {lt}", f"curvlinops {cl}, EKFAC", "our curvature"]
    return markdown([*header, "whole `fit`"], lines)


BESIDE = {"faiss-cpu": "FAISS", "cleanlab": "cleanlab", "crepes": "crepes", "MAPIE": "MAPIE"}
"""Package -> the way that it is timed as."""


def beside() -> str:
    """Return guards beside packages for search, outliers and prediction sets."""
    record = read_record("beside")
    versions = {BESIDE[one["package"]]: one["version"] for one in record["versions"]}
    lines = []
    for row in record["rows"]:
        name = f"{row['way']} {versions.get(row['way'], '')}".strip()
        shares = [f"{100 * row[key]:.1f} %" for key in ("answered", "right", "foreign")]
        times = [_seconds(row[key]) for key in ("fit", "one", "of_batch")]
        lines.append([f"{row['n']:,} x {row['d']:,}", name, *times, *shares])
    header = ["items", "way", "fit", "one query", "each of 100", "answered", "right"]
    return markdown([*header, "KMNIST answered"], lines)


TABLES = {
    "aims": aims,
    "peers": peers,
    "beside": beside,
    "fits": fits,
    "predictions": predictions,
    "on_device": on_device,
    "export": exported,
}
