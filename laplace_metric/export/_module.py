"""``EmbedderModule``: a fitted embedder as one ``nn.Module`` whose posterior is buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.validation import check_positive
from laplace_metric.errors import HeadError
from laplace_metric.export._familiarity import Familiarity
from laplace_metric.export._head_variance import HeadVariance
from laplace_metric.export._predictive import PredictiveOutput, RankedVectors
from laplace_metric.export._tapped import Tapped
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._row_checks import SHORTEST
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._predictive_vectors import PredictiveVectors

# ``EmbedderModule``: a fitted embedder as one ``nn.Module`` whose posterior is buffers.


OUTPUTS, PREDICTIVE = ("mean", "epistemic", "uncertainty"), "predictive"


class Numbers(NamedTuple):
    """Outputs of a graph for B inputs.

    Parameters
    ----------
    mean : Tensor [B, Z]
        Embeddings to search with (unit length on the sphere).
    epistemic : Tensor [B]
        Epistemic numbers, as ``Embedding.epistemic``, in standard deviations of the fit set; the
        uncertainty where the fit keeps nothing to compare with, as in an index.
    uncertainty : Tensor [B]
        Expected squared distance of the embedding from its mean: ``Embedding.uncertainty``.
    """

    mean: Float[Tensor, "B Z"]
    epistemic: Float[Tensor, " B"]
    uncertainty: Float[Tensor, " B"]


class PredictiveNumbers(NamedTuple):
    """Outputs of a graph with predictive vectors, for B inputs.

    Parameters
    ----------
    mean : Tensor [B, Z]
        Embeddings, as of ``Numbers``.
    epistemic, uncertainty : Tensor [B]
        Uncertainties, as of ``Numbers``.
    predictive : Tensor [B, d]
        Vectors whose inner products are the expected ones, as ``predictive_vectors`` returns them,
        or those by which an index ranks.
    """

    mean: Float[Tensor, "B Z"]
    epistemic: Float[Tensor, " B"]
    uncertainty: Float[Tensor, " B"]
    predictive: Float[Tensor, "B d"]


class EmbedderModule(nn.Module):
    """A copy of a fitted embedder as a module: inputs -> ``Numbers``, or ``PredictiveNumbers``.

    What can be done with a module can be done with it: ``to(device)``, ``state_dict``,
    ``torch.compile``, autocast (of the model; its head's numbers stay float32), inference mode.
    It is always in evaluation mode and has no trainable weights. It draws nothing, refuses
    nothing (NaN in, NaN out) and is for one thread at a time; ``LaplaceEmbedder`` is for many.

    Parameters
    ----------
    model : nn.Module
        Model of the embedder; it is copied, as the tensors of ``fitted`` are.
    fitted : Fitted
        Posterior of this model.
    predictive_temperature : float > 0 or None
        Temperature of predictive vectors. None, the default: there are none.
    ranked : RankedVectors or None
        Vectors by which an index ranks, in their place. None, the default: no index.

    Raises
    ------
    HeadError
        For a head that is neither linear nor a chain of linear layers with elementwise
        activations; for predictive vectors, for one that is not one linear layer.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
    >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
    >>> numbers = embedder.as_module()(x[:3])
    >>> numbers.mean.shape, numbers.epistemic.shape
    (torch.Size([3, 8]), torch.Size([3]))
    """

    def __init__(
        self,
        model: nn.Module,
        fitted: Fitted,
        predictive_temperature: float | None = None,
        ranked: RankedVectors | None = None,
    ) -> None:
        super().__init__()
        self.predictive, layer = None, None
        if predictive_temperature is not None:
            t = check_positive("predictive_temperature", predictive_temperature)
            vectors = PredictiveVectors.of(fitted)
            factor = t / fitted.predictive_posterior.temperature
            self.predictive = PredictiveOutput(vectors, factor)
        if ranked is not None:
            layer, self.predictive = ranked.layer, PredictiveOutput(*ranked)
        jacobian = _analytic(fitted.head, fitted.jacobian)
        self.spherical = fitted.spherical
        self.variance = HeadVariance(jacobian, fitted.posterior, spherical=self.spherical)
        self.familiarity = None if fitted.near_far is None else Familiarity(fitted.near_far)
        self.body = Tapped(model, fitted.head, None if layer is None else layer.name)
        self.train(False)

    def train(self, mode: bool = True) -> EmbedderModule:
        """Stay in evaluation mode."""
        super().train(False)
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it returns, in order."""
        return OUTPUTS if self.predictive is None else (*OUTPUTS, PREDICTIVE)

    @property
    def compares_with(self) -> str:
        """Return "classes and points" or "points", of the fit set, or "uncertainty"."""
        if self.familiarity is None:
            return "uncertainty"
        return "classes and points" if self.familiarity.knows_classes else "points"

    def forward(self, *args: Any, **kwargs: Any) -> Numbers | PredictiveNumbers:
        """Run with the model's own inputs: tensors by place or name, a mapping, or a tuple."""
        h, z, g = self.body(kwargs or (args[0] if len(args) == 1 else args))
        if not torch.is_autocast_enabled(h.device.type):
            return self._all_numbers(h, z, g)
        with full_precision():
            return self._all_numbers(h, z, g)

    def _all_numbers(self, h: Tensor, z: Tensor, g: Tensor | None) -> Numbers | PredictiveNumbers:
        numbers = self._numbers(h, z)
        if self.predictive is None:
            return numbers
        return PredictiveNumbers(*numbers, self.predictive(h, z, g))

    def _numbers(self, h: Tensor, z: Tensor) -> Numbers:
        uncertainty, mean = self.variance(h, z), z
        if self.spherical:
            mean = _directions(z)
            fine = mean[..., 0].isfinite() & uncertainty.isfinite()
            uncertainty = torch.where(fine, uncertainty, torch.nan)
        if self.familiarity is None:
            return Numbers(mean, uncertainty.clone(), uncertainty)
        return Numbers(mean, self.familiarity(h), uncertainty)


def _directions(z: Tensor) -> Tensor:
    """Return rows at length 1, NaN for rows that Python refuses: a graph raises no error."""
    longest = z.abs().amax(-1, keepdim=True)  # whose squares neither overflow nor vanish
    u = z / longest
    length = u.square().sum(-1, keepdim=True).sqrt()
    return torch.where(longest * length >= SHORTEST, u / length, torch.nan)


def _analytic(head: LocatedHead, jacobian: HeadJacobian) -> LinearJacobian | ChainJacobian:
    """Return the head as linear layers, whatever differentiated it in the fit."""
    if isinstance(jacobian, (LinearJacobian, ChainJacobian)):
        return jacobian
    try:
        found = jacobian_of(head.module, head.n_outputs, "analytic")
        assert isinstance(found, (LinearJacobian, ChainJacobian))
        return found
    except HeadError as error:
        raise HeadError(
            f"head {head.name!r} is a {type(head.module).__name__}, and a graph of its "
            "uncertainty needs nn.Linear, or nn.Sequential of linear layers with elementwise "
            "activations between them: fit with such a head, or with head='append'."
        ) from error
