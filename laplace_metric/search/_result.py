"""The neighbours of queries, with their calibrated probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.tables import as_pandas
from laplace_metric.calibration._assessment import Assessment
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration.labels._label_shares import LabelShares
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.calibration.rules._searched_among import SearchedAmong
from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column

if TYPE_CHECKING:
    import pandas

    from laplace_metric.plots import Figure
    from laplace_metric.plots._neighbours import ImagesOrTexts


@dataclass(frozen=True, repr=False)
class SearchResult(Shown):
    """The neighbours of Q queries, nearest first.

    Parameters
    ----------
    hits : SearchHits
        Positions, distances and votes of the neighbours.
    ids : array [Q, k]
        Ids of the neighbours, whole numbers or strings; -1 or "" where there is no neighbour.
    labels : array [Q, k] or None
        Labels of the neighbours; None for an index without labels.
    ambiguity : Tensor [Q] or None
        Disagreement of the labels of the nearest items, in nats from 0 to log 20: the entropy of
        their vote. It does not shrink with more items. None for an index without labels.
    alpha : float
        Share of known queries that may be called unknown.
    template : Tensor [0]
        Empty tensor with the type of the numbers of ``hits`` and the device of all.
    match_probability : Tensor [Q, k] or None
        Probability that query and neighbour are a match: that they share their label, or are a
        match by the judgements that calibrated the index. None, the default, before
        ``Index.calibrate``.
    p_value : Tensor [Q] or None
        Conformal p-value of the hypothesis that the query has a match in the index; small for OOD
        queries. None, the default, before ``Index.calibrate``.
    label : array [Q] or None
        Answer of the index: the likeliest label among those of the neighbours. None, the default,
        before ``Index.calibrate``, or if matches calibrated it.
    label_probability : Tensor [Q] or None
        Probability that this label is the query's; the rest is for other labels, and for none of
        them. None, the default, as for ``label``.
    calibration : str or None
        Identity of the calibration of these probabilities (``Calibration.identity``), which a rule
        compares with its own. None, the default, before ``Index.calibrate``.
    gallery : GalleryChange or None
        Change of the gallery since its calibration. None, the default: there was none.
    among : SearchedAmong or None
        Number of items that could be found, of a search among some of them. None, the default: all
        could be found.
    query_ids : array [Q] or None
        Id of each query that is several views of one thing (``of=``), in the order of the first
        views. None, the default: each row is a query.
    shares : LabelShares or None
        Probability of each label of the neighbours, by its place in ``classes``. None, the default,
        as for ``label``.
    classes : array [C] or None
        Labels of the index, each once. None, the default, as for ``label``.
    """

    hits: SearchHits
    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any] | None
    ambiguity: Float[Tensor, " Q"] | None
    alpha: float
    template: Tensor
    match_probability: Float[Tensor, "Q k"] | None = None
    p_value: Float[Tensor, " Q"] | None = None
    label: np.ndarray[Any, Any] | None = None
    label_probability: Float[Tensor, " Q"] | None = None
    calibration: str | None = None
    gallery: GalleryChange | None = None
    among: SearchedAmong | None = None
    query_ids: np.ndarray[Any, Any] | None = None
    shares: LabelShares | None = None
    classes: np.ndarray[Any, Any] | None = None

    @classmethod
    def of(
        cls,
        hits: SearchHits,
        ids: Column,
        labels: Column | None,
        assessment: Assessment | None,
        k: int,
        alpha: float,
        template: Tensor,
        gallery: GalleryChange | None = None,
        among: SearchedAmong | None = None,
        classes: Column | None = None,
    ) -> SearchResult:
        """Return the k nearest, with numbers of each query from deeper hits and a calibration.

        Parameters
        ----------
        hits : SearchHits
            Hits of Q queries, k or more for each.
        ids : Column [N]
            Ids of the items.
        labels : Column [N] or None
            Labels of the items, if they have any.
        assessment : Assessment or None
            Calibrated numbers of ``hits``; None without a calibration.
        k : int
            Number of neighbours that the result has.
        alpha : float in (0, 1)
            Share of known queries that may be called unknown.
        template : Tensor [0]
            Empty tensor with the type and the device of the result.
        gallery : GalleryChange or None
            Change of the gallery since its calibration. None, the default: there was none.
        among : SearchedAmong or None
            Number of items that could be found. None, the default: all could be found.
        classes : Column [C] or None
            Labels of the items, each once. None, the default: they have none.
        """
        near = hits.positions[:, :k]
        match, p_value, label, probability = None, None, None, None
        if assessment is not None:
            match = torch.from_numpy(assessment.match_probability[:, :k]).to(template.device)
            p_value = torch.from_numpy(assessment.p_value).to(template.device)
            carrier, shares = assessment.carrier, assessment.label_probability
            if carrier is not None and shares is not None and labels is not None:
                label = _entries(labels, hits.positions[np.arange(len(carrier)), carrier])
                probability = torch.from_numpy(shares).to(template.device)
        return cls(
            hits.nearest(k),
            _entries(ids, near),
            None if labels is None else _entries(labels, near),
            None if hits.votes is None else template.new_tensor(hits.votes.ambiguity),
            alpha,
            template,
            match,
            p_value,
            label,
            probability,
            None if assessment is None else assessment.calibration,
            gallery,
            among,
            shares=None if assessment is None else assessment.shares,
            classes=None if classes is None else classes.values,
        )

    def _sentence(self) -> str:
        q, k = self.ids.shape
        found = f"the {k} nearest items of each of {q:,} queries"
        if self.among is not None:
            found += f", {self.among}"
        if self.unknown is None:
            return f"{found}."
        return f"{found}; {int(self.unknown.sum()):,} of them unfamiliar at alpha={self.alpha:g}."

    def _shown_rows(self) -> Rows:
        names = (
            "query_ids",
            "ids",
            "labels",
            "distance",
            "match_probability",
            "label",
            "label_probability",
        )
        shown = [(name, getattr(self, name)) for name in names]
        shown += [("epistemic", self.epistemic), ("p_value, unknown", self.p_value)]
        shown.append(("ambiguity", self.ambiguity))
        if self.p_value is None:
            told = "no match_probability, label, unknown: index.calibrate(queries, labels) first"
            shown.append(("not calibrated", told))
        return in_rows(shown)

    @property
    def positions(self) -> Int[Tensor, "Q k"]:
        """Rows of the index [Q, k]."""
        return self.template.new_tensor(self.hits.positions, dtype=torch.int64)

    @property
    def distance(self) -> Float[Tensor, "Q k"]:
        """Euclidean distance [Q, k] of the vectors that rank: means, or predictive vectors.

        Of means on the sphere ``2 - 2 cos`` is its square.
        """
        return self.template.new_tensor(self.hits.distance)

    @property
    def distance_sd(self) -> Float[Tensor, "Q k"]:
        """Standard deviation of ``distance`` [Q, k], under the weights that both points share.

        On the sphere it is correct to second order, up to half too small or large for near pairs: a
        scale, not an interval. ``LaplaceEmbedder.distance`` returns more accurate moments, of the
        squared distance, at half a millisecond a pair. Between an image and a text it is the spread
        of both embeddings, from the variances that were learnt.
        """
        return self.template.new_tensor(self.hits.distance_sd)

    @property
    def uncertainty(self) -> Float[Tensor, " Q"]:
        """Uncertainty of each query [Q]: ``Embedding.uncertainty``."""
        return self.template.new_tensor(self.hits.uncertainty)

    @property
    def epistemic(self) -> Float[Tensor, " Q"]:
        """Epistemic number of each query [Q]: ``Embedding.epistemic``.

        The uncertainty where the fit keeps nothing to compare with; 1e6 where nothing but zeros
        enters the head. Of images and texts it is their ``weight_variance``.
        """
        return self.template.new_tensor(self.hits.epistemic)

    @property
    def unknown(self) -> Bool[Tensor, " Q"] | None:
        """True where a query [Q] has no match, ``p_value <= alpha``; None if not calibrated."""
        return None if self.p_value is None else self.p_value <= self.alpha

    @property
    def nearest(self) -> np.ndarray[Any, Any]:
        """Label of the nearest item [Q]; its id where items have no labels."""
        return (self.ids if self.labels is None else self.labels)[:, 0]

    @property
    def signals(self) -> dict[str, Tensor]:
        """Signals of each query [Q] for ``monitor.Monitor``: epistemic, match probability.

        The match probability is that of the nearest neighbour, so that it does not depend on k.
        """
        signals = {"epistemic": self.epistemic}
        if self.match_probability is not None:
            signals["match probability"] = self.match_probability[:, 0]
        return signals

    def __len__(self) -> int:
        return len(self.ids)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Refuse ``np.asarray(result)``: a result has several arrays.

        Raises
        ------
        InputError
            It names the arrays.
        """
        raise InputError(
            f"the result of {len(self)} queries is several arrays: pass result.ids, "
            "result.labels or result.distance, or make a table, result.to_pandas()."
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row a neighbour: query, rank, id, label, distance, distance_sd, and so on.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        return as_pandas(self.columns())

    def figure(
        self,
        queries: ImagesOrTexts,
        items: ImagesOrTexts,
        *,
        truth: Any = None,
        answers: Answers | None = None,
        rows: int = 8,
        columns: int = 6,
    ) -> Figure:
        """Draw queries with their neighbours, match probabilities and unknown queries.

        Parameters
        ----------
        queries, items : images [H, W], [C, H, W] or [H, W, C], or texts
            Images with values in [0, 1] or bytes, or texts, of all Q queries and of all N items of
            the index.
        truth : labels of the queries [Q] or None
            Labels by which frames show the neighbours that have the query's label. None, the
            default: frames show the neighbours that are likely to.
        answers : Answers or None
            Decisions of a rule, ``rule(result)``: signs then show which queries are answered, and
            why others are not. None, the default: no rule decides.
        rows, columns : int
            Largest number of queries, and of neighbours of each. Default: 8 and 6.

        Returns
        -------
        Figure
            Of matplotlib: ``result.figure(images, gallery).savefig("neighbours.png")``.
        """
        from laplace_metric.plots import neighbours_plot

        return neighbours_plot(
            self, queries, items, truth=truth, answers=answers, rows=rows, columns=columns
        )

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the same as arrays [Q k]; what is not known is left out.

        ``label`` and ``label_probability`` are those of the query; the label of the neighbour is
        ``item_label``.
        """
        q, k = self.ids.shape
        per_query: dict[str, Any] = {"epistemic": self.epistemic}
        per_query |= {"ambiguity": self.ambiguity, "label": self.label}
        per_query |= {"label_probability": self.label_probability}
        per_query |= {"p_value": self.p_value, "unknown": self.unknown}
        each = {"id": self.ids, "item_label": self.labels, "distance": self.distance}
        each |= {"distance_sd": self.distance_sd, "match_probability": self.match_probability}
        queries = np.arange(q) if self.query_ids is None else self.query_ids
        rows = {"query": np.repeat(queries, k), "rank": np.tile(np.arange(1, k + 1), q)}
        rows |= {n: _np(v).reshape(-1) for n, v in each.items() if v is not None}
        return rows | {n: np.repeat(_np(v), k) for n, v in per_query.items() if v is not None}


def _np(values: Any) -> np.ndarray[Any, Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _entries(column: Column, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    missing: Any = "" if column.is_text else -1
    return np.where(positions < 0, missing, column.values[positions.clip(min=0)])
