"""Items on disk in one form: images of a folder or a table, tables of texts, files of arrays."""

from __future__ import annotations

import json
import zipfile
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import DataLoader

from laplace_metric._utils.archives import DAMAGE, check_npy, check_zip
from laplace_metric._utils.names import utf8_path
from laplace_metric._utils.progress import tqdm
from laplace_metric._utils.tables import TABLES, read_columns, shown_columns
from laplace_metric.datasets._grey_or_rgb import is_grey
from laplace_metric.datasets._image_files import files_below, images_below, is_image
from laplace_metric.datasets._path_labels import top_folders
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.datasets._rows import row_loader
from laplace_metric.datasets._tables import PATHS, check_listed, column_of
from laplace_metric.errors import FileFormatError, InputError, LabelError
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.io import digest

Notify = Callable[[str], None]
"""Gets a line for each guess that a reader makes."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading data; None is guessed from the data, and the user is notified.

    Parameters
    ----------
    size : int or None
        Side of the square that images are scaled to, in pixels; None: as they are.
    channels : 1, 3 or None
        Grey or RGB; None: as the first image is (with a transform, RGB).
    skip_unreadable : bool
        Leave out images that cannot be read; otherwise they are an error.
    text_column, label_column, id_column : str or None
        Of tables; None: ``text``, ``label``, ``id``, where there are such columns.
    image_column : str or None
        Of tables: holds paths of images; None: ``path`` or ``image``, in a table without texts.
    labels : Path or None
        Labels of a file of arrays: .npy, or one a line.
    transform : callable or None
        PIL image -> tensor [C, H, W]; replaces ``size``.
    """

    size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    text_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    image_column: str | None = None
    labels: Path | None = None
    transform: Callable[[Any], Any] | None = None


IMAGES, TEXTS, ARRAYS = "images", "texts", "arrays"
Batches = DataLoader[Any]
"""``(inputs, labels)`` in order, read as often as they are asked for."""


@dataclass(frozen=True)
class Source:
    """Items in a fixed order.

    Parameters
    ----------
    path : Path
        Where they are, for messages.
    kind : "images" | "texts" | "arrays"
    ids : tuple of str
        One an item.
    classes : tuple of str or None
        Class of each item.
    read : callable
        Rows (whole numbers) -> inputs of a model: [B, C, H, W], B strings, or [B, D].
    fingerprint : str
        Differs between data sets, whatever their items are called.
    options : dict
        How to read other data in the same way, as fields of ``ReadOptions``.

    Examples
    --------
    >>> read = lambda rows: torch.tensor(rows)[:, None]
    >>> source = Source(Path("x"), ARRAYS, ("a", "b", "c"), ("dog", "cat", "dog"), read, "", {})
    >>> [(x.shape, y) for x, y in source.batches(2, labelled=True)]
    [(torch.Size([2, 1]), tensor([1, 0])), (torch.Size([1, 1]), tensor([1]))]
    """

    path: Path
    kind: str
    ids: tuple[str, ...]
    classes: tuple[str, ...] | None
    read: Callable[[Sequence[int]], ModelInput]
    fingerprint: str
    options: dict[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int]) -> Source:
        """The items at these rows, in that order."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            classes=self.classes and tuple(self.classes[row] for row in rows),
            read=lambda places: self.read([rows[place] for place in places]),
            fingerprint=digest(f"{self.fingerprint} {list(rows)}"),
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The different classes, sorted."""
        return tuple(sorted(set(self.classes or ())))

    @property
    def labels(self) -> Tensor | None:
        """Classes as places in ``class_names`` [N]; None without classes."""
        if self.classes is None:
            return None
        label = {name: number for number, name in enumerate(self.class_names)}
        return torch.tensor([label[name] for name in self.classes])

    def batches(self, size: int, *, labelled: bool = False) -> Batches:
        """``(inputs, labels)``; labels are None unless they are asked for, and without classes."""
        labels = self.labels if labelled else None

        def read(rows: list[int]) -> tuple[ModelInput, Tensor | None]:
            return self.read(rows), None if labels is None else labels[rows]

        return row_loader(len(self), read, size)

    def texts(self) -> dict[str, Any]:
        """What each id stands for, of texts."""
        return dict(zip(self.ids, self.read(range(len(self))), strict=True))

    def require_classes(self, needed_for: str, least: int = 1) -> None:
        """Check that items have classes, ``least`` different ones.

        Raises
        ------
        LabelError
            If they have not.
        """
        if self.classes is None:
            raise LabelError(
                f"{self.path} has no labels, which {needed_for} needs: {_HOW[self.kind]}."
            )
        names = self.class_names
        if len(names) < least:
            raise LabelError(
                f"{self.path} holds {len(names)} class ({', '.join(names)}); {needed_for} needs at "
                f"least {least}."
            )


