"""A class model of the gallery: the odds of a label, evidence next to the neighbours' votes.

A row is what enters the head, [h / |h| ; u] where an index ranks by an earlier layer, too, whose
unit vector u is (``laplace/_earlier_layer``): with it, held-out classes are told apart better.
With u the direction of a row, mu their mean, W the covariance within classes, e = tr W / D and
R R' = (W + e I)^-1 (``familiarity._scatter``),

    x          = R' (u - mu)                                classes have about unit covariance
    p(c | x)   = softmax_c(s_c),    s_c = w_c . x + b_c      multinomial logistic regression

with w, b and the variances v_c of the logits as in ``_class_weights``. Linear discriminant analysis
is the member w_c = m_c, b_c = log pi_c - |m_c|^2 / 2 of the same family, with m_c the mean of n_c
items of class c: it is the model where the items are too few, or a pass over ``CELLS`` numbers sees
too few of them. Up to a constant its logits are -|x - m_c|^2 / 2 + log pi_c, and the mean of n_c
items varies by I / n_c, so that to first order v_c = |x - m_c|^2 / n_c.

The predictive q is MacKay's moderated output (``_class_weights``). A held-out fifth of the items
chooses prior precision l and temperature T. Its x are computed with mu and W of the other items: in
coordinates that they helped to choose, items are nearer to their class than any query will be.

A simulated open-set query, whose class is left out of the gallery, has q(c | x, c not its own).
Evidence is

    o_c        = min(max(log q(c | x) / (1 - q(c | x)), LEAST_ODDS), MOST_ODDS)

The bounds are part of the model: q beyond .953 counts as .953. A larger bound is no better where
the gallery is like the queries, and worse where it is not (measured on the development problems).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor, nn

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import FileFormatError
from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._scatter import CentredSums, Factors
from laplace_metric.inputs._columns import Column
from laplace_metric.io import (
    POSITIVE,
    UNIT,
    Fields,
    checked_array,
    record,
    restored,
    saved,
    unsaved,
)
from laplace_metric.search._encoded import Encoded
from laplace_metric.search.classes._class_weights import (
    FOLDS,
    choose,
    held_out,
    hessian_diagonal,
    likeliest_weights,
    moderated,
)

CELLS = 2**31
"""Items times classes times columns of one pass; a random part of the items where they are more."""
LEAST = 5
"""Items a class, on average, below which nothing but the class means is learnt."""
LEAST_ODDS, MOST_ODDS = -20.0, 3.0
"""Bounds of the log odds of a label, for p of 2e-9 and .953: see the head of this file."""
WIDEST = 2_048
"""Numbers of a row; beyond these the embedding is used."""
TINY = 1e-20
"""Entries of a root, relative to the largest, that no product of float32 can see."""
DIRECTION_BYTES = 2**23
"""Memory of the directions of rows that are held at once, in float64."""


class ClassPrior(NamedTuple):
    """Prior precision l and temperature T that were chosen for a class model."""

    precision: float
    temperature: float


@dataclass(frozen=True)
class ClassModel:
    """Class model of the items of an index, fitted when it is calibrated.

    Parameters
    ----------
    classes : Column [C]
        Labels of the items, sorted.
    mean : Tensor [D], float64
        Mean mu of the directions of the items.
    root : Tensor [D, D]
        Whitening R of the covariance within classes.
    weights : Tensor [C, D]
        Weights w_c of each class.
    bias : Tensor [C]
        Offset b_c of each class.
    prior_precision : Tensor [1]
        Precision l of the prior; 0 for linear discriminant analysis.
    variance : Tensor [C, D] or [C, 1]
        Posterior variance 1 / (h_ci + l) of each weight; 1 / n_c of each coordinate of a class
        mean for linear discriminant analysis.
    temperature : Tensor [1]
        Temperature T of the moderated output; 1 for linear discriminant analysis.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(200) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.1 * torch.randn(200, 4, generator=g)
    >>> model = ClassModel.fit(x, y, Column(np.arange(4)))
    >>> model.log_odds(x[:2], y[:2, None]).min() > 2
    tensor(True)
    """

    classes: Column = unsaved()
    mean: Float64[Tensor, " D"] = saved(-UNIT, UNIT)
    root: Float32[Tensor, "D D"] = saved()
    weights: Float32[Tensor, "C D"] = saved()
    bias: Float32[Tensor, " C"] = saved()
    prior_precision: Float32[Tensor, " 1"] = saved(0)
    variance: Float32[Tensor, "C V"] = saved(0)
    temperature: Float32[Tensor, " 1"] = saved(POSITIVE)

    def check_saved(self) -> None:
        """Raise FileFormatError for variances that no fit has.

        A weight has the variance 1 / (h + l) with h >= 0, a class mean 1 / n.
        """
        given = float(self.prior_precision)
        columns, most = (len(self.mean), UNIT / given) if given else (1, 1.0)
        checked_array("class_model/variance", self.variance, [None, columns], most=most)

    def to(self, device: torch.device) -> ClassModel:
        """Return the same model on a device."""
        there = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **there)  # type: ignore[arg-type]

    @classmethod
    @torch.no_grad()
    @full_precision()
    def fit(
        cls,
        rows: Float[Tensor, "N D"],
        codes: Int[Tensor, " N"],
        classes: Column,
        prior_precision: float | None = None,
        temperature: float | None = None,
        width: int | None = None,
    ) -> ClassModel | None:
        """Fit to rows of the gallery and the codes of their classes.

        Classes without a row are left out. ``prior_precision``, ``temperature``: l and T; None:
        chosen. ``width``: numbers of a row of the space, where rows are of a subspace that holds
        all of them. Return None for a single class, and if all rows are equal.
        """
        there, codes = codes.unique(return_inverse=True)
        classes, n_classes = classes.take(there.cpu().numpy()), len(there)
        if n_classes < 2:
            return None
        some = _part(codes, CELLS // (n_classes * rows.shape[1]))
        few = len(some) < LEAST * n_classes
        held = held_out(len(some))
        others, factors = _factors(rows, codes, n_classes, some[held], width)
        if factors is None or len(factors.class_means) < n_classes:
            return None
        whitening = Whitening.of(factors)
        means = (factors.class_means @ whitening.root).float()
        counts = codes.bincount(minlength=n_classes).to(means)
        log_share = (counts / len(codes)).log()
        model = cls(
            classes,
            whitening.mean,
            without_subnormal(whitening.root.float()),
            means,
            log_share - means.square().sum(1) / 2,
            means.new_zeros(1),
            1 / counts[:, None],
            means.new_ones(1),
        )
        if prior_precision == 0 or (few and prior_precision is None):
            return model
        items, y = rows, codes[some].to(rows.device)
        if len(some) < len(rows):  # else these are all rows, in their order
            items = rows[some.to(rows.device)]
        start = torch.cat([torch.zeros_like(means), log_share[:, None]], 1)
        if prior_precision is None or temperature is None:
            seen = (whitening if others is None else Whitening.of(others)).in_float32()
            order = held.to(torch.uint8).argsort(stable=True)  # so that both parts are views
            place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
            own, last = order.to(y.device), held[order].to(y.device)
            chosen = choose(seen(items, place), y[own], last, start, prior_precision)
            prior_precision, start = chosen.prior_precision, chosen.start
            temperature = chosen.temperature if temperature is None else temperature
        x = whitening.in_float32()(items)
        best = likeliest_weights(x, y, start, prior_precision)
        return replace(
            model,
            weights=best[:, :-1].clone(),
            bias=best[:, -1].clone(),
            prior_precision=torch.tensor([prior_precision], device=rows.device),
            variance=1 / (hessian_diagonal(x, best) + prior_precision),
            temperature=torch.tensor([temperature], device=rows.device),
        )

    @cached_property
    def _whitening(self) -> Whitening:
        """The whitening as products take it, of a file of an older version, too."""
        return Whitening(self.mean, without_subnormal(self.root))

    @cached_property
    def _sizes(self) -> Float32[Tensor, " C"]:
        """Squared lengths of the weights."""
        return self.weights.square().sum(1)

    def _logits(self, rows: Tensor) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n C"]]:
        """Return logits s_c and their variances v_c, in float64."""
        x = self._whitening(rows)
        products = x @ self.weights.mT
        if self.prior_precision == 0:  # weights are the class means
            lengths = x.square().sum(1, keepdim=True) + self._sizes
            variance = (lengths - 2 * products).clamp(min=0) * self.variance[:, 0]
        else:
            variance = x.square() @ self.variance.mT
        return (products + self.bias).double(), variance.double()

    @torch.no_grad()
    @full_precision()
    def log_odds(
        self,
        rows: Float[Tensor, "Q D"],
        labels: Int[Tensor, "Q K"],
        own: Int[Tensor, " Q"] | None = None,
    ) -> Float[Tensor, "Q K"]:
        """Return bounded log odds of ``labels``, codes of classes, in float64.

        Labels of -1, of a class that the model does not know, have ``q = 1 / (C + 1)``. ``own``:
        the class that is left out for each simulated open-set query, -1 for other queries.
        """
        n_classes, parts = len(self.bias), list[Tensor]()
        n_numbers = max(n_classes, rows.shape[1])
        for part in blocks(max(1, len(rows)), 4 * n_numbers, LARGE_BYTES):
            logits, variance = self._logits(rows[part])
            if own is not None:
                simulated = (own[part] >= 0).nonzero().flatten()
                logits[simulated, own[part][simulated]] = -torch.inf
            at = labels[part]
            log_q = moderated(logits, variance, float(self.temperature))
            log_q = log_q.gather(1, at.clamp(min=0))
            odds = log_q - (-log_q.expm1()).log()
            parts.append(odds.masked_fill(at < 0, -float(np.log(n_classes))))
        return torch.cat(parts).clamp(LEAST_ODDS, MOST_ODDS)

    def evidence(
        self,
        rows: Float[Tensor, "Q D"],
        labels: Int[np.ndarray, "Q K"],
        classes: Column,
        own: Int[np.ndarray, " Q"] | None = None,
    ) -> Float[np.ndarray, "Q K"]:
        """Compute log odds of neighbours' labels: codes of ``classes``, those of the index now."""
        rows = rows.to(self.mean.device)  # items of a mapped file stay in main memory
        own_classes = self.classes.values
        place = np.arange(len(own_classes))
        if not np.array_equal(own_classes, classes.values):  # sorting them again takes longer
            place = self.classes.codes_of(classes.values)

        def known(codes: npt.NDArray[np.int64]) -> Tensor:
            there = np.where(codes < 0, -1, place[codes.clip(min=0)])
            return torch.from_numpy(there).to(rows.device)

        odds = self.log_odds(rows, known(labels), None if own is None else known(own))
        return np.where(labels < 0, 0.0, odds.cpu().numpy())

    @property
    def prior(self) -> ClassPrior:
        """Prior precision and temperature, to fit the same model to other items."""
        return ClassPrior(float(self.prior_precision), float(self.temperature))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        return record(self)[1] | self.classes.tensors("classes")

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> ClassModel:
        """Restore a model from what ``tensors`` returned.

        Raises
        ------
        FileFormatError
            For an array that is missing, of another type or shape, or holds values that no fit has.
        """
        classes = Column.from_tensors("classes", tensors)
        if classes is None or len(classes) < 2:
            raise FileFormatError("class_model.classes are not two classes or more")

        where, given = Fields({}, "class_model"), {"classes": classes}
        return restored(cls, where, tensors, given=given, C=len(classes))


