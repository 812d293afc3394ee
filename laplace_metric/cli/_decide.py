"""``laplace-metric decide``: a table of scored hits in, a rule or a table of decisions out."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.tables import read_table
from laplace_metric.calibration import DecisionRule, calibrate_scores
from laplace_metric.cli._output import TABLE_WRITERS, Reporter, reporter_of, write_table
from laplace_metric.errors import InputError

RATES = {
    "precision": "precision",
    "recall": "recall",
    "fmr": "false_match_rate",
    "fpir": "false_positive_identification_rate",
}
Array = npt.NDArray[np.float64]


def decide(options: Namespace) -> None:
    """Learn a rule from judged hits, or apply one to new hits."""
    asked = {RATES[name]: rate for name in RATES if (rate := getattr(options, name)) is not None}
    if (len(asked) == 1) == (options.apply is not None) or len(asked) > 1:
        listed = ", ".join(f"--{name}" for name in RATES)
        raise InputError(f"give one of {listed} to learn a rule, or --apply RULE to use one.")
    output = options.output or Path("rule.json" if asked else "decisions.csv")
    endings = (".json",) if asked else tuple(TABLE_WRITERS)
    if output.suffix not in endings:
        raise InputError(f"--output {output}: end it in {', '.join(endings)}.")
    reporter = reporter_of(options, output)
    hits = Hits.of(options.data)
    if asked:
        with reporter.warnings():
            rule = _learnt(hits, options.kind, asked, options.confidence)
        rule.save(output)
        reporter.say(str(rule))
        numbers = {name: round(rate, 6) for name, rate in rule.rates().items()}
        for name, rate in numbers.items():
            reporter.say(f"  {name.replace('_', ' ')}: {rate:.2%}")
    else:
        numbers = _applied(hits, DecisionRule.load(options.apply), output, reporter)
    reporter.say(f"wrote {output}")
    reporter.numbers({**numbers, "output": str(output)})


class Hits:
    """Rows of a table by query: scores [Q, k], best first, and where each stands in the table."""

    def __init__(self, path: Path, header: list[str], rows: list[list[str]]) -> None:
        self.path, self.header, self.rows = path, header, rows
        self.score = self._numbers("score")
        names = self.column("query")
        self.queries = list(dict.fromkeys(names))
        number = {name: row for row, name in enumerate(self.queries)}
        self.query = np.array([number[name] for name in names])
        if "item" in header:
            pairs = list(zip(names, self.column("item"), strict=True))
            if len(set(pairs)) < len(pairs):
                twice = next(pair for pair in pairs if pairs.count(pair) > 1)
                raise InputError(f"{path}: query {twice[0]!r} has the item {twice[1]!r} twice.")

    @classmethod
    def of(cls, path: Path) -> Hits:
        """Read a .csv or .tsv with the columns query and score, and perhaps item and relevant.

        Raises
        ------
        InputError
            If there is no such file, column or row, or a score is no number.
        """
        if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv"):
            raise InputError(f"{path} is no table: give a .csv or .tsv that exists.")
        header, rows = read_table(path)
        if not rows:
            raise InputError(f"{path} holds no row.")
        return cls(path, header, rows)

    def column(self, name: str) -> list[str]:
        """Cells of a column.

        Raises
        ------
        InputError
            If the table has no such column.
        """
        if name not in self.header:
            listed = ", ".join(map(repr, self.header))
            raise InputError(f"{self.path} has no column {name!r}; its columns: {listed}.")
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def _numbers(self, name: str) -> Array:
        cells = self.column(name)
        try:
            numbers = np.array([float(cell) for cell in cells])
        except ValueError as error:
            raise InputError(f"{self.path}: column {name!r} holds no number: {error}.") from error
        if not np.isfinite(numbers).all():
            row = int((~np.isfinite(numbers)).argmax()) + 1
            raise InputError(f"{self.path}: {name} of row {row} is {cells[row - 1]}.")
        return numbers

    def relevant(self) -> Array:
        """1, 0 or -1 of each row; an empty cell is -1, not judged.

        Raises
        ------
        InputError
            For other values.
        """
        words = {"1": 1, "0": 0, "-1": -1, "": -1, "true": 1, "false": 0, "yes": 1, "no": 0}
        cells = [cell.strip().lower() for cell in self.column("relevant")]
        if wrong := next((cell for cell in cells if cell not in words), None):
            raise InputError(f"{self.path}: relevant is {wrong!r:.40}: write 1, 0, or -1.")
        return np.array([float(words[cell]) for cell in cells])

    def places(self, kind: str, k: int | None = None) -> tuple[npt.NDArray[np.int_], Any]:
        """Row of each hit [Q, k], best first and -1 behind the last; and the rank of each row."""
        falling = self.score if kind == "distance" else -self.score
        order = np.lexsort((falling, self.query))
        counts = np.bincount(self.query)
        rank = np.empty(len(order), int)
        rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = int(counts.max())
        if k is not None and most > k:
            name = self.queries[int(counts.argmax())]
            raise InputError(
                f"{self.path}: query {name!r} has {most} hits, the rule was learnt from {k}: give "
                "as many."
            )
        places = np.full((len(counts), k or most), -1)
        places[self.query, rank] = np.arange(len(order))
        return places, rank

    def scores(self, places: npt.NDArray[np.int_], kind: str) -> Array:
        """Scores [Q, k] of rows, infinite where a query has fewer hits."""
        behind = np.inf if kind == "distance" else -np.inf
        return np.where(places >= 0, self.score[places], behind)


def _learnt(hits: Hits, kind: str, asked: dict[str, float], confidence: float) -> DecisionRule:
    places, _ = hits.places(kind)
    relevant = np.where(places >= 0, hits.relevant()[places], 0)
    calibration = calibrate_scores(hits.scores(places, kind), relevant, kind=kind)
    return calibration.guarantee(**asked, confidence=confidence)


def _applied(hits: Hits, rule: DecisionRule, output: Path, reporter: Reporter) -> dict[str, Any]:
    """Write the rows of the table with rank, probability and decision."""
    calibration = rule.calibration
    if len(calibration.kinds) > 1 or calibration.evidence:
        raise InputError("--apply: the rule wants several scores, which a table does not hold.")
    kind = calibration.kinds[0]
    places, rank = hits.places(kind, calibration.k)
    p = calibration.probability(hits.scores(places, kind))
    accepted = p[:, 0] >= rule.value
    columns: dict[str, list[Any]] = {name: hits.column(name) for name in hits.header}
    columns["rank"] = (rank + 1).tolist()
    columns["match_probability"] = p[hits.query, rank].tolist()
    words = np.where(accepted, "answer", "abstain")
    columns["decision"] = words[hits.query].tolist()
    write_table(output, columns)
    n = len(accepted)
    reporter.say(f"{int(accepted.sum()):,} of {n:,} queries are answered; {rule.quantity} of the "
                 f"rule: {rule.target:g}")  # fmt: skip
    return {"queries": n, "answered": int(accepted.sum())}