_HOW = {
    IMAGES: "put the images of each class into a folder of its own, DIR/<class>/*.png, or give a "
    "table with the columns path and label",
    TEXTS: "name their column with --label-column",
    ARRAYS: "give --labels FILE, or a file that holds an array 'labels'",
}


# What the command line names.


def open_source(
    path: Path, options: ReadOptions | None = None, notify: Notify = lambda _: None
) -> Source:
    """A folder of images, or a file whose suffix tells its format.

    Parameters
    ----------
    path : Path
        ``DIR/<class>/*.png``, ``DIR/*.png``, an image, or a .csv, .tsv, .npy,
        .npz, .safetensors.
    options : ReadOptions or None
    notify : callable
        Gets a line for each guess.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or cannot be read.
    """
    options = ReadOptions() if options is None else options
    require_source(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        names, others = images_below(path)
        if others:
            notify(f"{path}: {len(others):,} files that are no images are left out")
        return image_source(path, names, top_folders(path, names), options, notify)
    if suffix not in (*TABLES, *ARRAY_FILES):
        return image_source(path, check_listed(path, [path.name]), None, options, notify)
    if suffix in TABLES:
        columns = read_columns(path)
        return _table(path, columns, columns.__getitem__, options, notify)
    return _arrays(path, ARRAY_FILES[suffix](path), options)


def require_source(path: Path) -> None:
    """Check that a path is of a kind that can be read, without reading it.

    Raises
    ------
    InputError
        If there is no such path, it is of another kind, or a folder without images.
    """
    if path.is_dir():
        if not any(map(is_image, files_below(path))):
            images_below(path)  # says what there is instead
        return
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    tables = (*TABLES, *ARRAY_FILES)
    if not path.is_file() or not (path.suffix.lower() in tables or is_image(path)):
        raise InputError(
            f"{path} is of no kind that can be read: give a folder of images, an image, or a file "
            f"that ends in {', '.join(tables)}."
        )


def require_data(options: Namespace) -> None:
    """Check the paths of data that options name, before a model is loaded for them.

    Raises
    ------
    InputError
        If one cannot be read.
    """
    for name in ("data", "calibrate", "queries", "open_set", "reference", "item_data"):
        if (path := getattr(options, name, None)) is not None:
            require_source(path)


def given_texts(texts: Sequence[str], path: Path = Path("--text")) -> Source:
    """Texts that are queries themselves; each is also its id.

    Examples
    --------
    >>> given_texts(["a cat"]).read([0])
    ['a cat']
    """
    content = digest(json.dumps(list(texts)))
    return Source(
        path, TEXTS, tuple(texts), None, lambda rows: [texts[row] for row in rows], content, {}
    )


# Images.


def image_source(
    path: Path,
    names: list[str],
    classes: Sequence[str] | None,
    options: ReadOptions,
    notify: Notify,
) -> Source:
    """Images below a folder, or whose paths a table holds; a path is also the id.

    Raises
    ------
    InputError
        If none can be read.
    """
    folder, channels = root_of(path), options.channels or 3
    guessed = options.channels is None and options.transform is None
    if guessed and (found := is_grey(folder / names[0])) is not None:  # None: named when it is read
        channels, name = (1, "grey") if found[0] else (3, "RGB")
        first = f"{folder / names[0]} is ({found[1]})"
        notify(f"images are read as {name}, as {first}; --channels chooses")
    pixels = Pixels(folder, options.size, channels, options.transform)
    ids = names
    if options.skip_unreadable:
        checks = tqdm(pixels.unreadable(names), desc="Checking", total=len(names), leave=False)
        ids = [name for name, damaged in zip(names, checks, strict=True) if not damaged]
    if not ids:
        raise InputError(f"{folder} holds no image that can be read.")
    if skipped := len(names) - len(ids):
        notify(f"skipped {skipped:,} of {len(names):,} images, which cannot be read")
    class_of = dict(zip(names, classes or (), strict=False))
    files = ((name, folder / name) for name in ids)
    sizes = [(name, file.stat().st_size if file.exists() else -1) for name, file in files]
    return Source(
        path,
        IMAGES,
        tuple(ids),
        None if classes is None else tuple(class_of[name] for name in ids),
        lambda rows: pixels.batch([ids[row] for row in rows]),
        digest(json.dumps(sizes)),
        {"size": pixels.size, "channels": pixels.channels},
    )


def root_of(path: Path) -> Path:
    """The folder from which the images of a source are named: itself, or that of a table."""
    return path if path.is_dir() else path.parent


def path_below(folder: Path, name: str) -> Path:
    """Return where a named file lies once all links are followed.

    Raises
    ------
    InputError
        If that is outside of ``folder``.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder / name} leads out of {folder}, so it is not read. Give --data with a folder "
            "that holds all items, without links to other places."
        )
    return path


# Tables, one item a row: texts, or paths of images.

COLUMNS = {
    "image": ("paths of images", PATHS),
    "text": ("texts", ("text",)),
    "label": ("labels", ("label",)),
    "id": ("ids", ("id",)),
}
"""What a column holds, in words, and its usual names."""


def _table(
    path: Path,
    header: Collection[str],
    cells: Callable[[str], list[str]],
    options: ReadOptions,
    notify: Notify,
) -> Source:
    """Texts, or images named by their paths; ``cells`` gives those of a column."""
    in_words = options.text_column is not None or "text" in header
    if options.image_column is None and in_words:
        names = _columns(path, header, ("text", "label", "id"), options, notify)
    else:
        names = _columns(path, header, ("image", "label"), options, notify)
    filled = {what: cells(name) for what, name in names.items()}
    if "image" in names:
        images = check_listed(path, filled["image"])
        classes = _strings(path, "label", filled.get("label"), len(images))
        told = {} if options.image_column is None else {"image_column": names["image"]}
        source = image_source(path, images, classes, options, notify)
        return replace(source, options={**source.options, **told})
    if "text" not in names:
        raise InputError(
            f"{path} has no column 'text'. Name the one that holds the texts with --text-column, "
            f"or that of paths of images with --image-column; its columns: {shown_columns(header)}."
        )
    texts = filled["text"]
    return replace(
        given_texts(texts, path),
        ids=_strings(path, "id", filled.get("id"), len(texts)) or numbered(len(texts)),
        classes=_strings(path, "label", filled.get("label"), len(texts)),
        options={"text_column": names["text"]},
    )


def _columns(
    path: Path, header: Collection[str], wanted: Sequence[str], options: ReadOptions, notify: Notify
) -> dict[str, str]:
    """Names of the columns that hold what is wanted; without an option, those of a usual name."""
    found, guessed = dict[str, str](), list[str]()
    for what, (words, usual) in COLUMNS.items():
        told = getattr(options, f"{what}_column")
        name = column_of(path, header, f"{what}_column", told, usual)
        if name is not None and what in wanted:
            found[what] = name
            guessed += [f"{words} from column {name!r}"] if told is None else []
    if guessed:
        notify(f"{path}: {', '.join(guessed)}")
    return found


# Files of arrays: ``embeddings`` [N, D], and where they have them ``labels`` and ``ids``.

READ = ("embeddings", "labels", "ids")
HASHED_ROWS = 1000
"""As many are hashed at once."""


@contextmanager
def _named_damage(path: Path, form: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what readers raise at damaged or foreign files into ``FileFormatError``."""
    raised: tuple[type[Exception], ...] = (*DAMAGE, *errors)
    try:
        yield
    except raised as error:
        raise FileFormatError(f"{path} cannot be read as {form}: {error}.") from error


def _numpy(path: Path) -> dict[str, Any]:
    """One array, mapped rather than read, or those of an archive."""
    with _named_damage(path, "arrays of numbers or strings"):
        check_zip(path) if zipfile.is_zipfile(path) else check_npy(path)
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"embeddings": loaded}
        with loaded:
            return {name: loaded[name] if name in READ else None for name in loaded.files}


