"""SNGP (Liu et al. 2020): a random-feature Gaussian process as the last layer of a classifier.

    loss = -log softmax(beta phi)_y                         phi = sqrt(2/R) cos(A z + b)
    p = softmax(beta phi / sqrt(1 + pi/8 v))                v = phi^T (ridge I + Phi^T Phi)^-1 phi

(Kirchhof et al. 2023b, eq. 7; the mean-field softmax after Lu et al. 2020.) ``Phi^T Phi`` is that
of the whole training set under the final weights, by one pass after the last epoch; published code
leaves the covariance at its start, where v is nearly the same for all inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.distance_aware import RandomFeatureProcess, spectral_normalize
from baselines.base.parts import vectors
from baselines.base.probabilities import entropy, mean_field
from baselines.base.settings import check_layer, check_not_negative, check_positive
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.inputs import Inputs
from laplace_metric.models._batches import labelled_batches

SCORES = ("entropy", "variance")


@dataclass(eq=False, kw_only=True)
class SNGP(Trained):
    """A distance-aware classifier; costs one forward pass, R W + R C and R^2 / 2 products.

    ``uncertainty`` is the entropy of the mean-field class probabilities, in nats, in [0, log C], or
    the variance v of a logit, in (0, 2 / ridge], which is that of the distance to the training set.
    Fitting reads the loader twice more than there are epochs: for the classes, and the covariance.

    Parameters
    ----------
    n_features : int
        Number R of random features (Liu et al.: 1024): R C weights are learnt, R (W + 1) are
        frozen, R^2 are the covariance. Default: 1024.
    lengthscale : float > 0
        Length scale l of the kernel ``exp(-|z - z'|^2 / (2 l^2 W))`` for vectors of W numbers, so
        in units of one coordinate of z; with ``layer_norm`` 1, the default, is a sensible start.
    ridge : float > 0
        Prior precision of the weights beta. Default: 1.
    mean_field_factor : float >= 0
        Factor of the variance in the mean-field probabilities; Liu et al. tune it on held-out data.
        Default: pi / 8. With 0 the variance is left out.
    layer_norm : bool
        True, the default, standardises vectors before phi (URL tunes it); without it choose the
        lengthscale to fit the scale of z.
    score : "entropy" | "variance"
        Uncertainty of an input: the "entropy", the default, or the "variance" v of a logit. With
        pi/8 and ridge 1 the entropy is nearly that of the logits: v is at most 2.
    spectral : bool
        True gives hidden linear and convolutional layers spectral norm 1: for networks trained from
        scratch, since it rescales every layer of a trained one. Default: False.
    on : "embedding" | "features"
        Inputs of phi: z [B, Z], the default, or h [B, D].

    Raises
    ------
    InputError
        For a setting out of its range; from ``fit``, if the loader cannot be gone through again.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = SNGP(nn.Linear(4, 2), n_features=64, training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    n_features: int = 1024
    lengthscale: float = 1.0
    ridge: float = 1.0
    mean_field_factor: float = math.pi / 8
    layer_norm: bool = True
    score: str = "entropy"
    spectral: bool = False
    on: str = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_features", self.n_features)
        if self.spectral and self.frozen:
            raise InputError("spectral=True changes the layers of the model: pass frozen=False.")
        check_layer(self.on)
        check_name("score", self.score, SCORES)
        check_positive(self, "lengthscale", "ridge")
        check_not_negative(self, "mean_field_factor")

    def prepare(self, head: LocatedHead) -> None:
        """Put spectral norms on the hidden layers, if asked to."""
        if self.spectral:
            spectral_normalize(self.model, head.module)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the Gaussian process."""
        w = sizes.width(self.on)
        lengthscale = self.lengthscale * math.sqrt(w)
        process = RandomFeatureProcess(w, sizes.classes, self.n_features, lengthscale, self.ridge)
        return {"process": process}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the process's logits."""
        return nn.functional.cross_entropy(self._process(self.read(activations)), labels)

    def after_training(self, data: Inputs, device: torch.device, progress: bool) -> None:
        """Set the covariance, by one pass with the final weights."""
        batches = labelled_batches(data, device, progress=progress, description="Covariance")
        self._process.observe(self.read(self.activations(x)) for x, _ in batches)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses with the entropy or the variance [B]."""
        x, process = self.read(activations), self._process
        variance = process.variance(x)
        if self.score == "variance":
            return self.points(activations, variance)
        return self.points(
            activations, entropy(mean_field(process(x), variance, self.mean_field_factor))
        )

    def read(self, activations: HeadActivations) -> Tensor:
        """Return inputs of phi [B, W]."""
        x = vectors(activations, self.on)
        return nn.functional.layer_norm(x, x.shape[-1:]) if self.layer_norm else x

    @property
    def _process(self) -> Any:
        return self.parts["process"]
