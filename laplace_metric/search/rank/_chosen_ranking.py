"""The ranking of an index: as asked for, or by what its own labels say.

Leaving out one item at a time, each ranking finds the nearest other item of up to 1,000 items; it
is right if that is of the same class. "auto" ranks by "predictive" if it is right for significantly
more items than "mean": of the items that only one of the two finds, with b won and c lost,
``(b - c) / sqrt(b + c) > 2.8`` (McNemar's test, one-sided, at .01 over the four shares). Queries
that calibrate are not looked at, so that they stay exchangeable with later ones.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.smallest_of_rows import smallest_of_rows
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.models._compared_rows import compared_rows
from laplace_metric.search._items import Items
from laplace_metric.search._protocols import SearchEncoder
from laplace_metric.search.rank._rankings import (
    AUTO,
    ExpectedRanking,
    MeanRanking,
    Predictive,
    PredictiveRanking,
    Ranking,
    SharedRanking,
)

SHARES = (0.25, 0.5, 0.75, 0.9)
"""Shares of the posterior that are tried."""
UNLABELLED = 0.5
"""Share without labels."""
SIGNIFICANT = 2.8


def chosen_ranking(asked: str | Predictive, items: Items, encoder: SearchEncoder) -> Ranking:
    """Return the ranking of an index.

    Parameters
    ----------
    asked : str or Predictive
        Name of a ranking that the encoder has, "auto", or settings of "predictive".
    items : Items
        Items of the index.
    encoder : SearchEncoder
        Encoder of the items.

    Raises
    ------
    UnknownNameError
        For a ranking that the encoder does not have.
    InputError
        For "predictive" where the items keep no head inputs.
    """
    if isinstance(asked, Predictive):
        return _predictive(asked, items, encoder)
    available = encoder.rankings
    if asked == AUTO:
        return _by_labels(items, encoder)
    if asked == "predictive" and asked not in available:
        raise InputError(
            "rank_by='predictive' needs head inputs of the items, a head that is one linear layer, "
            'and structure="diag" or "kron": build the index without compact=True, from an '
            f"embedder that is fitted like this. Here there is {', '.join(map(repr, available))}."
        )
    if not isinstance(asked, str):
        raise UnknownNameError("rank_by", asked, (AUTO, *available, "Predictive()"))
    check_name("rank_by", asked, (AUTO, *available))
    if asked == "predictive":
        return _predictive(Predictive(), items, encoder)
    if asked == "expected":
        return ExpectedRanking(encoder.spherical)
    return SharedRanking() if asked == "shared" else MeanRanking()


def _by_labels(items: Items, encoder: SearchEncoder) -> Ranking:
    if "predictive" not in encoder.rankings or items.label_codes is None:
        return MeanRanking()
    rows = _compared(items)
    best = _best(items, encoder, rows, None)
    if best is None:
        return MeanRanking()
    ranking, right = best
    before = _right(MeanRanking(), items, rows)
    won, lost = int((right & ~before).sum()), int((before & ~right).sum())
    significant = won - lost > SIGNIFICANT * (won + lost) ** 0.5
    return ranking if significant else MeanRanking()


def _predictive(asked: Predictive, items: Items, encoder: SearchEncoder) -> PredictiveRanking:
    if encoder.predictive is None:
        chosen_ranking("predictive", items, encoder)  # says why there is none
        raise AssertionError
    rows = _compared(items) if items.label_codes is not None else None
    if asked.share is None and rows is not None:
        best = _best(items, encoder, rows, asked.rank)
        if best is not None:
            return best[0]
    share = UNLABELLED if asked.share is None else asked.share
    ranking = PredictiveRanking.of(encoder.predictive, items.encoded, share, asked.rank)
    if rows is None or not len(rows):
        return ranking
    return _measured(ranking, items, rows)[0]


def _compared(items: Items) -> Int[Tensor, " n"]:
    assert items.label_codes is not None
    return compared_rows(items.label_codes)


def _best(
    items: Items, encoder: SearchEncoder, rows: Int[Tensor, " n"], rank: int | None
) -> tuple[PredictiveRanking, Bool[Tensor, " n"]] | None:
    """Return the share that finds most items, and which; None if no two are of one class."""
    if not len(rows) or encoder.predictive is None:
        return None
    tried = [
        _measured(PredictiveRanking.of(encoder.predictive, items.encoded, s, rank), items, rows)
        for s in SHARES
    ]
    return max(tried, key=lambda found: int(found[1].sum()))  # the smallest share of equal ones


def _measured(
    ranking: PredictiveRanking, items: Items, rows: Int[Tensor, " n"]
) -> tuple[PredictiveRanking, Bool[Tensor, " n"]]:
    right = _right(ranking, items, rows)
    before = _right(MeanRanking(), items, rows)
    gain = (float(before.double().mean()), float(right.double().mean()))
    return replace(ranking, gain=gain), right


@full_precision()
def _right(ranking: Ranking, items: Items, rows: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return whether the nearest other item is of the same class, among the compared items."""
    assert items.label_codes is not None
    codes = items.label_codes[rows]
    vectors: Float[Tensor, "n d"] = ranking.item_vectors(items.encoded.take(rows))
    apart = torch.cdist(vectors, vectors).fill_diagonal_(torch.inf)
    nearest = smallest_of_rows(apart).cpu()
    return codes[nearest] == codes
