"""``laplace-metric decide``: a table of scored hits in, a rule or a table of decisions out."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.tables import read_table
from laplace_metric.calibration import DecisionRule, ScoreCalibration, calibrate_scores
from laplace_metric.cli._reporter import reporter_of
from laplace_metric.cli._table_files import TABLE_WRITERS, write_table
from laplace_metric.errors import InputError

RATES = {
    "precision": "precision",
    "recall": "recall",
    "fmr": "false_match_rate",
    "fpir": "false_positive_identification_rate",
}
JUDGED = {"1": 1, "0": 0, "-1": -1, "": -1, "true": 1, "false": 0, "yes": 1, "no": 0}
"""Cells of the column relevant."""
MEANINGS = {
    "coverage": "queries that are answered",
    "precision": "answers that are right",
    "false_match_rate": "false match rate (FMR): hits that are not relevant, accepted",
    "false_non_match_rate": "false non-match rate (FNMR): relevant hits, rejected",
    "false_positive_identification_rate": "FPIR: queries without a match, answered",
    "false_negative_identification_rate": "FNIR: queries with a match, not answered or wrongly",
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
    hits = Hits(options.data, *(["relevant"] if asked else []))
    if asked:
        with reporter.warnings():
            calibration = hits.learnt(options.kind, options.cross_fit)
            rule = calibration.guarantee(**asked, confidence=options.confidence)
        rule.save(output)
        reporter.say(str(rule))
        numbers = {name: round(rate, 6) for name, rate in rule.rates().items()}
        for name, rate in numbers.items():
            reporter.say(f"  {MEANINGS[name]}: {rate:.2%}")
    else:
        rule = DecisionRule.load(options.apply)
        columns, answered = hits.decided(rule)
        write_table(output, columns)
        numbers = {"queries": len(answered), "answered": int(answered.sum())}
        reporter.say(
            f"{numbers['answered']:,} of {len(answered):,} queries are answered; {rule.quantity} "
            f"of the rule: {rule.target:g}"
        )
    reporter.say(f"wrote {output}")
    reporter.numbers({**numbers, "output": str(output)})


class Hits:
    """Rows of a table by query: scores [Q, k], best first, and where each stands in the table.

    The table is a .csv or .tsv with the columns query and score, and perhaps item and relevant.

    Raises
    ------
    InputError
        If there is no such file, column or row, a score is no number, or a query has an item twice.
    """

    def __init__(self, path: Path, *needed: str) -> None:
        self.path = path
        self.columns = read_table(path, dict.fromkeys(("query", "score", *needed), ""))
        names, scores = self.columns["query"], self.columns["score"]
        self.queries = list(dict.fromkeys(names))
        number = {name: row for row, name in enumerate(self.queries)}
        self.query = np.array([number[name] for name in names])
        try:
            self.score: Array = np.array(scores, float)
        except ValueError as error:
            raise InputError(f"{path}: column 'score' holds no number: {error}.") from error
        if not np.isfinite(self.score).all():
            row = int((~np.isfinite(self.score)).argmax()) + 1
            raise InputError(f"{path}: score of row {row} is {scores[row - 1]}.")
        pairs = Counter(zip(names, self.columns.get("item", range(len(names))), strict=True))
        (query, item), times = pairs.most_common(1)[0]
        if times > 1:
            raise InputError(f"{path}: query {query!r} has the item {item!r} twice.")

    def learnt(self, kind: str, cross_fit: int | None = None) -> ScoreCalibration:
        """Calibrate the scores by the column relevant: 1, 0 or -1; an empty cell is not judged.

        Raises
        ------
        InputError
            For other values.
        """
        cells = [cell.strip().lower() for cell in self.columns["relevant"]]
        if wrong := next((cell for cell in cells if cell not in JUDGED), None):
            raise InputError(f"{self.path}: relevant is {wrong!r:.40}: write 1, 0, or -1.")
        rank, scores = self.ranked(kind)
        relevant = np.zeros(scores.shape)
        relevant[self.query, rank] = [JUDGED[cell] for cell in cells]
        return calibrate_scores(scores, relevant, kind=kind, cross_fit=cross_fit)

    def decided(self, rule: DecisionRule) -> tuple[dict[str, list[Any]], npt.NDArray[np.bool_]]:
        """Columns of the table with rank, probability and decision; and whether each is answered.

        Raises
        ------
        InputError
            If the rule was learnt from more scores than one, or from fewer hits of a query.
        """
        calibration = rule.calibration
        if len(calibration.kinds) > 1 or calibration.evidence:
            raise InputError("--apply: the rule wants several scores, which a table does not hold.")
        rank, scores = self.ranked(calibration.kinds[0], calibration.k)
        p = calibration.probability(scores)
        answered = p[:, 0] >= rule.value
        columns: dict[str, list[Any]] = {**self.columns, "rank": (rank + 1).tolist()}
        columns["match_probability"] = p[self.query, rank].tolist()
        columns["decision"] = np.where(answered, "answer", "abstain")[self.query].tolist()
        return columns, answered

    def ranked(self, kind: str, k: int | None = None) -> tuple[npt.NDArray[np.int_], Array]:
        """Place of each row among those of its query, 0 is the best; and scores [Q, k].

        These are infinite where a query has fewer hits; k None: as many as the longest list has.

        Raises
        ------
        InputError
            If a query has more hits than k.
        """
        sign = 1 if kind == "distance" else -1
        order = np.lexsort((sign * self.score, self.query))
        rank, of_query = np.empty(len(order), int), self.query[order]
        rank[order] = np.arange(len(order)) - np.searchsorted(of_query, of_query)
        longest = int(rank.max()) + 1
        if k is not None and longest > k:
            name = self.queries[self.query[rank.argmax()]]
            raise InputError(
                f"{self.path}: query {name!r} has {longest} hits, the rule was learnt from {k}: "
                "give as many."
            )
        scores = np.full((len(self.queries), k or longest), sign * np.inf)
        scores[self.query, rank] = self.score
        return rank, scores
