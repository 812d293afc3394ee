"""What is saved: one safetensors file of named parts, each with JSON content and arrays.

    8 bytes      length of the header
    header       JSON, padded with spaces to a multiple of 8 bytes
        {"__metadata__": {"sha256": of the header, with zeros in place of this number,
                          "data_sha256": of all that follows the header,
                          "format": "laplace_metric", "version": "1",
                          "content": JSON text of {part: {"kind", "version", "value"}}},
         "part/array": {"dtype", "shape", "data_offsets"}, ...}
    data         the arrays, those of the widest type first, so that each is aligned

Any reader of safetensors reads the arrays. This one opens the file once, so that a file which is
replaced meanwhile is read as it was. The two hashes notice every altered bit. A file holds no code:
nothing is unpickled.

The package safetensors does not do this. It opens a file by its name: it follows links, and bytes
to hash would come from a second opening. From bytes it returns no metadata, and holds the arrays
twice. It writes metadata in random order, so that a hash would have no place and equal values no
equal files.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io._atomic import named_errors, only_regular, writing
from laplace_metric.io._fields import Fields
from laplace_metric.io._json import parsed

if TYPE_CHECKING:
    import numpy as np

FORMAT, VERSION = "laplace_metric", "1"
BEGIN = b'{"__metadata__":{"sha256":"'
"""First bytes of every header; the 64 digits of its hash follow."""
NO_HASH = b"0" * 64
HEADER_BYTES = 100_000_000
"""Bytes of a header, at most: readers of safetensors refuse more."""
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Name of a type in torch and NumPy -> its name in a header."""
NAMES = {code: name for name, code in CODES.items()}
ONLY_IN_TORCH = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Types that NumPy lacks, and others of the same width."""
MALFORMED = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a field of a wrong type or size makes a loader raise."""


WRITERS = {
    "guard": "Guard.save wrote it: Guard.load(path) reads it.",
    "gallery": "It is an index, which laplace-metric index wrote.",
    "recipe": "It is a posterior, which laplace-metric fit wrote.",
    "rule": "It is a rule: Rule.load(path) reads it.",
    "ensemble": "LaplaceEnsemble.save wrote it: LaplaceEnsemble.load(path, models) reads it.",
    "index": "Index.save wrote it: Index.load(path, embedder) reads it.",
    "posterior": "LaplaceEmbedder.save wrote it: LaplaceEmbedder.load(path, model) reads it.",
}
"""What wrote a file with a part of this name; the first that it has decides."""


@dataclass(frozen=True)
class Kind:
    """Kind of a part: its name in files, its name in messages, and the version of its format.

    Parameters
    ----------
    name : str
        Name in files, such as "rule".
    title : str
        Name in messages, such as "a saved rule".
    version : int
        Version of the format of this kind.

    Examples
    --------
    >>> Kind("rule", "a saved rule", 2).title
    'a saved rule'
    """

    name: str
    title: str
    version: int


@dataclass(frozen=True)
class Part:
    """One value: JSON content, and arrays by name.

    Parameters
    ----------
    kind : Kind
        Kind of the value, with the version of its format.
    content : dict
        Content that JSON holds.
    arrays : mapping of name to torch.Tensor or numpy.ndarray
        Arrays by name, tensors or NumPy arrays; they are read back as the type that the reader asks
        for. Default: none.
    """

    kind: Kind
    content: dict[str, Any]
    arrays: Mapping[str, Any] = field(default_factory=dict)


# Writing.


def write(path: Path, parts: Mapping[str, Part] | Part) -> None:
    """Make the file ``path`` hold these parts, in one step; folders on its way are made.

    Parameters
    ----------
    path : Path
        Name of the file, which is replaced.
    parts : Part, or mapping of name to Part
        Parts of the file. A single part has the name of its kind.

    Raises
    ------
    InputError
        If ``path`` is a folder; for an array of a type that safetensors does not have; for more
        content than a header holds.
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    if isinstance(parts, Part):
        parts = {parts.kind.name: parts}
    if path.is_dir():
        name = next(iter(parts))
        raise InputError(
            f"{path} is a folder: give the name of a file, such as {path / f'{name}.safetensors'}."
        )
    arrays = {f"{part}/{n}": a for part, value in parts.items() for n, a in value.arrays.items()}
    views = {name: _view(name, array) for name, array in arrays.items()}
    names = sorted(views, key=lambda name: (-views[name][1].itemsize, name))
    header = _header(parts, {name: views[name] for name in names})
    with named_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as temporary, temporary.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in names:
            file.write(_bytes(views[name][1]))


def _view(name: str, array: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the code of an array's type, and the array in NumPy, contiguous, little-endian."""
    import numpy as np

    kind = str(array.dtype).removeprefix("torch.")
    if kind not in CODES:
        raise InputError(f"{name} is an array of {kind}, which safetensors do not hold.")
    if not isinstance(array, np.ndarray):
        array = array.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if kind in ONLY_IN_TORCH:
            import torch

            array = array.view(getattr(torch, ONLY_IN_TORCH[kind]))
        array = array.numpy()
    return CODES[kind], np.ascontiguousarray(array).reshape(array.shape)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view("uint8").data


