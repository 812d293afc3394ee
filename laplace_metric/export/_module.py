"""An embedder as one plain module without hooks, with its posterior in buffers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.errors import HeadError
from laplace_metric.export._variance import HeadVariance
from laplace_metric.familiarity._class_gaussians import others_of, row_weights
from laplace_metric.familiarity._near_far import NOTHING_ENTERS, NearFar, largest
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import ChainJacobian, HeadJacobian, LinearJacobian
from laplace_metric.heads._locate import LocatedHead, PointwiseHead, averaged
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.models import Precomputed, Sentences
from laplace_metric.models._calling import call_model

Seen = dict[str, list[Tensor]]


class Tapped(nn.Module):
    """inputs -> (h [B, D], z [B, Z]), at least float32, by a copy of the model in evaluation mode.

    The copy's modules at both ends of the head are of a class of their own, derived from theirs,
    whose ``forward`` also notes its input or output for the call that is running.

    Parameters
    ----------
    model : nn.Module
    head : LocatedHead
    """

    def __init__(self, model: nn.Module, head: LocatedHead) -> None:
        super().__init__()
        memo: dict[int, Any] = {}
        self.model = _traceable(deepcopy(model, memo)).eval().requires_grad_(False)
        self.head = None
        self._seen: Seen = {"h": [], "z": []}
        if head.parts is None:
            self.head = deepcopy(head.module).eval().requires_grad_(False)
            return
        first, last = (memo[id(part)] for part in head.parts)
        self._pooled = isinstance(head.module, PointwiseHead)
        _tap(first, self._seen, "h")
        _tap(last, self._seen, "z")

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Inputs of one batch, as a model is called (``models._calling.Inputs``)."""
        entered, left = self._seen["h"], self._seen["z"]
        entered.clear()  # of a call that failed
        left.clear()
        output = call_model(self.model, inputs)
        if self.head is not None:
            h = output.to(next(self.head.parameters()).dtype)
            return at_least_float32(h), at_least_float32(self.head(h))
        if len(left) != 1:
            raise HeadError(f"the head ran {len(left)} times in one forward pass, not once.")
        h, z = entered.pop(), left.pop()
        if self._pooled:
            h, z = averaged(h), averaged(z)
        return at_least_float32(h), at_least_float32(z)


def _tap(module: nn.Module, seen: Seen, which: str) -> None:
    """Note h, which enters the module, or a copy of z, which a later step may change in place."""
    kind: Any = type(module)

    class Noting(kind):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            getattr(self, f"seen_{which}")[which].append(
                args[0] if which == "h" else output.clone()
            )
            return output

    Noting.__name__ = kind.__name__
    module.__class__ = Noting
    setattr(module, f"seen_{which}", seen)


class Tokens(nn.Module):
    """Tokens by name -> embeddings [B, Z]: what ``Sentences`` does behind its tokenizer."""

    def __init__(self, sentences: Sentences) -> None:
        super().__init__()
        self.model = sentences.model
        self.size = sentences.model.truncate_dim

    def forward(self, **tokens: Tensor) -> Tensor:
        """[B, Z]."""
        output = self.model(tokens)
        embeddings: Tensor = output["sentence_embedding"]
        return embeddings[:, : self.size]


class _Arrays(nn.Module):
    """Embeddings as they are."""

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def _traceable(model: nn.Module) -> nn.Module:
    """Without what no graph holds: a tokenizer, and checks of numbers."""
    if isinstance(model, Sentences):
        return Tokens(model)
    return _Arrays() if isinstance(model, Precomputed) else model


# What ``Embedding.epistemic`` needs as a plain graph (``familiarity._near_far`` has the equations).


