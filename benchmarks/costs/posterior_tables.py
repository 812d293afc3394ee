"""Tables about the posterior: what structures cost, how near they are, distances."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import markdown
from benchmarks.records import read_record

Row = dict[str, Any]
APPROXIMATIONS = ("diagonal", "low rank", "kfac", "nearest", "nearest, refined")


def structures(*problems: str) -> str:
    """Ours and laplace-torch side by side, problem by problem (all, or those named)."""
    rows = [
        r for r in read_record("structures")["rows"] if not problems or r["problem"] in problems
    ]
    lines = [
        [_problem(row), _who(row), *_cost(row, "fit"), *_cost(row, "predict"), _error(row)]
        for problem in dict.fromkeys(row["problem"] for row in rows)
        for row in rows
        if row["problem"] == problem
    ]
    header = ["head", "posterior", "fit", "memory", "predict", "memory", "variance error"]
    return markdown(header, lines)


def _problem(row: Row) -> str:
    sizes = {"fashion-mnist": "128-16", "efficientnet": "1280-3", "efficientnet-64": "1280-64"}
    return f"{row['problem'].removesuffix('-64')} {sizes[row['problem']]}"


def _who(row: Row) -> str:
    mode = f", {row['mode']}" if "mode" in row else ""
    return f"{row['library']} {row['structure']}{mode}"


def _cost(row: Row, stage: str) -> tuple[str, str]:
    """Seconds for all points (scaled where fewer were measured), and the memory added."""
    if f"{stage}_seconds" not in row:
        return row.get("error", {}).get("type", "not run"), ""
    seconds, points = row[f"{stage}_seconds"], row.get(f"{stage}_points")
    whole = 2_500 if stage == "predict" else 10_000
    scaled = points is not None and points < whole
    seconds *= whole / points if scaled and points else 1
    memory = row[f"{stage}_mb"] if f"{stage}_mb" in row else row[f"{stage}_peak_mb"]
    return _seconds(seconds) + (" (scaled)" if scaled else ""), f"{max(memory, 0):.0f} MB"


def _seconds(value: float) -> str:
    return f"{value:,.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _error(row: Row) -> str:
    return f"{row['variance_error']:.3f}" if "variance_error" in row else ""


def approximations() -> str:
    """Frobenius error of H / error of the predictive variance, for each distance and Hessian."""
    rows = read_record("structures")["approximations"]
    lines = []
    for kind in dict.fromkeys((row["distance"], row["hessian"]) for row in rows):
        of = {r["approximation"]: r for r in rows if (r["distance"], r["hessian"]) == kind}
        lines.append([" ".join(kind), *(_errors(of.get(name)) for name in APPROXIMATIONS)])
    return markdown(["H error / variance error", *APPROXIMATIONS], lines)


def _errors(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['frobenius_error']:.3f} / {row['variance_error']:.3f}"


def distances() -> str:
    """Errors of the closed form, and factors by which the independent one is off."""
    lines = [
        [
            f"{_problem(row)}, {row['distance']} {row['structure']}, {row['pairs']}",
            f"{row['mean_uncertainty']:.2f}",
            f"{row['mean_error']:.1%}",
            f"{row['deviation_error']:.1%}",
            f"{row['sampled_mean_factor']:.2f}",
            f"{row['sampled_deviation_factor']:.2f}",
        ]
        for row in read_record("distances")["rows"]
    ]
    header = ["pairs", "uncertainty", "error of mean", "error of s.d."]
    return markdown([*header, "independent: mean x", "independent: s.d. x"], lines)