def _header(
    parts: Mapping[str, Part], views: Mapping[str, tuple[str, np.ndarray[Any, Any]]]
) -> bytes:
    content = {
        name: {"kind": part.kind.name, "version": part.kind.version, "value": part.content}
        for name, part in parts.items()
    }
    data, table, start = hashlib.sha256(), dict[str, Any](), 0
    for name, (code, array) in views.items():
        data.update(_bytes(array))
        offsets = [start, start := start + array.nbytes]
        table[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
    metadata = {"sha256": NO_HASH.decode(), "data_sha256": data.hexdigest()}
    metadata |= {"format": FORMAT, "version": VERSION, "content": json.dumps(content)}
    text = json.dumps({"__metadata__": metadata, **table}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        raise InputError(
            f"its JSON has {len(text):,} bytes, but a file holds {HEADER_BYTES:,} at most."
        )
    return _with_hash(text, hashlib.sha256(text).hexdigest().encode())


def _with_hash(header: bytes, digits: bytes) -> bytes:
    return BEGIN + digits + header[len(BEGIN) + len(digits) :]


# Reading.


@dataclass(frozen=True)
class _Place:
    """Type and shape of an array, and its first byte and length in the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


class SavedFile:
    """The parts of a file, as it was when it was opened.

    Parameters
    ----------
    path : Path
        Name of the file.
    mapped : bool
        Leave arrays on disk until they are used. They may be changed, but not in the file. Default:
        False.
    verify : bool or None
        Hash the arrays, too. None, the default: unless ``mapped``, where only the header is hashed.
    torch : bool
        True, the default, returns tensors; False returns NumPy arrays, without an import of torch.

    Raises
    ------
    FileFormatError
        If there is no such file, or one that is damaged, foreign or newer.
    """

    def __init__(
        self, path: Path, *, mapped: bool = False, verify: bool | None = None, torch: bool = True
    ) -> None:
        self.path, self.mapped = path, mapped
        self.verified = whole = not mapped if verify is None else verify
        try:
            with open(path, "rb", opener=only_regular) as file:
                self._status = os.fstat(file.fileno())
                header = _read_header(path, file, self._status.st_size)
                self._begin = 8 + len(header)
                metadata, table = _parsed_header(path, header)
                self._parts: dict[str, Any] = Fields(parsed(metadata["content"])).content
                self._places = _places(table, self._status.st_size - self._begin)
                read = _mapped if mapped else _loaded
                self._arrays, sha256 = read(file, self._begin, self._places, torch, whole)
                if whole and sha256 != metadata["data_sha256"]:
                    raise ValueError("its arrays do not have the sha256 that its header names")
        except OSError as error:
            raise FileFormatError(_why_not(path, error)) from error
        except MALFORMED as error:
            raise FileFormatError(f"{path} is damaged: {error}.") from error
        except FileFormatError as error:
            if str(path) in str(error):
                raise
            raise FileFormatError(f"{path} is damaged: {error}.") from error

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def part(self, kind: Kind, name: str | None = None) -> Part:
        """Return a part of this kind.

        Parameters
        ----------
        kind : Kind
            Kind that the part must have, in this version of its format.
        name : str or None
            Name of the part in the file. None, the default: the name of the kind.

        Raises
        ------
        FileFormatError
            If the file lacks it, or it has another version.
        """
        name = kind.name if name is None else name
        saved = self._parts.get(name)
        if not isinstance(saved, dict) or saved.get("kind") != kind.name:
            held = ", ".join(self._parts) or "nothing"
            advice = next((f" {WRITERS[k]}" for k in WRITERS if k in self._parts), "")
            raise FileFormatError(f"{self.path} is not {kind.title}: it holds {held:.200}.{advice}")
        if saved.get("version") != kind.version:
            raise FileFormatError(_of_version(self.path, kind.title, saved, kind.version))
        if not isinstance(saved.get("value"), dict):
            raise FileFormatError(f"{self.path} is damaged: {kind.title} is no JSON object.")
        begin = f"{name}/"
        arrays = {k.removeprefix(begin): a for k, a in self._arrays.items() if k.startswith(begin)}
        return Part(kind, saved["value"], arrays)

    def start_of(self, name: str) -> int:
        """Return the byte of the file at which an array begins, such as "index/engine.lists"."""
        return self._begin + self._places[name].start

    def replaced(self) -> bool:
        """Return whether another file has the name of this one by now."""
        try:
            return not os.path.samestat(self._status, os.stat(self.path))
        except OSError:
            return True

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turn what a damaged value makes its loader raise into an error that names the file.

        Raises
        ------
        FileFormatError
            Then.
        """
        try:
            yield
        except FileFormatError as error:
            if str(self.path) in str(error):
                raise
            raise FileFormatError(f"{self.path}: {error}") from error
        except InputError as error:
            raise FileFormatError(f"{self.path} is damaged: {error}") from error
        except MALFORMED as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else f"{error!r}"
            raise FileFormatError(
                f"{self.path} is damaged: {what:.300}. Make the value again and save it."
            ) from error


def read(path: Path, kind: Kind, *, torch: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON content and the arrays of the one part of a file; see ``SavedFile``.

    Parameters
    ----------
    path : Path
        Name of the file.
    kind : Kind
        Kind that the part must have.
    torch : bool
        True, the default, returns tensors; False returns NumPy arrays, without an import of torch.

    Raises
    ------
    FileFormatError
        If there is no such file or part, or one that is damaged, foreign or newer.
    """
    part = SavedFile(path, torch=torch).part(kind)
    return part.content, dict(part.arrays)


def _read_header(path: Path, file: BinaryIO, size: int) -> bytes:
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if first.lstrip()[:1] == b"{" or length > min(size - 8, HEADER_BYTES):
        former = ""
        if first.lstrip()[:1] == b"{":
            former = " Version 0.3 saved JSON, which this one does not read: save it again."
        raise FileFormatError(f"{path} is not a safetensors file.{former}")
    header = file.read(length)
    if not header.startswith(BEGIN):
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    return header


def _parsed_header(path: Path, header: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the table of arrays of a header that has its hash."""
    digits = header[len(BEGIN) : len(BEGIN) + len(NO_HASH)]
    if hashlib.sha256(_with_hash(header, NO_HASH)).hexdigest().encode() != digits:
        raise ValueError("its header does not have the sha256 that it names")
    table = parsed(header)
    metadata = table.pop("__metadata__")
    if metadata["format"] != FORMAT:
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    if metadata["version"] != VERSION:
        raise FileFormatError(_of_version(path, "a file", metadata, VERSION))
    return metadata, table


def _of_version(path: Path, title: str, saved: dict[str, Any], ours: int | str) -> str:
    return (
        f"{path} holds {title} of version {saved.get('version')!r:.60}, this package reads {ours}: "
        "upgrade laplace-metric, or make the value again and save it."
    )


def _places(table: dict[str, Any], size: int) -> dict[str, _Place]:
    """Return the places of all arrays in their order in the data, which they fill.

    Raises
    ------
    ValueError
        If they do not, or a type or shape is none.
    """
    import numpy as np

    places = {}
    for name, entry in table.items():
        (start, stop), shape = entry["data_offsets"], entry["shape"]
        if not all(type(n) is int and n >= 0 for n in (start, stop, *shape)):
            raise ValueError(f"array {name!r:.60} has shape {shape!r:.60}")
        places[name] = _Place(NAMES[entry["dtype"]], tuple(shape), start, stop - start)
    places = dict(sorted(places.items(), key=lambda item: (item[1].start, item[1].size)))
    end = 0
    for name, place in places.items():
        width = np.dtype(ONLY_IN_TORCH.get(place.dtype, place.dtype)).itemsize
        if place.start != end or place.size != width * math.prod(place.shape):
            raise ValueError(f"array {name!r:.60} is not where its header says")
        end += place.size
    if end != size:
        raise ValueError(f"it has {size:,} bytes of arrays, but its header names {end:,}")
    return places


def _loaded(
    file: BinaryIO, begin: int, places: Mapping[str, _Place], torch: bool, whole: bool
) -> tuple[dict[str, Any], str]:
    """Read the arrays, each to memory of its own, and hash them if ``whole``."""
    data, arrays = hashlib.sha256(), {}
    for name, place in places.items():
        memory = _empty(place.size, torch)
        view = memoryview(memory.numpy() if torch else memory)
        if file.readinto(view) < place.size:  # type: ignore[attr-defined]
            raise ValueError("it ends early")
        if whole:
            data.update(view)
        arrays[name] = _typed(memory, place, torch)
    return arrays, data.hexdigest()


def _mapped(
    file: BinaryIO, begin: int, places: Mapping[str, _Place], torch: bool, whole: bool
) -> tuple[dict[str, Any], str]:
    """Map the arrays: pages are read when they are used, and hashed now if ``whole``."""
    import numpy as np

    memory = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    sha256, arrays = hashlib.sha256(memory[begin:].data if whole else b"").hexdigest(), {}
    for name, place in places.items():
        part: Any = memory[begin + place.start :][: place.size]
        if torch:
            import torch as pytorch

            part = pytorch.from_numpy(part)
        arrays[name] = _typed(part, place, torch)
    return arrays, sha256


def _empty(size: int, torch: bool) -> Any:
    if not torch:
        import numpy as np

        return np.empty(size, np.uint8)
    import torch as pytorch

    return pytorch.empty(size, dtype=pytorch.uint8, device="cpu")


def _typed(memory: Any, place: _Place, torch: bool) -> Any:
    """Return bytes, a tensor or an array, as an array of its type and shape."""
    if not torch:
        return memory.view(place.dtype).reshape(place.shape)
    import torch as pytorch

    return memory.view(getattr(pytorch, place.dtype)).reshape(place.shape)


def _why_not(path: Path, error: OSError) -> str:
    if path.is_dir():
        return (
            f"{path} is a folder: give the file that was saved. Version 0.3 saved folders, which "
            "this one does not read: fit and save again."
        )
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist."
    return f"{path} cannot be read: {error.strerror or error}."
