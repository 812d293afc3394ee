"""A rule: which queries are answered, and what is guaranteed of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import ArrayLike, as_path, check_name, check_real
from laplace_metric.calibration._array_namespace import Array
from laplace_metric.calibration.guarantees._calibration_queries import QUERIES, CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import Fraction, OpenSetFraction
from laplace_metric.calibration.guarantees._theories import precision_theory, theory_of
from laplace_metric.calibration.guarantees._theory import (
    HITS,
    LABEL,
    MATCH,
    NAMES,
    QUANTITIES,
    Chosen,
    Guarantee,
)
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._compared import Compared, check_covered
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.calibration.scores._scored_queries import FUSED, SCORES, ScoredQueries
from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from laplace_metric.io import MALFORMED, Fields, Kind, Part, SavedFile, record, restored, write

if TYPE_CHECKING:
    import torch

    from laplace_metric.calibration.rules._rule_graph import RuleGraph

RULE = Kind("rule", "a saved rule", 5)
LIKELIER_THAN_NOT = 0.5
"""Threshold of a rule if none is given."""
LARGEST = 1e300
"""A score that decides is looked for up to here."""
NOTHING_KEPT = Guarantee()
"""The guarantee of a threshold that was given."""
ESTIMATED = ("estimate", "upper", "p_value")


@dataclass(frozen=True, repr=False)
class Rule(Shown):
    """Answer a query if its probability is at least ``value``; abstain elsewhere.

    ``rule(found)`` applies it. It compares the probability that it was made of, and refuses
    anything else: a rule of an index takes what ``index.search`` or ``calibration.apply`` returned,
    a rule of scores takes scores.

    Parameters
    ----------
    value : float in [0, 1]
        Smallest probability that is answered.
    guarantee : Guarantee
        Rate that is kept, and of which answers. Default: none, of matches.
    estimate, bound : float in [0, 1] or None
        Rate on the calibration queries, and the bound of its test. The threshold was chosen for the
        target, so only the target holds with ``confidence``. None, the default, without a
        guarantee.
    coverage : float in [0, 1] or None
        Share of the calibration queries that are answered. None, the default, without a guarantee.
    n_tested : int
        Number of calibration queries, or of new classes, that the test uses; for a false match rate
        those with a comparison that is no match. Default: 0, without a guarantee.
    theorem : str or None
        Name of the theorem that the guarantee follows from, except for ``alpha``: the rule that
        finds unknown queries is tested by simulation. None, the default: it is simulated.
    queries : CalibrationQueries or None
        Queries that tested it. None, the default, without a guarantee.
    scores : ScoredQueries or None
        Calibration that turns scores into probabilities, for a rule of scores. None, the default:
        hits come with probabilities.
    gallery : GalleryChange or None
        Change of the gallery since the calibration, for a rule of an index: what the guarantee
        still covers. None, the default: none is known.
    calibration : str or None
        Identity of the calibration that tested it (``Calibration.identity``), for a rule of an
        index: results of another one are refused. None, the default: no index made it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from laplace_metric import LaplaceEmbedder
    >>> x, y = load_digits(return_X_y=True)
    >>> index = LaplaceEmbedder.from_embeddings(x[:900], y[:900]).cross_index(x[:900], y[:900])
    >>> rule = index.guarantee(precision=0.95)
    >>> answers = rule(index.search(x[900:903]))
    >>> answers.label.tolist(), answers.answered.all()
    ([4, 9, 0], np.True_)
    """

    FILE: ClassVar[Kind] = RULE

    value: float
    guarantee: Guarantee = NOTHING_KEPT
    estimate: float | None = None
    bound: float | None = None
    coverage: float | None = None
    n_tested: int = 0
    theorem: str | None = None
    queries: CalibrationQueries | None = field(default=None, compare=False)
    scores: ScoredQueries | None = field(default=None, compare=False)
    gallery: GalleryChange | None = None
    calibration: str | None = None

    @classmethod
    def at(cls, value: float, of: str = "label", alpha: float | None = 0.05) -> Rule:
        """Return a rule with a threshold of yours, which guarantees nothing.

        Parameters
        ----------
        value : float in [0, 1]
            Smallest probability that is answered.
        of : "label" | "match"
            Probability that is compared: that the "label" which the index answers with is right, or
            that the nearest item is a "match". Default: "label".
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        InputError
            For a value outside [0, 1].

        Examples
        --------
        >>> print(Rule.at(0.9))
        answers with the label if its probability is at least 0.9000 and the query is not \
