"""The worked cases over twenty splits: ``python -m benchmarks retrieval --pieces cases``.

The notebooks of a semantic cache, of passages for a language model and of identification show one
split each. Here their own code runs, with other seeds where it draws who calibrates and who is
asked (and, of characters, who is enrolled). Compared are the scores alone, the scores with the
further evidence that the notebook has (none of identification), and a threshold on the first score
set by hand: the lowest with which the calibration queries keep what is asked for.

A precision and an FPIR are kept if the share on new queries is on the right side, a rule that
answers nothing keeps any. What is passed on to a language model holds on average over splits: the
mean counts. Intervals are 95 % t-intervals over splits, which share texts and drawings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.records import folder_of, markdown, read_record, thousandths, write_record
from benchmarks.retrieval.decisions import by_hand
from benchmarks.retrieval.measure import summarised
from benchmarks.retrieval.pairs import percent, told
from laplace_metric.calibration import Rule, ScoreCalibration
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.evaluation import auroc

EXAMPLES = Path(__file__).parents[2] / "examples"
SPLIT = {
    "semantic_cache": ("order = np.random", "from laplace_metric.errors"),
    "passages": ("ours, theirs = np.split", "ways = {"),
    "identification": ("g = np.random", "unenrolled = {"),
}
"""Where a notebook begins to draw its split, and where it has calibrated."""
PRECISIONS, MISSES, RATES = (0.9, 0.95, 0.99), (0.2, 0.1, 0.05), (0.1, 0.05)
Array = npt.NDArray[Any]
Scope = dict[str, Any]
Row = dict[str, float | None]


def parts(name: str) -> tuple[str, str]:
    """Code that reads and searches, and code that splits and calibrates."""
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    start, end = (code.index(mark) for mark in SPLIT[name])
    return code[:start], code[start:end]


def splits_of(name: str, n: int, measured: Callable[[Scope], Row]) -> list[Row]:
    """Run a notebook once, its split n times, each with a seed of its own."""
    scope: Scope = {"__name__": name}
    data, split = parts(name)
    assert "default_rng(0)" in split
    rows = []
    with redirect_stdout(StringIO()):
        exec(compile(data, name, "exec"), scope)
        for seed in range(n):
            seeded = split.replace("default_rng(0)", f"default_rng({seed})")
            exec(compile(seeded, name, "exec"), scope)
            rows.append(measured(scope))
    return rows


def rule_of(calibration: ScoreCalibration, **asked: Any) -> Rule | None:
    """None where it cannot be guaranteed."""
    try:
        return calibration.guarantee(**asked)
    except InputError:
        return None


def cache(found: Scope) -> Row:
    """Precision of what is served."""
    ours, theirs, cosine = (found[name] for name in ("ours", "theirs", "cosine"))
    first, right = found["relevant"][:, 0], found["relevant"][theirs, 0]
    columns = {name: column[theirs] for name, column in found["evidence"].items()}
    ways = {"scores": (found["by_cosine"], {}), "evidence": (found["by_both"], columns)}
    row: Row = {"by hand: auroc": area(cosine[theirs, 0], right)}
    for way, (calibration, more) in ways.items():
        p = calibration.probability(cosine[theirs], **more)[:, 0]
        row[f"{way}: auroc"] = area(p, right)
        for target in PRECISIONS:
            rule = rule_of(calibration, precision=target)
            accepted = None if rule is None else rule(cosine[theirs], **more).answered
            row |= served(f"{way}, {target:g}", target, accepted, right)
    for target in PRECISIONS:
        least = -by_hand(-cosine[ours, 0], first[ours], target)
        accepted = cosine[theirs, 0] >= least if np.isfinite(least) else None
        row |= served(f"by hand, {target:g}", target, accepted, right)
    return row


def served(head: str, target: float, accepted: Array | None, right: Array) -> Row:
    """One rule on new queries; without one nothing is served."""
    given, accepted = accepted is not None, right & False if accepted is None else accepted
    precision = float(right[accepted].mean()) if accepted.any() else None
    kept = precision is None or precision >= target
    return {f"{head}: given": float(given), f"{head}: measured": precision,
            f"{head}: kept": float(kept), f"{head}: answered": float(accepted.mean())}  # fmt: skip


def passages(found: Scope) -> Row:
    """Share of the relevant passages left out, and how many are passed on."""
    theirs, scores = found["theirs"], found["scores"]
    cosine, right = scores[..., 0], found["relevant"][theirs, 0]
    first = {"by hand": cosine[theirs, 0]}
    ways = {"scores": (found["one"], cosine), "evidence": (found["both"], scores)}
    row: Row = {}
    for way, (calibration, values) in ways.items():
        first[way] = calibration.probability(values[theirs])[:, 0]
        for miss in MISSES:
            row |= passed(
                found, f"{way}, {miss:g}", calibration.keep_relevant(values[theirs], miss)
            )
    for miss in MISSES:
        least = lowest(cosine[found["ours"]], found["relevant"][found["ours"]], miss)
        row |= passed(found, f"by hand, {miss:g}", (cosine[theirs] >= least).sum(1))
    return row | {f"{way}: auroc": area(values, right) for way, values in first.items()}


def passed(found: Scope, head: str, kept: Array) -> Row:
    """By the notebook's own count; the mean over splits has to keep it."""
    lost, _, mean = found["outcome"](kept)
    return {f"{head}: given": 1.0, f"{head}: measured": float(lost), f"{head}: answered": mean / 20}


