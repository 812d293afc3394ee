"""Labelled queries: their batches, which hits are a match, which were in the fit.

Which items are a match of a query: those of its label, or those that are named.

Labels say it where a match is a class; relevance judgements where it is none: an image has several
texts, and a text several images.

Label sets of queries, and labels of items that their neighbours contradict.

Labels of an index's own items that look wrong: each item is asked of all others.

With P(c) of the labels c among the voting neighbours of an item, itself left out
(``Calibration.assess``), and y the label that it has, items are ordered by

    P(y), smallest first;    where equal, by max_c P(c), largest first

P(y) = 0 where no voting neighbour carries y; of a label that no other item has it says nothing, and
such items are left out. Neighbours that outvote a label are the idea of Wilson (1972, edited
nearest neighbours), probabilities of the given label that of confident learning (Northcutt, Jiang &
Chuang 2021); here they are calibrated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import SOME, Rows, Shown, in_rows
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._labels import LabelLevels, fewest_queries
from laplace_metric.errors import (
    FittedQueriesWarning,
    InputError,
    LabelError,
    UnreachableAlphaWarning,
    callers_line,
)
from laplace_metric.models._calling import check_labels
from laplace_metric.models._classes import IS_NO_CLASS, check_noise
from laplace_metric.models._reading import as_batches, is_rows, plain
from laplace_metric.models._store import Fingerprints
from laplace_metric.models._texts import gathered_texts
from laplace_metric.search._columns import Column, Encoded, Items, Values, joined_labels
from laplace_metric.search._encoding import batches, count_of_batches, readable
from laplace_metric.search._engine import Engine
from laplace_metric.search._neighbours import RowSearch
from laplace_metric.search._passed_over import without_some


class LabelledInputs:
    """Batches of inputs, each with its part of ``labels`` [N]; read once or often.

    Parameters
    ----------
    inputs : an array, a data frame, a list of rows or texts, a mapping, or a loader of batches
    labels : [N] whole numbers or names of classes

    Raises
    ------
    LabelError
        For labels that are neither; when read, for another number of labels than of inputs.
    InputError
        When read, for inputs that are none of these.

    Examples
    --------
    >>> [len(codes) for _, codes in LabelledInputs(np.ones((300, 2)), ["a", "b"] * 150)]
    [256, 44]
    """

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = readable("inputs", inputs), check_labels(labels)
        check_noise("labels", self.labels.cpu().numpy())

    def __len__(self) -> int:
        return count_of_batches(self.inputs) or 0

    @property
    def n_items(self) -> int:
        """Number of items in all batches."""
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        start, n = 0, len(self.labels)
        for batch, _ in batches("inputs", self.inputs):
            stop = start + n_rows(batch)
            if stop > n:
                break
            yield batch, self.labels[start:stop]
            start = stop
        else:
            stop = start
        if stop != n:
            at_least = "" if stop < n else "at least "
            raise LabelError(
                f"labels has {n} entries for {at_least}{stop} inputs: pass one for each."
            )


def labelled_loader(inputs: Any, labels: Any = None) -> Any:
    """A loader of ``(inputs, labels)`` batches; what is one already, as it is.

    Raises
    ------
    LabelError
        For arrays without labels, and as ``LabelledInputs``.

    Examples
    --------
    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4))
    >>> [labels.tolist() for _, labels in labelled_loader(data)]
    [[0, 1, 2, 3]]
    """
    if labels is not None:
        return LabelledInputs(inputs, labels)
    kind, inputs = type(inputs).__name__, gathered_texts("inputs", inputs)
    texts = isinstance(inputs, list) and any(isinstance(x, str) for x in inputs)
    if isinstance(plain(inputs), (Tensor, np.ndarray)) or is_rows(inputs) or texts:
        raise LabelError(f"inputs are a {kind} without labels: pass fit(inputs, labels).")
    if isinstance(inputs, Mapping):
        return [inputs]
    return as_batches(inputs)


def n_rows(batch: Any) -> int:
    """Items of a batch of inputs.

    Raises
    ------
    InputError
        For what has no length.
    """
    rows = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch
    try:
        return len(rows)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"inputs hold a batch that is a {type(rows).__name__}, which has no rows: pass arrays, "
            "lists of texts, or mappings of them."
        ) from error


Matches = Sequence[Any]
"""Ids of all items that are a match, a list a query: whole numbers or strings, [] for none."""


@dataclass(frozen=True)
class Relevance:
    """Which items are a match of each of Q queries.

    Parameters
    ----------
    is_match : function
        Rows [q, k] of the index and the queries [q] that ask -> which of them are a match.
    n_matches : Tensor [Q]
        Items that are one.
    codes, classes
        As of ``LabelledHits``.
    """

    is_match: Callable[[Int[Tensor, "q k"], Int[Tensor, " q"]], Bool[Tensor, "q k"]]
    n_matches: Int[Tensor, " Q"]
    codes: Int[Tensor, " Q"] | None = None
    classes: Values | None = None

    @property
    def known(self) -> Bool[Tensor, " Q"]:
        """True where any item is a match of a query [Q]."""
        return self.n_matches > 0

    def __call__(self, hits: SearchHits) -> LabelledHits:
        """Label the hits of all Q queries."""
        return self.of_some(hits, torch.arange(len(hits.positions)))

    def of_some(self, hits: SearchHits, queries: Int[Tensor, " q"]) -> LabelledHits:
        """Label the hits of these queries [q]."""
        rows = torch.from_numpy(hits.positions)
        match, known = self.is_match(rows, queries) & (rows >= 0), self.known[queries]
        codes = None if self.codes is None else self.codes[queries].numpy()
        return LabelledHits(hits, match.numpy(), known.numpy(), codes, self.classes)

    def open_set(self, hits: SearchHits) -> LabelledHits:
        """Label hits of simulated open-set queries, none of which is a match."""
        none = np.zeros(hits.positions.shape, dtype=bool)
        codes = None if self.codes is None else np.full(len(none), -1)
        return LabelledHits(hits, none, none[:, 0], codes, self.classes)

    def others(self, engine: Engine, queries: Int[Tensor, " q"]) -> RowSearch:
        """An engine that finds the items that do not match ``queries`` [q]."""

        def passed_over(rows: Tensor, part: slice) -> Tensor:
            return self.is_match(rows.cpu(), queries[part]).to(rows.device)

        most = int(self.n_matches[queries].max()) if len(queries) else 0
        return without_some(engine, passed_over, most)


def relevance_of(
    items: Items, labels: Any, matches: Matches | None
) -> Callable[[Encoded, list[Any]], Relevance]:
    """Return the function that finds matches among hits, given queries and their labels.

    Raises
    ------
    LabelError
        For labels and matches together, or an index without labels and no matches; and, when they
        are read, for queries without labels.
    InputError
        For matches that name no item or are no lists; and for labels or lists of another number
        than there are queries.
    """
    if matches is None:
        if items.labels is None:
            raise LabelError(
                "the index has no labels: pass labels= to embedder.index, or matches= here, which "
                "names the items that are a match of each query."
            )
        return lambda encoded, found: _by_label(items, _labels(items, encoded, found, labels))
    if labels is not None:
        raise LabelError("labels= and matches= are two answers to one question: pass one of them.")
    rows = rows_of_matches(items, matches)
    return lambda encoded, _: _by_name(items, rows, len(encoded))


def _labels(items: Items, encoded: Encoded, batch_labels: list[Any], labels: Any) -> Column:
    labels = joined_labels(batch_labels) if labels is None else labels
    if labels is None:
        raise LabelError("queries have no labels: pass labels=, or a loader that yields them.")
    assert items.labels is not None
    column = Column.of_labels(labels, len(encoded), items.classes, IS_NO_CLASS)
    items.labels.check_like("labels", column)
    return column


def _by_label(items: Items, labels: Column) -> Relevance:
    assert items.classes is not None
    assert items.label_codes is not None
    of_items, classes = items.label_codes.cpu(), items.classes
    codes = torch.from_numpy(classes.codes_of(labels.values))
    count = torch.bincount(of_items, minlength=len(classes))[codes.clamp(min=0)]

    def is_match(rows: Tensor, queries: Tensor) -> Tensor:
        return of_items[rows.clamp(min=0)] == codes[queries, None]

    return Relevance(is_match, count.masked_fill(codes < 0, 0), codes, classes.values)


def rows_of_matches(items: Items, matches: Matches) -> list[Tensor]:
    """Rows [m] of the items that each list names.

    Raises
    ------
    InputError
        For what is no list of lists, and ids that are not in the index.
    """
    if isinstance(matches, (str, bytes)) or not isinstance(matches, Sequence):
        raise InputError(
            f"matches is a {type(matches).__name__}: pass a list with a list of ids for each query."
        )
    columns = [_ids(f"matches[{query}]", named) for query, named in enumerate(matches)]
    kinds = {column.is_text for column in columns if len(column)}
    if len(kinds) > 1:
        raise InputError("matches hold numbers and strings: pass ids as those of the index.")
    sizes = [len(column) for column in columns]
    if not kinds:
        return [torch.zeros(0, dtype=torch.long) for _ in sizes]
    ids = np.concatenate([column.values for column in columns if len(column)])
    return list(items.rows_of(ids, "matches").split(sizes))


def _ids(name: str, named: Any) -> Column:
    if isinstance(named, (str, bytes)) or not hasattr(named, "__len__"):
        raise InputError(f"{name} is {named!r:.40}: pass a list of ids, an empty one for none.")
    return Column.of(name, named if isinstance(named, (Tensor, np.ndarray)) else list(named))


def _by_name(items: Items, rows: list[Tensor], n_queries: int) -> Relevance:
    if len(rows) != n_queries:
        raise InputError(
            f"matches has {len(rows)} lists for {n_queries} queries: pass one for each, an empty "
            "one where no item is a match."
        )
    sizes = torch.tensor([len(own) for own in rows])
    query = torch.arange(n_queries).repeat_interleave(sizes)
    keys = (query * len(items) + torch.cat(rows)).sort().values

    def is_match(rows: Tensor, queries: Tensor) -> Tensor:
        asked = queries[:, None] * len(items) + rows
        place = torch.searchsorted(keys, asked.contiguous()).clamp_max(max(0, len(keys) - 1))
        return keys[place] == asked if len(keys) else torch.zeros_like(asked, dtype=torch.bool)

    return Relevance(is_match, sizes)


# Queries that were in the fit: the posterior is more certain about them than about anything new.


TOLERATED = 0.01
"""Share of queries that may have been in the fit: most collections hold a few copies."""


NEAR = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
"""Differences of the two highest bytes of fingerprints that may be of one row."""
BLOCK = 4096
"""Rows that are compared at once."""


def in_fit(known: Fingerprints, rows: Fingerprints) -> Bool[np.ndarray, " Q"]:
    """Return whether each of ``rows`` is one of the sorted ``known``, up to rounding.

    That is, whether all eight bytes differ by at most 1, modulo 256 (``row_fingerprints``).

    Examples
    --------
    >>> known = np.array([5, 0x0102030405060708], np.uint64)
    >>> in_fit(known, np.array([0x0203040504050607, 0x0002030405060706, 0xFF00000000000004], "u8"))
    array([ True, False,  True])
    """
    top, found = (known >> np.uint64(48)).astype(np.int64), np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        first, second = np.divmod((part >> np.uint64(48)).astype(np.int64), 256)
        highest = np.stack([(first + a) % 256 << 8 | (second + b) % 256 for a, b in NEAR], 1)
        begin = np.searchsorted(top, highest.ravel())
        size = np.searchsorted(top, highest.ravel(), "right") - begin
        query = np.repeat(np.arange(size.size) // len(NEAR), size)
        near = np.arange(len(query)) + np.repeat(begin - size.cumsum() + size, size)
        apart = _bytes(known[near]) - _bytes(part[query]) + np.uint8(1)  # modulo 256
        found[start + query[(apart <= 2).all(1)]] = True
    return found


def _bytes(rows: Fingerprints) -> np.ndarray:
    return rows.astype("<u8").view(np.uint8).reshape(-1, 8)


def warn_if_fitted(known: Fingerprints | None, rows: Fingerprints) -> None:
    """Warn of queries that were in the fit, if that is known and they are more than a few.

    Warns
    -----
    FittedQueriesWarning
        With their share, and what to do.
    """
    if known is None or not len(rows):
        return
    count = int(in_fit(known, rows).sum())
    if count <= TOLERATED * len(rows):
        return
    warnings.warn(
        f"{count / len(rows):.0%} of the queries ({count:,} of {len(rows):,}) were in the fit of "
        "the posterior, which is surer of them than of anything new: probabilities, thresholds "
        "and what is measured here will not hold on new queries. Keep them out of the fit.",
        FittedQueriesWarning,
        stacklevel=callers_line(),
    )


# Label sets of queries, and labels of items that their neighbours contradict.


@dataclass(frozen=True, repr=False)
class LabelSets(Shown):
    """A set of labels for each of Q queries.

    Parameters
    ----------
    classes : Column [C]
        Sorted labels of the index.
    codes : Tensor [Q, depth]
        Place in ``classes`` of the label of each of the nearest items, nearest first; -1 where
        there is no item.
    score : Tensor [Q, depth], float64
        Of each label at its nearest item: its probability; less than 0 where only items beyond the
        voting ones carry it; -inf at items whose label stands before.
    members : Tensor [Q, depth]
        Which of these labels are in the set.
    everywhere : Tensor [C]
        Labels that are in every set, whether an item is near or not: too few of their held-out
        queries, or of those of similar labels, had an item of their label among ``depth``.
    """

    classes: Column
    codes: Int[Tensor, "Q depth"]
    score: Float[Tensor, "Q depth"]
    members: Bool[Tensor, "Q depth"]
    everywhere: Bool[Tensor, " C"]

    @classmethod
    def of(
        cls, hits: SearchHits, classes: Column, calibration: Calibration, levels: LabelLevels
    ) -> LabelSets:
        """Labels of neighbours whose score reaches the level of their class."""
        assert hits.votes is not None  # labelled queries calibrated the index
        level, codes = levels.of(classes.values), hits.votes.labels
        score = calibration.label_scores(hits)
        members = (score >= level[codes.clip(min=0)]) & (score > -np.inf)
        everywhere = torch.from_numpy(level == -np.inf)
        found, scores, held = (torch.from_numpy(array) for array in (codes, score, members))
        return cls(classes, found, scores, held, everywhere)

    def _sentence(self) -> str:
        sizes = self.sizes.double()
        mean = float(sizes.mean()) if len(sizes) else 0.0
        return f"a set of labels for each of {len(self):,} queries, {mean:.1f} labels on average."

    def _shown_rows(self) -> Rows:
        shown = {"labels": self.classes.values, "sizes": self.sizes}
        return in_rows({**shown, "in every set": f"{int(self.everywhere.sum())} labels"}.items())

    @property
    def sizes(self) -> Int[Tensor, " Q"]:
        """Labels in each set [Q], those in every set among them; 0: no label looks right."""
        everywhere = self.everywhere.to(self.codes.device)[self.codes.clamp(min=0)]
        return (self.members & ~everywhere).sum(1) + int(self.everywhere.sum())

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, query: int) -> np.ndarray[Any, Any]:
        """Labels in the set of one query: likeliest first, then those that no item near it has."""
        score = self.score[query].masked_fill(~self.members[query], -torch.inf)
        order = score.argsort(descending=True, stable=True)[: int(self.members[query].sum())]
        codes = self.codes[query][order].cpu().numpy()
        far = np.setdiff1d(self.everywhere.nonzero().flatten().numpy(), codes)
        return self.classes.values[np.concatenate([codes, far])]

    def holds(self, labels: Any) -> Bool[Tensor, " Q"]:
        """Return whether each set [Q] holds the label of its query.

        Raises
        ------
        InputError
            Unless ``labels`` are [Q] whole numbers or strings.
        """
        column = Column.of("labels", labels, len(self))
        codes = torch.from_numpy(self.classes.codes_of(column.values)).to(self.codes.device)
        near = (self.members & (self.codes == codes[:, None])).any(1)
        return near | (self.everywhere.to(codes.device)[codes.clamp(min=0)] & (codes >= 0))


def warn_if_everything(levels: LabelLevels, alpha: float) -> None:
    """Warn if no label has a level.

    Warns
    -----
    UnreachableAlphaWarning
        With how many held-out queries there are, and how many it takes.
    """
    if levels.other > -np.inf or bool((levels.level > -np.inf).any()):
        return
    warnings.warn(
        f"alpha={alpha:g}: every set holds every label. {int(levels.queries.sum())} held-out "
        f"queries of the second half have a match, a level needs {fewest_queries(alpha)} in each "
        "cluster of classes, all but a share alpha with their label among the neighbours. "
        "Calibrate with more queries or a larger depth, or raise alpha.",
        UnreachableAlphaWarning,
        stacklevel=callers_line(),
    )


@dataclass(frozen=True, repr=False)
class LabelReview(Shown):
    """n items of an index, those whose label looks most wrong first.

    Parameters
    ----------
    positions : Tensor [n]
        Rows of the index.
    ids, labels, suggested : arrays [n]
        Of each item its id, the label that it has, and the likeliest by its neighbours.
    probability : Tensor [n]
        That the label that it has is right, by its neighbours.
    suggested_probability : Tensor [n]
        That the suggested one is.
    """

    positions: Int[Tensor, " n"]
    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    suggested: np.ndarray[Any, Any]
    probability: Float[Tensor, " n"]
    suggested_probability: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.positions)

    def _sentence(self) -> str:
        other = int((self.suggested != self.labels).sum())
        return f"{len(self):,} items, of which {other:,} have another label than is likeliest."

    def _shown_rows(self) -> Rows:
        return [
            (
                f"item {self.ids[i]}",
                f"{self.labels[i]}, {self.probability[i]:.2f}; "
                f"likeliest {self.suggested[i]}, {self.suggested_probability[i]:.2f}",
            )
            for i in range(min(len(self), SOME))
        ]


def reviewed(
    others: Iterable[LabelledHits], calibration: Calibration, items: Items, most: int
) -> LabelReview:
    """From what every item finds among the others, block by block."""
    parts = [_assessed(part, calibration) for part in others]
    own, best, nearest = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert items.labels is not None
    assert items.label_codes is not None
    codes = items.label_codes.cpu().numpy()
    shared = np.bincount(codes)[codes] > 1
    order = np.lexsort((-best, own))
    rows = order[shared[order]][:most]
    labels = items.labels.values
    return LabelReview(
        torch.from_numpy(rows),
        items.ids.values[rows],
        labels[rows],
        labels[nearest[rows].clip(min=0)],
        torch.from_numpy(own[rows]),
        torch.from_numpy(best[rows]),
    )


Arrays = np.ndarray[Any, Any]


def _assessed(others: LabelledHits, calibration: Calibration) -> tuple[Arrays, Arrays, Arrays]:
    """P(y), max_c P(c), and the nearest item that carries that c."""
    assessed = calibration.assess(others.hits)
    assert assessed.answer is not None  # labels calibrated it
    assert assessed.label_probability is not None
    scores = np.where(others.match, calibration.label_scores(others.hits).clip(min=0), 0)
    nearest = np.take_along_axis(others.hits.positions, assessed.answer[:, None], 1)[:, 0]
    return scores.max(1), assessed.label_probability, nearest
