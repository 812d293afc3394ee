"""Groups of labels from fine to coarse: departments of products, genera of species.

Level 0 is the labels themselves; each further level groups them. Levels are nested: labels that
share a group share it at all coarser levels, so that a coarser answer never contradicts a finer
one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration.labels._label_shares import NO_GROUP
from laplace_metric.errors import (
    FileFormatError,
    InputError,
    LaplaceMetricWarning,
    callers_line,
)
from laplace_metric.io import Fields

NAMED = 3
"""Labels or groups that a message names."""
HOW = "pass a list of levels, each a mapping of label to group, or the group of each item"
Groups = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Levels:
    """Groups of the labels at each coarser level.

    Parameters
    ----------
    groups : tuple of tuples of (label, group)
        Group of every label at each level, sorted by label.

    Examples
    --------
    >>> kind = {"boot": "shoes", "sandal": "shoes", "hat": "clothes"}
    >>> levels = Levels.read(kind, ["boot", "hat", "sandal"])
    >>> len(levels), levels.name("boot", 1)
    (2, 'shoes')
    """

    groups: tuple[Groups, ...]

    @classmethod
    def read(
        cls, coarser: Any, classes: Sequence[Any], labels: Sequence[Any] | None = None
    ) -> Levels:
        """Return checked levels.

        Parameters
        ----------
        coarser : levels, from fine to coarse
            List of levels, or one. A level is a mapping of label to group, or the group of each of
            the items.
        classes : sequence of whole numbers or strings
            Labels, each once, of which every one needs a group.
        labels : [N] or None
            Label of each item. None, the default: levels must be mappings.

        Raises
        ------
        InputError
            For a label without a group or in two groups, groups without a name, levels that are not
            nested or in another order, and levels that are not coarser than the one before.

        Warns
        -----
        LaplaceMetricWarning
            For a level with one group of everything, whose answers say nothing.
        """
        if isinstance(coarser, Levels):
            return coarser
        made, finer = list[dict[Any, Any]](), [*classes]
        for number, level in enumerate(_listed(coarser), 1):
            where = f"coarser, level {number}"
            found = _of_mapping(where, level) if isinstance(level, Mapping) else None
            if found is None:
                found = _of_items(where, level, labels)
            _check_complete(where, found, finer)
            made.append(found)
        _check_nested(made, finer)
        _check_nested(made, _common(made))  # also of labels that no item has yet
        if len(set(made[-1].values())) == 1:
            one = next(iter(made[-1].values()))
            warnings.warn(
                f"coarser, level {len(made)}: all labels are in one group, {one!r}, and an answer "
                "with it says nothing. Leave this level out.",
                LaplaceMetricWarning,
                stacklevel=callers_line(),
            )
        return cls(tuple(tuple(sorted(each.items(), key=_by_kind)) for each in made))

    def __len__(self) -> int:
        """Return the number of levels, that of the labels among them."""
        return len(self.groups) + 1

    @cached_property
    def _named(self) -> tuple[dict[Any, Any], ...]:
        return tuple(dict(each) for each in self.groups)

    def name(self, label: Any, level: int) -> Any:
        """Return the group of a label at a level; the label at level 0; None without a group."""
        return label if level == 0 else self._named[level - 1].get(label)

    def has_one_of(self, labels: Sequence[Any]) -> bool:
        """Return True if any of some labels has a group."""
        return any(label in self._named[0] for label in set(labels))

    def names(self, labels: Sequence[Any], level: int) -> npt.NDArray[Any]:
        """Return the group of each of some labels [n] at a level; None without a group."""
        found = np.empty(len(labels), dtype=object)
        found[:] = [self.name(label, level) for label in labels]
        return found

    def coded(self, classes: Sequence[Any], level: int) -> tuple[list[Any], npt.NDArray[np.intp]]:
        """Return the names [G] of the groups at a level >= 1, and the place of that of each class.

        Parameters
        ----------
        classes : [C]
            Labels of the index.
        level : int
            Level, from 1 on.
        """
        own = self._named[level - 1]
        names = sorted({own[label] for label in classes if label in own}, key=_kind_and_name)
        places = {name: place for place, name in enumerate(names)}
        codes = [places[own[label]] if label in own else NO_GROUP for label in classes]
        return names, np.array(codes, dtype=np.intp)

    def content(self) -> list[dict[str, Any]]:
        """Return the levels as JSON."""
        return [
            {"labels": [label for label, _ in each], "groups": [group for _, group in each]}
            for each in self.groups
        ]

    @classmethod
    def of_content(cls, content: Fields, name: str) -> Levels:
        """Return the levels of a file.

        They are those that ``read`` can return: forged ones are refused, too.

        Parameters
        ----------
        content : Fields
            Content that has them.
        name : str
            Name that they have there.

        Raises
        ------
        FileFormatError
            For anything but the ``content`` of levels; the message names the field.
        """
        listed, made = content.entries(name), list[dict[Any, Any]]()
        where = listed.where
        if not listed.content:
            raise FileFormatError(f"{where} is empty, not a list of levels")
        for number in listed.content:
            level = listed.inner(number)
            if unknown := [each for each in level.content if each not in COLUMNS]:
                raise FileFormatError(f"{level.where}.{unknown[0]:.40} is no field of a level")
            labels, groups = (_column(level, each) for each in COLUMNS)
            if len(groups) != len(labels):
                raise FileFormatError(
                    f"{level.where}.groups has {len(groups)} entries for {len(labels)} labels"
                )
            for one, after in pairwise(labels):
                if one == after:
                    raise FileFormatError(f"{level.where}.labels holds {one!r:.40} twice")
                if one > after:
                    raise FileFormatError(f"{level.where}.labels is not sorted: {after!r:.40}")
            if made and type(labels[0]) is not type(next(iter(made[0]))):
                raise FileFormatError(f"{level.where}.labels are of another type than at level 1")
            made.append(dict(zip(labels, groups, strict=True)))
        common = _common(made)
        if not common:
            raise FileFormatError(f"{where}: its levels have no label in common")
        try:
            _check_nested(made, common)
        except InputError as error:
            raise FileFormatError(f"{where} holds levels that are not nested: {error}") from error
        return cls(tuple(tuple(each.items()) for each in made))


COLUMNS = ("labels", "groups")
"""Fields of a level in a file."""
LARGEST_LABEL = 2**63 - 1


def _column(level: Fields, name: str) -> list[Any]:
    """Return the labels, or the groups, of a level of a file: whole numbers, or texts."""
    found = level.items(name, str if _of_texts(level.content.get(name)) else int)
    where = f"{level.where}.{name}"
    if not found:
        raise FileFormatError(f"{where} is empty")
    for one in found:
        if isinstance(one, int) and abs(one) > LARGEST_LABEL:
            raise FileFormatError(f"{where} holds {one:.3g}, which no 64 bits hold")
        if name == "groups" and isinstance(one, str) and not one.strip():
            raise FileFormatError(f"{where} holds an empty text, which names no group")
    return found


def _common(levels: list[dict[Any, Any]]) -> list[Any]:
    """Return the labels that have a group at each level."""
    return [label for label in levels[0] if all(label in level for level in levels)]


def _of_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], str)


def _listed(coarser: Any) -> list[Any]:
    """Return a list of levels, each a mapping or a list of names."""
    if isinstance(coarser, Mapping):
        return [coarser]
    if isinstance(coarser, (str, bytes)) or not hasattr(coarser, "__len__"):
        raise InputError(f"coarser is a {type(coarser).__name__}: {HOW}.")
    if not len(coarser):
        raise InputError(f"coarser is empty: {HOW}.")
    levels = [*coarser]
    nested = [
        isinstance(one, Mapping) or (np.ndim(one) > 0 and _has_entries(one)) for one in levels
    ]
    if all(nested):
        return levels
    if any(nested):
        raise InputError(f"coarser holds levels and single groups: {HOW}.")
    return [levels]


def _has_entries(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict))


def _plain(value: Any) -> Any:
    """Return a NumPy scalar, or a tensor with one number, as that of Python."""
    return value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value


def _group(where: str, label: Any, group: Any) -> Any:
    """Return the checked name of a group."""
    name = _plain(group)
    if name is None or (isinstance(name, float) and math.isnan(name)):
        raise InputError(f"{where}: the group of label {label!r} is missing: give it a group.")
    if isinstance(name, bool) or not isinstance(name, (int, str)):
        raise InputError(
            f"{where}: the group of label {label!r} is a {type(group).__name__}: name groups by "
            "strings or whole numbers."
        )
    if isinstance(name, str) and not name.strip():
        raise InputError(f"{where}: the group of label {label!r} is an empty text: name it.")
    return str(name) if isinstance(name, str) else int(name)


def _of_mapping(where: str, level: Mapping[Any, Any]) -> dict[Any, Any]:
    if not level:
        raise InputError(f"{where} is empty: give each label a group.")
    found = {_plain(label): _group(where, label, group) for label, group in level.items()}
    kinds = {type(label) for label in found}
    if kinds not in ({str}, {int}):
        wrong = next((label for label in found if type(label) not in (str, int)), None)
        said = "whole numbers and strings" if kinds == {str, int} else repr(wrong)
        raise InputError(f"{where} has {said} as labels: pass those of the items, of one type.")
    return found


def _of_items(where: str, level: Any, labels: Sequence[Any] | None) -> dict[Any, Any]:
    """Return the group of each label, from those of the items."""
    entries = [*level]
    if labels is None:
        raise InputError(f"{where} is a list: here, pass a mapping of label to group.")
    if len(entries) != len(labels):
        raise InputError(
            f"{where} has {len(entries):,} entries for {len(labels):,} items: pass the group of "
            "each item, or a mapping of label to group."
        )
    found, first = dict[Any, Any](), dict[Any, int]()
    for item, (label, entry) in enumerate(zip(labels, entries, strict=True)):
        group = _group(where, label, entry)
        if found.setdefault(label, group) != group:
            raise InputError(
                f"{where}: label {label!r} is in two groups, {found[label]!r} (item "
                f"{first[label]:,}) and {group!r} (item {item:,}): give each label one group."
            )
        first.setdefault(label, item)
    return found


def _check_complete(where: str, level: dict[Any, Any], classes: Sequence[Any]) -> None:
    missing = [label for label in classes if label not in level]
    if missing:
        some = ", ".join(map(repr, missing[:NAMED])) + ", ..." * (len(missing) > NAMED)
        kinds = (
            {type(label).__name__ for label in classes},
            {type(label).__name__ for label in level},
        )
        told = ""
        if not kinds[0] & kinds[1]:
            told = f" Labels are of type {kinds[0].pop()}, those of the mapping {kinds[1].pop()}."
        elif len(missing) == len(classes):
            told = f" Its labels are others, such as {next(iter(level))!r}."
        raise InputError(
            f"{where} has no group of {len(missing):,} labels ({some}): give every label of the "
            f"items a group.{told}"
        )
    if len({isinstance(group, str) for group in level.values()}) > 1:
        raise InputError(f"{where} names groups by strings and by numbers: use one kind.")


def _check_nested(levels: list[dict[Any, Any]], classes: Sequence[Any]) -> None:
    """Require that labels which share a group share it at all coarser levels, and that some do."""
    finer: dict[Any, Any] = {label: label for label in classes}
    for number, level in enumerate(levels, 1):
        split = _split(finer, level)
        before = f"level {number - 1}" if number > 1 else "the labels"
        if split is not None:
            if number > 1 and _split({label: level[label] for label in classes}, finer) is None:
                raise InputError(
                    f"coarser: level {number} is finer than level {number - 1}: pass levels from "
                    "fine to coarse."
                )
            group, one, other = split
            raise InputError(
                f"coarser: group {group!r} of level {number - 1} is in two groups of level "
                f"{number}, {one!r} and {other!r}: each group must lie in one coarser group."
            )
        if len({level[label] for label in classes}) == len(set(finer.values())):
            raise InputError(
                f"coarser: level {number} has as many groups as {before}, and is no coarser: leave "
                "it out, or join groups."
            )
        finer = {label: level[label] for label in classes}


def _split(fine: dict[Any, Any], coarse: dict[Any, Any]) -> tuple[Any, Any, Any] | None:
    """Return a fine group that lies in two coarse ones, with these; None if there is none."""
    inside = dict[Any, Any]()
    for label, group in fine.items():
        if inside.setdefault(group, coarse[label]) != coarse[label]:
            return group, inside[group], coarse[label]
    return None


def _kind_and_name(name: Any) -> tuple[str, Any]:
    return type(name).__name__, name


def _by_kind(entry: tuple[Any, Any]) -> tuple[str, Any]:
    return _kind_and_name(entry[0])
