"""The ranking of an index: as asked for, or by what its own labels say.

Leaving out one item at a time, each candidate finds the nearest other item of up to 2,000 items; it
is right if that is of the same class. Candidates are predictive vectors (``PredictiveVectors``) of

    share     .1 to .97 of the squared length
    prior     that of the fit, and from noise (1e6) to whitened h (1e-4), which are rivals
    cosines   of vectors that are no directions (raw vectors whose lengths mean nothing)
    centred   about the mean of the items, where vectors have length 1
    layer     none, or one of the last three before the head, with weight .25 to .9

one after another: each is chosen next to the best of the others. "auto" takes the best, if it is
right for significantly more items than "mean": of the items that only one of the two finds, with b
won and c lost and m candidates,

    (b - c) / sqrt(b + c) > z(1 - .01 / m)          (McNemar 1947, one-sided; Bonferroni)

Items that were in the fit look better through its curvature than new ones do. Where most were,
these candidates are of a fit to one half of the items, and compared on the other half: this costs
as much as the fit. Queries that calibrate are not looked at, so that they stay exchangeable with
later ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.smallest_of_rows import smallest_of_rows
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.models._compared_rows import compared_rows
from laplace_metric.search._items import Items
from laplace_metric.search._protocols import SearchEncoder, VectorMap
from laplace_metric.search.rank._rankings import (
    AUTO,
    EQUAL,
    NOISE,
    WHITENED,
    ExpectedRanking,
    MeanRanking,
    Predictive,
    PredictiveRanking,
    Ranking,
    SharedRanking,
)

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Shares of the posterior that are tried; next to an earlier layer also 0."""
WEIGHTS = (0.25, 0.5, 0.75, 0.9)
"""Weights of an earlier layer that are tried."""
MOST_READ = 50_000
"""Items up to which earlier layers are read that were not named."""
PRIORS = (None, NOISE, 10.0, 1.0, 0.1, 0.01, WHITENED)
"""Prior precisions that are tried; None: that of the fit."""
UNLABELLED = 0.5
"""Share without labels, and at which the prior is looked for first."""
LEVEL = 0.01
"""Probability that "auto" leaves the mean where no candidate is better."""
MOST = 2_000
"""Items that are compared."""
MOST_FITTED = 20_000
"""Items that a fit to a half takes, at most."""


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
        if "predictive" not in available or items.label_codes is None:
            return MeanRanking()
        choice = _choice(Predictive(), items, encoder)
        if choice is None or not choice.is_sure:
            return MeanRanking()
        return _made(choice, items, encoder)
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


def _predictive(asked: Predictive, items: Items, encoder: SearchEncoder) -> PredictiveRanking:
    vectors = encoder.predictive
    if vectors is None:
        chosen_ranking("predictive", items, encoder)  # says why there is none
        raise AssertionError
    if asked.share is None:
        choice = None if items.label_codes is None else _choice(asked, items, encoder)
        if choice is not None:
            return _made(choice, items, encoder)
        asked = replace(asked, share=UNLABELLED)
    ranking = PredictiveRanking.of(vectors, items.encoded, asked, encoder.earlier)
    rows = _compared(items)
    # where nothing is left open it is the ranking of another index, whose gain is known
    stated = None not in (asked.rank, asked.centred, asked.directions, asked.layer)
    if rows is None or not len(rows) or stated:
        return ranking
    return _measured(ranking, settled(ranking, items, encoder), rows)


def layers_asked(asked: str | Predictive, n_items: int | None) -> Sequence[str] | None:
    """Return the earlier layers among which a ranking may choose; None for those of the model.

    Parameters
    ----------
    asked : str or Predictive
        Ranking that is asked for, as for ``chosen_ranking``.
    n_items : int or None
        Number of items; None: unknown.
    """
    if not isinstance(asked, Predictive):
        asked = Predictive() if asked in (AUTO, "predictive") else Predictive(layer=False)
    names = asked.layers_read
    return () if names is None and (n_items or 0) > MOST_READ else names


def exploring(
    asked: str | Predictive, n_items: int | None, encoder: SearchEncoder
) -> SearchEncoder:
    """Return the encoder that reads ``layers_asked``, too.

    Raises
    ------
    InputError
        For a layer of an encoder that reads none.
    """
    names = layers_asked(asked, n_items)
    if names is not None and not names:
        return encoder
    found = encoder.exploring(names)
    if names and found is encoder:
        raise InputError(
            f"Predictive: layer={names[0]!r}: earlier layers are read of one model, whose head is "
            'one linear layer, with structure="diag" or "kron", and not with compact=True.'
        )
    return found


