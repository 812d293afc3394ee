"""What lies beside a posterior: the model that it is of, how inputs are read, what was fitted."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from laplace_metric._utils import files
from laplace_metric.cli.parsing import MOST_SIDE
from laplace_metric.cli.sources import ARRAYS, IMAGES, TEXTS, Source
from laplace_metric.errors import FileFormatError, InputError

Record = TypeVar("Record", bound="SavedRecord")


@dataclass(frozen=True)
class SavedRecord:
    """Plain values that are saved as a JSON in a folder, beside what they describe."""

    KIND: ClassVar[files.FileKind]
    VALID: ClassVar[dict[str, Callable[[Any], bool]]]
    """Whether a value may be that of a field."""

    def write(self, folder: Path) -> None:
        """Make it the record of ``folder``."""
        files.write(folder, asdict(self), {}, self.KIND)

    @classmethod
    def read(cls: type[Record], folder: Path) -> Record:
        """What ``write`` wrote.

        Raises
        ------
        FileFormatError
            If there is none, or it is damaged.
        """
        content, _ = files.read(folder, cls.KIND)
        try:
            values = {field.name: content[field.name] for field in fields(cls)}
        except KeyError as error:
            raise FileFormatError(f"{folder / cls.KIND.index} is damaged: no {error}.") from error
        for name, value in values.items():
            if not cls.VALID[name](value):
                raise FileFormatError(
                    f"{folder / cls.KIND.index} is damaged: {name} is {value!r:.60}."
                )
        return cls(**values)


def is_text(value: Any) -> bool:
    """Whether a JSON value is a text or null."""
    return value is None or isinstance(value, str)


def is_share(value: Any) -> bool:
    """Whether a JSON value is a share between 0 and 1 or null."""
    return value is None or (isinstance(value, float) and 0 < value < 1)


def is_seed(value: Any) -> bool:
    """Whether a JSON value is a whole number that torch takes for a seed."""
    return type(value) is int and 0 <= value < 2**63


def reads_inputs(value: Any) -> bool:
    """Whether a JSON value holds fields of ``ReadOptions``."""
    return isinstance(value, dict) and all(
        name in _READ_OPTIONS and _READ_OPTIONS[name](item) for name, item in value.items()
    )


_READ_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "size": lambda x: x is None or (type(x) is int and 0 < x <= MOST_SIDE),
    "channels": lambda x: x in (None, 1, 3) and not isinstance(x, bool),
    "skip_unreadable": lambda x: isinstance(x, bool),
    **dict.fromkeys(("text_column", "label_column", "id_column", "image_column"), is_text),
}


@dataclass(frozen=True)
class ModelRecipe(SavedRecord):
    """The model of a posterior, how its inputs are read, what it was fitted to: for later commands.

    Parameters
    ----------
    model : str or None
        As ``--model`` took it; None: the data are embeddings.
    head : str or None
    kind : str or None
        Of the inputs: images, texts, arrays. None: not known, of a posterior saved in Python.
    read_options : dict
        Fields of ``ReadOptions`` that decide what an input looks like.
    data : str
        What the posterior was fitted to: the path, as it was resolved.
    fingerprint : str
        Of all of these data.
    holdout : float or None
        Share of them that the fit left out, see ``split_rows``.
    seed : int
        Of that split.
    """

    KIND = files.FileKind("recipe", "a posterior of the command line", 1)
    VALID = {  # noqa: RUF012
        "model": is_text,
        "head": is_text,
        "kind": lambda x: x in (IMAGES, TEXTS, ARRAYS),
        "read_options": reads_inputs,
        "data": lambda x: isinstance(x, str),
        "fingerprint": lambda x: isinstance(x, str),
        "holdout": is_share,
        "seed": is_seed,
    }

    model: str | None
    head: str | None
    kind: str | None
    read_options: dict[str, Any]
    data: str
    fingerprint: str
    holdout: float | None
    seed: int

    @classmethod
    def of_python(cls, model: str | None, kind: str | None) -> ModelRecipe:
        """Of a posterior that ``LaplaceEmbedder.save`` wrote, which keeps nothing of its data."""
        return cls(model, None, kind, {}, "", "", None, 0)

    def read_as(self, source: Source) -> ModelRecipe:
        """The same, which reads other data as ``source`` was read, where that was not known."""
        if self.kind is not None:
            return self
        return replace(self, kind=source.kind, read_options=source.options)

    def left_out(self, source: Source, options: Namespace) -> tuple[Source, Source] | None:
        """What of ``source`` the fit left out, to calibrate with and to evaluate with.

        None for other data, and for those of the fit where --allow-fitted is given.

        Raises
        ------
        InputError
            If the fit left nothing out.
        """
        if source.fingerprint != self.fingerprint:
            return None
        if self.holdout is not None:
            _, first, second = split_rows(len(source), self.holdout, self.seed)
            return source.take(first), source.take(second)
        if options.allow_fitted:
            return None
        raise InputError(
            f"{source.path} is what the posterior was fitted to, all of it: the posterior is surer "
            f"of these items than of new ones, so that nothing learnt or measured with them holds. "
            f"{REMEDY}"
        )


def split_rows(n: int, holdout: float | None, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Rows of the items to fit and to index, to calibrate with, and to evaluate with.

    Examples
    --------
    >>> parts = split_rows(8, 0.5, 0)
    >>> [len(rows) for rows in parts], sorted(sum(parts, []))
    ([4, 2, 2], [0, 1, 2, 3, 4, 5, 6, 7])
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    n_held_out = round(n * (holdout or 0.0))
    first, second = n - n_held_out, n - n_held_out // 2
    return sorted(order[:first]), sorted(order[first:second]), sorted(order[second:])


REMEDY = (
    "Give other data; or fit with --holdout 0.4, and index, evaluate and report follow its split; "
    "or --allow-fitted, to go on all the same."
)
