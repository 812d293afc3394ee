"""The variance of a head as a graph: slopes of activations in closed form, no autograd.

The trace of an embedding's covariance as a plain graph, from buffers.

With C = J S J^T, u = z / |z| and T = I - u u^T,

    raw       tr C                        sphere     tr T C T / |z|^2

Of a chain of linear layers (one for a linear head), layer l has ``J_l = M_l (x) a_l^T``, and with
S diagonal in Q_S (x) Q_A, V [O, A] its eigenvalues,

    tr T C T = sum_l sum_o v_lo |T M_l q_o|^2,    v_l = V (Q_A^T a_l)^2

so that on the sphere no term is subtracted from another. M of the last layer is the identity,
``|T q_o|^2 = 1 - (u^T q_o)^2``. A dense S = Q diag(s) Q^T takes J itself: ``|T J Q s^(1/2)|^2``.

Warburg et al. 2023, section 3, have the diagonal case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.curvature._spectral import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
)
from laplace_metric.errors import HeadError
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._jacobian import HeadJacobian, LinearJacobian
from laplace_metric.heads._layers import Layout
from laplace_metric.laplace._posterior import Posterior


def _gelu(module: Any, s: Tensor) -> Tensor:
    """``Phi(s) + s phi(s)``, or of its approximation ``s (1 + tanh g(s)) / 2``."""
    if module.approximate == "tanh":
        c, k = (2 / torch.pi) ** 0.5, 0.044715
        t = torch.tanh(c * (s + k * s * s * s))
        return 0.5 * (1 + t) + 0.5 * s * (1 - t * t) * c * (1 + 3 * k * s * s)
    density = (-0.5 * s * s).exp() / (2 * torch.pi) ** 0.5
    return 0.5 * (1 + torch.erf(s / 2**0.5)) + s * density


def _elu(module: Any, s: Tensor) -> Tensor:
    return torch.where(s > 0, torch.ones_like(s), module.alpha * s.clamp(max=0).exp())


def _leaky(module: Any, s: Tensor) -> Tensor:
    return torch.where(s > 0, torch.ones_like(s), module.negative_slope)


def _softplus(module: Any, s: Tensor) -> Tensor:
    linear = s * module.beta > module.threshold
    return torch.where(linear, torch.ones_like(s), torch.sigmoid(module.beta * s))


def _silu(_: Any, s: Tensor) -> Tensor:
    return torch.sigmoid(s) * (1 + s * (1 - torch.sigmoid(s)))


def _sigmoid(_: Any, s: Tensor) -> Tensor:
    return torch.sigmoid(s) * (1 - torch.sigmoid(s))


def _one(_: Any, s: Tensor) -> Tensor:
    return torch.ones_like(s)


SLOPES: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.ReLU: lambda _, s: (s > 0).to(s),
    nn.LeakyReLU: _leaky,
    nn.ELU: _elu,
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.Softplus: _softplus,
    nn.Tanh: lambda _, s: 1 - torch.tanh(s).square(),
    nn.Sigmoid: _sigmoid,
    nn.Identity: _one,
    nn.Dropout: _one,
}
"""phi'(s) of each activation that a chain of layers may have, in evaluation mode."""


def value_and_slope(
    group: Sequence[nn.Module], s: Float[Tensor, "B O"]
) -> tuple[Float[Tensor, "B O"], Float[Tensor, "B O"]]:
    """phi(s) and phi'(s) of activations one after the other (none: s and 1).

    Raises
    ------
    HeadError
        For an activation without a slope here.

    Examples
    --------
    >>> value_and_slope([nn.ReLU()], torch.tensor([[-1.0, 2.0]]))
    (tensor([[0., 2.]]), tensor([[0., 1.]]))
    """
    slope = torch.ones_like(s)
    for module in group:
        if type(module) not in SLOPES:
            raise HeadError(f"no graph knows the slope of a {type(module).__name__}.")
        slope = slope * SLOPES[type(module)](module, s)
        s = s if isinstance(module, nn.Dropout) else _fresh(module, s)
    return s, slope


def _fresh(module: nn.Module, s: Tensor) -> Tensor:
    """phi(s); what works in place is given a copy."""
    value: Tensor = module(s.clone() if getattr(module, "inplace", False) else s)
    return value


class HeadVariance(nn.Module):
    """h [B, D] and z [B, Z] -> the trace [B], as ``Embedding.uncertainty`` has it.

    Parameters
    ----------
    head : HeadJacobian
        Linear, or a chain of linear layers.
    posterior : Posterior
    spherical : bool
        Whether embeddings are directions.
    """

    def __init__(self, head: HeadJacobian, posterior: Posterior, *, spherical: bool) -> None:
        super().__init__()
        self.chain, self.spherical = LayerChain(head), spherical
        self.terms = _terms(self.chain.layouts, posterior)

    def forward(self, h: Float[Tensor, "B D"], z: Float[Tensor, "B Z"]) -> Float[Tensor, " B"]:
        """The trace [B]."""
        square = z.square().sum(1, keepdim=True)
        u = z / square.sqrt() if self.spherical else None
        layers = self.chain(h)
        if isinstance(self.terms, nn.ModuleList):
            parts = [term(a, m, u) for term, (a, m) in zip(self.terms, layers, strict=True)]
            total = torch.stack(parts).sum(0)
        else:
            total = self.terms(layers, u)
        return total / square[:, 0] if self.spherical else total


