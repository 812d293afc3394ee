"""Emoji with the names and keywords of Unicode's CLDR, split so that parts share no drawing.

An emoji's base is what is left of its code points without skin tone and gender: all emoji of one
base, and of bases whose drawings are the same file, are in one part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from benchmarks.datasets.formats import side_of
from benchmarks.datasets.packed import PackedImages, read_packed, read_rows
from benchmarks.datasets.remotes import Request
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError

IMAGES = "Emoji/emoji_png96.npz"
TEXTS = "Emoji/emoji.json"
SIDE = 96
TEST_SHARE = 0.3
JOINS = ("200D", "FE0F")  # zero-width joiner, emoji presentation
TONES = tuple(f"1F3F{digit}" for digit in "BCDEF")
SIGNS = ("2640", "2642")  # female and male sign
# a code point of one gender (or of two people) -> those without (Unicode Technical Standard 51)
NEUTRAL = {
    **dict.fromkeys(("1F466", "1F467"), "1F9D2"),  # boy, girl: child
    **dict.fromkeys(("1F468", "1F469"), "1F9D1"),  # man, woman: person
    **dict.fromkeys(("1F474", "1F475"), "1F9D3"),  # old man, old woman: older person
    **dict.fromkeys(("1F934", "1F478"), "1FAC5"),  # prince, princess: person with crown
    **dict.fromkeys(("1F385", "1F936"), "1F9D1 1F384"),  # Santa, Mrs. Claus: Mx. Claus
    **dict.fromkeys(("1F57A", "1F483"), "1F57A"),  # man dancing, woman dancing
    **dict.fromkeys(("1F46B", "1F46C", "1F46D"), "1F9D1 1F91D 1F9D1"),  # holding hands
    "1F48F": "1F9D1 2764 1F48B 1F9D1",  # kiss
    "1F491": "1F9D1 2764 1F9D1",  # couple with heart
    "1FAF1 1FAF2": "1F91D",  # rightwards and leftwards hand: handshake
}


def read_emoji(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, size, size] (`read_square`; default size 96), on white.

    The label is the subgroup, its name ``"group > subgroup"``; both splits number them alike.
    ``extras`` holds ``"row"`` [N], the place in the files, ``"group"`` [N] and ``"base"`` [N],
    int64: emoji of one base differ in tone and gender only, or are drawn alike.

    Raises
    ------
    FileFormatError
        If a file is damaged, or the files do not fit.
    """
    size = side_of(request, SIDE)
    packed, facts, bases = _table(request)
    rows = _rows(request, bases)
    subgroups = [f"{one['group']} > {one['subgroup']}" for one in facts]
    names, labels = _numbered(subgroups)
    extras = {
        "row": rows,
        "group": _numbered([one["group"] for one in facts])[1][rows],
        "base": _numbered(bases)[1][rows],
    }
    return ImageSet(packed.squares(rows, size), labels[rows], request.title, names, extras)


def _numbered(values: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The different values in order, and the number of each of N."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return tuple(numbers), torch.tensor([numbers[value] for value in values], dtype=torch.int64)


def emoji_captions(request: Request) -> list[tuple[str, ...]]:
    """The keywords of each emoji, and last its name."""
    _, facts, bases = _table(request)
    chosen = [facts[row] for row in _rows(request, bases).tolist()]
    return [(*(k for k in one["keywords"] if k != one["name"]), one["name"]) for one in chosen]


def base_of(codepoints: str) -> str:
    """Code points (hexadecimal) without skin tone and gender.

    Examples
    --------
    >>> base_of("1F469 1F3FE 200D 1F4BC")  # woman office worker: medium-dark skin tone
    '1F9D1 1F4BC'
    >>> base_of("1F6B4 200D 2640 FE0F"), base_of("2640 FE0F")  # woman biking; the female sign
    ('1F6B4', '2640')
    """
    points = [point for point in codepoints.split() if point not in (*JOINS, *TONES)]
    points = points[:1] + [point for point in points[1:] if point not in SIGNS]
    neutral = " ".join(NEUTRAL.get(point, point) for point in points)
    return NEUTRAL.get(neutral, neutral)


def _table(request: Request) -> tuple[PackedImages, list[dict[str, Any]], list[str]]:
    """Images, what the JSON says of each, and their bases."""
    path = request.file(TEXTS)
    packed, _ = read_packed(request.file(IMAGES))
    fields = {"codepoints": str, "name": str, "keywords": list, "group": str, "subgroup": str}
    facts = read_rows(path, len(packed), **fields)
    for row, one in enumerate(facts):
        if not one["codepoints"].strip():
            raise FileFormatError(f"{path} has no code points in row {row}. Fetch it again.")
    drawings = [hashlib.sha256(packed.file(row)).hexdigest() for row in range(len(packed))]
    return packed, facts, connected([base_of(one["codepoints"]) for one in facts], drawings)


def _rows(request: Request, bases: Sequence[str]) -> Tensor:
    """Rows of the files that the request keeps."""
    asked = request.split == "test"
    chosen = torch.tensor([row for row, base in enumerate(bases) if is_test(base) == asked])
    return chosen.long()[request.rows(len(chosen))]


def is_test(base: str) -> bool:
    """Whether the emoji of a base are test items, about 30 in 100, by its hash.

    Examples
    --------
    >>> is_test("1F600"), is_test("1F46A")
    (False, True)
    """
    return hashlib.sha256(base.encode()).digest()[0] < 256 * TEST_SHARE


def connected(bases: Sequence[str], drawings: Sequence[str]) -> list[str]:
    """For each of N emoji the first base, in alphabetical order, that drawings connect with its.

    Examples
    --------
    >>> connected(["1F600", "1F46A", "1F9D1"], ["a", "b", "b"])
    ['1F600', '1F46A', '1F46A']
    """
    names, base = np.unique(bases, return_inverse=True)
    files, drawing = np.unique(drawings, return_inverse=True)
    n = len(names) + len(files)
    links = coo_array((np.ones(len(base)), (base, len(names) + drawing)), (n, n))
    part = connected_components(links, directed=False)[1][: len(names)]
    _, first = np.unique(part, return_index=True)  # names are sorted
    joined: list[str] = names[first][part][base].tolist()
    return joined
