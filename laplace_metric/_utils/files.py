"""Files that are whole or not there, and the hashes that tell one content from another.

A saved value is a folder with a JSON, such as ``posterior.json``, and the safetensors that it
names. The tensors are written first, under a name that holds their hash; replacing the JSON is the
one atomic step that makes them current. A reader sees the old value or the new one, never a mix.
A value may have one more file of a foreign format (that of a search engine).

Writers take turns, by a lock. Each works in a hidden folder that also lists the files it makes and
replaces, so that the next writer can remove what a killed one left behind, and nothing else. The
JSON holds its own hash: a flipped digit is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from laplace_metric._utils.locks import locked
from laplace_metric.errors import FileFormatError, InputError, WriteError

Loaded = TypeVar("Loaded")

MALFORMED = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a field of a wrong type or size makes a loader raise."""
SEAL = "json_sha256"
JOURNAL = "names"
RENAMES = ".renames.json"
TURN = ".renames.lock"
_RENAME = re.compile(r"([A-Za-z]+/)?\.([a-z]+)\.[0-9a-f]{16}\.tmp/\2\.json")
JSON_BYTES = 2**30
"""A larger JSON is none of ours."""
HEAD_BYTES = 2**16
"""As many of a foreign file are hashed where the whole is not."""
READS = 1000
"""Tries to read beside a writer that never rests."""


