"""Diagnosis of a posterior: numbers that explain its uncertainties, and findings in words."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

from torch import Tensor

from laplace_metric.curvature._spectral_curvature import NEGATIVE_SHARE
from laplace_metric.embedding import WIDE
from laplace_metric.errors import PriorAtEdgeWarning, UndefinedMetricWarning, callers_line
from laplace_metric.laplace._fitted import Draws
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._prior_precision import by_marginal_likelihood

NEARLY_CONSTANT = 0.05
PRIOR_DOMINATED = 0.01
LOST = 0.03
"""Recall that draws may lose before it is told."""


@dataclass(frozen=True)
class Uncertainties:
    """Variation of the uncertainty of some inputs.

    Parameters
    ----------
    mean : float
        Average uncertainty of the inputs.
    variation : float >= 0
        Standard deviation over mean; below 0.05 it is nearly constant.
    length_correlation : float in [-1, 1]
        Spearman correlation with ``1 / |z|^2``; near 1 the length of the raw embedding explains it.
        NaN, with a warning, where all uncertainties or all lengths are equal.
    """

    mean: float
    variation: float
    length_correlation: float

    @classmethod
    def of(cls, uncertainty: Tensor, raw: Tensor) -> Uncertainties:
        """Summarise uncertainties [B] of inputs with raw embeddings [B, Z]."""
        from scipy.stats import spearmanr

        mean = float(uncertainty.mean())
        spread = float(uncertainty.std(correction=0)) / mean if mean > 0 else 0.0
        lengths = raw.double().square().sum(1).reciprocal()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of SciPy: ours says which number it is
            rho = float(spearmanr(uncertainty.cpu(), lengths.cpu()).statistic)
        if math.isnan(rho):
            warnings.warn(
                "all inputs have one uncertainty or one length: length_correlation is NaN.",
                UndefinedMetricWarning,
                stacklevel=callers_line(),
            )
        return cls(mean, spread, rho)


@dataclass(frozen=True)
class Diagnosis:
    """Numbers that describe a posterior, and ``findings`` in words; ``print`` shows both.

    Parameters
    ----------
    n_parameters : int
        Number P of parameters of the head.
    n_effective_parameters : float in [0, P]
        ``sum n l / (n l + tau)``: directions that the data determine rather than the prior.
    prior_dominated : float in [0, 1]
        Share of directions with ``n l < tau``.
    negative_fraction : float in [0, 1]
        Share of the curvature that was negative before the positivity step.
    largest, median : float
        Largest and median precision ``n l`` that the data contribute in an eigendirection.
    prior_precision, evidence_prior_precision : float
        The prior precision tau in use, and the one with the highest log marginal likelihood.
    uncertainties : Uncertainties or None
        Variation of the uncertainty of the inputs. None, the default: no inputs were given.
    temperature : float > 0
        Temperature T in use. Default: 1.
    draws : Draws or None
        Spread and recall of heads that were drawn. None, the default: points of the fit were not
        kept, or the posterior was tuned since.
    findings : tuple of str
        Unusual numbers among these and the advice that follows, one or two sentences each;
        "nothing unusual." if there are none. Default: empty, numbers were not assessed.
    """

    n_parameters: int
    n_effective_parameters: float
    prior_dominated: float
    negative_fraction: float
    largest: float
    median: float
    prior_precision: float
    evidence_prior_precision: float
    uncertainties: Uncertainties | None = None
    temperature: float = 1.0
    draws: Draws | None = None
    findings: tuple[str, ...] = ()

    def __str__(self) -> str:
        share = self.n_effective_parameters / self.n_parameters
        lines = [
            f"parameters              {self.n_parameters:,}",
            f"determined by the data  {self.n_effective_parameters:,.1f} ({share:.1%})",
            f"prior-dominated         {self.prior_dominated:.1%} of the directions",
            f"curvature negative      {self.negative_fraction:.1%}",
            f"data precision n*l      median {self.median:.3g}, largest {self.largest:.3g}",
            f"prior precision         {self.prior_precision:.3g} "
            f"(log marginal likelihood prefers {self.evidence_prior_precision:.3g})",
        ]
        lines.append(f"temperature             {self.temperature:.3g}")
        if self.draws is not None:
            lines.append(f"draws                   {self.draws}")
        if self.uncertainties is not None:
            u = self.uncertainties
            lines.append(f"uncertainty             mean {u.mean:.3g}, variation {u.variation:.1%}")
            lines.append(f"  rank correlation with 1/|z|^2: {u.length_correlation:.2f}")
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])


def diagnose(
    posterior: Posterior,
    *,
    vanishes: bool,
    uncertainties: Uncertainties | None = None,
    draws: Draws | None = None,
) -> Diagnosis:
    """Describe a posterior, and the uncertainties of some inputs if they are given.

    Parameters
    ----------
    posterior : Posterior
        Posterior to describe.
    vanishes : bool
        True if this curvature is zero for balanced classes (``ContrastiveLoss.vanishes``).
    uncertainties : Uncertainties or None
        Summary of the uncertainties of the inputs in question. None, the default: there are none.
    draws : Draws or None
        Spread and recall of heads drawn from this posterior. None, the default: not known.
    """
    gained = posterior.n_effective * posterior.curvature.eigenvalues
    tau = posterior.prior_precision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PriorAtEdgeWarning)
        evidence = by_marginal_likelihood(posterior)
    numbers = Diagnosis(
        n_parameters=len(gained),
        n_effective_parameters=posterior.n_effective_parameters,
        prior_dominated=float((gained < posterior.prior()).double().mean()),
        negative_fraction=posterior.curvature.negative_fraction,
        largest=float(gained.max()),
        median=float(gained.median()),
        prior_precision=tau,
        evidence_prior_precision=evidence,
        uncertainties=uncertainties,
        temperature=posterior.temperature,
        draws=draws,
    )
    return replace(numbers, findings=tuple(_findings(numbers, vanishes)))


def _findings(d: Diagnosis, vanishes: bool) -> list[str]:
    advice = []
    share = d.n_effective_parameters / d.n_parameters
    if vanishes:
        advice.append(
            "degenerate: hessian='fixed' with distance='euclidean' and no margin is zero for "
            "balanced classes. Use distance='arccos', hessian='positives' or a finite margin."
        )
    if d.negative_fraction >= NEGATIVE_SHARE:
        advice.append(
            f"{d.negative_fraction:.0%} of the curvature was negative: pairs that repel weigh as "
            "much as those that attract. With positivity='absolute' it counts by its size: a "
            'ranking heuristic, not an approximation of a posterior; "clip" leaves those '
            "directions to the prior. Balance the classes, or use hessian='positives' with "
            "distance='euclidean', which is never negative."
        )
    if share < PRIOR_DOMINATED:
        advice.append(
            f"prior-dominated: the data determine {share:.2%} of the parameters, so the covariance "
            "is nearly 1/prior_precision in every direction. Lower prior_precision, raise "
            "n_effective, or call tune_prior()."
        )
    if d.draws is not None and d.draws.spread > WIDE:
        advice.append(
            f"wide: draws lie {d.draws.spread:.2g} from their means (mean squared; uniform "
            f"directions have 2). Pass a temperature below {d.temperature:.2g}."
        )
    if d.draws is not None and d.draws.recall < d.draws.recall_of_means - LOST:
        advice.append(
            f"draws retrieve less than their means: recall@1 {d.draws.recall:.2f}, of the means "
            f"{d.draws.recall_of_means:.2f}. Pass a temperature below {d.temperature:.2g}."
        )
    u = d.uncertainties
    if u is not None and u.variation < NEARLY_CONSTANT:
        advice.append(
            f"nearly constant: the uncertainty of these inputs varies by {u.variation:.1%} of its "
            "mean, so it cannot rank them."
        )
    if u is not None and u.length_correlation > 0.95:
        advice.append(
            "the uncertainty ranks these inputs as 1/|z|^2 does: on the sphere the length of the "
            "raw embedding explains it."
        )
    return advice or ["nothing unusual."]
