"""Small fitted embedders of every kind of head, float64, and queries that they did not see."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import NegativeCurvatureWarning

D, Z = 7, 5
SMOOTH = (nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Softplus(2.0, 3.0), nn.Tanh(), nn.Sigmoid())
BENT = (nn.ReLU(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Identity(), nn.Dropout())


class Normalised(nn.Module):
    """z / |z|."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


class InPlace(nn.Module):
    """z / |z|, where z stands."""

    def forward(self, z: Tensor) -> Tensor:
        return z.div_(z.norm(dim=-1, keepdim=True))


def body() -> list[nn.Module]:
    return [nn.Linear(D, 6), nn.Tanh()]


MODELS = {
    "linear": lambda: (nn.Sequential(*body(), nn.Linear(6, Z)), None),
    "no bias": lambda: (nn.Sequential(*body(), nn.Linear(6, Z, bias=False)), None),
    "normalised": lambda: (nn.Sequential(*body(), nn.Linear(6, Z), Normalised()), None),
    "in place": lambda: (nn.Sequential(*body(), nn.Linear(6, Z), InPlace()), "2"),
    "append": lambda: (nn.Sequential(*body(), nn.Linear(6, 4), nn.Softplus()), "append"),
    "chain": lambda: row(nn.Linear(6, 8), nn.LeakyReLU(inplace=True), nn.Linear(8, Z)),
    "long chain": lambda: row(
        *(nn.Linear(6, 4, bias=False), nn.GELU(), nn.Linear(4, 6), nn.Tanh(), nn.Sigmoid()),
        nn.Linear(6, Z, bias=False),
    ),
    "starts in place": lambda: row(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, Z)),
}


def row(*layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(*body(), *layers)
    return model, model[2:]


CASES = [
    (name, structure, distance)
    for name in MODELS
    for structure in ("diag", "kron", "full")
    for distance in ("arccos", "euclidean")
]


def inputs(n: int = 90, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    return torch.randn(n, D, generator=g, dtype=dtype) + 2 * nn.functional.one_hot(y, D), y


def fitted(
    name: str,
    structure: str = "kron",
    distance: str = "arccos",
    dtype: torch.dtype = torch.float64,
    **how: object,
) -> LaplaceEmbedder:
    torch.manual_seed(0)
    model, head = MODELS[name]()
    model = model.to(dtype)
    settings = {"head": head, "structure": structure, "distance": distance, "hessian": "positives"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NegativeCurvatureWarning)
        embedder = LaplaceEmbedder(model, **{**settings, **how})
        return embedder.fit([inputs(dtype=dtype)], progress=False)
