"""An embedder as one plain module without hooks, with its posterior in buffers.

The trace of an embedding's covariance as a plain graph, from buffers.

With C = J S J^T, u = z / |z| and T = I - u u^T,

    raw       tr C                        sphere     tr T C T / |z|^2

Of a chain of linear layers (one for a linear head), layer l has ``J_l = M_l (x) a_l^T``, and with
S diagonal in Q_S (x) Q_A, V [O, A] its eigenvalues,

    tr T C T = sum_l sum_o v_lo |T M_l q_o|^2,    v_l = V (Q_A^T a_l)^2

so that on the sphere no term is subtracted from another. M of the last layer is the identity,
``|T q_o|^2 = 1 - (u^T q_o)^2``. A dense S = Q diag(s) Q^T takes J itself: ``|T J Q s^(1/2)|^2``.
The slopes of activations are forward derivatives, which a graph can hold.

Warburg et al. 2023, section 3, have the diagonal case.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import at_least_float32, full_precision
from laplace_metric.curvature._eigenbases import DenseEigenbasis, KroneckerEigenbasis
from laplace_metric.errors import HeadError
from laplace_metric.familiarity._class_gaussians import others_of, row_weights
from laplace_metric.familiarity._near_far import NOTHING_ENTERS, NearFar, foreign_sum, length_of
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import ChainJacobian, HeadJacobian, LinearJacobian
from laplace_metric.heads._locate import LocatedHead, PointwiseHead, averaged
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
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
    length: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, near_far: NearFar) -> None:
        super().__init__()
        self.knows_classes = len(near_far.class_means) > 0
        root = near_far.within_root if self.knows_classes else near_far.total_root
        for name in ("mean", "total_root", "points", "length"):
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
        w = length_of((longest.log() + length.log())[:, 0], self.length).to(z)
        number = foreign_sum(z, w, self.weights, self.centre, self.scale)
        number = (number - self.centre[5]) / self.scale[5]
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


# The trace of an embedding's covariance as a plain graph, from buffers.

LayerInputs = list[tuple[Tensor, Tensor | None]]
"""a_l [B, A] and M_l [B, Z, O], None for the identity, from the first layer to the last."""


class HeadVariance(nn.Module):
    """h [B, D] and z [B, Z] -> the trace [B], as ``Embedding.uncertainty`` has it.

    Parameters
    ----------
    head : LinearJacobian or ChainJacobian
    posterior : Posterior
    spherical : bool
        Whether embeddings are directions.
    """

    root: Tensor | None

    def __init__(
        self, head: LinearJacobian | ChainJacobian, posterior: Posterior, *, spherical: bool
    ) -> None:
        super().__init__()
        linears = head.linears if isinstance(head, ChainJacobian) else (head,)
        self.activations = head.activations if isinstance(head, ChainJacobian) else ()
        self.layouts, self.spherical = head.layouts, spherical
        for i, linear in enumerate(linears if self.activations else ()):
            self._keep(f"weight_{i}", linear.weight)
            self._keep(f"bias_{i}", linear.bias)
        basis, spectrum = posterior.basis, posterior.spectrum
        self._keep("root", None)
        if isinstance(basis, DenseEigenbasis):  # R = Q s^(1/2) [P, P]
            root = basis.vectors * spectrum.sqrt()
            if len(linears) == 1:  # [A, Z, P]: a linear head needs no J
                root = self.layouts[0].fold(root.mT).permute(2, 1, 0)
            self.root = root.contiguous()
            return
        parts = spectrum.split([layout.n_parameters for layout in self.layouts])
        for i, (layout, part) in enumerate(zip(self.layouts, parts, strict=True)):
            block = basis.blocks[i] if isinstance(basis, KroneckerEigenbasis) else None
            variances = layout.fold(part) if block is None else block.fold(part)
            self._keep(f"variances_{i}", variances.mT.contiguous())
            self._keep(f"left_{i}", None if block is None else block.left)
            self._keep(f"right_{i}", None if block is None else block.right)

    def _keep(self, name: str, tensor: Tensor | None) -> None:
        self.register_buffer(name, None if tensor is None else tensor.clone())

    def forward(self, h: Float[Tensor, "B D"], z: Float[Tensor, "B Z"]) -> Float[Tensor, " B"]:
        """The trace [B]."""
        square = z.square().sum(1, keepdim=True)
        u = z / square.sqrt() if self.spherical else None
        layers = self._layers(h)
        if self.root is not None:
            total = self._dense(layers, u)
        else:
            parts = [self._part(i, a, m, u) for i, (a, m) in enumerate(layers)]
            total = torch.stack(parts).sum(0)
        return total / square[:, 0] if self.spherical else total

    def _layers(self, h: Tensor) -> LayerInputs:
        inputs: list[Tensor] = [h]
        slopes: list[Tensor] = []
        factors: list[Tensor | None] = [None]
        for i, group in enumerate(self.activations):
            s = nn.functional.linear(
                inputs[-1], self.get_buffer(f"weight_{i}"), getattr(self, f"bias_{i}")
            )
            value, slope = value_and_slope(group, s)
            inputs.append(value)
            slopes.append(slope)
        for i in reversed(range(len(slopes))):
            weight, behind = self.get_buffer(f"weight_{i + 1}"), factors[0]
            behind = weight if behind is None else behind @ weight
            factors.insert(0, behind * slopes[i][:, None, :])
        augmented = [x.augment(a) for x, a in zip(self.layouts, inputs, strict=True)]
        return list(zip(augmented, factors, strict=True))

    def _part(self, i: int, a: Tensor, m: Tensor | None, u: Tensor | None) -> Tensor:
        """One layer's part of the trace [B], S diagonal in its own basis."""
        left, right = getattr(self, f"left_{i}"), getattr(self, f"right_{i}")
        seen = a if right is None else a @ right
        v = seen.square() @ self.get_buffer(f"variances_{i}")  # [B, O]
        if m is None:
            if u is None:
                return v.sum(1)
            along = u if left is None else u @ left
            return (v * (1 - along.square())).sum(1)
        m = m if left is None else m @ left
        return (v * _projected(m, u).square().sum(1)).sum(1)

    def _dense(self, layers: LayerInputs, u: Tensor | None) -> Tensor:
        assert self.root is not None
        if len(layers) == 1:
            f = (layers[0][0] @ self.root.flatten(1)).unflatten(1, self.root.shape[1:])
            return _projected(f, u).square().sum((1, 2))
        jacobians = []
        for (a, m), layout in zip(layers, self.layouts, strict=True):
            identity = torch.eye(layout.n_outputs, dtype=a.dtype, device=a.device)[None]
            m = identity if m is None else m
            jacobians.append(layout.flatten(m[..., None] * a[:, None, None, :]))
        f = torch.cat(jacobians, 2) @ self.root
        return _projected(f, u).square().sum((1, 2))


def value_and_slope(group: Sequence[nn.Module], s: Float[Tensor, "B O"]) -> tuple[Tensor, Tensor]:
    """phi(s) and phi'(s) [B, O] of activations one after the other.

    Examples
    --------
    >>> value_and_slope([nn.ReLU()], torch.tensor([[-1.0, 2.0]]))
    (tensor([[0., 2.]]), tensor([[0., 1.]]))
    """

    def phi(x: Tensor) -> Tensor:
        for module in group:
            if isinstance(module, nn.SiLU):  # ONNX has no form of its own derivative
                x = x * x.sigmoid()
            elif not isinstance(module, nn.Dropout):
                x = module(x.clone())  # it may work in place
        return x

    value, slope = torch.func.jvp(phi, (s,), (torch.ones_like(s),))[:2]
    return value, slope


def _projected(m: Float[Tensor, "B Z O"], u: Float[Tensor, "B Z"] | None) -> Tensor:
    """``(I - u u^T) M``; M itself for raw embeddings."""
    return m if u is None else m - u[:, :, None] * (u[:, None, :] @ m)