def settled(ranking: Ranking, items: Items, encoder: SearchEncoder) -> Items:
    """Return the items with the unit vectors of the layer that was chosen, in place of all rows."""
    rows = items.encoded.earlier
    if rows is None:
        return items
    layer = ranking.layer if isinstance(ranking, PredictiveRanking) else None
    units = None if layer is None else layer(rows[:, encoder.earlier[layer.name]])
    return replace(items, encoded=replace(items.encoded, earlier=units))


def _compared(items: Items) -> Int[Tensor, " n"] | None:
    return None if items.label_codes is None else compared_rows(items.label_codes, MOST)


@dataclass(frozen=True)
class _Choice:
    """The best candidate: its settings, which items it finds, and which the mean finds."""

    vectors: VectorMap
    settings: Predictive
    right: Bool[Tensor, " n"]
    before: Bool[Tensor, " n"]
    n_tried: int

    @property
    def is_sure(self) -> bool:
        from scipy.special import ndtri  # an import that takes long

        won = int((self.right & ~self.before).sum())
        lost = int((self.before & ~self.right).sum())
        return won - lost > -float(ndtri(LEVEL / self.n_tried)) * (won + lost) ** 0.5


def _made(choice: _Choice, items: Items, encoder: SearchEncoder) -> PredictiveRanking:
    """Return the ranking of a choice, with the gain that it was chosen for."""
    ranking = PredictiveRanking.of(choice.vectors, items.encoded, choice.settings, encoder.earlier)
    gain = float(choice.before.double().mean()), float(choice.right.double().mean())
    return replace(ranking, gain=gain)


@full_precision()
def _choice(asked: Predictive, items: Items, encoder: SearchEncoder) -> _Choice | None:
    """Return the best share, prior, centre and layer; None if no two items are of one class."""
    vectors, codes = encoder.predictive, items.label_codes
    assert vectors is not None
    assert codes is not None
    tried = _tried_on(items, codes, encoder)
    if tried is None:
        return None
    best: Predictive | None = None
    right = tried.right(None)

    def improve(settings: Predictive) -> None:
        nonlocal best, right
        found = tried.right(settings)
        if best is None or int(found.sum()) > int(right.sum()):  # the first of equal ones
            best, right = settings, found

    before = right
    given = isinstance(asked.layer, str)
    weight = EQUAL if given and asked.layer_weight is None else asked.layer_weight
    start = replace(
        asked,
        share=UNLABELLED,
        centred=bool(asked.centred),
        directions=bool(asked.directions),
        layer=asked.layer if given else False,
        layer_weight=weight,
    )
    priors = PRIORS if asked.prior is None and vectors.takes_priors else (asked.prior,)
    for share in SHARES:
        improve(replace(start, share=share))
    assert best is not None
    for prior in priors[1:]:
        improve(replace(best, prior=prior))
    if not vectors.spherical and asked.directions is None:
        improve(replace(best, share=0.0, prior=asked.prior, directions=True))
        improve(replace(best, share=best.share or UNLABELLED, directions=True))
    if (vectors.spherical or best.directions) and asked.centred is None:
        improve(replace(best, centred=True))
    for share in SHARES:
        improve(replace(best, share=share))
    weights = WEIGHTS if asked.layer_weight is None else (asked.layer_weight,)
    for name in tried.units:
        for one in weights:
            improve(replace(best, layer=name, layer_weight=one))
    if best.layer:
        improve(replace(best, share=0.0, prior=asked.prior))
        for share in SHARES:
            improve(replace(best, share=share))
    return _Choice(vectors, best, right, before, len(tried.known) - 1)