@dataclass(frozen=True)
class FileKind:
    """What a folder holds: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> FileKind("checkpoint", "a training checkpoint", 1).index
    'checkpoint.json'
    """

    name: str
    title: str
    version: int

    @property
    def format(self) -> str:
        """What the JSON calls it."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"

    def owns(self, name: str) -> bool:
        """Whether ``write`` may have given a file this name."""
        pattern = rf"{re.escape(self.name)}-[0-9a-f]{{16}}\.(safetensors|foreign)"
        return re.fullmatch(pattern, name) is not None


POSTERIOR = FileKind("posterior", "a saved posterior", 2)
INDEX = POSTERIOR.index


@dataclass
class _Pending:
    """What lies ready in a hidden folder, to become the value of ``folder``."""

    folder: Path
    kind: FileKind
    hidden: Path
    names: list[str]

    def prepare(self) -> None:
        """Put the files beside those of the old value, which is still the current one."""
        journal = {*self.names, *_named(self.folder, self.kind)}
        _write_synced(self.hidden / JOURNAL, json.dumps(sorted(journal)))
        for name in self.names:
            _replace(self.hidden / name, self.folder / name)

    def rename(self, root: Path) -> str:
        """What ``commit`` does, for the note in ``root``."""
        return (self.hidden / self.kind.index).relative_to(root).as_posix()

    def commit(self) -> None:
        """Make it the value of the folder."""
        _replace(self.hidden / self.kind.index, self.folder / self.kind.index)


@dataclass
class _Batch:
    stack: ExitStack
    pending: list[_Pending] = field(default_factory=list)


_BATCH: ContextVar[_Batch | None] = ContextVar("batch", default=None)


@contextmanager
def together(root: Path | None = None) -> Iterator[None]:
    """What is written within takes effect at the end, all of it, or none after an error.

    With ``root``, a folder that holds all of it, this is so even if the process is killed: the
    renames are noted there first, and ``finish_renames`` or the next writer carries them out.

    Raises
    ------
    WriteError
        If something cannot be written; the old values are kept.
    """
    if _BATCH.get() is not None:
        yield
        return
    with ExitStack() as stack:
        if root is not None:
            with named_errors(root):
                root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(root / TURN))
                _finish(root)
        batch = _Batch(stack)
        token = _BATCH.set(batch)
        try:
            yield
        finally:
            _BATCH.reset(token)
        with named_errors(*(p.folder for p in batch.pending)):
            for pending in batch.pending:
                pending.prepare()
            if root is not None:
                _note(root, [pending.rename(root) for pending in batch.pending])
            for pending in batch.pending:
                pending.commit()
            for pending in batch.pending:
                sync_folder(pending.folder)
            if root is not None:
                (root / RENAMES).unlink()


def _note(root: Path, renames: list[str]) -> None:
    try:
        _write_synced(root / RENAMES, json.dumps(renames))
    except OSError:
        (root / RENAMES).unlink(missing_ok=True)
        raise


def finish_renames(root: Path) -> None:
    """Carry out the renames that a killed writer noted in ``root``, if there are any.

    Raises
    ------
    FileFormatError
        If they are to be carried out, and the folder cannot be written to.
    """
    if not (root / RENAMES).exists():
        return
    try:
        with locked(root / TURN):
            _finish(root)
    except OSError as error:
        raise FileFormatError(
            f"{root} was being replaced when the process was killed, which cannot be finished: "
            f"{error}."
        ) from error


def _finish(root: Path) -> None:
    try:
        renames = json.loads((root / RENAMES).read_bytes())
    except FileNotFoundError:
        return
    except (ValueError, RecursionError):  # killed before it was noted: nothing was renamed
        renames = []
    for rename in renames if isinstance(renames, list) else []:
        if isinstance(rename, str) and _RENAME.fullmatch(rename) and (root / rename).is_file():
            source = root / rename
            _replace(source, source.parent.parent / source.name)
    (root / RENAMES).unlink()


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
    foreign: Callable[[Path], None] | None = None,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    ``foreign`` writes the file of a foreign format to the path that it is given.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old value is kept.
    """
    with together():
        batch = _BATCH.get()
        assert batch is not None
        with named_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            hidden = batch.stack.enter_context(_hidden(folder, kind.name, kind))
            plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            written = [_hashed(hidden, kind, "safetensors", lambda path: save_file(plain, path))]
            header = {"format": kind.format, "version": kind.version}
            header |= {"tensors": written[0][0], "sha256": written[0][1]}
            if foreign is not None:
                written.append(_hashed(hidden, kind, "foreign", foreign))
                header |= {"foreign": written[1][0], "foreign_sha256": written[1][1]}
            header["heads"] = {name: _head(hidden / name) for name, _ in written}
            text = json.dumps(sealed({**header, **content}), indent=2)
            _write_synced(hidden / kind.index, text)
        batch.pending.append(_Pending(folder, kind, hidden, [name for name, _ in written]))


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """JSON content with its own sha256, so that every altered value is noticed.

    Examples
    --------
    >>> sealed({"n": 1}) == sealed(sealed({"n": 1}))
    True
    """
    plain = json.loads(json.dumps({k: v for k, v in content.items() if k != SEAL}))
    text = json.dumps(plain, sort_keys=True)
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def read(
    folder: Path, kind: FileKind = POSTERIOR, *, mapped: bool = False, verify: bool | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON content and the tensors of what ``write`` wrote.

    ``mapped`` leaves the tensors on disk until they are used; without ``verify``, only their header
    is hashed then. Beside a writer, this is the old value or the new one.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    whole = not mapped if verify is None else verify
    return settled(folder, kind, lambda: _read(folder, kind, mapped, whole))


def settled(folder: Path, kind: FileKind, load: Callable[[], Loaded]) -> Loaded:
    """What ``load`` reads of a value; it is called again if the value was replaced meanwhile."""
    for _ in range(READS):
        with _stamped(folder / kind.index) as unchanged:
            try:
                return load()
            except (FileFormatError, OSError):
                if unchanged():
                    raise
    return load()


def settled_together(paths: Sequence[Path], load: Callable[[], Loaded]) -> Loaded:
    """What ``load`` reads of several values, none of whose JSON was replaced meanwhile."""
    for _ in range(READS):
        with ExitStack() as stack:
            checks = [stack.enter_context(_stamped(path)) for path in paths]
            try:
                value = load()
            except (FileFormatError, OSError):
                if all(unchanged() for unchanged in checks):
                    raise
                continue
            if all(unchanged() for unchanged in checks):
                return value
    return load()


@contextmanager
def _stamped(path: Path) -> Iterator[Callable[[], bool]]:
    """A function that says whether ``path`` is the same file as now."""
    with ExitStack() as stack:
        if os.name != "nt":  # held open, its number is not given to another file
            with suppress(OSError):
                stack.enter_context(path.open("rb"))
        before = _stamp(path)
        yield lambda: _stamp(path) == before


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(
    folder: Path, kind: FileKind, mapped: bool, whole: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    content = read_index(folder, kind)
    path = _checked(folder, kind, content, "tensors", "sha256", whole=whole)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def foreign_file(
    folder: Path, content: dict[str, Any], kind: FileKind, *, hashed: bool = True
) -> Path:
    """Where the file of a foreign format lies, checked as ``read`` checks the tensors."""
    return _checked(folder, kind, content, "foreign", "foreign_sha256", whole=hashed)


def _checked(
    folder: Path, kind: FileKind, content: dict[str, Any], key: str, sha_key: str, *, whole: bool
) -> Path:
    name = content.get(key)
    if not isinstance(name, str) or not kind.owns(name):
        raise FileFormatError(
            f"{folder / kind.index} is damaged: {key}={name!r:.60} is not a file name of ours."
        )
    path = folder / name
    try:
        damaged = _head(path) != content.get("heads", {}).get(name)
        damaged = damaged or (whole and sha256_of(path) != content.get(sha_key))
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except (AttributeError, TypeError) as error:
        raise FileFormatError(f"{folder / kind.index} is damaged: {error!r}.") from error
    if damaged:
        raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
    return path


def read_index(folder: Path, kind: FileKind) -> dict[str, Any]:
    """The JSON of what ``write`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    path = folder / kind.index
    try:
        if path.stat().st_size > JSON_BYTES:
            raise FileFormatError(f"{path} has {path.stat().st_size:,} bytes: it is none of ours.")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise FileFormatError(
            f"{folder} holds no {kind.index}, so it is not {kind.title}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    if content.get("version") != kind.version:
        raise FileFormatError(
            f"{path} has version {content.get('version')!r:.60}, this package reads "
            f"{kind.version}: upgrade laplace-metric, or fit again."
        )
    _check_seal(path, content)
    return content


def _check_seal(path: Path, content: dict[str, Any]) -> None:
    try:
        intact = sealed(content)[SEAL] == content.get(SEAL)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise FileFormatError(
            f"{path} is damaged: its content does not have the sha256 that it names."
        )


def _named(folder: Path, kind: FileKind) -> set[str]:
    """The files that the JSON of a folder names, if it has one that can be read."""
    try:
        content = json.loads((folder / kind.index).read_bytes())
        names = {content.get("tensors"), content.get("foreign")}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str) and kind.owns(name)}


def _hashed(
    hidden: Path, kind: FileKind, ending: str, write_to: Callable[[Path], None]
) -> tuple[str, str]:
    """Write a file whose name holds its hash; the name and the hash."""
    path = hidden / ending
    with _public(path):
        write_to(path)
    sha256 = sha256_of(path)
    name = f"{kind.name}-{sha256[:16]}.{ending}"
    _sync_file(path)
    os.rename(path, hidden / name)
    return name, sha256


def _head(path: Path) -> list[Any]:
    """Size of a file, and sha256 of its header: all of it but the tensors, or its first bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little") if path.suffix == ".safetensors" else HEAD_BYTES
        head = first + file.read(min(length, size))
    return [size, hashlib.sha256(head).hexdigest()]


def sha256_of(path: Path) -> str:
    """sha256 of a file."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """sha256 of a text, then of tensors (any shapes) in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Examples
    --------
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A file to write to, which becomes ``path`` at the end, unless there was an error.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path), _hidden(path.parent, path.name) as hidden:
        temporary = hidden / "content"
        with _public(temporary):
            yield temporary
        _sync_file(temporary)
        _replace(temporary, path)


@contextmanager
def _public(path: Path) -> Iterator[None]:
    """Readable as the umask says: safetensors makes files that only their owner may read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o666))
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def _write_synced(path: Path, content: str | bytes) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    _sync_file(path)


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is; not every system can be asked for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _replace(source: Path, target: Path) -> None:
    """Rename; where readers keep files from being replaced (Windows), wait for them."""
    for _ in range(100 if os.name == "nt" else 0):
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(0.05)
    os.replace(source, target)


@contextmanager
def named_errors(*paths: Path) -> Iterator[None]:
    """What the system refuses within becomes ``WriteError``.

    Raises
    ------
    WriteError
        If one of the paths cannot be written.
    FileFormatError
        As it is.
    """
    try:
        yield
    except (WriteError, FileFormatError):
        raise
    except (SafetensorError, OSError, RuntimeError) as error:
        listed = ", ".join(dict.fromkeys(map(str, paths)))
        raise WriteError(
            f"{listed} cannot be written: {error}. What was there before is kept; make room or "
            "give another place."
        ) from error


@contextmanager
def _hidden(folder: Path, name: str, kind: FileKind | None = None) -> Iterator[Path]:
    """A folder in ``folder`` to write to, for one writer of ``name`` at a time.

    Those that killed writers left behind are removed, with the files that they list and that the
    JSON does not name.
    """
    with locked(folder / f".{name}.lock") as alone:
        if alone:
            for left in left_behind(folder, name):
                _clean(folder, left, kind)
        hidden = folder / f".{name}.{secrets.token_hex(8)}.tmp"
        hidden.mkdir()
        try:
            yield hidden
        finally:
            _clean(folder, hidden, kind)


def tidy(folder: Path, kind: FileKind) -> None:
    """Remove what killed writers left in ``folder``; its value stays.

    Raises
    ------
    WriteError
        If the folder cannot be written to.
    """
    if (folder / f".{kind.name}.lock").exists() or left_behind(folder, kind.name):
        with named_errors(folder), _hidden(folder, kind.name, kind):
            pass


def left_behind(folder: Path, name: str) -> list[Path]:
    """Hidden folders of writers of ``name``, alive or killed."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def _clean(folder: Path, hidden: Path, kind: FileKind | None) -> None:
    """Remove a hidden folder, and before it what its journal lists and the JSON does not name."""
    try:
        listed = json.loads((hidden / JOURNAL).read_bytes())
    except (OSError, ValueError, RecursionError):
        listed = []
    if kind is not None and isinstance(listed, list):
        current = _named(folder, kind)
        for name in listed:
            if isinstance(name, str) and kind.owns(name) and name not in current:
                try:
                    (folder / name).unlink(missing_ok=True)
                except OSError:  # a reader has it open (Windows): the next writer tries again
                    return
    with suppress(OSError):
        remove_hidden(hidden)


def remove_hidden(hidden: Path) -> None:
    """Remove the hidden folder of a writer that is gone."""
    for path in hidden.iterdir():
        path.unlink(missing_ok=True)
    hidden.rmdir()


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")


def json_text(content: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
