"""``LaplaceEnsemble``: several embedders with posteriors as one, a mixture of posteriors.

Members are networks from other seeds, or other heads on one body. Their embeddings u_m lie in
spaces that have no coordinates in common, so that no average of embeddings means anything, and a
variance between them neither. A draw is one of a member, each as likely as any other, in the block
of coordinates of that member (``distributions.Concatenated``). Inner products and distances do have
a mean, that of the means a_m side by side:

    v = [a_1 ; ... ; a_M] / sqrt(M)      <v(x), v(y)> = mean_m <a_m(x), a_m(y)>
    Cov   = diag(C_1, ..., C_M) / M      C_m the covariance of member m, tangent on its own sphere

with Cov that of draws about the mean of their own member. The squared distance of two inputs is
that of their draws by one member: its variance has the disagreement of the members in it
(``_squared_distance``; deep ensembles, Lakshminarayanan et al. 2017, of Laplace posteriors,
Eschenhagen et al. 2021).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.display import Rows, Shown
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_path, check_count, refuse_reloaded
from laplace_metric.distributions import Concatenated
from laplace_metric.distributions._concatenated import drawn_parts, in_blocks
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.embedding import Embedding, FitSetParts, HeadInputScore
from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from laplace_metric.inputs import ModelInput, read_batch, read_inputs
from laplace_metric.io import Fields, Kind, Part, SavedFile, write
from laplace_metric.laplace import Distance
from laplace_metric.laplace.distance._squared_distance import mixed_distance
from laplace_metric.models._modules import device_of
from laplace_metric.probabilistic_embedder import Draw, ProbabilisticEmbedder
from laplace_metric.search import Index
from laplace_metric.search._ensemble_encoder import EnsembleEncoder
from laplace_metric.search._protocols import Encoders
from laplace_metric.search.engines._engine import EngineKind
from laplace_metric.search.rank._rankings import Predictive

ENSEMBLE = Kind("ensemble", "a saved ensemble", 1)
LEAST = 2
"""Members of an ensemble."""


class LaplaceEnsemble(Shown, ProbabilisticEmbedder):
    """Several embedders with Laplace posteriors, as one: a mixture of posteriors.

    An embedding is that of all members side by side, divided by the root of their number M, so that
    its inner products and squared distances are the means of theirs. Its ``uncertainty`` and
    ``epistemic`` are the means of those of the members: each is in one unit for all of them, and
    the mean of log odds is steadier than the largest. The disagreement of the members is in the
    variance of distances, and so in the match probability of an index.

    Parameters
    ----------
    members : sequence of M LaplaceEmbedder
        Two or more fitted embedders, of networks that were trained from other seeds or of other
        heads on one body, with the same number of dimensions and the same geometry. They take the
        same inputs, and are not copied.

    Raises
    ------
    InputError
        For fewer than two members, one that is no ``LaplaceEmbedder``, the same one twice, and
        members of other dimensions, geometry or device.
    NotFittedError
        For a member that is not fitted.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> def network(seed):
    ...     torch.manual_seed(seed)
    ...     return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> x, y = torch.randn(40, 4), torch.arange(40) % 4
    >>> members = [LaplaceEmbedder(network(seed)).fit(x, y) for seed in range(3)]
    >>> ensemble = LaplaceEnsemble(members)
    >>> ensemble(x).mean.shape, ensemble.sample(x, 5, seed=0).shape
    (torch.Size([40, 9]), torch.Size([5, 40, 9]))
    >>> ensemble.index(x, y).search(x[:2], k=3).ids.shape
    (2, 3)
    """

    def __init__(self, members: Sequence[LaplaceEmbedder]) -> None:
        self.members = _checked(members)
        self.model = nn.ModuleList([member.model for member in self.members])

    @property
    def spherical(self) -> bool:
        """True if embeddings are directions."""
        return self.members[0].spherical

    def __len__(self) -> int:
        return len(self.members)

    def _sentence(self) -> str:
        kind = "directions" if self.spherical else "vectors"
        n_outputs = self.members[0].fitted_.head.n_outputs
        return f"{len(self)} embedders with posteriors, each of {n_outputs} dimensions; {kind}."

    def _shown_rows(self) -> Rows:
        return [(f"member {i}", member._sentence()) for i, member in enumerate(self.members)]

    def fit(self, loader: Any, labels: Any = None, *, progress: bool = False) -> LaplaceEnsemble:
        """Fit the posterior of every member to the same data; returns itself.

        Parameters
        ----------
        loader : iterable of batches, a data set of single items, or inputs next to ``labels``
            Data to fit, as for ``LaplaceEmbedder.fit``. They are held in memory.
        labels : [N] whole numbers or names of classes, or None
            Class of each input. None, the default: the loader has them.
        progress : bool
            Show a progress bar for each member. Default: False.

        Raises
        ------
        HeadError, InputError, DtypeError, LabelError, NonFiniteError, EmptyLoaderError
            As ``LaplaceEmbedder.fit``. No member changes if the fit of one fails.
        """
        inputs = read_inputs("loader", loader, labels, labelled=True).held()
        # copies share the models; members of different data are no mixture of posteriors
        fits = [copy.copy(member).fit(inputs, progress=progress) for member in self.members]
        for member, fit in zip(self.members, fits, strict=True):
            vars(member).update(vars(fit))
        return self

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return distributions over the embeddings of a batch, by one forward pass a member.

        Raises
        ------
        NonFiniteError, InputError, WeightsChangedError
            As a ``LaplaceEmbedder``.
        """
        batch = read_batch("inputs", inputs)
        parts = [member(batch) for member in self.members]
        law = Concatenated([part.distribution for part in parts])
        heads = [part.head_inputs for part in parts]
        scores = [part.near_far for part in parts]
        if any(part is None for part in (*heads, *scores)):
            return Embedding(law)
        score = MeanScore(scores, [len(h[0]) for h in heads])  # type: ignore[arg-type, index]
        return Embedding(law, None, torch.cat(heads, 1), score)  # type: ignore[arg-type]

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Draw n heads, each of one member; return a function from inputs to [n, B, M Z].

        A draw is the same head of the same member for all inputs, and 0 in the blocks of the other
        members. Squared distances of draws have the moments of ``distance``; deviations from the
        mean of their own member have ``uncertainty`` and ``variance``. Directions have length 1.
        The members have n / M draws each, rounded down or up.

        Parameters
        ----------
        n : int
            Number of draws, at least 1.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.

        Warns
        -----
        WideDrawsWarning
            As ``LaplaceEmbedder.draw``, for each member.
        """
        check_count("n", n)
        generator = as_generator(seed)
        member_of_draw = drawn_parts(n, len(self), generator)
        counts = member_of_draw.bincount(minlength=len(self)).tolist()
        draws = [
            member.draw(count, generator) if count else None
            for member, count in zip(self.members, counts, strict=True)
        ]

        def embed(inputs: ModelInput) -> Tensor:
            batch = read_batch("inputs", inputs)
            found = [None if draw is None else draw(batch) for draw in draws]
            like = next(part for part in found if part is not None)
            return in_blocks([like[:0] if x is None else x for x in found], member_of_draw)

        return embed

    def distance(self, x: ModelInput, y: ModelInput, *, shared_weights: bool = True) -> Distance:
        """Return mean and variance [B] of the squared distance between the rows of two batches.

        The distance is that of one member, each as likely as any other: its variance is the mean of
        theirs, and the variance of their means.

        Parameters
        ----------
        x, y : one batch of inputs each
            Batches of equal length; row i of ``x`` and row i of ``y`` are one pair.
        shared_weights : bool
            True, the default: both embeddings come from the same uncertain weights. False treats
            the two embeddings as independent under each member.
        """
        a, b = read_batch("x", x), read_batch("y", y)
        return mixed_distance(
            [member.distance(a, b, shared_weights=shared_weights) for member in self.members]
        )

    def predictive_vectors(
        self, inputs: ModelInput, *, temperature: float | None = None
    ) -> Float[Tensor, "B V"]:
        """Return one vector an input whose inner products are the expected ones of the mixture.

        They are those of the members side by side, divided by the root of M.

        Parameters
        ----------
        inputs : one batch of inputs
            Inputs as the models take them.
        temperature : float > 0 or None
            Temperature of all covariances. None, the default: those of the members' own.

        Raises
        ------
        HeadError, InputError, NonFiniteError, WeightsChangedError
            As ``LaplaceEmbedder.predictive_vectors``.
        """
        batch = read_batch("inputs", inputs)
        parts = [m.predictive_vectors(batch, temperature=temperature) for m in self.members]
        return torch.cat(parts, 1) / len(parts) ** 0.5

    def index(
        self,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str | Predictive = "auto",
        progress: bool = False,
    ) -> Index:
        """Return an index of items to search among; calibrate it with queries that are held out.

        Parameters
        ----------
        gallery : inputs (an array, a list of texts, a mapping) or a loader of batches
            Items of the index. A loader may yield ``(inputs, labels)``.
        labels, ids : [N] whole numbers or strings, or None
            Class and name of each item, as for ``LaplaceEmbedder.index``. Default: None.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Search engine. Default: "flat", exact.
        rank_by : "auto" | "mean" | "predictive" | "shared", or ``search.Predictive``
            Ranking of the items, as for ``LaplaceEmbedder.index``, by the mean over the members.
            Default: "auto".
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, NonFiniteError, EmptyLoaderError, MissingPackageError
        """
        encoder = EnsembleEncoder(self.members)
        return Index.build(
            encoder, gallery, labels, ids, engine=engine, rank_by=rank_by, progress=progress
        )

    def search_encoders(self) -> Sequence[Encoders]:
        """Return the encoder of items and queries, by which an index is loaded."""
        encoder = EnsembleEncoder(self.members)
        return [(encoder, encoder)]

    def save(self, path: str | Path) -> None:
        """Write the posteriors of all members, without the models, to one file.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "ensemble.safetensors", which is replaced in one
            step.

        Raises
        ------
        WeightsChangedError, InputError, WriteError
            As ``LaplaceEmbedder.save``.
        """
        write(as_path("path", path), self._parts())

    def _parts(self) -> dict[str, Part]:
        """Return the number of members, and each posterior, as parts of a file."""
        parts = {ENSEMBLE.name: Part(ENSEMBLE, {"members": len(self)})}
        return parts | {_name(i): member._part() for i, member in enumerate(self.members)}

    @classmethod
    def load(cls, path: str | Path, models: Sequence[nn.Module] | None = None) -> LaplaceEnsemble:
        """Read what ``save`` wrote, and put each posterior on its model.

        Parameters
        ----------
        path : path
            File of ``save``, or another that holds an ensemble: of ``Guard.save``.
        models : sequence of M nn.Module, or None
            Models that were fitted, in the order of the members. None, the default: posteriors of
            ``LaplaceEmbedder.from_embeddings``.

        Raises
        ------
        FileFormatError
            If the file is not ours, damaged or newer, or a model is not the one that was
            fitted, in its head or before it.
        InputError
            For another number of models than of members.
        """
        return cls._of(SavedFile(as_path("path", path)), models)

    @classmethod
    def _of(cls, saved: SavedFile, models: Any) -> LaplaceEnsemble:
        """Return the ensemble of an opened file on its models."""
        with saved.checked():
            n = Fields(saved.part(ENSEMBLE).content, "ensemble").whole("members", least=LEAST)
        networks = [None] * n if models is None else models
        if isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList):
            raise InputError(f"models is one {type(networks).__name__}: pass a list of {n}.")
        if len(networks) != n:
            raise InputError(f"models has {len(networks)} entries: pass {n}, one for each member.")
        members = [LaplaceEmbedder._of(saved, m, _name(i)) for i, m in enumerate(networks)]
        try:
            return cls(members)
        except InputError as error:
            raise FileFormatError(f"{saved.path} holds no ensemble: {error}") from error


class MeanScore:
    """Means of the numbers by which members compare inputs with their fit sets.

    Parameters
    ----------
    scores : sequence of M HeadInputScore
        Score of each member.
    widths : sequence of M int
        Number of head inputs of each member, which stand side by side.
    """

    of_weights: ClassVar[bool] = False

    def __init__(self, scores: Sequence[HeadInputScore], widths: Sequence[int]) -> None:
        self._scores, self._widths = tuple(scores), list(widths)

    def parts(self, features: Tensor) -> FitSetParts:
        """Return the mean of each number [B]; None for those that a member does not give."""
        found = [score.parts(own) for score, own in self._each(features)]
        return FitSetParts(*(_mean(column) for column in zip(*found, strict=True)))  # type: ignore[arg-type]

    def ambiguity(self, features: Tensor) -> Tensor | None:
        """Return the mean entropy of the label [B]; None if a member knows no class."""
        return _mean([score.ambiguity(own) for score, own in self._each(features)])

    def _each(self, features: Tensor) -> Iterable[tuple[HeadInputScore, Tensor]]:
        return zip(self._scores, features.split(self._widths, 1), strict=True)


def _mean(numbers: Iterable[Tensor | None]) -> Tensor | None:
    column = list(numbers)
    there = [x for x in column if x is not None]
    return torch.stack(there).mean(0) if len(there) == len(column) else None


def _name(member: int) -> str:
    """Return the name of a member's part of a file."""
    return f"posterior {member}"