def _safetensors(path: Path) -> dict[str, Any]:
    """Tensors; ids and names of classes come from JSON in the header."""
    form = "a safetensors file"
    with (
        _named_damage(path, form, SafetensorError),
        utf8_path(path) as opened,
        safe_open(opened, framework="pt") as file,
    ):
        names = list(file.keys())
        arrays: dict[str, Any] = {n: file.get_tensor(n) if n in READ else None for n in names}
        header = file.metadata() or {}
    with _named_damage(path, f"{form}, its header is damaged", KeyError):
        if "ids" in header:
            arrays["ids"] = list(json.loads(header["ids"]))
        if "classes" in header and "labels" in arrays:
            classes = dict(enumerate(json.loads(header["classes"])))
            arrays["labels"] = [classes[number] for number in arrays["labels"].tolist()]
    return arrays


ARRAY_FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": _safetensors,
}


def _arrays(path: Path, arrays: dict[str, Any], options: ReadOptions) -> Source:
    """From arrays, tensors or lists."""
    if "embeddings" not in arrays:
        listed = ", ".join(map(repr, arrays)) or "none"
        raise InputError(f"{path} holds no array 'embeddings'; its arrays: {listed}.")
    embeddings = arrays["embeddings"]
    if isinstance(embeddings, Tensor):
        numeric = not embeddings.is_complex() and embeddings.dtype != torch.bool
    else:
        numeric = embeddings.dtype.kind in "fiu"
    if embeddings.ndim != 2 or not numeric:
        shape, kind = tuple(embeddings.shape), embeddings.dtype
        raise InputError(f"{path} holds {kind} of shape {shape}: embeddings are numbers [N, D].")
    n, step = len(embeddings), HASHED_ROWS
    labels = arrays.get("labels") if options.labels is None else _read_labels(options.labels)
    blocks = (_tensor(embeddings, range(k, min(k + step, n))) for k in range(0, n, step))
    return Source(
        path,
        ARRAYS,
        _strings(path, "id", arrays.get("ids"), n) or numbered(n),
        _strings(path, "label", labels, n),
        lambda rows: _tensor(embeddings, rows),
        digest(str(tuple(embeddings.shape)), blocks),
        {},
    )


