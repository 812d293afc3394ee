"""A head ``z = g(h; theta)`` and its Jacobian: the interface of the backends, and the closed forms.

A head of linear layers with elementwise activations between them has a Jacobian of Kronecker
products, one a layer: ``J_i = M_i (x) a_i^T``, with ``a_i`` [A] the layer's input (with a 1 for its
bias) and ``M_i = dz_i/ds_i`` [Z, O] from the output s of the layer to the head's z, a ``Factor``.
Three kinds of M share one interface, so that every sum over points is a few matrix products:

    last layer          M = I                 (or I Q, seen in a rotated basis)
    before it           M = W diag(g_i)       W of the last layer, g the slope of the activation
    any earlier one     M_i                   an array [n, Z, O]

``u`` [n, K] are the points' directions; ``K = 1`` and ``u = 0`` in the raw geometry, where the last
layer needs only one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.heads._locate import PointwiseHead

ALIGNED = 16
"""CPUs' fast kernels want a multiple: [n, 1281] takes a third longer than [n, 1296]."""


@dataclass(frozen=True)
class Layout:
    """A linear layer's ``(W row-major, b)`` [P] seen as the augmented matrix ``[W, b]`` [O, A].

    Parameters
    ----------
    n_outputs, n_features : int
        Shape of W.
    bias : bool
        Whether there is a b, the last of ``A = n_features + bias`` columns.

    Examples
    --------
    >>> Layout(2, 1, bias=True).fold(torch.arange(4))  # w1, w2, b1, b2
    tensor([[0, 2],
            [1, 3]])
    """

    n_outputs: int
    n_features: int
    bias: bool

    @property
    def n_columns(self) -> int:
        """A."""
        return self.n_features + int(self.bias)

    @property
    def n_parameters(self) -> int:
        """P = O A."""
        return self.n_outputs * self.n_columns

    def fold(self, vector: Num[Tensor, "*n P"]) -> Num[Tensor, "*n O A"]:
        """Parameters in their order as [W, b]."""
        size = self.n_outputs * self.n_features
        weight = vector[..., :size].unflatten(-1, (self.n_outputs, self.n_features))
        if not self.bias:
            return weight
        return torch.cat([weight, vector[..., size:, None]], dim=-1)

    def flatten(self, matrix: Num[Tensor, "*n O A"]) -> Num[Tensor, "*n P"]:
        """[W, b] as parameters in their order; undoes ``fold``."""
        weight = matrix[..., : self.n_features].flatten(-2)
        if not self.bias:
            return weight
        return torch.cat([weight, matrix[..., self.n_features]], dim=-1)

    def augment(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B A"]:
        """[h, 1] if there is a bias, else h."""
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class Layer:
    """``J_i = M_i (x) a_i^T`` for n points: ``inputs`` a [n, A], ``factor`` M, and its layout."""

    inputs: Float[Tensor, "n A"]
    factor: Factor
    layout: Layout

    def divided(self, lengths: Float[Tensor, "n 1"]) -> Layer:
        """``J_i / r_i`` for lengths r."""
        return Layer(self.inputs / lengths, self.factor, self.layout)

    def rotated(self, left: Float[Tensor, "O O"], right: Float[Tensor, "A A"]) -> Layer:
        """``J_i (Q_S (x) Q_A)`` for Q_S left and Q_A right."""
        return Layer(self.inputs @ right, self.factor.rotated(left), self.layout)

    def vjp(self, cotangents: Float[Tensor, "n R Z"]) -> Float[Tensor, "R P"]:
        """``sum_i V_i J_i``: one product [R O, n] x [n, A]."""
        rows = self.factor.after(cotangents)  # [n, R, O]
        matrices = (rows.flatten(1).mT @ self.inputs).unflatten(0, rows.shape[1:])  # [R, O, A]
        return self.layout.flatten(matrices)

    def diagonal(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, " P"]:
        """``diag(sum_i J_i^T B_i J_i)`` for symmetric B: one product [O, n] x [n, A]."""
        rows = self.factor.quadratic(blocks)  # [n, O]
        return self.layout.flatten(rows.mT @ self.inputs.square())

    def jacobian(self, n_outputs: int) -> Float[Tensor, "n Z P"]:
        """J, materialised, columns in parameter order."""
        m = self.factor.dense(n_outputs).to(self.inputs)
        return self.layout.flatten(m[..., None] * self.inputs[:, None, None, :])  # [n, Z, O, A]


@dataclass(frozen=True)
class Affine:
    """``x -> x M + c`` [n, K], so that no column of ones is joined to x for a bias.

    Examples
    --------
    >>> m = torch.tensor([[2.0], [1.0]])  # [M; c]
    >>> Affine.of(m, 1)(torch.tensor([[3.0]]))
    tensor([[7.]])
    >>> Affine.of(m, 1, padded=True)(torch.tensor([[3.0]])).shape
    torch.Size([1, 16])
    """

    matrix: Tensor
    offset: Tensor | None

    @classmethod
    def of(cls, matrix: Tensor, n_features: int, *, padded: bool = False) -> Affine:
        """From ``[M; c]`` [A, K], whose last row is there if A > n_features.

        ``padded``: columns of zeros up to a multiple of 16.
        """
        if padded:
            matrix = pad(matrix)
        offset = matrix[n_features].contiguous() if len(matrix) > n_features else None
        return cls(matrix[:n_features].contiguous(), offset)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, K]."""
        return x @ self.matrix if self.offset is None else torch.addmm(self.offset, x, self.matrix)


def pad(matrix: Tensor) -> Tensor:
    """Columns of zeros up to a multiple of 16."""
    return nn.functional.pad(matrix, (0, -matrix.shape[-1] % ALIGNED))


TILE_ROWS = 16
"""Rows of B that ``columnwise`` takes at once."""


def columnwise(
    blocks: Float[Tensor, "n Z Z"], weight: Float[Tensor, "Z O"]
) -> Float[Tensor, "n O"]:
    """``w_o^T B_i w_o`` for symmetric B_i and the columns of one W.

    ``sum_yz B_yz (W_yo W_zo)`` is a matrix product [n, Z^2] x [Z^2, O], and B's symmetry leaves
    its upper half: half the work of ``B_i W`` for every i, and no array [n, Z, O].

    Examples
    --------
    >>> columnwise(2 * torch.eye(3)[None], torch.ones(3, 2))
    tensor([[6., 6.]])
    """
    size = (len(blocks), weight.shape[1])
    total = torch.zeros(size, dtype=blocks.dtype, device=blocks.device)
    for start in range(0, len(weight), TILE_ROWS):
        stop = min(start + TILE_ROWS, len(weight))
        upper = blocks[:, start:stop, start:].clone()  # [n, s, Z - start]
        upper[:, :, stop - start :] *= 2  # stands for the entries below the tile as well
        products = weight[start:stop, None] * weight[None, start:]  # [s, Z - start, O]
        total.addmm_(upper.flatten(1), products.flatten(0, 1).to(upper))
    return total


ALL = slice(None)
"""Every row, or every column."""


class Factor(ABC):
    """M_i of n points."""

    @abstractmethod
    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        """M of all points (m = n), or the same for all (m = 1); only the identity is told Z."""

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        """``M_i^T v_i``."""
        m = self.dense(0)
        return (v.expand(-1, m.shape[1])[:, None, :] @ m)[:, 0]

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        """``V_i M_i``."""
        return v @ self.dense(0)

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        """diag(M_i^T M_i), broadcastable to [n, O]."""
        return self.dense(0).square().sum(1)

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        """``sum_i q_i M_i^T M_i`` for weights q; the identity is told O by ``n_rows``."""
        m = self.dense(0)
        return m.flatten(0, 1).mT @ (weights[:, None, None] * m).flatten(0, 1)

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        """``<M_i^T M_i, S>`` broadcastable to [n], for a matrix S."""
        m = self.dense(0)
        return ((m @ matrix) * m).sum((1, 2))

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        """``diag(M_i^T B_i M_i)`` for symmetric B_i."""
        m = self.dense(0)
        return ((blocks @ m) * m).sum(1)

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        """M Q for an orthogonal Q."""
        return DenseFactor(self.dense(0) @ basis)

    def projected(
        self, u: Float[Tensor, "n K"], rows: slice = ALL, columns: slice = ALL
    ) -> Float[Tensor, "n s o"]:
        """``(I - u_i u_i^T) M_i``, a part of it, up to a rotation from the left."""
        m = self.dense(0)
        wide = u.expand(-1, m.shape[1])  # [n, Z]
        return m[:, rows, columns] - wide[:, rows, None] * self.vjp(u)[:, None, columns]


@dataclass(frozen=True)
class DenseFactor(Factor):
    """M itself."""

    values: Float[Tensor, "n Z O"]

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return self.values


@dataclass(frozen=True)
class OrthogonalFactor(Factor):
    """``M = Q``, orthogonal and the same for all points; None is the identity."""

    basis: Float[Tensor, "O O"] | None = None

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        return v if self.basis is None or v.shape[1] == 1 else v @ self.basis

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        return v if self.basis is None else v @ self.basis

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        return torch.ones(())

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        return weights.sum() * torch.eye(n_rows, dtype=weights.dtype, device=weights.device)

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        return matrix.trace()

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        if self.basis is None:
            return blocks.diagonal(dim1=1, dim2=2)
        return columnwise(blocks, self.basis)

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return (torch.eye(n_outputs) if self.basis is None else self.basis)[None]

    def rotated(self, basis: Float[Tensor, "O O"]) -> Factor:
        return OrthogonalFactor(basis if self.basis is None else self.basis @ basis)

    def projected(
        self, u: Float[Tensor, "n K"], rows: slice = ALL, columns: slice = ALL
    ) -> Float[Tensor, "n s o"]:
        """``Q^T (I - u u^T) Q``: rotated from the left as well, so it is symmetric."""
        w = self.vjp(u)
        identity = torch.eye(w.shape[1], dtype=w.dtype, device=w.device)
        return identity[rows, columns] - w[:, rows, None] * w[:, None, columns]


@dataclass(frozen=True)
class GatedFactor(Factor):
    """``M_i = W diag(g_i)``: W of the last layer, g the slope of the activation before it."""

    weight: Float[Tensor, "Z O"]
    gate: Float[Tensor, "n O"]

    def vjp(self, v: Float[Tensor, "n K"]) -> Float[Tensor, "n O"]:
        return (v.expand(-1, len(self.weight)) @ self.weight) * self.gate

    def after(self, v: Float[Tensor, "n R Z"]) -> Float[Tensor, "n R O"]:
        return (v @ self.weight) * self.gate[:, None, :]

    def gram_diagonal(self) -> Float[Tensor, "*shape"]:
        return self.gate.square() * self.weight.square().sum(0)

    def gram_sum(self, weights: Float[Tensor, " n"], n_rows: int) -> Float[Tensor, "O O"]:
        return (self.weight.mT @ self.weight) * (self.gate.mT @ (weights[:, None] * self.gate))

    def gram_inner(self, matrix: Float[Tensor, "O O"]) -> Float[Tensor, "*shape"]:
        return ((self.gate @ (matrix * (self.weight.mT @ self.weight))) * self.gate).sum(1)

    def quadratic(self, blocks: Float[Tensor, "n Z Z"]) -> Float[Tensor, "n O"]:
        return columnwise(blocks, self.weight) * self.gate.square()

    def dense(self, n_outputs: int) -> Float[Tensor, "m Z O"]:
        return self.weight * self.gate[:, None, :]


JACOBIAN_BYTES = 64 * 2**20
"""Largest [b, Z, P] array that is materialised at once."""


class HeadJacobian(ABC):
    """A head ``z = g(h; theta)`` and its Jacobian ``J_i = dz_i/dtheta`` [Z, P].

    ``theta`` has the order of ``torch.nn.utils.parameters_to_vector(head.parameters())``.
    """

    @property
    @abstractmethod
    def layouts(self) -> tuple[Layout, ...]:
        """Layout of each linear layer in parameter order; one ``Layout(1, P)`` for other heads."""

    n_outputs: int
    """Z."""
    layered = False
    """True if ``layers`` gives an answer."""

    @property
    @abstractmethod
    def parameters(self) -> Float[Tensor, " P"]:
        """theta, a copy."""

    @property
    def dtype(self) -> torch.dtype:
        """dtype of theta."""
        return self.parameters.dtype

    @abstractmethod
    def to(self, dtype: torch.dtype) -> HeadJacobian:
        """The same head in another type: itself where it has that type, else a copy."""

    @abstractmethod
    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Raw embeddings z of the features h."""

    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        """J, materialised."""
        parts = [layer.jacobian(self.n_outputs) for layer in self.layers(features)]
        return torch.cat(parts, dim=-1)

    @abstractmethod
    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """z under n parameter vectors, each shared by all inputs."""

    @property
    def signature(self) -> str:
        """Function of the head, apart from its tensors; part of fingerprints."""
        return type(self).__name__

    @property
    def constants(self) -> list[Tensor]:
        """Tensors that it depends on, in addition to the parameters."""
        return []

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        """J as Kronecker products, one a linear layer; none of heads without that structure."""
        return []

    @property
    def n_parameters(self) -> int:
        """P."""
        return sum(layout.n_parameters for layout in self.layouts)

    def jacobians(self, features: Float[Tensor, "B D"]) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows, each with its J [b, Z, P] within ``JACOBIAN_BYTES``."""
        size = 8 * self.n_outputs * self.n_parameters
        step = max(1, JACOBIAN_BYTES // size)
        for start in range(0, len(features), step):
            part = slice(start, min(start + step, len(features)))
            yield part, self.jacobian(features[part])

    def diagonal(
        self, features: Float[Tensor, "B D"], blocks: Float[Tensor, "B Z Z"]
    ) -> Float[Tensor, " P"]:
        """``diag(sum_i J_i^T B_i J_i)`` in float64, for symmetric B_i of any sign."""
        if layers := self.layers(features):
            return torch.cat([layer.diagonal(blocks) for layer in layers]).double()
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += (j * (blocks[part] @ j)).sum((0, 1)).double()  # [b, Z, P] -> [P]
        return total

    def vjp(
        self, features: Float[Tensor, "B D"], cotangents: Float[Tensor, "B R Z"]
    ) -> Float[Tensor, "R P"]:
        """Vector-Jacobian products ``sum_i V_i J_i`` in float64, for cotangents V."""
        if layers := self.layers(features):
            return torch.cat([layer.vjp(cotangents) for layer in layers], dim=1).double()
        size = (cotangents.shape[1], self.n_parameters)
        total = torch.zeros(size, dtype=torch.float64, device=features.device)
        for part, j in self.jacobians(features):
            total += torch.einsum("brz,bzp->rp", cotangents[part], j).double()
        return total


@dataclass(frozen=True)
class LinearJacobian(HeadJacobian):
    """``z = W h + b``: ``J_i = I_Z (x) [h_i; 1]^T``, with theta = (W row-major, b).

    Parameters
    ----------
    weight : Tensor [Z, D]
    bias : Tensor [Z] or None

    Examples
    --------
    >>> head = LinearJacobian.of(nn.Linear(3, 2))
    >>> head.jacobian(torch.ones(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    weight: Float[Tensor, "Z D"]
    bias: Float[Tensor, " Z"] | None = None
    layered = True

    @classmethod
    def of(cls, module: nn.Linear | PointwiseHead) -> LinearJacobian:
        """Read a linear layer; tensors are shared (half precision becomes a float32 copy)."""
        bias = None if module.bias is None else at_least_float32(module.bias.detach())
        return cls(at_least_float32(module.weight.detach()), bias)

    @cached_property
    def layout(self) -> Layout:
        """Layout of [W, b]."""
        n_outputs, n_features = self.weight.shape
        return Layout(n_outputs, n_features, bias=self.bias is not None)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout,)

    @cached_property
    def n_outputs(self) -> int:  # type: ignore[override]
        return len(self.weight)

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        parts = [self.weight.flatten()] + ([] if self.bias is None else [self.bias])
        return torch.cat(parts)

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def to(self, dtype: torch.dtype) -> LinearJacobian:
        bias = None if self.bias is None else self.bias.to(dtype)
        return self if dtype == self.dtype else LinearJacobian(self.weight.to(dtype), bias)

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        return nn.functional.linear(features, self.weight, self.bias)

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        return [Layer(self.layout.augment(features), OrthogonalFactor(), self.layout)]

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        """One product [B, D] x [D, n Z]."""
        size = self.weight.numel()
        weight = parameters[:, :size].unflatten(-1, self.weight.shape)  # [n, Z, D]
        z = features @ weight.flatten(0, 1).mT  # [B, n Z]
        z = z.unflatten(1, weight.shape[:2]).transpose(0, 1)  # [n, B, Z]
        return z if self.bias is None else z + parameters[:, None, size:]


ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.Dropout,
)
"""Modules whose output's i-th entry depends on their input's i-th entry alone (in eval mode)."""

