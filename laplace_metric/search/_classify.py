"""What an index answers with, or that it abstains; and one-line figures of its calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.tables import as_pandas
from laplace_metric._utils.validation import check_share
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.evaluation import expected_calibration_error
from laplace_metric.search._result import SearchResult

if TYPE_CHECKING:
    import pandas

    from laplace_metric.plots import Figure
    from laplace_metric.plots._neighbours import ImagesOrTexts


LIKELIER_THAN_NOT = 0.5


@dataclass(frozen=True, repr=False)
class Classification(Shown):
    """A label for each of Q queries, or None where the index abstains.

    Parameters
    ----------
    labels : array [Q] of objects
        Whole numbers or strings, as those of the index; None: abstained.
    probability : Tensor [Q]
        That the likeliest label is the query's, whether it is answered or not.
    threshold : float
        Labels with a smaller probability are not answered.
    unknown : Tensor [Q]
        Queries that are not answered whatever the probability is.
    """

    labels: np.ndarray[Any, Any]
    probability: Float[Tensor, " Q"]
    threshold: float
    unknown: Bool[Tensor, " Q"]

    @property
    def answered(self) -> Bool[Tensor, " Q"]:
        """Where there is a label [Q]."""
        return (self.probability >= self.threshold) & ~self.unknown

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, query: int) -> tuple[Any, float]:
        """Label, or None, and probability of one query."""
        return self.labels[query], float(self.probability[query])

    def to_pandas(self) -> pandas.DataFrame:
        """One row a query: label, probability, answered, unknown.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        numbers = {"probability": self.probability, "answered": self.answered}
        numbers["unknown"] = self.unknown
        columns = {name: values.cpu().numpy() for name, values in numbers.items()}
        return as_pandas({"label": self.labels, **columns})

    def _sentence(self) -> str:
        answered = f"{int(self.answered.sum()):,} of {len(self):,} queries have a label"
        unknown = f"{int(self.unknown.sum()):,} are unknown"
        return f"{answered}; {unknown}, the others have too small a probability."

    def _shown_rows(self) -> Rows:
        return in_rows(vars(self).items())


def classified(result: SearchResult, threshold: float, alpha: float | None) -> Classification:
    """Of a search of an index that labels calibrated."""
    p, p_value = result.label_probability, result.p_value
    assert result.label is not None
    assert p is not None
    assert p_value is not None
    unknown = torch.zeros_like(p, dtype=torch.bool) if alpha is None else p_value <= alpha
    found = Classification(result.label.astype(object), p, threshold, unknown)
    found.labels[(~found.answered).cpu().numpy()] = None
    return found


class CalibratedAnswers:
    """What ``Index`` says once it is calibrated: labels, and how its probabilities did."""

    if TYPE_CHECKING:

        def _calibrated(self) -> Calibration: ...

        def search(
            self, queries: Any, k: int = 10, *, alpha: float = 0.05, progress: bool = False
        ) -> SearchResult: ...

    def classify(
        self,
        queries: Any,
        threshold: Threshold | float | None = None,
        *,
        precision: float | None = None,
        alpha: float | None = 0.05,
        progress: bool = False,
    ) -> Classification:
        """The label of each query, or None where it is unknown or the index not sure enough.

        By all voting neighbours, not by the nearest one alone. "Another label, or none of these"
        is one of the answers that share the probability.

        Parameters
        ----------
        queries : as for ``search``
        threshold : Threshold, float or None
            Smallest probability that is answered; None: 0.5, likelier than not.
        precision : float or None
            In place of a threshold: the share of answers that are to be right, promised with 95 %
            confidence (``Calibration.threshold_for(precision=..., of="label")``).
        alpha : float or None
            Share of queries with a match that may be called unknown; None: answer unknown queries,
            too. A Threshold has its own.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, or if it was given matches rather than labels.
        InputError
            For a threshold and a precision, or a precision that cannot be promised.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> index = LaplaceEmbedder.from_embeddings(x[:100], y[:100]).index(x[100:200], y[100:200])
        >>> _ = index.calibrate(x[200:300], y[200:300])
        >>> index.classify(x[300:], 0.9).labels[:6].tolist()
        [None, None, 2, 3, 0, 1]
        """
        calibration = self._calibrated()
        if threshold is not None and precision is not None:
            raise InputError("threshold= and precision= are two ways to one number: pass one.")
        if precision is not None:
            threshold = calibration.threshold_for(precision=precision, of="label", alpha=alpha)
        elif calibration.labeller is None:
            raise NotFittedError(
                "this index was calibrated with matches=, which say nothing of labels: calibrate "
                "it with labels=, or call search."
            )
        if isinstance(threshold, Threshold):
            alpha = threshold.alpha
            threshold = threshold.value
        value = LIKELIER_THAN_NOT if threshold is None else threshold
        if value not in (0, 1):
            value = check_share("threshold", value)
        level = {} if alpha is None else {"alpha": alpha}
        result = self.search(queries, 1, **level, progress=progress)
        return classified(result, float(value), alpha)

    def plot_threshold(
        self, precision: float | None = 0.9, *, of: str = "match", alpha: float | None = 0.05
    ) -> Figure:
        """Precision and share of answers at each threshold, on held-out queries.

        Parameters
        ----------
        precision : float or None
            Marked with the threshold that promises it, where there is one.
        of : "match" | "label"
        alpha : float or None
            Share of queries with a match that may be called unknown, and are not answered then;
            None: the probability alone decides.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        MissingPackageError
            Without matplotlib.
        """
        from laplace_metric.plots import threshold_plot

        calibration, marked = self._calibrated(), None
        p, right = calibration.held_out(of)
        abstained = calibration.held_out_unknown(alpha)
        if precision is not None:
            try:
                found = calibration.threshold_for(precision=precision, of=of, alpha=alpha)
                marked = found.value
            except InputError:
                marked = None
        how: dict[str, Any] = {"target": precision, "threshold": marked}
        return threshold_plot(p, right, abstained=abstained, **how)

    def plot_reliability(self, *, of: str = "match") -> Figure:
        """Probability against the share that is right, on held-out queries.

        Parameters
        ----------
        of : "match" | "label"

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        MissingPackageError
            Without matplotlib.
        """
        from laplace_metric.plots import reliability_plot

        measured = expected_calibration_error(*self._calibrated().held_out(of))
        return reliability_plot({f"{of} probability": measured})

    def plot_queries(
        self,
        queries: Any,
        items: ImagesOrTexts,
        *,
        shown: ImagesOrTexts | None = None,
        truth: Any = None,
        k: int = 5,
        rows: int = 8,
    ) -> Figure:
        """Queries with their k nearest items, and how sure the index is of each.

        Parameters
        ----------
        queries : one batch of inputs, as for ``search``
        items : images or texts of all N items of the index (``SearchResult.figure``)
        shown : the same of the Q queries, or None
            Where a model takes something else than is looked at, such as normalised images.
        truth : labels of the queries [Q] or None
            Frames then say which neighbours have the query's label, not which are likely to.
        k, rows : int
            Neighbours of each query, and most queries that are drawn.

        Raises
        ------
        InputError
            For another number of images than of queries, or images of another shape.
        MissingPackageError
            Without matplotlib.
        """
        images = queries if shown is None else shown
        found = self.search(queries, k)
        return found.figure(images, items, truth=truth, rows=rows, columns=k)