def lowest(cosine: Array, relevant: Array, miss: float) -> float:
    """The highest cosine below which the calibration queries lose as much at most."""
    known, grid = relevant.any(1), np.linspace(0, 1, 501)
    below = [(relevant & (cosine < at)).sum(1)[known] for at in grid]
    lost = np.array(below) / relevant.sum(1)[known]
    return float(grid[np.flatnonzero(lost.mean(1) <= miss)[-1]])


def identification(found: Scope) -> Row:
    """FPIR of new characters, counting each once, and the share of the enrolled that are named."""
    cosine, right, new = found["cosine"], found["right"][:, 0], found["whose"] == "asked"
    known = found["mated"] & ~found["half"]
    asked = new | known
    calibration = found["calibration"]
    p = calibration.probability(cosine)[:, 0]
    row: Row = {"scores: auroc": area(p[asked], right[asked]),
                "by hand: auroc": area(cosine[asked, 0], right[asked])}  # fmt: skip
    calibrates = found["whose"] == "guarantee"
    for rate in RATES:
        rule = rule_of(calibration, fpir=rate)
        least = np.quantile(cosine[calibrates, 0], 1 - rate)
        named = {"scores": right & False, "by hand": cosine[:, 0] > least}
        if rule is not None:
            named["scores"] = rule(cosine).answered
        row[f"scores, {rate:g}: given"] = float(rule is not None)
        row[f"by hand, {rate:g}: given"] = 1.0
        for way, flags in named.items():
            fpir = float(found["over_characters"](flags, new)[0])
            row[f"{way}, {rate:g}: measured"] = fpir
            row[f"{way}, {rate:g}: kept"] = float(fpir <= rate)
            row[f"{way}, {rate:g}: answered"] = 1 - float(found["missing"](flags))
    return row


def area(score: Array, right: Array) -> float:
    """By which the score distinguishes right first hits from wrong ones."""
    return auroc(-score[right], -score[~right])


CASES: dict[str, tuple[Callable[[Scope], Row], str, Sequence[float]]] = {
    "semantic_cache": (cache, "precision at least", PRECISIONS),
    "passages": (passages, "relevant left out at most", MISSES),
    "identification": (identification, "FPIR at most", RATES),
}


def run(options: Namespace) -> None:
    """Every case."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    if options.data:
        os.environ["LAPLACE_METRIC_DATA"] = str(options.data)
    sys.path.insert(0, str(EXAMPLES))  # at_hand
    rows = []
    for name, (measured, *_) in CASES.items():
        found = summarised(splits_of(name, options.splits, measured))
        rows.append({"case": name, "splits": options.splits, **found})
        print(name, rows[-1], flush=True)
    write_record("cases", {"rows": rows}, folder_of(options))


FIRST = """
import time
import numpy as np
from laplace_metric.calibration import calibrate_scores
g, shape = np.random.default_rng(0), (2_000, 50)
scores = -np.sort(g.gamma(3.0, size=shape), 1)
rule = calibrate_scores(scores, g.random(shape) < np.exp(scores)).guarantee(recall=0.9)
assert rule(scores).answered.any()
print(time.process_time())
"""


def first_decision(runs: int) -> list[float]:
    """Processor seconds of a cold Python, up to its first decision on 2,000 queries of 50 hits."""
    command = [sys.executable, "-c", FIRST]
    return [float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(runs)]  # fmt: skip


def run_first(options: Namespace) -> None:
    """Nine processes, one after the other."""
    seconds = sorted(first_decision(9))
    found = {"median": seconds[4], "least": seconds[0], "most": seconds[-1]}
    write_record("first_decision", {"seconds": found}, folder_of(options))


def cases_table() -> str:
    """Each case, target and way."""
    header = ["case", "guaranteed", "way", "given", "measured", "not broken", "answered", "AUROC"]
    lines = []
    for row in read_record("cases")["rows"]:
        _, what, targets = CASES[row["case"]]
        for target in targets:
            for way, title in NAMES.items():
                head = f"{way}, {target:g}: "
                if f"{head}measured" not in row:
                    continue
                kept = row.get(f"{head}kept")
                lines.append([
                    row["case"].replace("_", " "),
                    f"{what} {target:.0%}",
                    title,
                    f"{row[f'{head}given']['mean']:.0%}",
                    told(row[f"{head}measured"], percent),
                    "on average" if kept is None else f"{kept['mean']:.0%}",
                    told(row[f"{head}answered"], percent),
                    told(row[f"{way}: auroc"], thousandths),
                ])  # fmt: skip
    return markdown(header, lines)


NAMES = {"scores": "scores", "evidence": "with evidence", "by hand": "by hand"}
TABLES = {"retrieval-cases": cases_table}
