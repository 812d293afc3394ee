"""Tables of the page of costs: the core, structures and how near they are, distances."""

from __future__ import annotations

from typing import Any

from benchmarks.records import markdown, read_record

Row = dict[str, Any]
APPROXIMATIONS = ("diagonal", "low rank", "kfac", "nearest", "nearest, refined")


def structures(*problems: str) -> str:
    """Ours and laplace-torch side by side, problem by problem (all, or those named)."""
    rows = [
        r for r in read_record("structures")["rows"] if not problems or r["problem"] in problems
    ]
    order = list(dict.fromkeys(row["problem"] for row in rows))
    lines = []
    for row in sorted(rows, key=lambda row: order.index(row["problem"])):
        who = f"{row['library']} {row['structure']}" + (f", {row['mode']}" if "mode" in row else "")
        error = f"{row['variance_error']:.3f}" if "variance_error" in row else ""
        lines.append([_problem(row), who, *_cost(row, "fit"), *_cost(row, "predict"), error])
    header = ["head", "posterior", "fit", "memory", "predict", "memory", "variance error"]
    return markdown(header, lines)


def _problem(row: Row) -> str:
    sizes = {"fashion-mnist": "128-16", "efficientnet": "1280-3", "efficientnet-64": "1280-64"}
    return f"{row['problem'].removesuffix('-64')} {sizes[row['problem']]}"


def analytic() -> str:
    """By what factor laplace-torch's analytic prediction takes longer than ours."""
    rows = [row for row in read_record("structures")["rows"] if "predict_seconds" in row]
    parts = []
    for structure in ("diag", "kron"):
        cells = []
        for problem in dict.fromkeys(row["problem"] for row in rows):
            of = [r for r in rows if (r["problem"], r["structure"]) == (problem, structure)]
            ours = next((r for r in of if r["library"] == "laplace_metric"), None)
            theirs = next((r for r in of if r.get("mode") == "analytic"), None)
            if ours is None or theirs is None:
                continue
            seconds = [r["predict_seconds"] * _scale(r, "predict") for r in (theirs, ours)]
            points = theirs.get("predict_points", PREDICTED)
            note = f" (extrapolated from {points:,} points)" if points < PREDICTED else ""
            cells.append(f"{seconds[0] / seconds[1]:,.0f} on {_problem(theirs)}{note}")
        parts.append(f"{STRUCTURE_NAMES[structure]} {', '.join(cells)}")
    return (
        "- **Analytic prediction** is faster than laplace-torch's documented call by a factor of: "
        + "; ".join(parts)
        + "."
    )


PREDICTED, FITTED = 2_500, 10_000
"""Points of a prediction and of a fit."""


def _scale(row: Row, stage: str) -> float:
    """Points over those that were measured, where these are fewer."""
    total = PREDICTED if stage == "predict" else FITTED
    return max(1.0, total / row.get(f"{stage}_points", total))


def _cost(row: Row, stage: str) -> tuple[str, str]:
    """Seconds for all points (scaled where fewer were measured), and the memory added."""
    if f"{stage}_seconds" not in row:
        return row.get("error", {}).get("type", "not run"), ""
    factor = _scale(row, stage)
    seconds, scaled = row[f"{stage}_seconds"] * factor, factor > 1
    memory = row[f"{stage}_mb"] if f"{stage}_mb" in row else row[f"{stage}_peak_mb"]
    return _seconds(seconds) + (" (scaled)" if scaled else ""), f"{max(memory, 0):.0f} MB"


def _seconds(value: float) -> str:
    return f"{value:,.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def approximations() -> str:
    """Frobenius error of H / error of the predictive variance, for each distance and Hessian."""
    rows = read_record("structures")["approximations"]
    lines = []
    for kind in dict.fromkeys((row["distance"], row["hessian"]) for row in rows):
        errors = {
            r["approximation"]: f"{r['frobenius_error']:.3f} / {r['variance_error']:.3f}"
            for r in rows
            if (r["distance"], r["hessian"]) == kind
        }
        lines.append([" ".join(kind), *(errors.get(name, "") for name in APPROXIMATIONS)])
    return markdown(["H error / variance error", *APPROXIMATIONS], lines)


def distances() -> str:
    """Errors of ``distance``, and factors by which the independent one is off."""
    lines = [
        [
            f"{_problem(row)}, {row['distance']} {row['structure']}, {row['pairs']}",
            row["prior"],
            f"{row['mean_uncertainty']:.2f}",
            f"{row['mean_error']:.1%}",
            f"{row['deviation_error']:.1%}",
            f"{row['second_order_deviation_error']:.1%}",
            f"{row['sampled_mean_factor']:.2f}",
            f"{row['sampled_deviation_factor']:.2f}",
        ]
        for row in read_record("distances")["rows"]
    ]
    header = ["pairs", "prior", "uncertainty", "error of mean", "error of s.d."]
    return markdown(
        [*header, "second order, s.d.", "independent: mean x", "independent: s.d. x"], lines
    )


