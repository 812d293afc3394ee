"""Published Kronecker factors of the curvature of both projections, as BayesVLM has them.

Baumann et al. (2024) publish for each projection the factors A, of its inputs h, and B, of its
outputs, and for each a prior precision l and a number n of data, with

    A = 1/sqrt(N) sum_i h_i h_i^T         B = 1/sqrt(N) sum_i d^2 loss_i / dz_i^2
    precision of W = (sqrt(n) B + sqrt(l) I) (x) (sqrt(n) A + sqrt(l) I)

where h has a last 1 if there is a bias. That is not ``n B (x) A + l I``: the terms of l and n that
it adds are those of factors that are damped one by one (Martens and Grosse 2015). In the
eigenvectors of A and B, with their eigenvalues a and b, the same precision is ``n e + l`` of

    e_ij = b_i a_j + sqrt(l / n) (b_i + a_j)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from laplace_metric._utils.validation import (
    as_path,
    as_points,
    as_tensor,
    check_floating,
    check_positive,
)
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis, KroneckerEigenblock
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.image_text._head import GaussianHead
from laplace_metric.image_text.objectives._objectives import TwoHeads
from laplace_metric.image_text.towers._tower_posterior import TowerPosterior

TENSORS, NUMBERS = "factors.safetensors", "prior_precision_analytic.json"
ROUNDING = 1e-4
"""Share of the largest entry, or eigenvalue, by which a factor may be asymmetric, or negative."""


@dataclass(frozen=True)
class ProjectionFactors:
    """Kronecker factors of the curvature of two projections, with prior and number of data.

    Parameters
    ----------
    A_img, A_txt : Tensor [F, F] or [F + 1, F + 1]
        Factors of the inputs of the image and of the text projection, symmetric and positive
        semi-definite. The last row and column are of the bias, if the projection has one.
    B_img, B_txt : Tensor [D, D]
        Factors of the outputs, symmetric and positive semi-definite.
    lambda_img, lambda_txt : float > 0
        Prior precisions of both projections.
    n_img, n_txt : float > 0
        Numbers of data that multiply the factors. Default: 1, as published.

    Raises
    ------
    InputError
        For numbers that are not above 0, and for factors that are not square, not symmetric or not
        positive semi-definite.
    NonFiniteError
        For NaN and infinity.

    Examples
    --------
    >>> one, two = torch.eye(3), 2 * torch.eye(2)
    >>> factors = ProjectionFactors(one, two, one, two, lambda_img=10.0, lambda_txt=10.0)
    >>> factors.n_img
    1.0
    """

    A_img: Float[Tensor, "F F"]
    B_img: Float[Tensor, "D D"]
    A_txt: Float[Tensor, "G G"]
    B_txt: Float[Tensor, "D D"]
    lambda_img: float
    lambda_txt: float
    n_img: float = 1.0
    n_txt: float = 1.0

    def __post_init__(self) -> None:
        for name in ("A_img", "B_img", "A_txt", "B_txt"):
            object.__setattr__(self, name, _positive_factor(name, getattr(self, name)))
        for name in ("lambda_img", "lambda_txt", "n_img", "n_txt"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    @classmethod
    def load(cls, path: str | Path) -> ProjectionFactors:
        """Read a folder with ``factors.safetensors`` and ``prior_precision_analytic.json``.

        The published tensors are pickles, which run what they hold, and are not read. Convert them
        once, with the ``weights_only`` of torch::

            names = ["A_img", "B_img", "A_txt", "B_txt"]
            read = partial(torch.load, map_location="cpu", weights_only=True)
            factors = {name: read(f"{folder}/{name}_analytic.pt") for name in names}
            save_file({name: f.contiguous() for name, f in factors.items()}, "factors.safetensors")

        Parameters
        ----------
        path : path
            Folder of both files; the second is as published.

        Raises
        ------
        FileFormatError
            If a file is missing or damaged, or has other entries.
        InputError, NonFiniteError
            For numbers and factors that the constructor refuses.
        """
        folder = as_path("path", path)
        try:
            tensors: dict[str, Any] = load_file(folder / TENSORS)
            numbers = json.loads((folder / NUMBERS).read_bytes())
        except (SafetensorError, OSError, ValueError) as error:
            raise FileFormatError(
                f"the factors in {folder} cannot be read: {error}. Pass a folder with {TENSORS} "
                f"and {NUMBERS}; pickles (.pt) are not read: see ProjectionFactors.load."
            ) from error
        found = tensors | numbers if isinstance(numbers, dict) else tensors
        names = [field.name for field in fields(cls)]
        if set(found) != set(names):
            raise FileFormatError(
                f"the files in {folder} have {', '.join(sorted(found))}: {', '.join(names)} belong "
                "there."
            )
        return cls(**found)

    def posteriors(self, heads: TwoHeads) -> tuple[TowerPosterior, TowerPosterior]:
        """Return the posteriors of the means of both heads.

        Raises
        ------
        InputError
            For factors of other sizes than those of the heads.
        """
        image = _posterior(heads.image, "img", self)
        return image, _posterior(heads.text, "txt", self)


def _positive_factor(name: str, given: Any) -> Tensor:
    """Return a symmetric, positive semi-definite factor in float64."""
    floating = check_floating(name, as_tensor(name, given))
    factor = as_points(name, floating, "[K, K]").double()
    if factor.shape[0] != factor.shape[1]:
        raise InputError(f"{name} has the shape {list(factor.shape)}: pass a square matrix.")
    largest = float(factor.abs().max())
    gap = float((factor - factor.mT).abs().max())
    if gap > ROUNDING * largest:
        raise InputError(
            f"{name} is not symmetric: entries differ from those of its transpose by up to "
            f"{gap:.3g}, and the largest is {largest:.3g}. Pass a factor of a curvature."
        )
    factor = (factor + factor.mT) / 2
    values = torch.linalg.eigvalsh(factor)
    least, most = float(values[0]), float(values[-1])
    if least < -ROUNDING * max(most, 0.0):
        raise InputError(
            f"{name} is not positive semi-definite: its eigenvalues go from {least:.3g} to "
            f"{most:.3g}. Pass a factor of a curvature, not of a covariance that was subtracted."
        )
    return factor


def _posterior(head: GaussianHead, side: str, factors: ProjectionFactors) -> TowerPosterior:
    """Return the posterior of one side, "img" or "txt"."""
    layout = LinearJacobian.of(head.mean).layout
    a, b, prior, n = (getattr(factors, f"{name}_{side}") for name in ("A", "B", "lambda", "n"))
    bias = "with its bias" if layout.bias else "which has no bias"
    _check_size(f"A_{side}", a, layout.n_columns, f"inputs of its projection, {bias}")
    _check_size(f"B_{side}", b, layout.n_outputs, "dimensions of the common space")
    (in_values, right), (out_values, left) = (torch.linalg.eigh(factor) for factor in (a, b))
    in_values, out_values = in_values.clamp_min(0), out_values.clamp_min(0)[:, None]
    eigenvalues = out_values * in_values + (prior / n) ** 0.5 * (out_values + in_values)
    basis = KroneckerEigenbasis((KroneckerEigenblock(left, right, layout),))
    curvature = SpectralCurvature(basis, eigenvalues.flatten(), 0.0)
    return TowerPosterior.around(head, curvature, n, prior)


def _check_size(name: str, factor: Tensor, size: int, what: str) -> None:
    """Raise ``InputError`` if a factor is not [size, size]."""
    if len(factor) != size:
        raise InputError(
            f"{name} has the shape {list(factor.shape)}: pass [{size}, {size}], for the {what}."
        )
