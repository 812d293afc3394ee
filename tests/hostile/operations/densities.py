"""Distributions of embeddings, and functions of their parameters."""

from __future__ import annotations

from typing import Any

import torch

from tests.hostile import places
from tests.hostile.networks import D
from tests.hostile.operations.table import GENERATOR, Operations
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")

OPERATIONS = Operations()
operation = OPERATIONS.add


NO_DENSITY = ("SphericalLaplace", "SphericalGaussian")
_VARIANCE = ("array", lambda: places.fixed(5, D))
_LOC, _K = ("array", places.directions), ("array", places.concentrations)
for _name in (
    "VonMisesFisher",
    "PowerSpherical",
    "SphericalGaussian",
    "SphericalLaplace",
    "NonIsotropicVonMisesFisher",
):

    def _density(name: str = _name) -> Any:
        def use(generator: Any, shape: Any, value: Any, **k: Any) -> Any:
            p = getattr(dist, name)(**k)
            density = None if name in NO_DENSITY else p.log_prob(value)
            return density, p.sample(shape, generator)

        return use

    operation(
        f"distributions.{_name}",
        _density,
        {
            "loc": _LOC,
            "concentration": _K if _name != "NonIsotropicVonMisesFisher" else _VARIANCE,
            "value": _LOC,
            "shape": ("shape", (2,)),
            "generator": GENERATOR,
        },
        deterministic=False,
        weight=2,
    )
operation(
    "distributions.VonMisesFisher.moments",
    lambda: (
        lambda **k: [
            (p.mean, p.variance, p.covariance_matrix, p.entropy())
            for p in [dist.VonMisesFisher(**k)]
        ]
    ),
    {"loc": _LOC, "concentration": _K},
)


def _uniform() -> Any:
    def use(dimension: Any, shape: Any, generator: Any, value: Any) -> Any:
        p = dist.HypersphericalUniform(dimension)
        return p.log_prob(value), p.sample(shape, generator), p.entropy()

    return use


operation(
    "distributions.HypersphericalUniform",
    _uniform,
    {
        "dimension": ("count", D),
        "shape": ("shape", (2,)),
        "generator": GENERATOR,
        "value": _LOC,
    },
    deterministic=False,
)
_MATRICES = ("array", lambda: torch.eye(D).expand(5, D, D).clone())
for _name in ("Gaussian", "ProjectedNormal"):

    def _gaussian(name: str = _name) -> Any:
        def use(n: Any, generator: Any, **k: Any) -> Any:
            p = getattr(dist, name)(**k)
            return {
                "mean": p.mean,
                "variance": p.variance,
                "concentration": p.concentration,
                "sample": p.sample(n, generator),
            }

        return use

    operation(
        f"distributions.{_name}",
        _gaussian,
        {"loc": _LOC, "covariance": _VARIANCE, "n": ("count", 2), "generator": GENERATOR},
        deterministic=False,
        weight=2,
    )
for _name, _values in {"DiagonalCovariance": _VARIANCE, "DenseCovariance": _MATRICES}.items():
    _first = "values" if _name == "DiagonalCovariance" else "matrices"

    def _covariance(name: str = _name) -> Any:
        def use(vectors: Any, noise: Any, **k: Any) -> Any:
            c = getattr(dist, name)(**k)
            return c.diagonal(), c.dense(), c.apply(vectors), c.color(noise)

        return use

    operation(
        f"distributions.{_name}",
        _covariance,
        {_first: _values, "vectors": _LOC, "noise": ("array", lambda: torch.ones(2, 5, D))},
    )
operation(
    "distributions.Empirical",
    lambda: (
        lambda n, generator, **k: [
            (p.mean, p.variance, p.sample(n, generator)) for p in [dist.Empirical(**k)]
        ]
    ),
    {
        "draws": ("array", lambda: places.fixed(3, 5, D)),
        "spherical": ("flag", False),
        "n": ("count", 2),
        "generator": GENERATOR,
    },
    deterministic=False,
)
operation(
    "distributions.Directions",
    lambda: (
        lambda n, generator, **k: [
            (p.mean, p.variance, p.sample(n, generator)) for p in [dist.Directions(**k)]
        ]
    ),
    {"loc": _LOC, "concentration": _K, "n": ("count", 2), "generator": GENERATOR},
    deterministic=False,
)
for _name in ("log_vmf_normalizer", "mean_resultant_length"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"concentration": _K, "dimension": ("count", D)},
    )
for _name in ("concentration_of", "vmf_concentration"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"resultant": ("array", lambda: torch.linspace(0.1, 0.9, 5)), "dimension": ("count", D)},
    )
for _name in ("cap_angle", "cap_cosine"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"concentration": _K, "dimension": ("count", D), "probability": ("real", 0.9)},
    )
operation(
    "distributions.sample_angle",
    lambda: dist.sample_angle,
    {"concentration": _K, "dimension": ("count", D), "generator": GENERATOR},
    deterministic=False,
)
operation(
    "distributions.unnormalized_vmf_score",
    lambda: dist.unnormalized_vmf_score,
    {"loc": _LOC, "concentration": _K, "x": _LOC},
)


def _vmf() -> Any:
    return dist.VonMisesFisher(places.directions(), places.concentrations())


operation(
    "distributions.in_cap",
    lambda: dist.in_cap,
    {"p": ("distribution", _vmf), "value": _LOC, "probability": ("real", 0.9)},
)
for _name in ("log_expected_likelihood", "pairwise_log_expected_likelihood"):
    operation(
        f"distributions.{_name}",
        lambda n=_name: getattr(dist, n),
        {"p": ("distribution", _vmf), "q": ("distribution", _vmf)},
    )
