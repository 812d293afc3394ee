"""Density of frozen embeddings on the sphere by a normalising flow (Ju et al. 2026, REPVLM).

    u(x) = -log p(x)                         x = z / |z|, of unit length in R^D

("Epistemic Uncertainty Quantification for Pre-trained VLMs via Riemannian Flow Matching", arXiv
2601.21662: little density where the network knows little.) The paper learns a vector field on the
sphere and integrates its divergence for each query. Here the density is exact and costs one pass:
a stereographic projection from the point opposite of the mean direction m, then affine coupling
layers (Dinh et al. 2017, Real NVP) to a standard normal in D - 1 dimensions:

    y = P x / (1 + m.x)                      P [D-1, D] with rows orthonormal and orthogonal to m
    log p(x) = log N(f(y); 0, I) + log |det df/dy| + (D - 1) log((1 + |y|^2) / 2)

The last term is the ratio of the areas: p integrates to one over the sphere. Without ``spherical``
y = z, and p is a density in R^D.

    f = f_L o ... o f_1 o standardise,    f_l: (a, b) -> (a, b exp(s(a)) + t(a)),   log det = sum s
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes, Training
from baselines.base.neighbours import unit_rows
from baselines.base.settings import check_counts
from laplace_metric._utils.randomness import own_randomness
from laplace_metric._utils.validation import check_real
from laplace_metric.errors import InputError
from laplace_metric.models._modules import device_of
from laplace_metric.training import descend

BOUND = 2.0
"""Largest |s| of a layer: exp(s) neither overflows nor lets one input take all density."""
FLOOR = 1e-2
"""Least spread of a coordinate over the largest: a unit that was never active in training would
else decide alone."""


class CouplingFlow(nn.Module):
    """Affine coupling layers on R^D: ``flow(y) -> (w, log |det dw/dy|)``, and its inverse.

    Parameters
    ----------
    size : int >= 2
        Dimension D of the space.
    n_layers : int
        Number of layers; each transforms one half of the coordinates, in turn. Default: 4.
    hidden : int
        Width of the two hidden layers of each. Default: 64.

    Raises
    ------
    InputError
        For one dimension, which has no halves.

    Examples
    --------
    >>> w, log_det = CouplingFlow(3)(torch.ones(2, 3))  # the identity before it is trained
    >>> w, log_det
    (tensor([[1., 1., 1.],
            [1., 1., 1.]], grad_fn=<...>), tensor([0., 0.], grad_fn=<...>))
    """

    masks: Tensor

    def __init__(self, size: int, n_layers: int = 4, hidden: int = 64) -> None:
        super().__init__()
        if size < 2:
            raise InputError(f"size={size}: coupling layers need two coordinates or more.")
        order = [torch.randperm(size) for _ in range((n_layers + 1) // 2)]
        masks = torch.zeros(n_layers, size)
        for layer in range(n_layers):
            half = order[layer // 2].tensor_split(2)[layer % 2]
            masks[layer, half] = 1  # 1: stays as it is, and decides about the others
        self.register_buffer("masks", masks)
        self.networks = nn.ModuleList(_identity_start(size, hidden) for _ in range(n_layers))

    def forward(self, y: Float[Tensor, "B D"]) -> tuple[Tensor, Tensor]:
        """Map [B, D] to [B, D] and the logarithm of the determinant [B]."""
        total = y.new_zeros(len(y))
        for mask, network in zip(self.masks, self.networks, strict=True):
            s, t = self._scale_and_shift(network, mask, y)
            y = y * s.exp() + t
            total = total + s.sum(-1)
        return y, total

    def inverse(self, w: Float[Tensor, "B D"]) -> Tensor:
        """Map [B, D] back."""
        for mask, network in zip(self.masks.flip(0), reversed(self.networks), strict=True):
            s, t = self._scale_and_shift(network, mask, w)
            w = (w - t) * (-s).exp()
        return w

    def _scale_and_shift(
        self, network: nn.Module, mask: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        s, t = network(y * mask).chunk(2, -1)
        return (1 - mask) * BOUND * (s / BOUND).tanh(), (1 - mask) * t


def _identity_start(size: int, hidden: int) -> nn.Sequential:
    last = nn.Linear(hidden, 2 * size)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), last
    )


def stereographic(
    x: Float[Tensor, "B D"], basis: Float[Tensor, "D D"]
) -> tuple[Float[Tensor, "B D-1"], Float[Tensor, " B"]]:
    """Project unit vectors from the point opposite of m; ``log |dx / dy|`` comes with them.

    Parameters
    ----------
    x : Tensor [B, D]
        Vectors of unit length.
    basis : Tensor [D, D]
        Orthonormal rows, m the first of them.

    Returns
    -------
    (Tensor [B, D-1], Tensor [B])
        ``y = P x / (1 + m.x)`` and ``-(D - 1) log((1 + |y|^2) / 2)``, the logarithm of the area on
        the sphere of a unit of volume at y.

    Examples
    --------
    >>> y, area = stereographic(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2))
    >>> y, area.exp()
    (tensor([[0.],
            [1.]]), tensor([2., 1.]))
    """
    turned = x @ basis.mT
    first, rest = turned[:, :1], turned[:, 1:]
    # the opposite point itself has no direction: any one stands for it, far away
    eps = torch.finfo(x.dtype).eps
    at_it = (first < 0) & (rest.norm(dim=1, keepdim=True) < eps)
    rest = torch.where(at_it, eps * torch.eye(1, rest.shape[1]).to(x), rest)
    # 1 + m.x, without cancelling near the opposite point: |rest|^2 = (1 + m.x)(1 - m.x)
    opposite = rest.square().sum(1, keepdim=True) / (1 - first)
    y = rest / torch.where(first < 0, opposite, 1 + first)
    return y, -(x.shape[1] - 1) * ((1 + y.square().sum(1)) / 2).log()


@dataclass(eq=False, kw_only=True)
class FlowDensity(Detector):
    """Minus the log density of the training set; costs one forward pass and small networks.

    ``uncertainty`` is -log p in nats, of any sign, by area of the unit sphere where embeddings are
    compared by direction, by volume else. The embeddings stay as they are.

    Parameters
    ----------
    n_layers : int
        Number of coupling layers. Default: 4.
    hidden : int
        Width of their networks. Default: 64.
    held_out : float in [0, 1)
        Share of the training set on which the epochs are compared: the weights of the best one
        stay. 0 keeps the last. Default: 0.1.
    batch_size : int
        Number of vectors of a step. Default: 128.
    training : Training
        Settings of the training of the flow. Default: ``Training()``.

    Attributes
    ----------
    losses_ : list of float
        Mean -log p of each epoch, of the held-out vectors if there are any.

    Raises
    ------
    InputError
        For settings out of range; from ``fit``, for vectors of fewer than three dimensions (two
        without ``spherical``), and fewer than two vectors.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = FlowDensity(nn.Linear(4, 4)).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    """

    n_layers: int = 4
    hidden: int = 64
    held_out: float = 0.1
    batch_size: int = 128
    training: Training = Training()  # noqa: RUF009 (frozen)
    losses_: list[float] = field(default_factory=list, init=False, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "n_layers", "hidden", "batch_size")
        if not 0 <= check_real("held_out", self.held_out) < 1:
            raise InputError(f"held_out={self.held_out!r}: pass a number in [0, 1).")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the flow, and what is done to vectors before it."""
        size = sizes.width(self.on) - int(self.spherical)
        if size < 2:
            raise InputError(
                f"{self.on} has size {sizes.width(self.on)}: a flow needs "
                f"{2 + int(self.spherical)} dimensions or more."
            )
        flow = CouplingFlow(size, self.n_layers, self.hidden)
        return {"before": Memory("basis", "mean", "scale"), "flow": flow}

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> FlowDensity:
        """Gather a loader of ``(inputs, labels)``, and train the flow; labels are not used.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
        """
        generator = torch.Generator().manual_seed(self.training.seed)
        with own_randomness(generator, device_of(self.model)):
            super().fit(loader, progress=progress)
        return self

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Standardise the projected vectors, and maximise their likelihood."""
        if len(vectors) < 2:
            raise InputError("one vector has no density: pass two or more.")
        before: Any = self.parts["before"]
        basis = self._basis(vectors)
        before.store(basis=basis)
        y, _ = self._projected(vectors)
        spread, mean = torch.std_mean(y.double(), dim=0, correction=0)
        largest = spread.max()
        scale = spread.clamp_min(FLOOR * largest) if largest > 0 else torch.ones_like(spread)
        before.store(mean=mean.to(y), scale=scale.to(y))
        order = torch.randperm(len(vectors)).to(vectors.device)
        n_held = int(self.held_out * len(vectors))
        with torch.enable_grad():
            self.losses_ = self._train(vectors[order[n_held:]], vectors[order[:n_held]])

    def score(self, vectors: Tensor) -> Tensor:
        """Return -log p [B]."""
        before: Any = self.parts["before"]
        y, log_area = self._projected(vectors)
        standard = (y - before.mean) / before.scale
        w, log_det = self.parts["flow"](standard)
        log_normal = -(w.square().sum(-1) + w.shape[1] * math.log(2 * math.pi)) / 2
        return -(log_normal + log_det - before.scale.log().sum() - log_area)

    def _basis(self, vectors: Tensor) -> Tensor:
        """Return orthonormal rows, the mean direction first; empty if vectors stay as they are."""
        if not self.spherical:
            return vectors.new_empty(0)
        x = unit_rows(vectors.double())
        mean = x.mean(0)
        m = mean / mean.norm() if mean.norm() > 1e-9 else x[0]
        eye = torch.eye(len(m), dtype=m.dtype, device=m.device)
        away = m - eye[0]
        if away.norm() < 1e-9:
            return eye.to(vectors)
        # the reflection that takes the first axis to m
        return (eye - 2 * torch.outer(away, away) / away.square().sum()).to(vectors)

    def _projected(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        before: Any = self.parts["before"]
        if not self.spherical:
            return vectors, vectors.new_zeros(len(vectors))
        return stereographic(unit_rows(vectors), before.basis)

    def _train(self, vectors: Tensor, held: Tensor) -> list[float]:
        flow = self.parts["flow"]
        optimizer, scheduler = self.training.optimize(flow.parameters())
        best, kept = math.inf, copy.deepcopy(flow.state_dict())
        epochs = []
        for _ in range(self.training.epochs):
            order = torch.randperm(len(vectors)).to(vectors.device)
            total = 0.0
            for rows in order.split(self.batch_size):
                total += descend(self.score(vectors[rows]).mean(), optimizer) * len(rows)
            scheduler.step()
            value = total / len(vectors)
            if len(held):
                with torch.no_grad():
                    value = float(self.score(held).mean())
                if value < best:
                    best, kept = value, copy.deepcopy(flow.state_dict())
            epochs.append(value)
        if len(held):
            flow.load_state_dict(kept)
        return epochs
