"""States as values that can be written down: nested states, samplers, random generators.

A nested state, such as an optimiser's, becomes JSON and named tensors; there is no pickle.

Most orders of a DataLoader follow from a random state alone. ``MPerClassSampler`` of
pytorch-metric-learning also shuffles a list of its own in place, so that an epoch depends on those
before it: the numbers that a sampler holds are a state too.

How much curvature and prior count after t steps: the average that stays, or the paper's sum.

    average   P_t = n H_t + tau I,              H_t = mean of h_1 ... h_t, weights d^(t-k)
    paper     P_t = d P_(t-1) + n h_t           (Warburg et al. 2023, LAM, eq 70, d = 1 - alpha)
                  = n S_t H_t + d^t tau I,      P_0 = tau I,  S_t = (1 - d^t) / (1 - d)

One average serves both: the paper's precision is that of ``S_t`` times as much data, with a prior
that fades. n is what an average over pairs stands for: all points, or all pairs of the data set.

The running curvature of a training: an average over batches that forgets.

    H_t = (1 - a_t) H_(t-1) + a_t h_t,     a_t = (1 - d) / (1 - d^t)

is the mean of h_1 ... h_t with weights ``d^(t-k)`` (the bias correction of Kingma and Ba 2015,
Adam, section 3, as one recursion). It is an average over pairs after one step as after many, so
``n_effective`` means what it means after a post-hoc fit.

What Warburg et al. (2023, LAM, eq 70) print adds up instead of averaging: see ``Scale``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_name, check_positive
from laplace_metric.curvature._structures import (
    Curvature,
    DiagCurvature,
    FullCurvature,
    IdentityEigenbasis,
    KronCurvature,
    KroneckerFactors,
    SpectralCurvature,
    zero_curvature,
)
from laplace_metric.errors import FileFormatError, InputError, UnknownNameError
from laplace_metric.heads._jacobian import Layout

StateTree = dict[str, Any]
"""Nested dictionaries, lists, tuples, tensors and plain values."""

PLAIN = (str, int, float, bool, type(None))


def flatten(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors that it names ``prefix0``, ``prefix1``, ...

    Dictionaries (whose keys may be numbers), lists, tuples, tensors and plain values come back
    from ``unflatten`` as they were; floats bit by bit.

    Raises
    ------
    InputError
        For a value of another kind.

    Examples
    --------
    >>> content, tensors = flatten({0: {"step": torch.tensor(3.0), "betas": (0.9, 0.99)}})
    >>> unflatten(content, tensors)
    {0: {'step': tensor(3.), 'betas': (0.9, 0.99)}}
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, prefix, tensors), tensors


def _flatten(tree: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"{prefix}{len(tensors)}"
        tensors[name] = tree.detach().cpu().clone()  # a copy each: safetensors takes no aliases
        return {"tensor": name}
    if isinstance(tree, dict):
        pairs = [[_flatten(part, prefix, tensors) for part in pair] for pair in tree.items()]
        return {"dict": pairs}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_flatten(part, prefix, tensors) for part in tree]}
    if isinstance(tree, PLAIN):
        return tree
    raise InputError(
        f"a {type(tree).__name__} cannot be written to a checkpoint: the states of model, loss, "
        "optimizer and scheduler must be made of tensors, numbers, strings, dicts and lists."
    )


def unflatten(content: Any, tensors: dict[str, Tensor]) -> Any:
    """Rebuild the tree that ``flatten`` took apart.

    Raises
    ------
    FileFormatError
        If the JSON is not of ``flatten``, or names a tensor that is not there.
    """
    if isinstance(content, PLAIN):
        return content
    try:
        ((kind, parts),) = content.items()
        if kind == "tensor":
            return tensors[parts]
        if kind == "dict":
            return {unflatten(k, tensors): unflatten(v, tensors) for k, v in parts}
        return {"list": list, "tuple": tuple}[kind](unflatten(part, tensors) for part in parts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"a nested value is damaged: {error!r}.") from error


def shapes(tree: dict[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each tensor of a state dict.

    Examples
    --------
    >>> shapes({"weight": torch.ones(2, 3)})
    {'weight': [[2, 3], 'torch.float32']}
    """
    return {k: [list(v.shape), str(v.dtype)] for k, v in tree.items() if torch.is_tensor(v)}


