"""Mahalanobis distance to the nearest class mean, with one covariance for all classes.

    M(x) = min_c (x - mu_c)^T Sigma^-1 (x - mu_c)                     (Lee et al. 2018, eq. 2)
    relative: M(x) - (x - mu)^T Sigma_0^-1 (x - mu)                   (Ren et al. 2021, eq. 3)
    normalise: M(x / |x|), of means and covariances of x / |x|        (Mueller and Hein 2025)

Sigma is the covariance of x - mu_y over the training set, mu and Sigma_0 are those of all of it.
Mahalanobis++ (arXiv 2505.18032) is the last line: lengths that differ much from input to input are
against the Gaussian with one covariance that M stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from torch import Tensor, nn

from baselines.base import Detector, Memory, Sizes
from baselines.base.neighbours import unit_rows
from laplace_metric._utils.validation import check_name

ESTIMATORS = {"empirical": EmpiricalCovariance, "ledoit_wolf": LedoitWolf}


@dataclass(eq=False, kw_only=True)
class Mahalanobis(Detector):
    """Distance to the classes; costs one forward pass, Z^2 and C Z products, no weights to train.

    ``uncertainty`` is the squared distance, without unit, >= 0; the relative one has any sign.

    Parameters
    ----------
    relative : bool
        Subtract the distance to the mean of all inputs. Default: False.
    covariance : "empirical" | "ledoit_wolf"
        Estimator of scikit-learn. "empirical", the default, is the paper's; where it is singular
        (fewer inputs than dimensions, dead features) its pseudo-inverse ignores directions that
        never varied, and "ledoit_wolf", which shrinks to a multiple of I, does not.
    normalise : bool
        Give vectors unit length, in training and after it (Mahalanobis++). A vector of zeros has no
        direction and stays at the origin, which is inside of the sphere of all others. Default:
        False.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = Mahalanobis(nn.Linear(4, 2)).fit([(x, y)], progress=False)
    >>> bool(method(x).uncertainty.mean() < method(10 * x).uncertainty.mean())
    True
    """

    relative: bool = False
    covariance: str = "empirical"
    normalise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("covariance", self.covariance, ESTIMATORS)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the means and the covariance of the classes, and of all inputs."""
        return {"classes": Memory("whitening", "centres"), "all": Memory("whitening", "centres")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Keep whitened means, by class and, if relative, of all."""
        vectors = self._scaled(vectors)
        self._describe("classes", vectors, labels)
        if self.relative:
            self._describe("all", vectors, torch.zeros_like(labels))

    def score(self, vectors: Tensor) -> Tensor:
        """Return the squared distance [B] to the nearest class."""
        vectors = self._scaled(vectors)
        nearest = self._distance("classes", vectors)
        return nearest - self._distance("all", vectors) if self.relative else nearest

    def _scaled(self, x: Tensor) -> Tensor:
        return unit_rows(x) if self.normalise else x

    def _describe(self, name: str, x: Tensor, labels: Tensor) -> None:
        """Keep A with ``A A^T = Sigma^-1`` and the means A^T mu_c."""
        x, n_classes = x.double(), int(labels.max()) + 1
        totals = x.new_zeros(n_classes, x.shape[1]).index_add_(0, labels, x)
        means = totals / labels.bincount()[:, None]
        estimator = ESTIMATORS[self.covariance](assume_centered=True)
        estimator.fit((x - means[labels]).cpu().numpy())
        values, basis = torch.linalg.eigh(torch.from_numpy(estimator.precision_))
        whitening = (basis * values.clamp_min(0).sqrt()).to(x)
        memory = self.parts[name]
        assert isinstance(memory, Memory)
        memory.store(whitening=whitening, centres=means @ whitening)

    def _distance(self, name: str, x: Tensor) -> Tensor:
        """Return ``min_c |A^T (x - mu_c)|^2`` [B], in float64."""
        memory = self.parts[name]
        white = x.double() @ memory.whitening  # type: ignore[operator]
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(white, memory.centres, compute_mode=exact)  # type: ignore[arg-type]
        return distances.square().amin(1).to(x.dtype)
