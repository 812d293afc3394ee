"""The prior precision: of one observation, of the trained weights, by evidence or by validation.

By default ``tau = tr(H) / P``, with H after the positivity step: the isotropic form of the
unit-information prior (Kass and Wasserman 1995), as precise on average over the P weights as what
one of the n_eff observations tells of them, since H is an average. It moves with the weights' unit
as the curvature does, so that no scale of the network changes a ranking, and every direction that
the data determine stands out. By layers, ``tau_l = tr(H_l) / P_l``.

``P / |theta|^2`` is the isotropic Gaussian of largest likelihood for the trained weights, under
which weights of their length are typical. Predictive vectors search under this one: on all networks
of the ablation it is thousands of times stronger, and what two inputs share beside the mean
embeddings then counts in every direction.

The score of a fit on validation data, as a function of its precision and temperature.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_function, check_positive, shown_argument
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, NonFiniteError, PriorAtEdgeWarning, callers_line
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._predicted import predicted_embedding, seen_at_head
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of

BOUNDS = (1e-6, 1e6)
"""Default range of tau."""
FLAT = 1e-6
"""Share of a prior precision below which the data tell nothing in any direction."""
TEMPERATURES = [2.0**power for power in range(-16, 5, 2)]
"""Candidates for the temperature."""


def of_trained_weights(mean: Tensor) -> float:
    """Return ``P / |theta|^2``; 1 where all weights are zero.

    Examples
    --------
    >>> import torch
    >>> of_trained_weights(torch.tensor([3.0, -4.0]))
    0.08
    """
    length = float(mean.double().square().sum())
    return len(mean) / length if length > 0 else 1.0


def of_one_observation(
    mean: Float[Tensor, " P"], eigenvalues: Float[Tensor, " P"], n_effective: float
) -> float:
    """Return ``tr(H) / P``, or that of the weights beside which the curvature is nothing.

    Examples
    --------
    >>> import torch
    >>> of_one_observation(torch.tensor([3.0, -4.0]), torch.tensor([3.0, 5.0]), n_effective=10)
    4.0
    >>> of_one_observation(torch.tensor([3.0, -4.0]), torch.zeros(2), n_effective=10)
    0.08
    """
    prior = of_trained_weights(mean)
    if n_effective * float(eigenvalues.max()) < FLAT * prior:
        return prior
    return float(eigenvalues.double().mean())


def of_layers(
    mean: Float[Tensor, " P"],
    eigenvalues: Float[Tensor, " P"],
    n_effective: float,
    layouts: Sequence[Layout],
) -> Float[Tensor, " P"]:
    """Return w [P], ``tr(H_l) / P_l`` of layer l in units of that of all layers.

    Examples
    --------
    >>> import torch
    >>> layers = [Layout(1, 1, bias=False), Layout(1, 1, bias=False)]
    >>> of_layers(torch.ones(2), torch.tensor([1.0, 3.0]), 10, layers) * 2
    tensor([1., 3.], dtype=torch.float64)
    """
    sizes = [layout.n_parameters for layout in layouts]
    pairs = zip(mean.split(sizes), eigenvalues.split(sizes), strict=True)
    layers = [
        torch.full_like(x, of_one_observation(x, spectrum, n_effective), dtype=torch.float64)
        for x, spectrum in pairs
    ]
    return torch.cat(layers) / of_one_observation(mean, eigenvalues, n_effective)


def check_bounds(bounds: Sequence[float]) -> tuple[float, float]:
    """Return (low, high); raise ``InputError`` unless 0 < low < high."""
    pair = tuple(bounds) if isinstance(bounds, Sequence) or np.ndim(bounds) == 1 else ()
    if len(pair) != 2:
        raise InputError(f"{shown_argument('bounds', bounds)}: pass (low, high).")
    low, high = check_positive("bounds[0]", pair[0]), check_positive("bounds[1]", pair[1])
    if low >= high:
        raise InputError(f"bounds={bounds!r}: low must be below high.")
    return low, high


def by_marginal_likelihood(posterior: Posterior, bounds: Sequence[float] = BOUNDS) -> float:
    """Return the tau that maximises the Laplace evidence, by a bounded search over log tau.

    About 35 evaluations of O(P). At a maximum inside the range
    ``tau = P_eff / |theta|^2`` with ``P_eff = sum n h / (n h + tau)`` (MacKay 1992, eq 2.22).
    """
    from scipy.optimize import minimize_scalar

    low, high = check_bounds(bounds)

    def loss(log_tau: float) -> float:
        return -posterior.log_prior_and_determinant(math.exp(log_tau))

    grid = np.linspace(math.log(low), math.log(high), 25)
    # the evidence may have several modes: begin next to the best point of a grid
    best = int(np.argmin([loss(x) for x in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    log_tau = float(minimize_scalar(loss, bounds=around, method="bounded").x)
    return warn_at_edge(math.exp(log_tau), low, high)


def sizes(n_points: int) -> list[float]:
    """Return candidates for n_effective: n_points times 10^-3, 10^-2, ... 10^3."""
    return [n_points * 10.0**power for power in range(-3, 4)]


def by_validation(
    score: Callable[[float, float], float],
    bounds: Sequence[float],
    n_effective: Sequence[float],
    n_grid: int = 13,
) -> tuple[float, float]:
    """Return the (tau, n_eff) with the highest ``score(tau, n_eff)``; ties take the largest tau.

    Parameters
    ----------
    score : function of (tau, n_eff)
        Validation metric; higher is better. NaN where it is undefined.
    bounds : (low, high)
        Range of tau, which is searched on a logarithmic grid.
    n_effective : sequence of float
        Candidates for n_eff.
    n_grid : int
        Number of values of tau.

    Raises
    ------
    NonFiniteError
        If the score is NaN everywhere (an undefined metric).
    """
    low, high = check_bounds(bounds)
    grid = [(float(tau), n) for tau in np.geomspace(high, low, n_grid) for n in n_effective]
    scores = np.array([score(tau, n) for tau, n in grid])
    if np.isnan(scores).all():
        raise NonFiniteError("the validation metric is NaN at every prior precision.")
    tau, n = grid[int(np.nanargmax(scores))]
    if len(n_effective) > 1:
        warn_at_edge(n, min(n_effective), max(n_effective), "n_effective")
    return warn_at_edge(tau, low, high), n


def temperature_by_validation(score: Callable[[float], float]) -> float:
    """Return the T in ``TEMPERATURES`` with the highest ``score(T)``; ties take the smallest.

    Raises
    ------
    NonFiniteError
        If the score is NaN everywhere (an undefined metric).
    """
    scores = np.array([score(t) for t in TEMPERATURES])
    if np.isnan(scores).all():
        raise NonFiniteError("the validation metric is NaN at every temperature.")
    best = TEMPERATURES[int(np.nanargmax(scores))]
    return warn_at_edge(best, min(TEMPERATURES), max(TEMPERATURES), "temperature")


def warn_at_edge(value: float, low: float, high: float, name: str = "prior precision") -> float:
    """Return the value; warn when it lies within 2 % (of the log range) of an end."""
    position = math.log(value / low) / math.log(high / low)
    if position < 0.02 or position > 0.98:
        warnings.warn(
            f"the tuned {name} {value:.3g} is at the edge of the searched range "
            f"[{low:.3g}, {high:.3g}]: the data do not determine it there. Widen bounds=, or set "
            "prior_precision and n_effective yourself.",
            PriorAtEdgeWarning,
            stacklevel=callers_line(),
        )
    return value


Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""
Score = Callable[[float, float, float], float]
"""(prior precision, n_effective, temperature) -> score, higher is better."""


def validation_score(
    model: nn.Module,
    fitted: Fitted,
    labelled: Inputs | None,
    metric: Metric | None,
    *,
    progress: bool,
) -> Score:
    """Return the function (prior precision, n_effective, temperature) -> metric on labelled inputs.

    Raises
    ------
    InputError
        Without loader and metric, or if the metric returns no number.
    """
    if labelled is None or metric is None:
        raise InputError("method='validation' needs loader= and metric=.")
    check_function("metric", metric, "embedding", "labels")
    device = device_of(model)
    batches = labelled_batches(labelled, device, progress=progress, description="Validating")
    seen: list[HeadActivations] = []
    target = torch.empty(0, dtype=torch.int64, device=device)
    for inputs, labels in batches:
        with rows_before(len(target)):
            seen.append(seen_at_head(model, fitted, inputs))
        target = torch.cat([target, labels])
    activations = HeadActivations.concatenate(seen)

    def score(tau: float, n_effective: float, temperature: float) -> float:
        tuned = fitted.with_precision(tau, n_effective).with_temperature(temperature)
        embedding = predicted_embedding(activations.features, activations.raw, tuned)
        value = metric(embedding, target)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"metric gave {value!r:.60}: let it return one number, higher is better."
            ) from error

    return score
