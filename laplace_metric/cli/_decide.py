"""``laplace-metric decide``: a table of scored hits in, a rule or a table of answers out."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.tables import MISSING, filled_cells, read_table
from laplace_metric.calibration import ClassRule, Rule, ScoreCalibration, calibrate_scores
from laplace_metric.calibration._padding import is_padding
from laplace_metric.calibration.guarantees._theory import HITS, QUANTITIES, Guarantee
from laplace_metric.calibration.scores._scored_queries import ScoredQueries
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._reporter import reporter_of
from laplace_metric.cli._table_files import TABLE_WRITERS, write_table
from laplace_metric.errors import InputError

WORDS = {"true": 1, "t": 1, "yes": 1, "y": 1, "false": 0, "f": 0, "no": 0, "n": 0}
"""Cells of the relevance column besides numbers; what is missing was not judged."""
MEANINGS = {
    "coverage": "queries that are answered",
    "precision": "answers that are right",
    "fmr": "false match rate (FMR): hits that are not relevant, accepted",
    "fnmr": "false non-match rate (FNMR): relevant hits, rejected",
    "fpir": "FPIR: queries without a match, answered",
    "fnir": "FNIR: queries with a match, not answered or wrongly",
}
NOT_FIRST = "not the first hit"
"""Reason of the other hits of a query that is answered; its guarantee is of the first one."""
Array = npt.NDArray[np.float64]


def decide(options: Namespace) -> None:
    """Learn a rule from judged hits, or apply one to new hits."""
    rates = {name: getattr(options, name) for name in QUANTITIES}
    asked = {name: rate for name, rate in rates.items() if rate is not None}
    if (len(asked) == 1) == (options.apply is not None) or len(asked) > 1:
        listed = ", ".join(f"--{name}" for name in QUANTITIES)
        raise InputError(f"give one of {listed} to learn a rule, or --apply RULE to use one.")
    output = options.output or Path("rule.safetensors" if asked else "answers.csv")
    if not asked and output.suffix not in TABLE_WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(TABLE_WRITERS)}.")
    reporter = reporter_of(options, output)
    if options.by_class and (options.precision is None or options.of == HITS):
        raise InputError("--by-class: give --precision P, of --of match.")
    rule = None
    if asked:
        Guarantee.of_rates(**asked, of=options.of)  # what cannot be is refused before all work
    else:
        _check_applies(options)
        rule = Rule.load(options.apply)
        _scores_of(rule)  # a rule of something else is refused before the table is read
    hits = Hits(
        options.data,
        query=options.query_column,
        score=options.score_column,
        item=options.item_column,
        relevant=options.relevant_column if asked else None,
        group=options.group_column if asked else None,
        label=options.label_column if options.by_class or isinstance(rule, ClassRule) else None,
    )
    if asked:
        with reporter.warnings():
            calibration = hits.learnt(options.kind, options.cross_fit)
            if options.by_class:
                rule = calibration.guarantee_by_class(
                    options.precision, confidence=options.confidence
                )
            else:
                rule = calibration.guarantee(**asked, confidence=options.confidence, of=options.of)
        rule.save(output)
        reporter.say(str(rule))
        numbers = {name: round(rate, 6) for name, rate in _rates(rule).items()}
        if isinstance(rule, ClassRule):
            for name, own in rule.rules.items():
                told = f"{name}: {own.estimate or 0:.2%} of {own.n_tested:,} tested are right"
                reporter.say(f"  {told}; answered from a probability of {own.value:.4f} on")
        for name, rate in numbers.items():
            reporter.say(f"  {MEANINGS[name]}: {rate:.2%}")
    else:
        assert rule is not None
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

    The table is a .csv or .tsv, one hit a row, in any order. A row is no hit if its score is
    infinite or the largest float32, which FAISS writes, or if its item is -1. The order of rows
    does not matter: queries are sorted by name, and hits with equal scores by a hash of query and
    item.

    Parameters
    ----------
    path : Path
        Name of the table.
    query, score : str
        Names of the columns.
    item : str or None
        Name of the column of items; None: "item", if there is one.
    relevant : str or None
        Name of the column of judgements; None: the table has none, or it is not asked for.
    group : str or None
        Name of the column of groups, one for all rows of a query; None: queries are independent.
    label : str or None
        Name of the column of labels of what was found; None: it is not asked for.

    Raises
    ------
    InputError
        If there is no such file, column or row, a score is no number, or a query has an item twice.
    """

    def __init__(
        self,
        path: Path,
        *,
        query: str,
        score: str,
        item: str | None,
        relevant: str | None,
        group: str | None = None,
        label: str | None = None,
    ) -> None:
        needed = {query: "--query-column", score: "--score-column"}
        needed |= {relevant: "--relevant-column"} if relevant else {}
        needed |= {item: "--item-column"} if item else {}
        needed |= {group: "--group-column"} if group else {}
        needed |= {label: "--label-column"} if label else {}
        self.path, self.relevant = path, relevant
        self.columns = read_table(path, needed)
        names, scores = self.columns[query], self.columns[score]
        self.queries = sorted(set(names))
        number = {name: row for row, name in enumerate(self.queries)}
        self.query = np.array([number[name] for name in names])
        try:
            self.score: Array = np.array(scores, float)
        except ValueError as error:
            row = next(row for row, cell in enumerate(scores, 1) if not _is_number(cell))
            raise InputError(
                f"{path}: score of row {row} is {scores[row - 1]!r:.40}, no number: "
                f"correct it, or name another column than {score!r} with --score-column."
            ) from error
        if np.isnan(self.score).any():
            row = int(np.isnan(self.score).argmax()) + 1
            raise InputError(f"{path}: score of row {row} is {scores[row - 1] or 'empty'}.")
        self.groups = None if group is None else self._groups_of_queries(group)
        self.labels = None if label is None else self.columns[label]
        items = self.columns.get(item or "item")
        self.exists = ~is_padding(self.score)
        if items is not None:
            self.exists &= np.array([cell.strip() not in NO_ITEM for cell in items])
            pairs = Counter(
                pair
                for pair, hit in zip(zip(names, items, strict=True), self.exists, strict=True)
                if hit
            )
            (name, twice), times = pairs.most_common(1)[0] if pairs else (("", ""), 0)
            if times > 1:
                raise InputError(f"{path}: query {name!r} has the item {twice!r} twice.")
        self._ties = self._hashes([query, item or "item"] if items is not None else None)

    def _groups_of_queries(self, column: str) -> list[str]:
        """Return the group of each query, in the order of ``queries``.

        Raises
        ------
        InputError
            If a cell is empty, or a query is of two groups.
        """
        found: dict[int, str] = {}
        names = filled_cells(self.path, column, self.columns[column])
        for number, name in zip(self.query, names, strict=True):
            if found.setdefault(int(number), name) != name:
                raise InputError(
                    f"{self.path}: query {self.queries[number]!r} is of the groups "
                    f"{found[int(number)]!r} and {name!r} in {column}: give it one."
                )
        return [found[number] for number in range(len(self.queries))]

    def _hashes(self, identity: list[str] | None) -> npt.NDArray[np.uint64]:
        """Return a number of each row, by which hits with equal scores are sorted.

        Without items a row is known by all of its cells but the judgement, and equal rows are
        numbered by their judgements: the numbers are hashed, so that no judgement stands first.
        """
        names = identity or [name for name in self.columns if name != self.relevant]
        cells = [*zip(*(self.columns[name] for name in names), strict=True)]
        judged = self.columns[self.relevant] if self.relevant else [""] * len(cells)
        times: Counter[tuple[str, ...]] = Counter()
        found = np.empty(len(cells), np.uint64)
        for row in sorted(range(len(cells)), key=lambda i: (cells[i], judged[i])):
            text = "\x1f".join((*cells[row], str(times[cells[row]])))
            times[cells[row]] += 1
            found[row] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        return found

    def learnt(self, kind: str, cross_fit: int | None = None) -> ScoreCalibration:
        """Calibrate the scores by the column of judgements; a missing cell is not judged.

        Raises
        ------
        InputError
            For other values than 1, 0 and -1, and their words.
        """
        assert self.relevant is not None
        judged = [_judgement(cell) for cell in self.columns[self.relevant]]
        if None in judged:
            row = judged.index(None)
            raise InputError(
                f"{self.path}: {self.relevant} is {self.columns[self.relevant][row]!r:.40} in row "
                f"{row + 1}: write 1, 0, or -1."
            )
        rank, scores = self.ranked(kind)
        relevant, there = np.full(scores.shape, -1.0), self.exists
        relevant[self.query[there], rank[there]] = np.array(judged, float)[there]
        return calibrate_scores(
            scores,
            relevant,
            kind=kind,
            cross_fit=cross_fit,
            groups=self.groups,
            labels=self.first_labels(rank),
        )

    def first_labels(self, rank: npt.NDArray[np.int_]) -> list[str] | None:
        """Return the label of the first hit of each query, by the rank of each row.

        It is "" where there is no hit. Return None without a column of labels.

        Raises
        ------
        InputError
            For a first hit whose label is empty.
        """
        if self.labels is None:
            return None
        found = [""] * len(self.queries)
        for row in np.flatnonzero(self.exists & (rank == 0)).tolist():
            found[self.query[row]] = self.labels[row].strip()
            if not found[self.query[row]]:
                name = self.queries[self.query[row]]
                raise InputError(
                    f"{self.path}: the label of row {row + 1}, the first hit of query {name!r}, is "
                    "empty: give each first hit one."
                )
        return found

    def decided(self, rule: Rule) -> tuple[dict[str, list[Any]], npt.NDArray[np.bool_]]:
        """Return columns with rank, probability and answers; and which queries are answered.

        Raises
        ------
        InputError
            If the rule was learnt from more scores than one, or from fewer hits of a query.
        """
        calibration = _scores_of(rule)
        rank, scores = self.ranked(calibration.kinds[0], calibration.k)
        p, there = np.zeros(len(rank)), self.exists
        p[there] = calibration.probability(scores)[self.query[there], rank[there]]
        columns: dict[str, list[Any]] = {**self.columns, "rank": (rank + 1).tolist()}
        columns["match_probability"] = p.tolist()
        if rule.of == HITS:
            hits = rule.passed(scores)
            passed = np.zeros(len(rank), bool)
            passed[there] = hits[self.query[there], rank[there]]
            columns["passed"] = passed.tolist()
            return columns, np.asarray(hits.any(1))
        if isinstance(rule, ClassRule):
            answers = rule(scores, labels=self.first_labels(rank))
        else:
            answers = rule(scores)
        answered, reason = answers.answered[self.query], answers.reason[self.query]
        columns["answered"] = (answered & (rank == 0)).tolist()  # the hit that is the answer
        columns["reason"] = np.where(answered & (rank > 0), NOT_FIRST, reason).tolist()
        return columns, answers.answered

    def ranked(self, kind: str, k: int | None = None) -> tuple[npt.NDArray[np.int_], Array]:
        """Return the place of each row among those of its query, 0 is the best; and scores [Q, k].

        Rows that are no hit stand last. Scores are infinite where a query has fewer hits; k None:
        as many as the longest list has.

        Raises
        ------
        InputError
            If a query has more hits than k.
        """
        sign = 1 if kind == "distance" else -1
        order = np.lexsort((self._ties, sign * self.score, ~self.exists, self.query))
        rank, of_query = np.empty(len(order), int), self.query[order]
        rank[order] = np.arange(len(order)) - np.searchsorted(of_query, of_query)
        places = np.where(self.exists, rank, -1)
        longest = max(1, int(places.max()) + 1)
        if k is not None and longest > k:
            name = self.queries[self.query[places.argmax()]]
            raise InputError(
                f"{self.path}: query {name!r} has {longest} hits, the rule was learnt from {k}: "
                "give as many."
            )
        scores = np.full((len(self.queries), k or longest), sign * np.inf)
        scores[self.query[self.exists], rank[self.exists]] = self.score[self.exists]
        return rank, scores