MAX_DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, however they are nested, each once.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [type(sampler).__name__ for sampler in samplers(DataLoader([1, 2], shuffle=True))]
    ['RandomSampler', 'BatchSampler']
    """
    nested: list[Any] = []
    parts = [loader]
    for _ in range(MAX_DEPTH):
        inner = [getattr(p, name, None) for p in parts for name in ("sampler", "batch_sampler")]
        parts = [p for p in inner if p is not None and all(p is not other for other in nested)]
        nested += parts
    return nested


def generators(loader: Any) -> list[torch.Generator]:
    """The generators of the loader and of its samplers, each once."""
    attributes = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in attributes if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """The integers and lists of integers (as tensors) among the attributes."""
    state: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _is_integer(value):
            state[name] = int(value)
        elif isinstance(value, list) and value and all(_is_integer(v) for v in value):
            state[name] = torch.tensor([int(v) for v in value])
    return state


def restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    """Put back what ``sampler_state`` took."""
    for name, value in state.items():
        setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)


def _is_integer(value: Any) -> bool:
    """Return whether it is an int, also of numpy, and no bool."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def random_states(weights: torch.Generator, loader: Any, device: torch.device) -> StateTree:
    """Every random state that a training draws from, ``weights`` among them."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "generators": [g.get_state() for g in (weights, *generators(loader))],
        "samplers": [sampler_state(sampler) for sampler in samplers(loader)],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_states(
    states: StateTree, weights: torch.Generator, loader: Any, device: torch.device
) -> None:
    """Put back what ``random_states`` took."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for generator, state in zip((weights, *generators(loader)), states["generators"], strict=True):
        generator.set_state(state)
    for sampler, state in zip(samplers(loader), states["samplers"], strict=True):
        restore_sampler(sampler, state)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


RECURSIONS = ("average", "paper")
COUNTS = ("points", "pairs")
EVIDENCE = "evidence"
START = 1.0
"""The prior precision until the first epoch is over, where the evidence chooses it."""
LEAST = torch.finfo(torch.float32).tiny
"""A prior precision below is forgotten: 1 / tau would overflow."""


@dataclass
class Scale:
    """n and tau of the posterior after t steps.

    Parameters
    ----------
    recursion : "average" | "paper"
    decay : float in [0, 1]
        d.
    count : float > 0, "points" or "pairs"
        n: itself, N, or N^2.
    prior_precision : float > 0
        tau.
    by_evidence : bool
        Whether tau is chosen anew after each epoch.

    Examples
    --------
    >>> scale = Scale("paper", 0.5, "points", 8.0)
    >>> scale.of_curvature(10, 3), scale.of_prior(3)
    (17.5, 1.0)
    """

    recursion: str
    decay: float
    count: float | str
    prior_precision: float
    by_evidence: bool = False

    @classmethod
    def of(
        cls, recursion: str, decay: float, count: float | str | None, prior: float | str
    ) -> Scale:
        """From what a user says.

        Raises
        ------
        UnknownNameError
            For other names.
        InputError
            For numbers that are not positive, and a prior that would fade and be chosen anew.
        """
        check_name("recursion", recursion, RECURSIONS)
        if isinstance(count, str):
            _check_word("n_effective", count, COUNTS)
        elif count is not None:
            count = check_positive("n_effective", count)
        by_evidence = isinstance(prior, str)
        if isinstance(prior, str):
            _check_word("prior_precision", prior, (EVIDENCE,))
            if recursion == "paper":
                raise InputError(
                    "prior_precision='evidence' chooses a prior that recursion='paper' lets fade: "
                    "pass recursion='average', or a number."
                )
        tau = START if isinstance(prior, str) else check_positive("prior_precision", prior)
        return cls(recursion, decay, "points" if count is None else count, tau, by_evidence)

    def of_curvature(self, n_points: int, t: int) -> float:
        """Return the factor of the running average; ``n_points`` is N."""
        n = float(n_points)
        n = {"points": n, "pairs": n * n}[self.count] if isinstance(self.count, str) else self.count
        return n * self._terms(max(t, 1)) if self.recursion == "paper" else n

    def _terms(self, t: int) -> float:
        """S_t."""
        return float(t) if self.decay == 1 else (1 - self.decay**t) / (1 - self.decay)

    def of_prior(self, t: int) -> float:
        """The prior precision that is left.

        Raises
        ------
        InputError
            If nothing is left: a direction without curvature would have an infinite variance.
        """
        if self.recursion == "average":
            return self.prior_precision
        left = self.prior_precision * self.decay**t
        if left < LEAST:
            raise InputError(
                f"recursion='paper' with decay={self.decay} has forgotten its prior after {t} "
                "steps: pass a decay closer to 1, or recursion='average'."
            )
        return left

    def identity(self) -> dict[str, float | str | bool]:
        """Return the settings that a resumed run must share."""
        return {"recursion": self.recursion, "count": self.count, "by evidence": self.by_evidence}


