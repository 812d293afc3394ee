"""The trace of an embedding's covariance as a plain graph, from buffers.

With C = J S J^T, u = z / |z| and T = I - u u^T,

    raw       tr C
    sphere    the expected squared distance from u (``distributions._round_chord``): of a linear
              head from the eigenvalues of C, of others from C or, in more than ``FEW``
              dimensions, from t = tr T C T / |z|^2

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

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.curvature._eigenbases import DenseEigenbasis, KroneckerEigenbasis
from laplace_metric.distributions._round_chord import FEW, dense_chord, round_chord, spectral_chord
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.laplace._posterior import Posterior

LayerInputs = list[tuple[Tensor, Tensor | None]]
"""a_l [B, A] and M_l [B, Z, O], None for the identity, from the first layer to the last."""


class HeadVariance(nn.Module):
    """h [B, D] and z [B, Z] -> the trace [B], as ``Embedding.uncertainty`` has it.

    Parameters
    ----------
    head : LinearJacobian or ChainJacobian
        Jacobian of the head.
    posterior : Posterior
        Gaussian over the parameters of this head.
    spherical : bool
        True if embeddings are directions.
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
        """Return the trace [B]."""
        layers, few = self._layers(h), z.shape[1] <= FEW
        if self.spherical and len(layers) == 1 and self.root is None:
            left = self.left_0
            return spectral_chord(z if left is None else z @ left, self._variances(0, layers[0][0]))
        if self.spherical and few:
            return dense_chord(z, self._covariance(layers))
        square = z.square().sum(1, keepdim=True)
        u = z / square.sqrt() if self.spherical else None
        if self.root is not None:
            total = _projected(self._factor(layers), u).square().sum((1, 2))
        else:
            parts = [self._part(i, a, m, u) for i, (a, m) in enumerate(layers)]
            total = torch.stack(parts).sum(0)
        return round_chord(total / square[:, 0], z.shape[1]) if self.spherical else total

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

    def _variances(self, i: int, a: Tensor) -> Tensor:
        """Return the variances v [B, O] of a layer's own outputs, in its basis."""
        right = getattr(self, f"right_{i}")
        seen = a if right is None else a @ right
        return seen.square() @ self.get_buffer(f"variances_{i}")

    def _seen(self, i: int, m: Tensor | None) -> Tensor | None:
        """Return M Q_S of a layer; None is the identity."""
        left = getattr(self, f"left_{i}")
        return m if left is None else (left[None] if m is None else m @ left)

    def _part(self, i: int, a: Tensor, m: Tensor | None, u: Tensor | None) -> Tensor:
        """Return one layer's part of the trace [B], S diagonal in its own basis."""
        v, seen = self._variances(i, a), self._seen(i, m)  # [B, O]
        if m is not None:
            assert seen is not None
            return (v * _projected(seen, u).square().sum(1)).sum(1)
        if u is None:
            return v.sum(1)
        along = u if seen is None else u @ seen[0]
        return (v * (1 - along.square())).sum(1)

    def _covariance(self, layers: LayerInputs) -> Tensor:
        """Return C [B, Z, Z]."""
        if self.root is not None:
            f = self._factor(layers)
            return f @ f.mT
        terms = []
        for i, (a, m) in enumerate(layers):
            v, seen = self._variances(i, a), self._seen(i, m)
            terms.append(torch.diag_embed(v) if seen is None else (seen * v[:, None, :]) @ seen.mT)
        return torch.stack(terms).sum(0)

    def _factor(self, layers: LayerInputs) -> Tensor:
        """Return F [B, Z, P] with ``F F^T = C``, of a dense S."""
        assert self.root is not None
        if len(layers) == 1:
            return (layers[0][0] @ self.root.flatten(1)).unflatten(1, self.root.shape[1:])
        jacobians = []
        for (a, m), layout in zip(layers, self.layouts, strict=True):
            identity = torch.eye(layout.n_outputs, dtype=a.dtype, device=a.device)[None]
            m = identity if m is None else m
            jacobians.append(layout.flatten(m[..., None] * a[:, None, None, :]))
        return torch.cat(jacobians, 2) @ self.root


def value_and_slope(group: Sequence[nn.Module], s: Float[Tensor, "B O"]) -> tuple[Tensor, Tensor]:
    """Return phi(s) and phi'(s) [B, O] of activations one after the other.

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
    """Return ``(I - u u^T) M``; M itself for raw embeddings."""
    return m if u is None else m - u[:, :, None] * (u[:, None, :] @ m)