@dataclass(frozen=True)
class _Tried:
    """Items that are compared, n of them, and what each candidate found; never twice.

    A candidate's squared distances follow from two Gram matrices [n, n], of z and of C^(1/2) h,
    which do not depend on the share, and from the unit vectors of an earlier layer.
    """

    vectors: VectorMap
    x: Float[Tensor, "n A"]
    codes: Int[Tensor, " n"]
    units: Mapping[str, Float[Tensor, "n p"]]
    known: dict[Predictive | None, Bool[Tensor, " n"]] = field(default_factory=dict)
    grams: dict[tuple[float | None, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def right(self, settings: Predictive | None) -> Bool[Tensor, " n"]:
        """Return whether the nearest other item is of the same class; None: by the means."""
        if settings not in self.known:
            self.known[settings] = self._right(settings)
        return self.known[settings]

    def _right(self, settings: Predictive | None) -> Bool[Tensor, " n"]:
        prior, centred = (settings.prior, bool(settings.centred)) if settings else (None, False)
        z, h = self._gram(prior, centred)
        inner = z
        if settings is not None and (own := float(h.diagonal().mean())) > 0:
            share = settings.share or 0.0
            inner = z + share / (1 - share) * float(z.diagonal().mean()) / own * h
        square = inner.diagonal().clamp_min(torch.finfo(inner.dtype).tiny)
        spherical, unit = self.vectors.spherical or bool(settings and settings.directions), 1.0
        if spherical:
            apart = -inner / square.sqrt()[:, None] / square.sqrt()
        else:
            apart = square[:, None] + square - 2 * inner
            unit = float(inner.diagonal().mean() - inner.mean())
        if settings is not None and settings.layer:
            u, weight = self.units[str(settings.layer)], settings.layer_weight or EQUAL
            if spherical:
                apart = (1 - weight) * apart - weight * (u @ u.mT)
            else:
                apart = apart - 2 * weight / (1 - weight) * unit * (u @ u.mT)
        nearest = smallest_of_rows(apart.fill_diagonal_(torch.inf))
        return (self.codes[nearest.to(self.codes.device)] == self.codes).cpu()

    def _gram(self, prior: float | None, centred: bool) -> tuple[Tensor, Tensor]:
        if (prior, centred) not in self.grams:
            self.grams.clear()  # one pair at a time: 2,000 items are 32 MB in float32
            vectors = self.vectors if prior is None else self.vectors.with_prior(prior)
            self.grams[prior, centred] = vectors.grams(
                self.x - self.x.mean(0) if centred else self.x
            )
        return self.grams[prior, centred]


def _tried_on(items: Items, codes: Int[Tensor, " N"], encoder: SearchEncoder) -> _Tried | None:
    """Return what candidates are compared on: new items, or else one half of those of the fit."""
    vectors, x = encoder.predictive, items.encoded.basis_inputs
    assert vectors is not None
    rows = compared_rows(codes, MOST)
    if not len(rows):
        return None
    known = codes >= 0
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0)).to(codes.device)
    order = order[known[order]]
    others, half = order[: len(order) // 2][:MOST_FITTED], order[len(order) // 2 :]
    some = half[compared_rows(codes[half], MOST)]
    if len(some) and len(codes[others].unique()) > 1:
        at = others.to(x.device)
        refitted = encoder.refitted(x[at], codes[others], x[some.to(x.device)])
        if refitted is not None:
            return _Tried(*refitted, codes[some], _units(items, some, encoder))
    return _Tried(vectors, x[rows.to(x.device)], codes[rows], _units(items, rows, encoder))


def _units(
    items: Items, rows: Int[Tensor, " n"], encoder: SearchEncoder
) -> dict[str, Float[Tensor, "n p"]]:
    """Return the unit vectors of some items, by layer."""
    x, units = items.encoded.earlier, dict[str, Tensor]()
    if x is None:
        return units
    for name, columns in encoder.earlier.items():
        own = x[:, columns]
        units[name] = EarlierLayer.of(name, EQUAL, 1.0, own)(own[rows.to(x.device)])
    return units


def _measured(
    ranking: PredictiveRanking, items: Items, rows: Int[Tensor, " n"]
) -> PredictiveRanking:
    found = (_right(each, items, rows) for each in (MeanRanking(), ranking))
    before, after = (float(right.double().mean()) for right in found)
    return replace(ranking, gain=(before, after))


@full_precision()
def _right(ranking: Ranking, items: Items, rows: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return whether the nearest other item is of the same class, among the compared items."""
    assert items.label_codes is not None
    codes = items.label_codes[rows]
    vectors: Float[Tensor, "n d"] = ranking.item_vectors(items.encoded.take(rows))
    apart = torch.cdist(vectors, vectors).fill_diagonal_(torch.inf)
    nearest = smallest_of_rows(apart).cpu()
    return codes[nearest] == codes
