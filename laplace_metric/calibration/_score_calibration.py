"""Decisions for the scores of any search: probability of a match, guarantees, what to pass on.

A search returns up to k hits for each query, with a score or several. Half of the queries fit the
probability of a match (``_score_model``), the other half carries every guarantee, with p the
probability of the first hit:

    precision, recall  of accepted first hits
    FPIR, FMR          of first hits of queries without a match, and of comparisons
    relevant items     that are left out of what is passed on

A place without a hit (``_padding``) is no comparison, in any test and any rate. A query without a
hit is never answered; it counts in coverage, FNIR and ``keep_relevant``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.validation import as_path, check_name, check_share
from laplace_metric.calibration.guarantees._open_set_fraction import Fraction
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.calibration.guarantees._theories import missing_queries
from laplace_metric.calibration.guarantees._theory import HITS, MATCH, Guarantee
from laplace_metric.calibration.rules._class_rule import ClassRule
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.calibration.scores._scored_queries import FUSED, SCORES, ScoredQueries
from laplace_metric.errors import InputError
from laplace_metric.io import SavedFile, write


@dataclass(frozen=True, repr=False, eq=False)
class ScoreCalibration(ScoredQueries):
    """Match probabilities of scored hits, and the guarantees that they support.

    Its fields are those of ``ScoredQueries``; ``calibrate_scores`` makes it.

    Examples
    --------
    >>> import numpy as np
    >>> g = np.random.default_rng(0)
    >>> right = g.random(600) < 0.7
    >>> cosine = np.where(right, g.normal(0.8, 0.07, 600), g.normal(0.65, 0.07, 600))
    >>> from laplace_metric.calibration import calibrate_scores
    >>> rule = calibrate_scores(cosine, right).guarantee(precision=0.9)
    >>> print(rule)  # doctest: +ELLIPSIS
    accepts a similarity of 0.71... or more (a match probability of at least 0.6...)
    guarantees a precision of at least 90% with 95% confidence (proven by a fixed sequence of...
    on 600 queries: precision 9...%; answers 6...% of all
    >>> rule([0.9, 0.5]).answered
    array([ True, False])
    """

    @named_keywords
    def guarantee(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        fmr: float | None = None,
        fpir: float | None = None,
        confidence: float = 0.95,
        open_set_fraction: Fraction | None = None,
        of: str = "match",
    ) -> Rule:
        """Return the rule that answers most and keeps one of these rates.

        Parameters
        ----------
        precision : float in (0, 1) or None
            Smallest share of the answered first hits that are relevant. It holds for the share of
            open-set queries that calibrated it: see ``Rule.precision_at``. Pass exactly one of the
            four rates; None, the default, for the others.
        recall : float in (0, 1) or None
            Smallest share of the relevant first hits that are answered. None, the default: another
            rate.
        fmr : float in (0, 1) or None
            Largest false match rate (1:1): share of the comparisons that are no match and are
            accepted. It does not depend on the share of open-set queries. None, the default:
            another rate.
        fpir : float in (0, 1) or None
            Largest false positive identification rate (1:N): share of the queries without a match
            in the collection that are answered. It does not depend on their share. None, the
            default: another rate.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which the rate is kept. A higher one answers
            fewer queries. Default: 0.95.
        open_set_fraction : float in (0, 1), OpenSetFraction or None
            Share of open-set queries for which a precision is to hold. It is proven for a share
            that is known; for an estimate, which counts with its upper bound, it is simulated.
            None, the default: the share among the calibration queries.
        of : "match" | "hits"
            Answers that the rate counts: the first hit of each query, or, for a precision, all
            "hits" that are passed on, any number of each query (``Rule.passed``). Default: "match".

        Raises
        ------
        InputError
            Unless one rate is given; if it cannot be guaranteed, with what would do; for another
            rate than a precision, or a share, of a calibration by ``cross_fit=5`` alone; for an
            estimated share where more than the share moved; for ``fmr`` of fused scores.
        """
        asked = Guarantee.of_rates(
            precision,
            recall,
            fmr,
            fpir,
            confidence=confidence,
            of=check_name("of", of, (MATCH, HITS)),
            open_set_fraction=open_set_fraction,
        )
        quantity = asked.quantity
        if quantity == "fmr" and FUSED in self.kinds:
            raise InputError(
                "fmr= is a rate of pairs, and a pair alone has no rank, of which fused scores are "
                "made: calibrate with the scores of one search, or ask for fpir= or precision=."
            )
        by: ScoredQueries = self
        of_classes = quantity == "fpir" and len(self.queries.unseen) > 0
        if quantity != "precision" and not of_classes:
            by = self.by_halves(f"{quantity}=")
        elif open_set_fraction is not None:
            by = self.by_halves("open_set_fraction=")
        return Rule.guaranteeing(by.queries, asked, scores=by)

    def guarantee_by_class(self, precision: float, *, confidence: float = 0.95) -> ClassRule:
        """Return the rule that keeps a precision of the answers with each label.

        An imbalance is then not hidden by the precision of all answers. Labels with enough
        calibration queries that are answered with them are tested, each at an equal share of the
        level (Bonferroni); other answers are not given. Apply it with the labels of new queries,
        ``rule(scores, labels=labels)``.

        Parameters
        ----------
        precision : float in (0, 1)
            Smallest share of the answers with each label that are right. Of one score for each
            query it is proven if a better score is never less often right, with any label.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it holds for all labels at once.
            Default: 0.95.

        Raises
        ------
        InputError
            Without ``labels`` in ``calibrate_scores``; if it can be guaranteed of no label, with
            the queries that each would need.

        Examples
        --------
        >>> import numpy as np
        >>> from laplace_metric.calibration import calibrate_scores
        >>> g = np.random.default_rng(0)
        >>> label = g.choice(["common", "rare"], 1_000, p=[0.9, 0.1])
        >>> cosine = g.uniform(0.5, 1.0, 1_000)
        >>> right = g.random(1_000) < np.where(label == "rare", 0.4, 0.97) * cosine**0.2
        >>> rule = calibrate_scores(cosine, right, labels=label).guarantee_by_class(0.85)
        >>> [*rule.rules], [*rule.refused]
        (['common'], ['rare'])
        >>> rule([0.9, 0.9], labels=["common", "rare"]).label.tolist()
        ['common', None]
        """
        share = check_share("precision", precision)
        if self.answers is None:
            raise InputError(
                "guarantee_by_class takes the labels of the answers: calibrate with "
                "calibrate_scores(scores, relevant, labels=labels), those of the first hits."
            )
        asked = Guarantee("precision", share, confidence)
        codes, classes = self.answers.codes.astype(np.intp), self.answers.classes
        return ClassRule.of_classes(self.queries, asked, codes, classes, scores=self)

    def largest_guarantee(self, *, confidence: float = 0.95) -> Rule:
        """Return the rule of the largest precision, in whole per cent, that can be guaranteed.

        It is chosen by the data, and holds with ``confidence`` all the same.

        Parameters
        ----------
        confidence : float in (0, 1)
            Probability, over calibration sets, with which the precision is kept. Default: 0.95.

        Raises
        ------
        InputError
            If not even 1 % can be guaranteed.
        """
        asked = Guarantee("precision", None, confidence)
        return Rule.of_largest(self.queries, asked, scores=self)

    def queries_needed(self, precision: float, confidence: float = 0.95) -> QueriesNeeded:
        """Estimate how many more queries it takes to guarantee a precision.

        Parameters
        ----------
        precision : float in (0, 1)
            Precision to be guaranteed.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it is to hold. Default: 0.95.

        Raises
        ------
        InputError
            For shares outside (0, 1).
        """
        share = check_share("precision", precision)
        return missing_queries(self.queries, Guarantee("precision", share, confidence))

    def save(self, path: str | Path) -> None:
        """Write one file; ``ScoreCalibration.load`` reads it, without torch.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "scores.safetensors".

        Raises
        ------
        WriteError
            If it cannot be written; an old file is kept.
        """
        write(as_path("path", path), self.part())

    @classmethod
    def load(cls, path: str | Path) -> ScoreCalibration:
        """Read the file of ``save``, or of ``Rule.save``.

        Parameters
        ----------
        path : path
            Name of the file.

        Raises
        ------
        FileFormatError
            For a damaged file, or one of another program or a newer version.
        """
        saved = SavedFile(as_path("path", path), torch=False)
        with saved.checked():
            return cls.of_part(saved.part(SCORES))
