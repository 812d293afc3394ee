"""A class model of the gallery: the odds of a label, evidence next to the neighbours' votes.

With u the direction of a row, mu their mean, W the covariance within classes, e = tr W / D and
R R' = (W + e I)^-1 (``familiarity._scatter``),

    x          = R' (u - mu)                                classes have about unit covariance
    p(c | x)   = softmax_c(w_c . x + b_c)                   multinomial logistic regression
    (w, b)     = argmax sum_n log p(y_n | x_n) - l/2 sum_c |w_c|^2

where l, of ``PRECISIONS``, gives a held-out fifth of the items the largest likelihood. Linear
discriminant analysis is the member w_c = m_c, b_c = log pi_c - |m_c|^2 / 2 of the same family, with
m_c the mean of class c: it is the model where the items are too few, or a pass over ``CELLS``
numbers sees too few of them. A simulated open-set query, whose class is
left out of the gallery, has p(c | x, c not its own). Evidence is

    o_c        = min(max(log p(c | x) / (1 - p(c | x)), LEAST_ODDS), MOST_ODDS)

The bounds are part of the model: p beyond .953 counts as .953. A larger bound is no better where
the gallery is like the queries, and worse where it is not (measured on the development problems).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.familiarity._class_gaussians import ClassGaussians
from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._scatter import CentredSums
from laplace_metric.inputs._columns import Column
from laplace_metric.search._encoded import Encoded

PRECISIONS = (1000.0, 100.0, 10.0, 1.0)
"""Candidates for l, strongest first."""
FOLDS = 5
"""One of them is held out to choose l."""
ITERATIONS, TOLERANCE = 60, 1e-4
"""Of the ascent: relative gain of the likelihood in a step, below which it ends. The loss is within
3e-4 of its minimum then; the best l leads the next by 1e-2 (Omniglot, FashionMNIST)."""
CELLS = 2**31
"""Items times classes times columns of one pass; a random part of the items where they are more."""
LEAST = 5
"""Items a class, on average, below which nothing but the class means is learnt."""
LEAST_ODDS, MOST_ODDS = -20.0, 3.0
"""Bounds of the log odds of a label, for p of 2e-9 and .953: see the head of this file."""
BLOCK_CELLS = 2**24
"""Logits, or numbers of rows, that are held at once."""
WIDEST = 2_048
"""Numbers of a row; beyond these the embedding is used."""
CACHED_CELLS = 2**18
"""Logits that stay in the cache of a processor."""


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

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(200) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.1 * torch.randn(200, 4, generator=g)
    >>> model = ClassModel.fit(x, y, Column(np.arange(4)))
    >>> model.log_odds(x[:2], y[:2, None]).min() > 2
    tensor(True)
    """

    classes: Column
    mean: Float[Tensor, " D"]
    root: Float[Tensor, "D D"]
    weights: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]
    prior_precision: Float[Tensor, 1]

    @classmethod
    @torch.no_grad()
    @full_precision()
    def fit(
        cls,
        rows: Float[Tensor, "N D"],
        codes: Int[Tensor, " N"],
        classes: Column,
        prior_precision: float | None = None,
    ) -> ClassModel | None:
        """Fit to rows of the gallery and the codes of their classes.

        Classes without a row are left out. ``prior_precision``: l; None: chosen. Return None for
        a single class, and if all rows are equal.
        """
        there, codes = codes.unique(return_inverse=True)
        classes, n_classes = classes.take(there.cpu().numpy()), len(there)
        if n_classes < 2:
            return None
        gaussians = _gaussians(rows, codes, n_classes)
        if gaussians is None:
            return None
        root = gaussians.within_root if gaussians.within_root.shape[1] else gaussians.total_root
        means = (gaussians.class_means @ root).float()
        shares = codes.bincount(minlength=n_classes).to(means) / len(codes)
        log_share = shares.log()
        start = torch.cat([means, (log_share - means.square().sum(1) / 2)[:, None]], 1)
        model = cls(
            classes, gaussians.mean, root.float(), start[:, :-1], start[:, -1], means.new_zeros(1)
        )
        some = _part(codes, CELLS // (n_classes * rows.shape[1]))
        few = len(some) < LEAST * n_classes
        if prior_precision == 0 or (few and prior_precision is None):
            return model
        x, y = model._whitened(rows[some.to(rows.device)]), codes[some].to(rows.device)
        origin = torch.cat([torch.zeros_like(means), log_share[:, None]], 1)
        best, prior_precision = _chosen(x, y, origin, prior_precision)
        best = _posterior_mode(x, y, best, prior_precision)
        return replace(
            model,
            weights=best[:, :-1].clone(),
            bias=best[:, -1].clone(),
            prior_precision=torch.tensor([prior_precision], device=rows.device),
        )

    def _whitened(self, rows: Tensor) -> Tensor:
        step = max(1, BLOCK_CELLS // rows.shape[1])
        parts = [directions(part)[0] - self.mean for part in rows.split(step)]
        return torch.cat([part.to(self.root) @ self.root for part in parts])

    @torch.no_grad()
    @full_precision()
    def log_odds(
        self,
        rows: Float[Tensor, "Q D"],
        labels: Int[Tensor, "Q K"],
        own: Int[Tensor, " Q"] | None = None,
    ) -> Float[Tensor, "Q K"]:
        """Return bounded log odds of ``labels``, codes of classes, in float64.

        Labels of -1, of a class that the model does not know, have ``p = 1 / (C + 1)``. ``own``:
        the class that is left out for each simulated open-set query, -1 for other queries.
        """
        n_classes, parts = len(self.bias), list[Tensor]()
        step = max(1, BLOCK_CELLS // max(n_classes, rows.shape[1]))
        for start in range(0, max(1, len(rows)), step):
            part = slice(start, start + step)
            logits = (self._whitened(rows[part]) @ self.weights.mT + self.bias).double()
            if own is not None:
                simulated = (own[part] >= 0).nonzero().flatten()
                logits[simulated, own[part][simulated]] = -torch.inf
            at = labels[part]
            log_p = logits.log_softmax(1).gather(1, at.clamp(min=0))
            odds = log_p - (-log_p.expm1()).log()
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
        place = self.classes.codes_of(classes.values)

        def known(codes: npt.NDArray[np.int64]) -> Tensor:
            there = np.where(codes < 0, -1, place[codes.clip(min=0)])
            return torch.from_numpy(there).to(rows.device)

        odds = self.log_odds(rows, known(labels), None if own is None else known(own))
        return np.where(labels < 0, 0.0, odds.cpu().numpy())

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "classes"}
        return own | self.classes.tensors("classes")

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> ClassModel:
        """Restore a model from what ``tensors`` returned.

        Raises
        ------
        ValueError
            For shapes that do not fit; ``KeyError`` if one is missing.
        """
        classes, names = Column.from_tensors("classes", tensors), [f.name for f in fields(cls)]
        parts = [tensors[name] for name in names[1:]]
        n_classes, width = parts[2].shape
        shapes = [(width,), (width, width), (n_classes, width), (n_classes,), (1,)]
        if [tuple(part.shape) for part in parts] != shapes or classes is None:
            raise ValueError(f"a class model of {n_classes} classes with other shapes")
        if len(classes) != n_classes:
            raise ValueError(f"a class model of {len(classes)} classes with {n_classes} weights")
        return cls(classes, *parts)


def _gaussians(rows: Tensor, codes: Tensor, n_classes: int) -> ClassGaussians | None:
    """Return mean, class means and whitening of all directions; None if they are alike."""
    sums = CentredSums.zeros(n_classes, rows[:1].float())
    step = max(1, BLOCK_CELLS // rows.shape[1])
    for part, own in zip(rows.split(step), codes.split(step), strict=True):
        u, lengths = directions(part)
        sums.add_(u, own.to(rows.device), lengths.isfinite())
    factors = sums.scatter().factors()
    if factors is None or len(factors.class_means) < n_classes:
        return None
    found = factors.gaussians()
    return found._replace(class_means=factors.class_means)


def _part(codes: Int[Tensor, " N"], most: int) -> Int[Tensor, " n"]:
    """Return rows of at most so many items, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(len(codes), generator=generator)[:most].sort().values


def _chosen(
    x: Tensor, y: Tensor, origin: Tensor, prior_precision: float | None
) -> tuple[Tensor, float]:
    """Return the precision by which a held-out fifth is likeliest, and its weights."""
    best = origin
    if prior_precision is not None:
        return best, prior_precision
    generator = torch.Generator().manual_seed(0)
    held = torch.zeros(len(y), dtype=torch.bool)
    held[torch.randperm(len(y), generator=generator)[: len(y) // FOLDS]] = True
    held = held.to(y.device)
    seen = torch.zeros(len(origin), dtype=torch.bool, device=y.device)
    seen[y[~held]] = True
    tests = held & seen[y]
    if not bool(tests.any()):
        return best, PRECISIONS[1]
    at, largest, chosen = origin, -np.inf, PRECISIONS[0]
    for candidate in PRECISIONS:
        at = _posterior_mode(x[~held], y[~held], at, candidate)
        log_p = (x[tests] @ at[:, :-1].mT + at[:, -1]).log_softmax(1)
        value = float(log_p.gather(1, y[tests, None]).mean())
        if value <= largest:
            break
        best, largest, chosen = at, value, candidate
    return best, chosen


def _posterior_mode(x: Tensor, y: Tensor, start: Tensor, prior_precision: float) -> Tensor:
    """Find ``argmax sum_n log p(y_n | x_n) - l/2 |w|^2`` [C, D + 1] by L-BFGS; b has a flat prior.

    The ascent is in w and ``b + w . m / 2``, the log share of a class under linear discriminant
    analysis: b and w hardly depend on each other then, and half the steps do.
    """
    from scipy.optimize import minimize

    n, n_classes = len(x), len(start)
    ones, own = x.new_ones(n, 1), y[:, None]
    step = max(1, (CACHED_CELLS if x.device.type == "cpu" else BLOCK_CELLS) // n_classes)
    blocks = list(zip(torch.cat([x, ones], 1).split(step), own.split(step), strict=True))
    half = torch.zeros_like(start[:, :-1]).index_add_(0, y, x)
    half /= 2 * y.bincount(minlength=n_classes).clamp(min=1)[:, None]

    def shifted(wb: Tensor, sign: float) -> Tensor:
        offset = wb[:, -1:] + sign * (wb[:, :-1] * half).sum(1, keepdim=True)
        return torch.cat([wb[:, :-1], offset], 1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        wb = shifted(torch.from_numpy(flat).to(x).reshape(start.shape), -1)
        value, slope = prior_precision / 2 * wb[:, :-1].square().sum(), wb.new_zeros(wb.shape[::-1])
        for rows, at in blocks:
            logits = rows @ wb.mT
            p = logits.softmax(1)  # log p by its largest, which no rounding makes 0
            value -= (logits.gather(1, at)[:, 0] - logits.amax(1) + p.amax(1).log()).sum()
            slope.addmm_(rows.mT, p.scatter_add_(1, at, -ones[: len(at)]))
        slope[:-1] += prior_precision * wb[:, :-1].mT - half.mT * slope[-1]
        return float(value) / n, (slope.mT / n).double().flatten().cpu().numpy()

    options = {"maxiter": ITERATIONS, "ftol": TOLERANCE, "gtol": 1e-6}
    begin = shifted(start, 1).double().flatten().cpu().numpy()
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return shifted(torch.from_numpy(found.x).to(x).reshape(start.shape), -1)


def inputs_of(encoded: Encoded) -> Float[Tensor, "N D"]:
    """Return the inputs of the head for a class model; the embedding if they are not stored."""
    rows = encoded.basis_inputs
    return rows if 0 < rows.shape[1] <= WIDEST else encoded.mean


def cross_fitted(
    rows: Float[Tensor, "N D"], codes: Int[Tensor, " N"], classes: Column, prior_precision: float
) -> tuple[list[ClassModel | None], Int[np.ndarray, " N"]]:
    """Fit one model without each fold; return them, and the fold of each row [N]."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))
    order = order[codes[order].argsort(stable=True)]  # every class is dealt out
    fold = torch.empty_like(codes)
    fold[order] = torch.arange(len(codes)) % FOLDS
    models = []
    for f in range(FOLDS):
        rest = (fold != f).nonzero().flatten()
        models.append(
            ClassModel.fit(rows[rest.to(rows.device)], codes[rest], classes, prior_precision)
        )
    return models, fold.numpy()