class Whitening(NamedTuple):
    """Mean mu of directions [D] and R with R R' = (W + e I)^-1 [D, D].

    R is of all directions, (T + e I)^-1, where classes say nothing.
    """

    mean: Float[Tensor, " D"]
    root: Float[Tensor, "D D"]

    @classmethod
    def of(cls, factors: Factors) -> Whitening:
        """Return the whitening of these factors, in float64."""
        gaussians = factors.gaussians()
        root = gaussians.within_root if gaussians.within_root.shape[1] else gaussians.total_root
        return cls(gaussians.mean, root)

    def in_float32(self) -> Whitening:
        """Return the same with R in float32, as products take it."""
        return Whitening(self.mean, without_subnormal(self.root.float()))

    def __call__(
        self, rows: Float[Tensor, "n D"], place: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n D"]:
        """Return ``R' (u - mu)`` of each row, u its direction, in the type of R.

        ``place``: the row of the result of each row. None: their own order.
        """
        root = self.root
        white = root.new_empty(len(rows), root.shape[1])
        for part in blocks(len(rows), 8 * rows.shape[1], DIRECTION_BYTES):
            u = directions(rows[part])[0]
            if place is None:
                torch.matmul((u - self.mean).to(root), root, out=white[part])
            else:
                white[place[part].to(white.device)] = (u - self.mean).to(root) @ root
        return white


def without_subnormal(root: Float32[Tensor, "D D"]) -> Float32[Tensor, "D D"]:
    """Return R with zeros in the place of entries below ``TINY`` of the largest; R if it has none.

    Of rows in few dimensions, R has entries of 1e-30. Their products are subnormal in float32, and
    take 50 times as long.
    """
    sizes = root.abs()
    tiny = (sizes < TINY * sizes.amax()) & (sizes > 0)
    return root.masked_fill(tiny, 0) if bool(tiny.any()) else root


def _factors(
    rows: Tensor, codes: Tensor, n_classes: int, held: Int[Tensor, " n"], width: int | None
) -> tuple[Factors | None, Factors | None]:
    """Return the factors of all directions but those of the rows ``held``, and of all."""
    sums, found = CentredSums.zeros(n_classes, rows[:1].float()), []
    others = torch.ones(len(codes), dtype=torch.bool).index_fill_(0, held, value=False)
    for chosen in (others, ~others):
        index = chosen.nonzero().flatten()
        for part in blocks(len(index), 8 * rows.shape[1], DIRECTION_BYTES):
            at = index[part]
            u, lengths = directions(rows[at.to(rows.device)])
            sums.add_(u, codes[at].to(rows.device), lengths.isfinite())
        found.append(sums.scatter(width).factors())
    return found[0], found[1]


def _part(codes: Int[Tensor, " N"], most: int) -> Int[Tensor, " n"]:
    """Return rows of at most so many items, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(len(codes), generator=generator)[:most].sort().values


def inputs_of(encoded: Encoded) -> Float[Tensor, "N D"]:
    """Return what a class model reads: inputs of the head, and the earlier layer of the ranking.

    Without stored inputs it is the embedding. Next to a layer, whose rows have length 1, they are
    unit vectors, too.
    """
    rows = encoded.basis_inputs
    rows = rows if 0 < rows.shape[1] <= WIDEST else encoded.mean
    if encoded.earlier is None:
        return rows
    return torch.cat([nn.functional.normalize(rows, dim=1), encoded.earlier.to(rows)], 1)


def cross_fitted(
    rows: Float[Tensor, "N D"], codes: Int[Tensor, " N"], classes: Column, prior: ClassPrior
) -> tuple[list[ClassModel | None], Int[np.ndarray, " N"]]:
    """Fit one model without each fold; return them, and the fold of each row [N]."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))
    order = order[codes[order].argsort(stable=True)]  # every class is dealt out
    fold = torch.empty_like(codes)
    fold[order] = torch.arange(len(codes)) % FOLDS
    models = []
    for f in range(FOLDS):
        rest = (fold != f).nonzero().flatten()
        models.append(ClassModel.fit(rows[rest.to(rows.device)], codes[rest], classes, *prior))
    return models, fold.numpy()