def speed() -> str:
    """What the core costs, beside the plain computation it is compared with."""
    record = read_record("speed")
    lines = [
        [
            f"fit, N = {row['n']:,} (D = 512, Z = 128), every pair",
            f"{row['fit_seconds']:.2f} s",
            f"{row['ratio']:.2f} x the two products",
            f"{row['extra_peak_mb']:.0f} MB",
        ]
        for row in record["fit"]
    ]
    lines += [
        [
            f"{row['hessian']}, all {row['pairs']:,} pairs of a batch of 256 (512 -> 64)",
            f"{1e3 * row['seconds']:.1f} ms",
            "",
            f"{row['extra_peak_mb']:.0f} MB",
        ]
        for row in record["batch"]
    ]
    lines += [
        [
            f"small CNN with uncertainty, batch of 256, Z = {row['embedding_size']}",
            f"{1e3 * row['with_uncertainty_seconds']:.0f} ms",
            f"{row['ratio']:.2f} x the forward pass",
            "",
        ]
        for row in record["embed"]
    ]
    return markdown(["what", "time", "compared with", "extra peak memory"], lines)


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


def determined() -> str:
    """How many directions of the inputs the data determine beyond a share of the prior."""
    rows = read_record("limits")["determined"]
    shares = [name for name in rows[0] if name not in ("problem", "columns", "n")]
    lines = [[_problem(r), f"{r['columns']:,}", *(f"{r[s]:,}" for s in shares)] for r in rows]
    return markdown(["head", "columns", *(f"beyond {share}" for share in shares)], lines)


def jacobians() -> str:
    """A dense diagonal by every backend, and beside it the curvature that fitting computes."""
    record = read_record("jacobians")
    lines = []
    for head in dict.fromkeys(row["head"] for row in record["dense"]):
        for row in (row for row in record["dense"] if row["head"] == head):
            scaled = " (scaled)" if row["measured_points"] < record["points"] else ""
            error = f"{row['relative_difference']:.0e}"
            lines.append([f"{head}: {row['backend']}{scaled}", *_time_and_memory(row), error])
        for row in (row for row in record["fixed_arccos"] if row["head"] == head):
            lines.append([f"{head}: all of the fixed arccos curvature", *_time_and_memory(row), ""])
    return markdown(["head: backend", "CPU time", "extra peak memory", "relative error"], lines)


def vmf() -> str:
    """What a draw costs, and its gradient."""
    record = read_record("vmf_speed")
    backward = {row["dimension"]: row["seconds"] for row in record["backward"]}
    lines = [
        [
            f"{row['dimension']:,}",
            f"{1e3 * row['draw_seconds']:.0f} ms",
            f"{1e3 * row['angle_seconds']:.0f} ms",
            f"{1e3 * row['normals_one_thread_seconds']:.0f} ms",
            f"{1e3 * backward[d]:.0f} ms" if (d := row["dimension"]) in backward else "",
        ]
        for row in record["draw"]
    ]
    header = ["dimension", "512 x 512 draws", "of it the angles", "normal numbers, one thread"]
    return markdown([*header, "with gradients"], lines)


def _time_and_memory(row: Row) -> tuple[str, str]:
    return _seconds(row["cpu_seconds"]), f"{row['extra_peak_mb']:.0f} MB"


def exported() -> str:
    """Size, time and error of each way to run an embedder, and what int8 does to its numbers."""
    lines = []
    for row in read_record("export")["rows"]:
        error = max(row[f"error_{name}"] for name in ("mean", "epistemic", "uncertainty"))
        size = "" if row["mb"] is None else f"{row['mb']:.0f} MB"
        times = [f"{row[f'ms_{n}']:.3g} ms" for n in (1, 32)]
        numbers = [
            f"{row[f'{kind}_{name}']:.3f}"
            for name in ("epistemic", "uncertainty")
            for kind in ("spearman", "auroc")
        ]
        first = f"{row['encoder']}, {row['what']}"
        errors = f"{error:.1e}" if error else "", f"{row['rounding_epistemic']:.1e}"
        lines.append([first, size, *times, *errors, *numbers])
    header = ["run by", "file", "1 input", "32 inputs", "error", "of `epistemic`, to float64"]
    header += ["`epistemic` rank", "OOD AUROC", "`uncertainty` rank", "OOD AUROC"]
    return markdown(header, lines)


def modes() -> str:
    """Time and error of each way to call an embedder or its module."""
    lines = []
    for row in read_record("modes")["rows"]:
        times = [f"{row[f'ms_{n}']:.3g} ms" for n in (1, 32)]
        errors = [f"{row[f'error_{name}']:.0e}" for name in ("mean", "epistemic", "uncertainty")]
        ranks = [f"{row[f'spearman_{name}']:.3f}" for name in ("epistemic", "uncertainty")]
        compiled = "compile" in row["what"]
        first = [f"{row['first_calls']:.0f} s", f"{row['graphs']}, {row['breaks']}"]
        what = f"{row['encoder']}, {row['of']}, {row['what']}"
        lines.append([what, *times, *errors, *ranks, *(first if compiled else ["", ""])])
    header = ["called", "1 input", "32 inputs", "error of the mean", "of `epistemic`"]
    header += ["of `uncertainty`", "`epistemic` rank", "`uncertainty` rank"]
    return markdown([*header, "first calls", "graphs, breaks"], lines)