def _check_applies(options: Namespace) -> None:
    """Refuse options of learning next to --apply, where they would change nothing.

    Raises
    ------
    InputError
        For the first one.
    """
    parser = parser_of(options.command)
    for name in ("kind", "of", "confidence", "cross_fit"):
        value = getattr(options, name)
        if value is not None and str(value) != str(parser.get_default(name)):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} {value} is for learning a rule: --apply uses {options.apply} as it was "
                f"learnt. Leave {option} out."
            )


def _scores_of(rule: Rule) -> ScoredQueries:
    """Return the calibration of a rule of one score.

    Raises
    ------
    InputError
        For a rule of an index, or of several scores.
    """
    if (calibration := rule.scores) is None:
        raise InputError("--apply: the rule is of an index: give it to laplace-metric search.")
    if len(calibration.kinds) > 1 or calibration.evidence:
        raise InputError("--apply: the rule wants several scores, which a table does not hold.")
    return calibration


def _rates(rule: Rule) -> dict[str, float]:
    """Return the rates of a rule on the queries that tested it; of classes, those of all."""
    if isinstance(rule, ClassRule):
        return {"coverage": rule.coverage or 0.0}
    return rule.rates()


NO_ITEM = ("-1", "-1.0")
"""Cells of the column of items where there is no hit."""


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _judgement(cell: str) -> int | None:
    """Return 1, 0, or -1 for a cell that was not judged; None for another one."""
    text = cell.strip().lower()
    if text in MISSING:
        return -1
    if text in WORDS:
        return WORDS[text]
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number in (1, 0, -1) else None