def _checked(members: Any) -> tuple[LaplaceEmbedder, ...]:
    """Return the members, or raise for those that do not go together."""
    if not isinstance(members, Sequence) or len(members) < LEAST:
        what = f"is a {type(members).__name__}"
        if isinstance(members, Sequence):
            what = f"holds one {type(members[0]).__name__} alone" if members else "is empty"
        raise InputError(
            f"members {what}: pass a list of two LaplaceEmbedders or more, each of a network of "
            "its own, trained from another seed."
        )
    for i, member in enumerate(members):
        if not isinstance(member, LaplaceEmbedder):
            refuse_reloaded(f"members[{i}]", member)
            raise InputError(f"members[{i}] is a {type(member).__name__}: pass a LaplaceEmbedder.")
        if member._fitted is None:
            raise NotFittedError(f"members[{i}] is not fitted: call its fit(loader) first.")
    first = members[0]
    for i, member in enumerate(members[1:], 1):
        for name, of in _AGREE.items():
            if (ours := of(member)) != (theirs := of(first)):
                raise InputError(
                    f"members[{i}] has {name} {ours}, and members[0] has {theirs}: pass members "
                    "that agree."
                )
        for j, other in enumerate(members[:i]):
            if member is other or _same(member, other):
                raise InputError(
                    f"members[{j}] and members[{i}] are the same: pass embedders of networks, or "
                    "heads, that were trained from other seeds."
                )
    return tuple(members)


_AGREE = {
    "dimensions": lambda member: member.fitted_.head.n_outputs,
    "geometry": lambda member: "directions" if member.spherical else "vectors",
    "device": lambda member: str(device_of(member.model)),
}
"""Properties that all members share, by their names."""


def _same(a: LaplaceEmbedder, b: LaplaceEmbedder) -> bool:
    """Return whether two embedders have the same head, and the same posterior over it."""
    p, q = a.posterior_, b.posterior_
    pairs = ((p.mean, q.mean), (p.spectrum, q.spectrum))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)
