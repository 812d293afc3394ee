"""``TagGuard``: the tags of a query that its neighbours have, with a precision that is kept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import as_path, check_name, check_share
from laplace_metric.calibration import Rule, ScoreCalibration, calibrate_scores
from laplace_metric.calibration._group_column import read_groups
from laplace_metric.calibration.scores._scored_queries import SCORES
from laplace_metric.errors import FileFormatError, InputError, ScoresWarning
from laplace_metric.inputs._columns import Column
from laplace_metric.io import (
    BELOW_ONE,
    POSITIVE,
    Fields,
    Kind,
    Part,
    SavedFile,
    record,
    restored,
    saved,
    write,
)
from laplace_metric.search._near_copies import warn_of_near_copies
from laplace_metric.tags._tag_answers import TagAnswers, TagReport
from laplace_metric.tags._tag_sets import TagSets
from laplace_metric.tags._tagged_items import TaggedItems, TagHits

PARTS = 5
"""Parts of the queries that calibrate, each tested by a fit to the others: of half as many queries
a proven test gives half as many tags of emoji."""
ALONE = "Tags are then surer than of new queries, and fewer are right than asked: pass one of each,"
TAG_GUARD = Kind("tag_guard", "a saved guard of tags", 1)


@dataclass(frozen=True)
class AskedOfTags:
    """Precision, confidence and missing share that are asked of a guard; see ``TagGuard``."""

    precision: float = saved(POSITIVE, BELOW_ONE)
    confidence: float = saved(POSITIVE, BELOW_ONE)
    miss: float | None = saved(POSITIVE, BELOW_ONE, default=None)
    own_items: bool = False


class TagGuard(Shown):
    """Tag queries by their neighbours, so that a share of the given tags is right.

    The tags of the 20 nearest items are candidates; items that tie for the last places share them,
    so that no answer depends on the order of items. Their probabilities are learnt from queries
    whose tags are known, and a threshold is chosen that keeps the precision: of all tags that are
    given, so that a query with many counts for more. Of equal items one is kept, with the tags of
    all of them. (Which items calibrate together does depend on their order, without ``held_out``.)

    Parameters
    ----------
    vectors : [N, D]
        Embeddings of the items, of any encoder; or ``index.engine.vectors``, and then queries are
        ``index.query_vectors(x)``.
    tags : N collections of whole numbers or strings, or [N, L] zeros and ones
        Tags of each item. An item may have none.
    precision : float in (0, 1)
        Smallest share of the given tags that are right.
    confidence : float in (0, 1)
        Probability, over calibration sets, with which it is kept. Default: 0.95.
    miss : float in (0, 1) or None
        Expected share of a query's tags that ``TagAnswers.possible`` may leave out. None, the
        default: no such set is made.
    held_out : (queries, tags) or None
        Vectors and tags of queries that calibrate. None, the default: the items do, each among the
        others. If the encoder was trained on the items, pass others.
    groups : [Q] numbers or strings, or None
        Group of each of the ``held_out`` queries, such as its owner: those of a group depend on
        each other. None, the default: queries are independent.
    distance : "arccos" | "euclidean"
        Comparison of vectors: by their directions, or with their lengths. Default: "arccos".
    seed : int
        Seed of the split of the queries that calibrate. Default: 0.

    Raises
    ------
    InputError
        For shapes, tags and groups that do not fit, fewer than 21 distinct items or 20 queries that
        calibrate, and a precision or a ``miss`` that cannot be kept, with what would do.
    NonFiniteError
        For NaN and infinity.

    Warns
    -----
    DependentQueriesWarning
        If queries that calibrate are near-copies of items, or items of each other.

    Examples
    --------
    >>> import torch
    >>> g = torch.Generator().manual_seed(0)
    >>> colour, form = torch.randint(4, (2, 1200), generator=g)
    >>> x = torch.cat([torch.eye(4)[colour], torch.eye(4)[form]], 1)
    >>> x = x + 0.25 * torch.randn(1200, 8, generator=g)
    >>> tags = [[f"colour {a}", f"form {b}"] for a, b in zip(colour.tolist(), form.tolist())]
    >>> guard = TagGuard(x[:1000], tags[:1000], precision=0.9)
    >>> guard.evaluate(x[1000:], tags[1000:]).precision > 0.9
    True
    """

    def __init__(
        self,
        vectors: Any,
        tags: Any,
        precision: float,
        *,
        confidence: float = 0.95,
        miss: float | None = None,
        held_out: tuple[Any, Any] | None = None,
        groups: Any = None,
        distance: str = "arccos",
        seed: int = 0,
    ) -> None:
        spherical = check_name("distance", distance, ("arccos", "euclidean")) == "arccos"
        self.asked = AskedOfTags(
            check_share("precision", precision),
            check_share("confidence", confidence),
            None if miss is None else check_share("miss", miss),
            held_out is None,
        )
        self.items = TaggedItems.of(vectors, tags, spherical=spherical)
        name = "tags" if held_out is None else "held_out"
        if common := self.items.tags.of_all:
            raise InputError(
                f"tags: every item has {common[0]!r}, which tells none from another: leave it out."
            )
        if held_out is None:
            if groups is not None:
                raise InputError(
                    "groups= are of queries that calibrate: pass held_out=(queries, tags), too."
                )
            hits, truth = self.items.hits(self.items.others()), self.items.tags
            therefore = f"{ALONE} or held_out=(queries, tags) with groups=."
            warn_of_near_copies(self.items.vectors, None, "items", therefore)
        else:
            queries, sets = _pair(held_out)
            x = self.items.read("held_out", queries)
            if not len(x):
                raise InputError("held_out has no query: pass (queries, tags) of 20 or more.")
            truth = TagSets.of("held_out", sets, len(x), self.items.names, _columns(tags))
            hits = self.items.hits(self.items.near(x))
            groups = None if groups is None else read_groups(groups, len(x))
            if groups is None:
                warn_of_near_copies(x, None, "queries", f"{ALONE} or groups=.", self.items.vectors)
        self.calibration = _calibrated(name, hits, truth, groups, seed, by_halves=miss is not None)
        self._columns = _columns(tags)
        _ = self.rule  # what cannot be kept is told here
        if miss is not None:
            self._possible(hits)

    @cached_property
    def rule(self) -> Rule:
        """Rule that gives tags, with its guarantee and the queries that tested it."""
        asked = self.asked
        return self.calibration.guarantee(
            precision=asked.precision, confidence=asked.confidence, of="hits"
        )

    def __len__(self) -> int:
        return len(self.items)

    def ask(self, queries: Any) -> TagAnswers:
        """Return the tags of queries.

        Parameters
        ----------
        queries : [Q, D] or [D]
            Embeddings, of the encoder of the items.

        Raises
        ------
        InputError, NonFiniteError
            For another width, NaN and infinity.
        """
        return self._answers(self._hits(self.items.read("queries", queries)))

    def _hits(self, x: Float[Tensor, "Q D"]) -> TagHits:
        return self.items.hits(self.items.near(x))

    def _answers(self, hits: TagHits) -> TagAnswers:
        names = np.array([*self.items.names.values.tolist(), None], dtype=object)
        if not len(hits.tag):  # a calibration reads one query or more
            none = np.zeros(hits.tag.shape, bool)
            possible = None if self.asked.miss is None else none
            return TagAnswers(names[hits.tag], hits.share, none, possible)
        probability = self.calibration.probability(hits.share, **hits.evidence)
        given = np.asarray(self.rule.passed(hits.share, **hits.evidence)) & (hits.tag >= 0)
        possible = None if self.asked.miss is None else self._possible(hits) | given
        return TagAnswers(names[hits.tag], np.asarray(probability), given, possible)

    def _possible(self, hits: TagHits) -> npt.NDArray[np.bool_]:
        assert self.asked.miss is not None
        first = self.calibration.keep_relevant(hits.share, self.asked.miss, **hits.evidence)
        place = np.arange(hits.tag.shape[1])
        return (place < np.asarray(first)[:, None]) & (hits.tag >= 0)

    def evaluate(self, queries: Any, tags: Any) -> TagReport:
        """Count which tags of queries are right.

        Parameters
        ----------
        queries : [Q, D]
            Embeddings of queries that did not calibrate.
        tags : Q collections, or [Q, L] zeros and ones
            Tags of the queries. One that no item has is never given, and counts as missed.

        Raises
        ------
        InputError, NonFiniteError
            As ``ask``; for tags that do not fit.
        """
        x = self.items.read("queries", queries)
        truth = TagSets.of("tags", tags, len(x), self.items.names, self._columns)
        hits = self._hits(x)
        given = self._answers(hits).given
        right = int((hits.right(truth) & given).sum())
        tagged = int(given.any(1).sum())
        return TagReport(len(x), tagged, int(given.sum()), right, int(truth.count.sum()))

    def save(self, path: str | Path) -> None:
        """Write one file; ``TagGuard.load`` reads it.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "tags.safetensors", which is replaced in one step.

        Raises
        ------
        InputError
            If ``path`` is a folder.
        WriteError
            If it cannot be written; an old file is kept.
        """
        (own, arrays), (asked, _) = record(self.items), record(self.asked)
        arrays |= self.items.names.tensors("names")
        columns = {} if self._columns is None else {"columns": self._columns}
        part = Part(TAG_GUARD, own | asked | columns, arrays)
        write(as_path("path", path), {TAG_GUARD.name: part, SCORES.name: self.calibration.part()})

    @classmethod
    def load(cls, path: str | Path) -> TagGuard:
        """Read the file of ``save``.

        Parameters
        ----------
        path : path
            Name of the file.

        Raises
        ------
        FileFormatError
            For a damaged file, or one of another program or a newer version.
        """
        file = SavedFile(as_path("path", path))
        with file.checked():
            part = file.part(TAG_GUARD)
            content, names = Fields(part.content, TAG_GUARD.name), _names(dict(part.arrays))
            guard = cls.__new__(cls)
            guard.items = restored(TaggedItems, content, part.arrays, given={"names": names})
            guard.asked = restored(AskedOfTags, content, {})
            guard.calibration = ScoreCalibration.of_part(file.part(SCORES))
            guard._columns = content.whole("columns", least=1) if "columns" in content else None
            _ = guard._answers(guard._hits(guard.items.vectors[:1]))  # of this calibration and rule
        return guard

    def _sentence(self) -> str:
        asked = self.asked
        return (
            f"gives tags of {len(self):,} items: at least {asked.precision:.4g} of the given ones "
            f"are right, with {100 * asked.confidence:g}% confidence (simulated, not proven)."
        )

    def _shown_rows(self) -> Rows:
        shown: dict[str, Any] = {
            "tags": f"{len(self.items.names):,}, {self.items.tags.count.mean():.2f} an item",
            "calibrated by": "its items" if self.asked.own_items else "held-out queries",
            "threshold": f"a probability of {self.rule.value:.3f}",
        }
        if self.asked.miss is not None:
            shown["possible tags miss"] = f"{self.asked.miss:.4g} of a query's tags, on average"
        return in_rows(shown.items())


def _columns(tags: Any) -> int | None:
    """Return the number of columns of a matrix of tags; None for lists."""
    return int(tags.shape[1]) if getattr(tags, "ndim", 0) == 2 else None


def _pair(held_out: Any) -> tuple[Any, Any]:
    if not isinstance(held_out, (tuple, list)) or len(held_out) != 2:
        raise InputError(
            f"held_out is a {type(held_out).__name__}: pass (queries, tags), vectors [Q, D] and a "
            "set for each."
        )
    return held_out[0], held_out[1]


def _names(arrays: dict[str, Any]) -> Column:
    names = Column.from_tensors("names", arrays)
    if names is None or not len(names):
        raise FileFormatError("tag_guard/names are missing")
    return names


def _calibrated(
    name: str, hits: TagHits, truth: TagSets, groups: Any, seed: int, *, by_halves: bool
) -> ScoreCalibration:
    """Return the calibration of candidates, tested in parts; by halves, too, for a recall."""
    if not (hits.share > -np.inf).any():
        raise InputError("tags: no query that calibrates has a neighbour with a tag.")
    right = hits.right(truth)
    if not right.any():
        raise InputError(
            f"{name}: none of {len(right):,} queries that calibrate has a tag that its neighbours "
            "have, so that no precision can be kept: pass queries with their tags, named as those "
            "of the items."
        )

    def tested(parts: int) -> ScoreCalibration:
        return calibrate_scores(
            hits.share,
            right,
            total=truth.count,
            evidence=hits.evidence,
            groups=groups,
            cross_fit=parts,
            seed=seed,
        )

    with warnings.catch_warnings():  # a query without a candidate gets no tag, which is no news
        warnings.filterwarnings("ignore", "(?s).*queries have no hit", ScoresWarning)
        found = tested(PARTS)
        return replace(found, halves=tested(0)) if by_halves else found