def _check_word(name: str, word: str, words: tuple[str, ...]) -> None:
    """Raise ``UnknownNameError`` for a word where a number could stand, too."""
    if word not in words:
        raise UnknownNameError(name, word, (*words, "a number"))


@dataclass
class RunningCurvature:
    """H over the batches so far, and the decomposition that draws are made from.

    Parameters
    ----------
    decay : float in [0, 1]
        d; an average over the last ``1 / (1 - d)`` steps. 0: the last batch, 1: every batch alike.
    refresh : int
        H is decomposed anew each so many updates (1 for a diagonal, where that costs nothing).
    value : Curvature or None
        H before the positivity step, of any sign; None before the first update.

    Examples
    --------
    >>> h = RunningCurvature(decay=0.5)
    >>> h.update(DiagCurvature(torch.tensor([3.0])))
    >>> h.update(DiagCurvature(torch.tensor([0.0])))  # weights 1/3 and 2/3
    >>> h.value.values
    tensor([1.])
    """

    decay: float
    refresh: int = 1
    n_updates: int = 0
    value: Curvature | None = None
    decomposed: Curvature | None = None
    _spectral: SpectralCurvature | None = None

    @property
    def weight(self) -> float:
        """a_t of the last update."""
        t = self.n_updates
        return 1 / t if self.decay == 1 else (1 - self.decay) / (1 - self.decay**t)

    def update(self, batch: Curvature) -> None:
        """Take in the curvature of one batch."""
        self.n_updates += 1
        if self.value is None:
            self.value = _summable(batch)
        else:
            old, new = self.value.scaled(1 - self.weight), batch.scaled(self.weight)
            self.value = old + new  # type: ignore[operator]
        if (self.n_updates - 1) % self.refresh == 0:
            self.decomposed, self._spectral = self.value, None

    def restore(self, value: Curvature | None, decomposed: Curvature | None) -> None:
        """Put back an H, and the one of the last refresh."""
        self.value, self.decomposed, self._spectral = value, decomposed, None

    def spectral(self, like: Float[Tensor, " P"]) -> SpectralCurvature:
        """H after the positivity step as of the last refresh; zero before the first update.

        Its basis has the dtype and the device of ``like``.
        """
        if self.decomposed is None:
            zeros = torch.zeros(len(like), dtype=torch.float64, device=like.device)
            return SpectralCurvature(IdentityEigenbasis(), zeros, 0.0)
        if self._spectral is None:
            spectral = self.decomposed.decompose()
            self._spectral = replace(spectral, basis=spectral.basis.to(like))
        return self._spectral

    def final(self, structure: str, layouts: Sequence[Layout], device: torch.device) -> Curvature:
        """H; zeros if no batch had two classes."""
        zeros = zero_curvature(structure, layouts, device)
        return zeros if self.value is None else self.value


def _summable(batch: Curvature) -> Curvature:
    """The curvature without what sums drop: a refined spectrum, a standard error."""
    if isinstance(batch, KronCurvature):
        return KronCurvature(batch.factors)
    return DiagCurvature(batch.values) if isinstance(batch, DiagCurvature) else batch


def curvature_tensors(value: Curvature) -> list[Tensor]:
    """The tensors of a running sum, in order."""
    if isinstance(value, DiagCurvature):
        return [value.values]
    if isinstance(value, FullCurvature):
        return [value.matrix]
    return [side for f in value.factors for side in (f.left, f.right)]


def curvature_of(tensors: Sequence[Tensor], structure: str, layouts: Sequence[Layout]) -> Curvature:
    """Back from ``curvature_tensors``."""
    if structure == "diag":
        return DiagCurvature(tensors[0])
    if structure == "full":
        return FullCurvature(tensors[0])
    sides = zip(tensors[::2], tensors[1::2], layouts, strict=True)
    return KronCurvature(tuple(KroneckerFactors(*part) for part in sides))
