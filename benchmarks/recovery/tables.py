"""The table of the controlled experiment, beside what the paper prints."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import markdown
from benchmarks.records import read_record

Row = dict[str, Any]
PRINTED = {  # location error / rank, certainty (spread for other families) error / rank
    ("ambiguous", "mcinfonce"): "0.04 / 0.99, 6.15 / 0.82",
    ("clear", "mcinfonce"): "0.05 / 0.98, 125.02 / 0.64",
    ("injective", "mcinfonce"): "0.05 / 0.98, kappa to infinity",
    ("gaussian", "mcinfonce"): "0.04 / 0.99, spread 0.04 / 0.70",
    ("laplace", "mcinfonce"): "0.05 / 0.98, spread 0.02 / 0.66",
    ("ambiguous", "elk times 20"): "0.02 / 1.00, 21.70 / 0.92",
    ("ambiguous", "hib"): "0.18 / 0.82, 1e14 / -0.02",
    ("ambiguous", "infonce"): "0.83 / 0.99",
}


HEADER = ("posterior, loss", "location error", "rank", "certainty error", "rank", "spread error",
          "rank", "median kappa", "printed")  # fmt: skip


def recovered() -> str:
    """Location and certainty: RMSE (MAE) and rank correlation, mean over the seeds."""
    return markdown(HEADER, cells(read_record("recovery")["rows"]))


def cells(rows: list[Row]) -> list[list[str]]:
    """The lines of the table."""
    kinds = dict.fromkeys((row["setting"], row["loss"]) for row in rows)
    lines = []
    for setting, loss in kinds:
        of = [row for row in rows if (row["setting"], row["loss"]) == (setting, loss)]
        printed = PRINTED.get((setting, loss), "")
        lines.append([f"{setting}, {loss}", *numbers(of), printed])
        for name in [key for key in of[0] if key.startswith("laplace ")]:
            lines.append([f"{setting}, post-hoc {name}", *numbers([row[name] for row in of]), ""])
    return lines


def numbers(rows: list[Row]) -> list[str]:
    """Cells of one line."""
    cells = []
    for key, digits in (("location", 2), ("certainty", 1), ("spread", 3)):
        if key not in rows[0]:
            cells += ["", ""]
            continue
        rmse, mae, rank = (
            mean([row[key][name] for row in rows]) for name in ("rmse", "mae", "rank")
        )
        cells += [f"{rmse:,.{digits}f} ({mae:,.{digits}f})", f"{rank:.2f}"]
    return [*cells, f"{mean([row['kappa']['median'] for row in rows]):,.0f}"]


def mean(values: list[float]) -> float:
    """Over the seeds."""
    return sum(values) / len(values)
