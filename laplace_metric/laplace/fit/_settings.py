"""Settings of the posterior, which are checked and saved with it.

``structure="auto"`` is decided head by head: in the benchmarks the Kronecker structure ranks
out-of-distribution inputs better than the diagonal, and errors better on all tasks but one
(``benchmarks/README.md``); its price are two decompositions, cubic in the width of the features
and of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import check_function, check_name, check_positive
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._spectral_curvature import POSITIVITY
from laplace_metric.curvature._structures import STRUCTURES
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.heads._backends import BACKENDS
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.laplace.fit._fit_options import FitOptions

AUTO, LAYERWISE = "auto", "layerwise"
WIDEST = 2_048
"""Largest number of inputs or outputs of a linear layer whose decomposition takes seconds."""
Miner = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""A pytorch-metric-learning miner: (embeddings [B, Z], labels [B]) -> index tuple."""
PAIRS = ("all", "batch")
CHOSEN = {"prior_precision": (AUTO, LAYERWISE), "temperature": (AUTO,)}
"""Settings that are numbers, or words: then a fit chooses them, and its posterior has them."""
BEFORE = {"positivity": "clip", "temperature": 1.0}
"""Settings of files that were written before there were these."""


@dataclass(frozen=True)
class Settings(Shown):
    """Settings of ``LaplaceEmbedder``, apart from the model (see there for the meanings).

    Parameters
    ----------
    distance, hessian, structure, margin, prior_precision, temperature, n_effective, pairs, backend
        Settings with the meanings and the defaults of ``LaplaceEmbedder``.
    positivity
        Settings with the meanings and the defaults of ``LaplaceEmbedder``.

    Raises
    ------
    UnknownNameError, InputError
        If a name does not exist or a number is out of range.

    Examples
    --------
    >>> Settings(distance="euclidean").loss(normalized=True).geometry.name
    'euclidean on the sphere'
    """

    distance: str = "arccos"
    hessian: str = "fixed"
    structure: str = AUTO
    margin: float | None = None
    prior_precision: float | str = AUTO
    n_effective: float | None = None
    pairs: str | Miner = "all"
    backend: str = "auto"
    positivity: str = "absolute"
    temperature: float | str = AUTO

    def __post_init__(self) -> None:
        self.loss(normalized=False)
        check_name("backend", self.backend, BACKENDS)
        check_name("structure", self.structure, (AUTO, *STRUCTURES))
        if callable(self.pairs):
            check_function("pairs", self.pairs, "embeddings", "labels")
        elif not isinstance(self.pairs, str) or self.pairs not in PAIRS:
            raise UnknownNameError("pairs", self.pairs, (*PAIRS, "a miner (callable)"))
        check_name("positivity", self.positivity, POSITIVITY)
        for name in ("margin", "n_effective", "prior_precision", "temperature"):
            value = getattr(self, name)
            if name in CHOSEN and isinstance(value, str):
                if value not in CHOSEN[name]:
                    raise UnknownNameError(name, value, (*CHOSEN[name], "a number above 0"))
            elif value is not None or name in CHOSEN:  # kept as floats, not as 10**30
                object.__setattr__(self, name, check_positive(name, value))

    def loss(self, *, normalized: bool) -> ContrastiveLoss:
        """Return the loss of these settings for a network that does or does not normalise."""
        return ContrastiveLoss.of(
            self.distance, self.hessian, normalized=normalized, margin=self.margin
        )

    def for_head(self, head: HeadJacobian) -> Settings:
        """Return these settings with the structure that "auto" stands for.

        ``"kron"`` for linear layers of up to 2,048 inputs and outputs, else ``"diag"``.

        Raises
        ------
        InputError
            For a prior of layers, of a head that is none of linear layers, or with
            ``structure="full"``, which couples them.

        Examples
        --------
        >>> from torch import nn
        >>> from laplace_metric.heads._backends import jacobian_of
        >>> heads = [jacobian_of(nn.Linear(d, 8), 8) for d in (2048, 2049)]
        >>> [Settings().for_head(head).structure for head in heads]
        ['kron', 'diag']
        """
        if self.prior_precision == LAYERWISE and (not head.layered or self.structure == "full"):
            raise InputError(
                'prior_precision="layerwise" needs a head of linear layers, and structure="diag" '
                'or "kron", which do not couple them: pass "auto" or a number.'
            )
        if self.structure != AUTO:
            return self
        narrow = all(max(x.n_outputs, x.n_features) <= WIDEST for x in head.layouts)
        return replace(self, structure="kron" if head.layered and narrow else "diag")

    def check_options(self, options: FitOptions) -> None:
        """Refuse options that pairs of batches do not have.

        Raises
        ------
        InputError
            If sums are to be shared, kept or in another precision, without ``pairs="all"``.
        """
        for name in ("distributed", "checkpoint_dir", "dtype"):
            if self.pairs != "all" and getattr(options, name):
                raise InputError(f"{name} needs pairs='all': pairs of batches do not add up.")

    def to_json(self) -> dict[str, Any]:
        """Return plain values; a miner is kept by name only."""
        pairs = self.pairs if isinstance(self.pairs, str) else f"miner {type(self.pairs).__name__}"
        return {**asdict(self), "pairs": pairs}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Settings:
        """Read ``to_json``; using a miner that was not kept raises ``InputError``."""
        pairs = content["pairs"]
        pairs_or_stub = pairs if pairs in PAIRS else _LostMiner(pairs)
        return cls(**{**BEFORE, **content, "pairs": pairs_or_stub})


@dataclass(frozen=True)
class _LostMiner:
    name: str

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        raise InputError(
            f"this posterior was fitted with {self.name}, which its file does not hold: make a new "
            "LaplaceEmbedder with pairs=<the miner> to fit again."
        )