class LayerChain(nn.Module):
    """h [B, D] -> (a_l [B, A], M_l [B, Z, O], None for the identity) of every linear layer."""

    last: Tensor

    def __init__(self, head: HeadJacobian) -> None:
        super().__init__()
        linears: tuple[LinearJacobian, ...]
        groups: list[tuple[nn.Module, ...]] = []
        if isinstance(head, LinearJacobian):
            linears = (head,)
        elif isinstance(head, ChainJacobian):
            linears, groups = head.linears, list(head.activations)
        else:
            raise HeadError(
                f"a graph needs nn.Linear, or a chain of linear layers with elementwise "
                f"activations between them, and this head is differentiated by "
                f"{type(head).__name__}: put a linear head after it with head='append'."
            )
        self.layouts = tuple(linear.layout for linear in linears)
        self.activations = nn.ModuleList(nn.ModuleList(group) for group in groups)
        for i, linear in enumerate(linears[:-1] if groups else []):
            self.register_buffer(f"weight_{i}", linear.weight.clone())
            self.register_buffer(f"bias_{i}", None if linear.bias is None else linear.bias.clone())
        self.register_buffer("last", linears[-1].weight.clone() if groups else None)

    def forward(self, h: Float[Tensor, "B D"]) -> list[tuple[Tensor, Tensor | None]]:
        """From the first layer to the last."""
        inputs = [h]
        slopes: list[Tensor] = []
        for i, group in enumerate(self.activations):
            assert isinstance(group, nn.ModuleList)
            weight, bias = getattr(self, f"weight_{i}"), getattr(self, f"bias_{i}")
            s = nn.functional.linear(inputs[-1], weight, bias)
            value, slope = value_and_slope(list(group), s)
            inputs.append(value)
            slopes.append(slope)
        factors: list[Tensor | None] = [None]
        for i in reversed(range(len(slopes))):
            weight = self.last if i + 1 == len(slopes) else getattr(self, f"weight_{i + 1}")
            behind = weight if factors[0] is None else factors[0] @ weight
            factors.insert(0, behind * slopes[i][:, None, :])
        augmented = [_augmented(a, layout) for a, layout in zip(inputs, self.layouts, strict=True)]
        return list(zip(augmented, factors, strict=True))


class LayerTerm(nn.Module):
    """One layer's part of the trace, S diagonal in its own basis."""

    variances: Tensor
    left: Tensor | None
    right: Tensor | None

    def __init__(self, variances: Tensor, left: Tensor | None, right: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("variances", variances.mT.contiguous())
        self.register_buffer("left", left)
        self.register_buffer("right", right)

    def forward(self, a: Tensor, m: Tensor | None, u: Tensor | None) -> Float[Tensor, " B"]:
        """From a [B, A], M [B, Z, O] and the direction u [B, Z], None for raw embeddings."""
        seen = a if self.right is None else a @ self.right
        v = seen.square() @ self.variances  # [B, O]
        if m is None:
            if u is None:
                return v.sum(1)
            along = u if self.left is None else u @ self.left
            return (v * (1 - along.square())).sum(1)
        m = m if self.left is None else m @ self.left
        return (v * _projected(m, u).square().sum(1)).sum(1)


class DenseTerm(nn.Module):
    """The whole trace, S dense: root R = Q s^(1/2) [P, P]."""

    root: Tensor

    def __init__(self, layouts: Sequence[Layout], vectors: Tensor, spectrum: Tensor) -> None:
        super().__init__()
        self.layouts = tuple(layouts)
        root = vectors * spectrum.sqrt()
        if len(layouts) == 1:  # [A, Z, P]: a linear head needs no J
            root = layouts[0].fold(root.mT).permute(2, 1, 0)
        self.register_buffer("root", root.contiguous())

    def forward(
        self, layers: Sequence[tuple[Tensor, Tensor | None]], u: Tensor | None
    ) -> Float[Tensor, " B"]:
        """From every layer's (a, M)."""
        if len(self.layouts) == 1:
            f = (layers[0][0] @ self.root.flatten(1)).unflatten(1, self.root.shape[1:])
        else:
            f = torch.cat([self._jacobian(*x) for x in zip(layers, self.layouts, strict=True)], 2)
            f = f @ self.root
        return _projected(f, u).square().sum((1, 2))

    @staticmethod
    def _jacobian(layer: tuple[Tensor, Tensor | None], layout: Layout) -> Tensor:
        a, m = layer
        if m is None:
            m = torch.eye(layout.n_outputs, dtype=a.dtype, device=a.device)[None]
        return layout.flatten(m[..., None] * a[:, None, None, :])


def _projected(m: Float[Tensor, "B Z O"], u: Float[Tensor, "B Z"] | None) -> Tensor:
    """``(I - u u^T) M``; M itself for raw embeddings."""
    return m if u is None else m - u[:, :, None] * (u[:, None, :] @ m)


def _augmented(h: Tensor, layout: Layout) -> Tensor:
    return torch.cat([h, torch.ones_like(h[:, :1])], 1) if layout.bias else h


def _terms(layouts: Sequence[Layout], posterior: Posterior) -> nn.Module:
    """Buffers of the posterior, by its structure."""
    basis, spectrum = posterior.basis, posterior.spectrum
    if isinstance(basis, DenseEigenbasis):
        return DenseTerm(layouts, basis.vectors, spectrum)
    parts = spectrum.split([layout.n_parameters for layout in layouts])
    if isinstance(basis, KroneckerEigenbasis):
        blocks = zip(basis.blocks, parts, strict=True)
        terms = [LayerTerm(b.fold(v), b.left.clone(), b.right.clone()) for b, v in blocks]
    else:
        assert isinstance(basis, IdentityEigenbasis)
        folded = [x.fold(v) for x, v in zip(layouts, parts, strict=True)]
        terms = [LayerTerm(v, None, None) for v in folded]
    return nn.ModuleList(terms)
