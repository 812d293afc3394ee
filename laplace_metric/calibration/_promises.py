"""How honest a probability is: Brier score, calibration error, reliability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import check_name, check_share
from laplace_metric.calibration._apply import LabelPosterior
from laplace_metric.calibration._sequences import Shortfall, shortfall
from laplace_metric.calibration._thresholds import Threshold, largest_promise, threshold_for
from laplace_metric.errors import NotFittedError
from laplace_metric.evaluation import Reliability, bootstrap_interval, expected_calibration_error
from laplace_metric.evaluation._intervals import BootstrapInterval


@dataclass(frozen=True, repr=False)
class Quality(Shown):
    """Of the nearest neighbours of n held-out queries.

    Parameters
    ----------
    brier : BootstrapInterval
        Mean squared gap between probability and match, in [0, 1]; 95 % interval over queries.
    ece : BootstrapInterval
        Expected calibration error over ten bins. Resampling adds noise to its bins, so that the
        interval lies too high where the error is small.
    reliability : Reliability
        For ``plots.reliability_plot``.
    """

    brier: BootstrapInterval
    ece: BootstrapInterval
    reliability: Reliability

    def _sentence(self) -> str:
        return str(self)

    def _shown_rows(self) -> Rows:
        return in_rows({"queries": int(self.reliability.bin_count.sum())}.items())

    def __str__(self) -> str:
        ends = [f"{x.estimate:.3f} [{x.low:.3f}, {x.high:.3f}]" for x in (self.brier, self.ece)]
        return f"Brier score {ends[0]}, ECE {ends[1]}"


def quality(
    probability: Float[Tensor, " Q"], match: Bool[Tensor, " Q"], *, n: int = 500
) -> Quality:
    """From probabilities [Q] and whether they were matches [Q]; ``n`` bootstrap resamples.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 200)
    >>> measured = quality(p, p > 0.5, n=100)
    >>> round(measured.brier.estimate, 4), round(measured.ece.estimate, 3)
    (0.0829, 0.249)
    """
    p, y = probability.double().contiguous(), match.double().contiguous()

    def ece(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    return Quality(
        bootstrap_interval(_brier, p, y, n=n),
        bootstrap_interval(ece, p, y, n=n),
        expected_calibration_error(p, y),
    )


def _brier(p: Tensor, y: Tensor) -> float:
    return float((p - y).square().mean())


# What the second half of the held-out queries says: promises, and how honest a probability is.


class Promises:
    """Of ``Calibration``: what its n held-out queries, which taught it nothing, promise."""

    if TYPE_CHECKING:
        labeller: LabelPosterior | None
        cross_fitted: bool
        match: Bool[Tensor, "n k"]
        known: Bool[Tensor, " n"]
        p_value: Float[Tensor, " n"] | None
        label_probability: Float[Tensor, " n"] | None
        right: Bool[Tensor, " n"] | None

        grid: Float[Tensor, "m J"] | None

        @property
        def probability(self) -> Float[Tensor, "n k"]: ...

    def threshold_for(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        confidence: float = 0.95,
        of: str = "match",
        alpha: float | None = 0.05,
    ) -> Threshold:
        """Which probability to accept; see ``match.threshold_for``.

        Unknown queries are not answered: ``SearchResult.accepted`` leaves them out by the alpha of
        the threshold, and so do the held-out queries by which it is tested. Queries without a match
        in the index that are answered count as errors, in the share in which they were among the
        held-out queries.

        Parameters
        ----------
        of : "match" | "label"
            The match probability of the nearest neighbour, or the probability of the label that
            the index answers with.
        alpha : float or None
            Share of queries with a match that may be called unknown, and are not answered then;
            None: the probability alone decides.

        Raises
        ------
        InputError
            If no threshold keeps what is asked for.
        NotFittedError
            Of labels, if none calibrated the index; with an alpha, if it was saved by 0.1.0.
        """
        tested, abstained = self.held_out(of), self.held_out_unknown(alpha)
        promise: dict[str, Any] = {"precision": precision, "recall": recall}
        promise |= {"confidence": confidence, "thresholds": self._thresholds(of)}
        found = threshold_for(*tested, **promise, abstained=abstained)
        return replace(found, alpha=alpha, cross_fitted=self.cross_fitted)

    def largest_promise(self, *, of: str = "match", alpha: float | None = 0.05) -> Threshold:
        """The largest precision that can be promised; see ``match.largest_promise``.

        Parameters
        ----------
        of, alpha
            As for ``threshold_for``.

        Raises
        ------
        InputError
            If not even 1 % can be.
        NotFittedError
            As ``threshold_for``.
        """
        found = largest_promise(
            *self.held_out(of),
            abstained=self.held_out_unknown(alpha),
            thresholds=self._thresholds(of),
        )
        return replace(found, alpha=alpha, cross_fitted=self.cross_fitted)

    def shortfall(
        self, precision: float, *, of: str = "match", alpha: float | None = 0.05
    ) -> Shortfall:
        """What is missing to promise a precision; see ``match.shortfall``.

        Its ``more`` are queries to add to those of ``calibrate``, half of which test promises.

        Parameters
        ----------
        of, alpha
            As for ``threshold_for``.

        Raises
        ------
        InputError
            For a precision outside (0, 1).
        NotFittedError
            As ``threshold_for``.
        """
        abstained = self.held_out_unknown(alpha)
        missing = shortfall(
            *self.held_out(of),
            precision=precision,
            abstained=abstained,
            thresholds=self._thresholds(of),
        )
        return missing if missing.more is None else replace(missing, more=2 * missing.more)

    def quality(self, n: int = 500, *, of: str = "match") -> Quality:
        """Brier score, calibration error and reliability of a probability.

        On the second half, from which the probability did not learn; n bootstrap resamples.
        """
        return quality(*self.held_out(of), n=n)

    def held_out(self, of: str = "match") -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
        """Probabilities [n] of the queries that it did not learn from, and which were right [n].

        Parameters
        ----------
        of : "match" | "label"
            Of the nearest neighbour, or of the label that the index answers with.

        Raises
        ------
        NotFittedError
            Of labels, if none calibrated the index.
        """
        if check_name("of", of, ("match", "label")) == "match":
            return self.probability[:, 0], self.match[:, 0]
        self._label_posterior()
        assert self.label_probability is not None
        assert self.right is not None
        return self.label_probability, self.right

    def held_out_unknown(self, alpha: float | None = 0.05) -> Bool[Tensor, " n"]:
        """Which of these queries [n] are called unknown, each by all others; none without alpha.

        Raises
        ------
        InputError
            For an alpha outside (0, 1).
        NotFittedError
            If it was saved by 0.1.0, without what this takes.
        """
        if alpha is None:
            return torch.zeros_like(self.known)
        check_share("alpha", alpha)
        if self.p_value is None:
            raise NotFittedError(
                "this calibration was saved by 0.1.0, without what tells which of its held-out "
                "queries are unknown: call index.calibrate(...) again, or pass alpha=None, with "
                "which unknown queries are answered, too."
            )
        return self.p_value <= alpha

    def _thresholds(self, of: str) -> Float[Tensor, " m"] | None:
        """Probabilities of the first half, which no test has seen."""
        return None if self.grid is None else self.grid[:, int(of == "label")]

    def _label_posterior(self) -> LabelPosterior:
        if self.labeller is None:
            raise NotFittedError(
                "this index was calibrated with matches=, which say nothing of labels: calibrate "
                "it with labels=, or read match probabilities and retrieval sets."
            )
        return self.labeller