class Familiarity(nn.Module):
    """h [B, D] -> ``Embedding.epistemic`` [B].

    What ``Embedding.epistemic`` refuses has a number here: ``NOTHING_ENTERS`` for rows of zeros,
    as in an index; NaN for NaN and infinity.
    """

    mean: Tensor
    total_root: Tensor
    root: Tensor
    points: Tensor
    white: Tensor
    row_weights: Tensor
    classes: Tensor
    weights: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, near_far: NearFar) -> None:
        super().__init__()
        self.knows_classes = len(near_far.class_means) > 0
        root = near_far.within_root if self.knows_classes else near_far.total_root
        for name in ("mean", "total_root", "points"):
            self.register_buffer(name, getattr(near_far, name).clone())
        for name in ("weights", "centre", "scale"):
            self.register_buffer(name, getattr(near_far, name).to(root))
        self.register_buffer("root", root.clone())
        self.register_buffer("row_weights", row_weights(len(root)).to(near_far.points))
        self.register_buffer("classes", near_far.class_means @ root)
        self.register_buffer("white", near_far.points @ root.to(near_far.points))

    def forward(self, h: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """epistemic [B]."""
        wide = h.double()
        longest = wide.abs().amax(1, keepdim=True)
        wide = wide / torch.where(longest > 0, longest, 1.0)  # squares neither over- nor underflow
        length = wide.square().sum(1, keepdim=True).sqrt()
        u = wide / torch.where(length > 0, length, 1.0)
        x = (u - self.mean).to(self.root.dtype)
        a, far = x @ self.root, (x @ self.total_root).square().sum(1)
        near = _nearest(a, self.classes) - far if self.knows_classes else torch.zeros_like(far)
        exact = self.points.dtype
        asked, white = x.to(exact), a.to(exact)
        points = others_of(asked, self.points, white, self.white, self.row_weights)
        scores = torch.stack([near, far, *(part.to(far.dtype) for part in points)], 1)
        z = (scores - self.centre[:4]) / self.scale[:4]
        number = (largest(z, self.weights, self.centre, self.scale) - self.centre[5]) / self.scale[
            5
        ]
        return torch.where(longest[:, 0] == 0, NOTHING_ENTERS, number)


def _nearest(a: Float[Tensor, "B D"], points: Float[Tensor, "S D"]) -> Float[Tensor, " B"]:
    """Squared distance to the nearest point; that difference is not expanded."""
    nearest = (points.square().sum(1) - 2 * a @ points.mT).argmin(1)
    return (a - points[nearest]).square().sum(1)


# ``EmbedderModule``: a fitted embedder as one ``nn.Module`` whose posterior is buffers.


OUTPUTS = ("mean", "epistemic", "uncertainty")


class Numbers(NamedTuple):
    """Outputs of a graph for B inputs.

    Parameters
    ----------
    mean : Tensor [B, Z]
        The embedding to search with (unit length on the sphere).
    epistemic : Tensor [B]
        ``Embedding.epistemic``, in standard deviations of the fit set; the uncertainty where the
        fit keeps nothing to compare with, as in an index.
    uncertainty : Tensor [B]
        Trace of the covariance, the expected squared error of the embedding.
    """

    mean: Float[Tensor, "B Z"]
    epistemic: Float[Tensor, " B"]
    uncertainty: Float[Tensor, " B"]


class EmbedderModule(nn.Module):
    """A copy of a fitted embedder as a module: inputs -> ``Numbers``.

    What can be done with a module can be done with it: ``to(device)``, ``state_dict``,
    ``torch.compile``, autocast (of the model; its head's numbers stay float32), inference mode.
    It is always in evaluation mode and has no trainable weights. It draws nothing, refuses
    nothing (NaN in, NaN out) and is for one thread at a time; ``LaplaceEmbedder`` is for many.

    Parameters
    ----------
    model : nn.Module
        Copied, as the tensors of ``fitted`` are.
    fitted : Fitted

    Raises
    ------
    HeadError
        For a head that is neither linear nor a chain of linear layers with elementwise
        activations.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
    >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
    >>> numbers = embedder.as_module()(x[:3])
    >>> numbers.mean.shape, numbers.epistemic.shape
    (torch.Size([3, 8]), torch.Size([3]))
    """

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        super().__init__()
        jacobian = _analytic(fitted.head, fitted.jacobian)
        self.spherical = fitted.spherical
        self.variance = HeadVariance(jacobian, fitted.posterior, spherical=self.spherical)
        self.familiarity = None if fitted.near_far is None else Familiarity(fitted.near_far)
        self.body = Tapped(model, fitted.head)
        self.train(False)

    def train(self, mode: bool = True) -> EmbedderModule:
        """Stay in evaluation mode."""
        super().train(False)
        return self

    @property
    def compares_with(self) -> str:
        """Return "classes and points" or "points", of the fit set, or "uncertainty"."""
        if self.familiarity is None:
            return "uncertainty"
        return "classes and points" if self.familiarity.knows_classes else "points"

    def forward(self, *args: Any, **kwargs: Any) -> Numbers:
        """Run with the model's own inputs: tensors by place or name, a mapping, or a tuple."""
        h, z = self.body(kwargs or (args[0] if len(args) == 1 else args))
        if not torch.is_autocast_enabled(h.device.type):
            return self._numbers(h, z)
        with full_precision():
            return self._numbers(h, z)

    def _numbers(self, h: Tensor, z: Tensor) -> Numbers:
        uncertainty = self.variance(h, z)
        mean = nn.functional.normalize(z, dim=-1) if self.spherical else z
        if self.familiarity is None:
            return Numbers(mean, uncertainty.clone(), uncertainty)
        return Numbers(mean, self.familiarity(h), uncertainty)


def _analytic(head: LocatedHead, jacobian: HeadJacobian) -> LinearJacobian | ChainJacobian:
    """The head as linear layers, whatever differentiated it in the fit."""
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
