"""A coarser answer before none: the finest level whose own precision is kept.

A query is answered with its label if that is sure enough, else with the group of labels at the next
level, and so on. The answers that are given *at each level* keep the precision, all levels at once
with probability 1 - delta: each is tested among the queries that the finer levels leave
(``guarantees._left_over`` has the theorem). So the precision holds of the labels alone, of the
groups alone, and of all answers as given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import Rows
from laplace_metric._utils.validation import ArrayLike
from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._left_over import (
    chosen_of_level,
    left_over,
    share_of_run,
)
from laplace_metric.calibration.guarantees._theory import Guarantee
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._compared import as_numpy
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import Kind, SavedFile

NO_LEVELS = Levels(())
NOTHING_LEFT = "the finer levels leave no queries that could test it"


@dataclass(frozen=True, repr=False)
class LevelRule(Rule):
    """Answer with the label, or with the finest group of labels that is sure enough; or abstain.

    ``Index.guarantee_by_level`` makes it, and a ``Guard`` with ``coarser=``.
    ``rule(index.search(queries))`` applies it, and so does ``index.ask(queries, rule)``. Its
    ``value`` is the lowest threshold of a level, its ``estimate`` the share of all answers that is
    right as given, its ``coverage`` that of all levels together; ``rules`` has those of each.

    Parameters
    ----------
    levels : Levels
        Groups of the labels at each level. Default: none, the labels alone.
    rules : dict of int to Rule
        Rule of each level that gives answers, 0 for the labels. Its ``coverage`` is a share of all
        calibration queries. Default: none.
    refused : dict of int to str
        Levels that give no answers, with the reason. Default: none.
    """

    FILE: ClassVar[Kind] = Kind("level_rule", "a saved rule of levels", 1)

    levels: Levels = NO_LEVELS
    rules: Mapping[int, Rule] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_levels(
        cls,
        queries: Sequence[CalibrationQueries],
        asked: Guarantee,
        levels: Levels,
        calibration: str | None = None,
    ) -> LevelRule:
        """Return the rule that answers most at each level in turn, and keeps a precision of each.

        Parameters
        ----------
        queries : sequence of CalibrationQueries
            The same n queries at each level, with the probability of its answers, and whether they
            are right.
        asked : Guarantee
            Precision of the answers of each level, and the confidence with which all are kept.
        levels : Levels
            Groups of the labels.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.

        Raises
        ------
        InputError
            If it can be guaranteed of no level, with the reason of each.
        """
        n, n_grid = len(queries[0]), len(queries[0].grid)
        left, spent, above = np.arange(n), np.zeros(n, bool), np.zeros(n_grid, bool)
        rules, refused, delta = dict[int, Rule](), dict[int, str](), asked.delta / len(queries)
        right = 0
        for level, each in enumerate(queries):
            own, part = asked.at_level(delta), _part(each, left, spent, above)
            if not (part.decided > 0).any() or (n_grid and above.all()):
                refused[level] = NOTHING_LEFT
                continue
            try:
                chosen = chosen_of_level(part, own, level)
                rule = Rule.of_chosen(chosen, part, own, calibration=calibration)
                if level and part.n_groups:  # what is left is no fixed set: no theorem for groups
                    rule = replace(rule, theorem=None)
            except InputError as error:
                refused[level] = str(error)
                delta *= share_of_run(0)
                continue
            after = left_over(part, own, rule.value, level)
            answered = left[~after.left]
            good = each.relevant[answered, 0] == 1
            rules[level] = replace(
                rule,
                value=after.value,
                coverage=len(answered) / n,
                estimate=float(good.mean()),
                n_tested=len(left),
            )
            right += int(good.sum())
            spent[left[after.spent]] = True
            left = left[after.left]
            above |= each.grid >= after.value
            delta *= share_of_run(after.run)
        if not rules:
            told = "; ".join(f"level {level}: {why}" for level, why in refused.items())
            raise InputError(
                f"precision={asked.target:g} cannot be guaranteed at any level. {told}"
            )
        made = [*rules.values()]
        coverage = sum(rule.coverage or 0.0 for rule in made)
        theorem = None
        if not queries[0].n_groups and all(rule.proven for rule in made):
            theorem = "fixed sequences of exact tests, of what finer levels leave"
        return cls(
            min(rule.value for rule in made),
            asked,
            right / (coverage * n),
            min(rule.bound or 0.0 for rule in made),
            coverage,
            n,
            theorem,
            None,
            None,
            None,
            calibration,
            levels,
            rules,
            refused,
        )

    def after(self, change: GalleryChange | None) -> LevelRule:
        """Return the same rule for a gallery that has changed; see ``Rule.after``."""
        if change == self.gallery:
            return self
        rules = {level: rule.after(change) for level, rule in self.rules.items()}
        theorem = self.theorem if change is None else None
        return replace(self, rules=rules, gallery=change, theorem=theorem)

    def __call__(
        self, found: Any, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> Answers:
        """Answer each query with its label or a group, or abstain; see ``Rule``.

        Parameters
        ----------
        found : SearchResult
            Result of ``index.search``.
        kind : str, one per scorer, or None
            Meaning of scores, which a rule of an index does not take. None, the default.
        **evidence : [Q] or [Q, k]
            Further columns, which it does not take either.

        Returns
        -------
        Answers
            ``label`` is the label or the name of the group, ``level`` that of the answer, from 0
            for a label on; ``probability`` is that of the answer, and of the coarsest group where
            it abstains.

        Raises
        ------
        InputError
            As ``Rule``; for the result of another engine, which has no probabilities of all labels.
        """
        chosen, level = self._chosen(found, kind, evidence)
        given = np.full(len(level), None, dtype=object)
        given[chosen.answered] = level[chosen.answered]
        return replace(chosen, level=given)

    def likeliest(self, found: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
        """Return the answer to each query [Q], and its level, whether it is given or not.

        Parameters
        ----------
        found : SearchResult
            Result of ``index.search``.

        Raises
        ------
        InputError
            As a call.
        """
        chosen, level = self._chosen(found, None, {}, given=False)
        return chosen.label, level

    def _chosen(
        self,
        found: Any,
        kind: str | Sequence[str] | None,
        evidence: Mapping[str, ArrayLike],
        *,
        given: bool = True,
    ) -> tuple[Answers, npt.NDArray[np.intp]]:
        """Return the answers, and the level of each; of those that are not given, the coarsest."""
        first = self.compared(found, evidence, kind).first
        shares, classes = getattr(found, "shares", None), getattr(found, "classes", None)
        if shares is None or classes is None:
            raise InputError(
                f"found is a {type(found).__name__} without the probabilities of all labels, which "
                "coarser answers take: pass what index.search(...) returned."
            )
        names, n = [*as_numpy(classes).tolist()], len(first.probability)
        label = np.full(n, None, dtype=object)
        p, level = np.zeros(n), np.full(n, len(self.levels) - 1)
        answered, open_ = np.zeros(n, bool), ~first.strange
        for at in range(len(self.levels)):
            if at == 0:
                answer, probability = first.label, first.probability.clip(0)
            else:
                answer, probability = _of_groups(self.levels, names, at, shares, n)
            passed = np.zeros(n, bool)
            if at in self.rules:
                passed = open_ & ~answered & (probability > 0)
                passed &= probability >= self.rules[at].value
            new = passed | (~answered & (at == len(self.levels) - 1))
            assert answer is not None
            label[new], p[new], level[passed] = answer.astype(object)[new], probability[new], at
            answered |= passed
        made = Answers.of(label, p, answered, first.strange | (first.probability < 0))
        if not given:
            made = replace(made, label=label)
        ids, among = getattr(found, "query_ids", None), getattr(found, "among", None)
        return replace(made, query_ids=ids, among=among), level

    def passed(
        self, found: Any, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Refuse to pass on hits: a rule of levels is of one answer a query.

        Parameters
        ----------
        found : SearchResult
            Hits, as for ``Rule.passed``.
        kind : str, one per scorer, or None
            Meaning of the scores. None, the default: it is not compared.
        **evidence : [Q] or [Q, k]
            Further columns, by name.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError("a rule of levels is of one answer a query: call rule(...).")

    def export(self, path: str | Path, format: str = "onnx", *, dtype: Any = None) -> Any:
        """Refuse to write a graph: it would have one threshold.

        Parameters
        ----------
        path : path
            Name of a file.
        format : "onnx" | "torch"
            Format of the file. Default: "onnx".
        dtype : torch.float32, torch.float64 or None
            Type of the inputs and outputs. None, the default: float32.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError("a rule of levels has a threshold of each level: a graph has one.")

    def save(self, path: str | Path) -> None:
        """Refuse to write a file: a guard, an index and a calibration have files.

        Parameters
        ----------
        path : path
            Name of a file.

        Raises
        ------
        InputError
            Always, with what to save.
        """
        raise InputError(
            f"{path}: a rule of levels has no file. Save the guard; or the index, and call "
            "guarantee_by_level(...) of it."
        )

    @classmethod
    def _of_file(cls, file: SavedFile) -> LevelRule:
        raise FileFormatError(f"{file.path} holds a rule of levels, which has no file.")

    def _queries(self) -> CalibrationQueries:
        raise InputError(
            "each level has its own queries: ask the rule of one, rule.rules[level], for its rates."
        )

    def _told(self) -> list[str]:
        target, sure = 100 * (self.target or 0.0), 100 * (self.confidence or 0.0)
        told = [
            "answers with the label, or the finest group, if its probability is high enough"
            f"{self._known}: {self._thresholds}",
            f"{self._verb} a precision of at least {target:g}% of the answers of each level, as "
            f"given, all at once, with {sure:g}% confidence ({self.proof})",
            f"on {self.n_tested:,} {self._tested()}: {self.estimate:.2%} of the answers are right "
            f"as given; answers {self.coverage:.1%} of all: {self.by_level}",
        ]
        told += [f"level {level} is not answered: {why}" for level, why in self.refused.items()]
        return told if self.gallery is None else [*told, str(self.gallery)]

    def _tested(self) -> str:
        first = next(iter(self.rules.values()))
        return first._tested()

    @property
    def _thresholds(self) -> str:
        return ", ".join(f"{_name(at)} from {rule.value:.4f}" for at, rule in self.rules.items())

    @property
    def by_level(self) -> str:
        """Text: the share of the calibration queries that each level answers."""
        return ", ".join(f"{rule.coverage:.0%} {_name(at)}" for at, rule in self.rules.items())

    def _shown_rows(self) -> Rows:
        return [
            (
                _name(level),
                f"from {rule.value:.4f} on: precision {rule.estimate:.2%}, n={rule.n_tested:,}",
            )
            for level, rule in self.rules.items()
        ]


def _name(level: int) -> str:
    return "by label" if level == 0 else f"by level {level}"


def _part(
    queries: CalibrationQueries, left: npt.NDArray[np.intp], spent: Flags, above: Flags
) -> CalibrationQueries:
    """Return the queries that are left, of which those that were spent are wrong."""
    relevant = queries.relevant.copy()
    relevant[spent] = 0
    return replace(replace(queries, relevant=relevant).take(left), grid=queries.grid[~above])


def _of_groups(
    levels: Levels, classes: Sequence[Any], level: int, shares: Any, n: int
) -> tuple[npt.NDArray[Any], Array]:
    """Return the likeliest group of each of n queries, None without one, and its probability."""
    names, group_of = levels.coded(classes, level)
    group, probability = shares.answers(group_of, n)
    named = np.array([*names, None], dtype=object)  # place -1 is no group
    return named[group], probability