unfamiliar at alpha=0.05
        guarantees nothing: the threshold was given, not tested
        """
        if not isinstance(value, Real) or isinstance(value, bool):
            raise InputError(
                f"rule is a {type(value).__name__}: pass a Rule, of index.guarantee(precision=0.9) "
                "or another rate, or a probability in [0, 1]."
            )
        number = check_real("rule", value, "number in [0, 1]")
        if not 0 <= number <= 1:
            raise InputError(f"rule={number:g}: pass a probability, a number in [0, 1].")
        about = check_name("of", of, (MATCH, LABEL))
        return Rule(number, Guarantee(of=about, alpha=alpha))

    @classmethod
    def guaranteeing(
        cls,
        queries: CalibrationQueries,
        asked: Guarantee,
        *,
        scores: ScoredQueries | None = None,
        calibration: str | None = None,
    ) -> Rule:
        """Return the rule that answers most and keeps a rate, by the queries that test it.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test the threshold, with their probabilities.
        asked : Guarantee
            Rate that is kept.
        scores : ScoredQueries or None
            Calibration that turns scores into probabilities. None, the default: hits come with
            probabilities.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.

        Raises
        ------
        InputError
            If it cannot be guaranteed, with what would do.
        """
        chosen = theory_of(queries, asked).threshold(queries, asked)
        return cls.of_chosen(chosen, queries, asked, scores=scores, calibration=calibration)

    @classmethod
    def of_largest(
        cls,
        queries: CalibrationQueries,
        asked: Guarantee,
        *,
        scores: ScoredQueries | None = None,
        calibration: str | None = None,
    ) -> Rule:
        """Return the rule of the largest precision, in whole per cent, that can be guaranteed.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test the threshold, with their probabilities.
        asked : Guarantee
            Precision with a confidence; its target is not read.
        scores : ScoredQueries or None
            Calibration that turns scores into probabilities. None, the default: hits come with
            probabilities.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.

        Raises
        ------
        InputError
            If not even 1 % can be guaranteed.
        """
        chosen = precision_theory(queries, asked).largest(queries, asked)
        asked = replace(asked, target=chosen.target)
        return cls.of_chosen(chosen, queries, asked, scores=scores, calibration=calibration)

    @classmethod
    def of_chosen(
        cls,
        chosen: Chosen,
        queries: CalibrationQueries,
        asked: Guarantee,
        *,
        scores: ScoredQueries | None = None,
        calibration: str | None = None,
    ) -> Rule:
        """Return the rule of a threshold that a theory has chosen.

        Parameters
        ----------
        chosen : Chosen
            Threshold, with the result of its test.
        queries : CalibrationQueries
            Queries that tested the threshold.
        asked : Guarantee
            Rate that is kept.
        scores : ScoredQueries or None
            Calibration that turns scores into probabilities. None, the default: hits come with
            probabilities.
        calibration : str or None
            Identity of the calibration of the index. None, the default: no index made it.

        Raises
        ------
        InputError
            If the queries do not show what would be guaranteed.
        """
        assert asked.quantity is not None
        chosen.check(asked.quantity)
        return Rule(
            chosen.value,
            asked,
            chosen.estimate,
            chosen.bound,
            queries.rates(chosen.value)["coverage"],
            chosen.n,
            theory_of(queries, asked).theorem(queries, asked),
            queries,
            scores,
            None,
            calibration,
        )

    @property
    def of(self) -> str:
        """Probability that is compared: of the first hit's "match", the "label", or all "hits"."""
        return self.guarantee.of

    @property
    def quantity(self) -> str | None:
        """Rate that is guaranteed; None: nothing is."""
        return self.guarantee.quantity

    @property
    def target(self) -> float | None:
        """Guaranteed value of the rate; None without a guarantee."""
        return self.guarantee.target

    @property
    def confidence(self) -> float | None:
        """Probability, over calibration sets, with which it holds; None without a guarantee."""
        return None if self.quantity is None else self.guarantee.confidence

    @property
    def alpha(self) -> float | None:
        """Share of queries with a match that may be called unknown, and are not answered then."""
        return self.guarantee.alpha

    @property
    def open_set_fraction(self) -> Fraction | None:
        """Share of open-set queries for which it holds; None: that of the calibration queries."""
        return self.guarantee.open_set_fraction

    @property
    def proven(self) -> bool:
        """True if the guarantee follows from a theorem, except for ``alpha``."""
        return self.theorem is not None

    def after(self, change: GalleryChange | None) -> Rule:
        """Return the same rule for a gallery that has changed: its guarantee is not proven then.

        Parameters
        ----------
        change : GalleryChange or None
            Change since the calibration; None: there was none.
        """
        return replace(self, gallery=change, theorem=self.theorem if change is None else None)

    def __call__(
        self, found: Any, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> Answers:
        """Answer each query, or abstain.

        Parameters
        ----------
        found : SearchResult or CalibratedHits; for a rule of scores, [Q], [Q, k] or [Q, k, S]
            Result of ``index.search`` or ``calibration.apply``; or scores, as for
            ``calibrate_scores``.
        kind : str, one per scorer, or None
            Meaning of the scores of a rule of scores, to be compared with that which calibrated
            it. None, the default: it is not compared.
        **evidence : [Q] or [Q, k]
            Further columns of a rule of scores, by name.

        Returns
        -------
        Answers
            For each query a label, or None if it abstains; the probability of the answer; and the
            reason for abstaining.

        Raises
        ------
        InputError
            For anything but what the rule was made of; for scores as
            ``ScoreCalibration.probability``.
        NotFittedError
            For a search of an index that was not calibrated, or without labels.

        Warns
        -----
        ScoresWarning
            If scores are of another distribution than those that calibrated: see
            ``ScoreCalibration.probability``.
        """
        if self.of == HITS:
            raise InputError("this rule passes on any number of hits: call rule.passed(...).")
        first = self.compared(found, evidence, kind).first
        answers = first.answers(self._least(first.label))
        ids, among = getattr(found, "query_ids", None), getattr(found, "among", None)
        return replace(answers, query_ids=ids, among=among)

    def _least(self, labels: np.ndarray[Any, Any] | None) -> float | Array:
        """Return the smallest probability that is answered, or that [Q] of each label."""
        return self.value

    def passed(
        self, found: Any, *, kind: str | Sequence[str] | None = None, **evidence: ArrayLike
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which hits [Q, k] are passed on: all whose probability is at least ``value``.

        The share of relevant ones is that of lists of as many hits as were tested. Of a longer
        list only so many are passed on, from the nearest on; a shorter one is refused.

        Parameters
        ----------
        found : SearchResult or CalibratedHits; for a rule of scores, [Q], [Q, k] or [Q, k, S]
            Result of ``index.search`` or ``calibration.apply``; or scores, as for
            ``calibrate_scores``.
        kind : str, one per scorer, or None
            Meaning of the scores of a rule of scores, as for a call. None, the default: it is not
            compared.
        **evidence : [Q] or [Q, k]
            Further columns of a rule of scores, by name.

        Raises
        ------
        InputError
            For a rule of one answer a query; for other scores than calibrated it; and for fewer
            hits of an index than were tested.
        NotFittedError
            For a search of an index that was not calibrated.
        """
        if self.of != HITS:
            raise InputError(
                "this rule is of one answer a query: call rule(...), or guarantee a precision of "
                "all hits with of='hits'."
            )
        accepted = self.compared(found, evidence, kind).accepted(self.value)
        if self.scores is None and self.queries is not None:
            tested, given = self.queries.probability.shape[1], accepted.shape[1]
            if given < tested:
                raise InputError(
                    f"found has {given} hits a query, and lists of {tested} were tested: search "
                    f"with k={tested}, or calibrate with k={given}."
                )
            accepted[:, tested:] = False
        return accepted

    def compared(
        self,
        found: Any,
        evidence: Mapping[str, ArrayLike] | None = None,
        kind: str | Sequence[str] | None = None,
    ) -> Compared:
        """Return the probabilities of ``found`` that this rule compares; see ``__call__``.

        Parameters
        ----------
        found : SearchResult, CalibratedHits or Assessment; for a rule of scores, scores
            Hits of Q queries.
        evidence : dict of str to [Q] or [Q, k], or None
            Further columns of a rule of scores, by name. None, the default: none.
        kind : str, sequence of str or None
            Meaning of the scores, as for ``__call__``. None, the default: that of the calibration.

        Raises
        ------
        InputError
            For anything but what the rule was made of, and for another calibration.
        NotFittedError
            For a search of an index that was not calibrated, or without labels.
        """
        if self.scores is not None:
            return Compared.of_scores(self.scores, found, evidence or {}, kind)
        if not hasattr(found, "match_probability") or evidence or kind is not None:
            given = " with evidence" if evidence else " with kind=" if kind is not None else ""
            raise InputError(
                f"found is a {type(found).__name__}{given}, and "
                "this rule is of an index: pass what index.search(...) or calibration.apply(...) "
                "returned; for scores, take a rule of calibrate_scores(...).guarantee(...)."
            )
        asked = Compared.of_hits(found, self.of, self.alpha)
        if self.quantity is not None:  # a threshold of the caller's guarantees nothing
            check_covered(self.calibration, found)
        return asked

    def __str__(self) -> str:
        return "\n".join(self._told())

    def _told(self) -> list[str]:
        if self.quantity is None:
            return [self._accepts(), "guarantees nothing: the threshold was given, not tested"]
        asked = self.guarantee
        after = [] if self.gallery is None else [str(self.gallery)]
        if self.of == HITS and self.queries is not None:
            return [
                self._accepts(),
                f"{self._verb} that at least {100 * (self.target or 0.0):g}% of the hits passed on "
                f"are relevant with {100 * asked.confidence:g}% confidence ({self.proof})",
                f"on {self.n_tested:,} {self._tested()}: {self.estimate:.2%} of them; passes on "
                f"{self.queries.hits_passed(self.value):.3g} hits of a query",
                *after,
            ]
        name = NAMES.get(self.quantity, self.quantity)
        return [
            self._accepts(),
            f"{self._verb} {asked} ({self.proof})",
            f"on {self.n_tested:,} {self._tested()}: {name} {self.estimate:.2%}; answers "
            f"{self.coverage:.1%} of all",
            *after,
        ]

    @property
    def _verb(self) -> str:
        changed = self.gallery is not None and not self.gallery.covered
        return "guaranteed" if changed else "guarantees"

    @property
    def proof(self) -> str:
        """Text: the theorem of the guarantee, or that it is simulated."""
        if self.theorem is None:
            return "simulated, not proven"
        but = "" if self.alpha is None else ", but for the test for unfamiliar queries"
        return f"proven by {self.theorem}{but}"

    def _accepts(self) -> str:
        score = None if self.scores is None else self.score
        if self.of != HITS and score is not None and np.isfinite(score) and self.scores is not None:
            kind = self.scores.kinds[0]
            kind = "fused score" if kind == FUSED else kind
            order = "less" if kind == "distance" else "more"
            least = f"a match probability of at least {self.value:.4f}"
            return f"accepts a {kind} of {score:.6g} or {order} ({least})"
        known = self._known
        if self.of == HITS:
            of = ""
            if self.scores is None and self.queries is not None:
                of = f", of the first {self.queries.probability.shape[1]} of a query,"
            return (
                f"passes on a hit{of} if its match probability is at least {self.value:.4f}{known}"
            )
        if self.of == LABEL:
            return f"answers with the label if its probability is at least {self.value:.4f}{known}"
        return f"accepts the first hit if its match probability is at least {self.value:.4f}{known}"

    @property
    def _known(self) -> str:
        alpha = self.alpha
        return "" if alpha is None else f" and the query is not unfamiliar at alpha={alpha:g}"

    def _tested(self) -> str:
        if self.queries is not None and self.quantity == "fpir" and len(self.queries.unseen):
            return "new classes"
        groups = 0 if self.queries is None else self.queries.n_groups
        if groups:
            kind = "cross-fitted " if self.queries and self.queries.cross_fitted else ""
            return f"{kind}queries of {groups:,} groups"
        if self.queries is not None and self.queries.one_score:
            return "queries"
        cross = self.queries is not None and self.queries.cross_fitted
        return "cross-fitted queries" if cross else "held-out queries"

    @property
    def sentence(self) -> str:
        """Text that ``print`` shows, on one line."""
        return "; ".join(self._told())

    def _sentence(self) -> str:
        return self.sentence

    def _shown_rows(self) -> Rows:
        if self.queries is None:
            return []
        return in_rows((name, f"{rate:.2%}") for name, rate in self.rates().items())

    @property
    def score(self) -> float | None:
        """Smallest similarity or score, or largest distance, that is accepted, to the last bit.

        None of a rule of an index, and where more decides: other hits of the query, further scorers
        or evidence. Infinite where all are accepted, or none.
        """
        if self.scores is None or self.scores.model.first.score.weights[1:].any():
            return None
        model = self.scores.model.first
        unit = np.eye(len(model.score.weights))[0]

        def p(value: float) -> float:
            return float(model(model.score(value * unit)))

        low, high = -1.0, 1.0
        while p(low) >= self.value and low > -LARGEST:
            low *= 2
        while p(high) < self.value and high < LARGEST:
            high *= 2
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (low, middle) if p(middle) >= self.value else (middle, high)
        if low <= -LARGEST or high >= LARGEST:
            high = -np.inf if low <= -LARGEST else np.inf
        return -high if self.scores.kinds[0] == "distance" else high

    def rates(self) -> dict[str, float]:
        """Return the rates of this rule on the queries that tested it.

        A rate is left out if no query or hit counts for it.

        See ``CalibrationQueries.rates``: "coverage", "precision", "fmr", "fnmr", "fpir", "fnir".

        Raises
        ------
        NotFittedError
            Of ``Rule.at``, which no queries have tested.
        """
        return self._queries().rates(self.value)

    def precision_at(self, open_set_fraction: ArrayLike) -> tuple[Array, Array]:
        """Return precision and its lower bound where this share of the queries has no match.

        The bound holds with the ``confidence`` of the rule for one threshold that was fixed before;
        this one was chosen for ``target``. For a cross-fitted calibration this was not simulated:
        calibrate with ``cross_fit=0``.

        Parameters
        ----------
        open_set_fraction : [...] in [0, 1]
            Share or shares of the queries that have no match.

        Raises
        ------
        InputError
            For shares outside [0, 1]; for a rule of groups, whose queries are not independent; and
            without calibration queries of both kinds.
        NotFittedError
            Of ``Rule.at``, which no queries have tested.
        """
        queries = self._queries()
        assert self.confidence is not None
        return queries.precision_at(self.value, open_set_fraction, self.confidence)

    def _queries(self) -> CalibrationQueries:
        if self.queries is None:
            raise NotFittedError("no queries have tested this rule: its threshold was given.")
        return self.queries

    def save(self, path: str | Path) -> None:
        """Write one file; ``Rule.load`` reads it, without torch.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "rule.safetensors", which is replaced in one step.

        Raises
        ------
        InputError
            If ``path`` is a folder.
        WriteError
            If it cannot be written; an old file is kept.
        """
        write(as_path("path", path), self._parts())

    @classmethod
    def _of_file(cls, file: SavedFile) -> Rule:
        """Return the rule of an opened file, if a kind of rules has files of its own."""
        raise NotImplementedError

    def _parts(self) -> dict[str, Part]:
        """Return the parts of the file: the guarantee, and the queries that tested it."""
        asked: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("value", "of", "alpha", "quantity", "target", "confidence", "calibration")
        }
        share = self.open_set_fraction
        asked["open_set_fraction"] = asdict(share) if isinstance(share, OpenSetFraction) else share
        asked["gallery"] = None if self.gallery is None else self.gallery.content()
        parts = {"rule": Part(RULE, asked)}
        if self.scores is not None:
            parts["scores"] = self.scores.part()
        elif self.queries is not None:
            parts["queries"] = Part(QUERIES, *record(self.queries))
        return parts

    @classmethod
    def load(cls, path: str | Path) -> Rule:
        """Read the file of ``save``; the threshold is computed again from the queries in it.

        Raises
        ------
        FileFormatError
            For a damaged file, one of another program or a newer version, or one without a rule.
        """
        saved, scores = SavedFile(as_path("path", path), torch=False), None
        for kind in Rule.__subclasses__():
            if kind.FILE.name in saved:
                return kind._of_file(saved)
        if "scores" in saved and "rule" not in saved:
            raise FileFormatError(f"{path} holds a calibration without a rule: load it as one.")
        with saved.checked():
            content = Fields(saved.part(RULE).content, "rule")
            value = content.number("value", least=0, most=1)
            asked = _asked_of(content)
            if asked.quantity is None:
                return Rule(value, asked)
            made_by = content.text("calibration") if "calibration" in content else None
            change = None
            if "gallery" in content:
                change = GalleryChange.of_content(content.inner("gallery"))
            if "scores" in saved:
                scores = ScoredQueries.of_part(saved.part(SCORES))
                queries = scores.queries
            else:
                part = saved.part(QUERIES)
                queries = restored(CalibrationQueries, Fields(part.content, "queries"), part.arrays)
        for make in (Rule.guaranteeing, Rule.of_largest):
            with suppress(InputError, *MALFORMED):
                rule = make(queries, asked, scores=scores, calibration=made_by)
                if (rule.value, rule.target) == (value, asked.target):
                    return rule.after(change)
        raise FileFormatError(f"{path} holds a rule that does not follow from its queries.")

    def export(
        self, path: str | Path, format: str = "onnx", *, dtype: torch.dtype | None = None
    ) -> RuleGraph:
        """Write probability and answered as one graph, for any number of queries.

        It answers as this rule does, but for probabilities within a rounding (1e-12) of ``value``.

        Parameters
        ----------
        path : path
            Name of one file, such as "rule.onnx", which is replaced.
        format : "onnx" | "torch"
            Format of the file: ONNX of opset 18 (extra ``export``), or a program that
            ``torch.export.load`` reads. Default: "onnx".
        dtype : torch.float32, torch.float64 or None
            Type of the inputs and outputs; it computes in float64. None, the default: float32.

        Raises
        ------
        InputError
            For another ``dtype``; for a rule of an index, whose calibration is exported instead.
        ExportError
            For evidence with the name of an output.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.
        """
        from laplace_metric.calibration.rules._rule_graph import RuleModule, write_rule

        if self.of == HITS:
            raise InputError("this rule passes on any number of hits: a graph decides on one.")
        if self.scores is None:
            raise InputError("this rule is of an index: calibration.export(...) writes its graph.")
        c = self.scores
        return write_rule(
            RuleModule(c.model, c.kinds, c.k, self.value),
            as_path("path", path),
            format,
            dtype,
            kinds=c.kinds,
            evidence=c.evidence,
            rule=self.sentence,
        )


def _asked_of(content: Fields) -> Guarantee:
    """Return the guarantee of a file."""
    of = content.text("of", (MATCH, LABEL, HITS))
    alpha = content.share("alpha") if "alpha" in content else None
    if "quantity" not in content:
        return Guarantee(of=of, alpha=alpha)
    quantity, target = content.text("quantity", QUANTITIES), content.share("target")
    return Guarantee(
        quantity, target, content.share("confidence"), of, alpha, _fraction_of(content)
    )


def _fraction_of(content: Fields) -> Fraction | None:
    if "open_set_fraction" not in content:
        return None
    if not isinstance(content.content["open_set_fraction"], dict):
        return content.share("open_set_fraction")
    estimated = content.inner("open_set_fraction")
    shares = {name: estimated.number(name, least=0, most=1) for name in ESTIMATED}
    return OpenSetFraction(**shares, n=estimated.whole("n"))