def _read_labels(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--labels {path} is not a file.")
    if path.suffix.lower() == ".npy":
        return _numpy(path).get("embeddings", ())
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"--labels {path}: end it in .npy, or write one label a line.") from error


def numbered(n: int) -> tuple[str, ...]:
    """Ids of rows that have none."""
    return tuple(f"row {row + 1}" for row in range(n))


def _strings(path: Path, what: str, values: Any, n: int) -> tuple[str, ...] | None:
    """The id or label of each of n rows, none of them empty; None without values."""
    if n == 0:
        raise InputError(f"{path} holds no row.")
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        values = values.astype(str)
    items = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)
    if len(items) != n or any(isinstance(item, list) for item in items):
        raise LabelError(f"{path}: {len(items)} {what}s for {n} rows. Give one a row.")
    if any(isinstance(item, float) for item in items):
        raise LabelError(f"{path}: {what}s are fractions. Give whole numbers or names.")
    names = tuple("" if item is None else str(item) for item in items)
    if "" in names:
        row = names.index("") + 1
        raise LabelError(f"{path}: row {row} has an empty {what}. Fill it in, or leave it out.")
    return names


def _tensor(values: Any, rows: Sequence[int]) -> Tensor:
    """The rows as float32, or float64 where they are that."""
    selected = values[list(rows)]
    if isinstance(selected, Tensor):
        return selected if selected.dtype == torch.float64 else selected.float()
    wide = selected.dtype == np.float64
    return torch.from_numpy(selected.astype(np.float64 if wide else np.float32))