Activation = tuple[nn.Module, ...]


@dataclass(frozen=True)
class ChainJacobian(HeadJacobian):
    """``z = W_L phi(... phi(W_1 h + b_1) ...) + b_L``.

    Backwards from the last layer, ``M_L = I`` and ``M_l = M_{l+1} W_{l+1} diag(phi'(s_l))``.

    Parameters
    ----------
    linears : the L linear layers, in order
    activations : what stands between two of them (L - 1 groups of elementwise modules)

    Examples
    --------
    >>> head = ChainJacobian.of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> head.jacobian(torch.ones(5, 4)).shape
    torch.Size([5, 2, 58])
    """

    linears: tuple[LinearJacobian, ...]
    activations: tuple[Activation, ...]
    layered = True

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether ``module`` is such a chain, each layer used once, all trainable."""
        if not isinstance(module, nn.Sequential) or not len(module):
            return False
        parts = list(module)
        known = all(type(part) in (nn.Linear, *ELEMENTWISE) for part in parts)
        ends = type(parts[0]) is nn.Linear and type(parts[-1]) is nn.Linear
        return known and ends and len({id(part) for part in parts}) == len(parts)

    @classmethod
    def of(cls, module: nn.Module) -> ChainJacobian:
        """Read a sequential head that ``fits``; tensors are shared."""
        linears: list[LinearJacobian] = []
        groups: list[list[nn.Module]] = []
        for part in module.children():
            if isinstance(part, nn.Linear):
                linears.append(LinearJacobian.of(part))
                groups.append([])
            else:
                groups[-1].append(part)
        return cls(tuple(linears), tuple(tuple(group) for group in groups[:-1]))

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(linear.layout for linear in self.linears)

    @cached_property
    def n_outputs(self) -> int:  # type: ignore[override]
        return self.linears[-1].n_outputs

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        return torch.cat([linear.parameters for linear in self.linears])

    @property
    def signature(self) -> str:
        return f"{type(self).__name__} {self.activations}"

    @property
    def dtype(self) -> torch.dtype:
        return self.linears[0].dtype

    def to(self, dtype: torch.dtype) -> ChainJacobian:
        return ChainJacobian(tuple(linear.to(dtype) for linear in self.linears), self.activations)

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        for linear, group in zip(self.linears, (*self.activations, ()), strict=True):
            features = _activate(linear.forward(features), group)
        return features

    def layers(self, features: Float[Tensor, "B D"]) -> list[Layer]:
        inputs, slopes = self._inputs_and_slopes(features)
        factors: list[Factor] = [OrthogonalFactor()]
        for linear, slope in zip(self.linears[:0:-1], slopes[::-1], strict=True):
            factors.append(_behind(factors[-1], linear.weight, slope))
        parts = zip(inputs, factors[::-1], self.layouts, strict=True)
        return [Layer(layout.augment(h), factor, layout) for h, factor, layout in parts]

    def _inputs_and_slopes(self, features: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Input [B, D'] of every layer; slope phi'(s) [B, O] after every layer but the last."""
        inputs, slopes = [features], []
        for linear, group in zip(self.linears, self.activations, strict=False):
            value, slope = _activate_with_slope(linear.forward(inputs[-1]), group)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes

    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        sizes = [layout.n_parameters for layout in self.layouts]
        first, *rest = parameters.split(sizes, dim=1)
        value = self.linears[0].forward_with(features, first)
        for group, linear, theta in zip(self.activations, self.linears[1:], rest, strict=True):
            matrix = linear.layout.fold(theta)  # [n, O, A]
            value = linear.layout.augment(_activate(value, group)) @ matrix.mT  # [n, B, O]
        return value


def _behind(factor: Factor, weight: Tensor, slope: Tensor) -> Factor:
    """``M_l = M_{l+1} W_{l+1} diag(phi'(s_l))``."""
    if isinstance(factor, OrthogonalFactor):
        return GatedFactor(weight, slope)
    return DenseFactor((factor.dense(0) @ weight) * slope[:, None, :])


def _activate(values: Tensor, group: Sequence[nn.Module]) -> Tensor:
    for module in group:
        values = values if isinstance(module, nn.Dropout) else module(values.clone())
    return values


def _activate_with_slope(values: Tensor, group: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """phi(s) and phi'(s), both [B, O]."""
    with torch.enable_grad():
        s = values.detach().requires_grad_()
        out = _activate(s, group)
        (slope,) = torch.autograd.grad(out.sum(), s)
    return out.detach(), slope
