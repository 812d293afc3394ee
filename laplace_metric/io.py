"""Files that are whole or not there, and the hashes that tell one content from another.

A saved value is a folder with a JSON, such as ``posterior.json``, and the safetensors that it
names. The tensors are written first, under a name that holds their hash; replacing the JSON is the
one atomic step that makes them current. A reader sees the old value or the new one, never a mix.

Writers take turns, by a lock. Each works in a hidden folder that also names the files that it makes
and replaces, so that the next writer can remove what a killed one left behind, and nothing else.
Readers write nothing. Links are not followed where something is cleaned, finished or locked. The
JSON holds its own hash: a flipped digit is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from laplace_metric._utils.names import utf8, utf8_path
from laplace_metric.errors import FileFormatError, InputError, WriteError

if TYPE_CHECKING:
    from torch import Tensor

Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class FileKind:
    """Kind of a folder: its name in file names and in messages, and the version of its format.

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
        """Name of the format in the JSON."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"

    def owns(self, name: str) -> bool:
        """Return whether ``write`` may have given a file this name."""
        pattern = rf"{re.escape(self.name)}-[0-9a-f]{{16}}\.safetensors"
        return re.fullmatch(pattern, name) is not None


POSTERIOR = FileKind("posterior", "a saved posterior", 3)
INDEX = POSTERIOR.index


# Hashes: of files, of JSON, of tensors.


SEAL = "json_sha256"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return JSON content with its own sha256, so that every altered value is noticed.

    Examples
    --------
    >>> sealed({"n": 1}) == sealed(sealed({"n": 1}))
    True
    """
    plain = json.loads(json.dumps({k: v for k, v in content.items() if k != SEAL}))
    text = json.dumps(plain, sort_keys=True)
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def head_of(path: Path) -> list[Any]:
    """Return the size of a safetensors file and the sha256 of its header, without the tensors."""
    with open(path, "rb", opener=only_regular) as file:
        size, first = os.fstat(file.fileno()).st_size, file.read(8)
        head = first + file.read(min(int.from_bytes(first, "little"), size))
    return [size, hashlib.sha256(head).hexdigest()]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb", opener=only_regular) as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """Return the sha256 of a text, then of tensors in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Examples
    --------
    >>> import torch
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    import torch

    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()


# The disk: write, sync, rename, refuse; refusals get a name.


def write_synced(path: Path, content: str) -> None:
    """Write a file that does not exist yet; a link in its place is an error."""
    with path.open("xb") as file:
        file.write(content.encode())
        file.flush()
        os.fsync(file.fileno())


def only_regular(path: str, flags: int) -> int:
    """Open a file, as `opener` of ``open``; ``OSError`` for a pipe or device: it may not end."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", path)


def _bytes(path: Path, most: int) -> bytes:
    """Read a regular file; ``OSError`` if it has more than ``most`` bytes."""
    with open(path, "rb", opener=only_regular) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(0, f"it has more than {most:,} bytes")
    return content


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def refuse_link(path: Path) -> Path:
    """Return a path within a folder of ours, through which that folder is written to.

    Raises
    ------
    FileFormatError
        If it is a link: what it leads to is not part of the folder.
    """
    if path.is_symlink():
        raise FileFormatError(
            f"{path} is a link, which would lead out of {path.parent}: remove it, or give another "
            "folder."
        )
    return path


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until renames in a folder are on the disk, where the system can be asked for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def replace_file(source: Path, target: Path) -> None:
    """Rename; where readers keep files from being replaced (Windows), wait for them."""
    for _ in range(100 if os.name == "nt" else 0):
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(0.05)
    os.replace(source, target)


@contextmanager
def readable(path: Path, mode: int = 0o666) -> Iterator[None]:
    """Make a new file as readable as the umask says: safetensors makes it so for its owner only."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, mode))
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


@contextmanager
def named_errors(*paths: Path, also: type[Exception] = OSError) -> Iterator[None]:
    """Turn what the system refuses within into ``WriteError``.

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
    except (OSError, RuntimeError, also) as error:
        listed = ", ".join(dict.fromkeys(map(str, paths)))
        raise WriteError(
            f"{listed} cannot be written: {error}. What was there before is kept; make room or "
            "give another place."
        ) from error


# One process or thread at a time: a lock that a killed process does not keep.


SECONDS = 600.0
"""To wait for another writer, which may be saving many gigabytes."""
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What a file system without locks answers."""
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
"""A link is an error: it would make a file elsewhere."""

if os.name == "nt":
    import msvcrt

    def _take(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]

else:
    import fcntl

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path, seconds: float = SECONDS) -> Iterator[bool]:
    """Hold the lock that the file ``path`` stands for; the file is gone afterwards.

    Yields whether it is held: False on a file system without locks.

    Raises
    ------
    WriteError
        If another process or thread still holds it after ``seconds``.
    """
    handle = _acquired(path, time.monotonic() + seconds)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            _release(handle, path)


def _acquired(path: Path, deadline: float) -> int | None:
    pause = 0.001
    while True:
        handle = os.open(path, FLAGS, 0o666)
        try:
            _take(handle)
            # the last holder removed the file: who waited for that one holds a lock on nothing
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in UNSUPPORTED:
                os.close(handle)
                path.unlink(missing_ok=True)
                return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if time.monotonic() > deadline:
            raise WriteError(
                f"{path.parent} is being written to by another process, which holds {path.name}: "
                "wait for it, or give another folder."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _release(handle: int, path: Path) -> None:
    if os.name == "nt":  # a file that is open cannot be removed there
        os.close(handle)
        with suppress(OSError):
            path.unlink()
        return
    path.unlink(missing_ok=True)  # while it is held: no other process can have taken this one since
    fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have it open as well
    os.close(handle)


# Which JSON of a folder counts: its own, or the one that a killed writer had committed.
#
# A batch of values has a token of 16 random digits. Each value lies ready in a hidden folder that
# is named after the token, such as ``.posterior.0123456789abcdef.tmp/posterior.json``. Writing the
# token to ``.together`` in the folder that holds them all is the one step that commits the batch;
# then each JSON moves to its place. A reader looks for the committed JSON and moves nothing.
# Writers move what a killed one left, each within the folder that it writes to and under its lock.
# The note names no path: what another user writes there leads nowhere.


NOTE = ".together"
JSON_BYTES = 2**30
"""A larger JSON is none of ours."""


def noted(root: Path) -> str | None:
    """Return the token of the batch that was committed last and not finished."""
    note = root / NOTE
    if note.is_symlink():
        return None
    try:
        token = _bytes(note, 16).decode()
    except (OSError, ValueError):
        return None
    return token if re.fullmatch(r"[0-9a-f]{16}", token) else None


def current(path: Path) -> Path:
    """Return where the JSON that counts lies: ``path``, or that of a committed batch."""
    folder = path.absolute().parent
    for root in (folder, folder.parent):
        token = noted(root)
        if token is not None:
            hidden = path.parent / f".{path.stem}.{token}.tmp"
            ready = hidden / path.name
            if is_folder(hidden) and ready.is_file() and not ready.is_symlink():
                return ready
    return path


def exists(path: Path) -> bool:
    """Return whether there is a JSON that counts."""
    return current(path).exists() or path.exists()  # it may have moved in between


def finish(path: Path) -> None:
    """Move a committed JSON to its place."""
    ready = current(path)
    if ready != path:
        with suppress(FileNotFoundError):  # another writer did
            replace_file(ready, path)


def finish_all(root: Path) -> None:
    """Finish the batch that was noted in ``root``."""
    if (token := noted(root)) is not None:
        for pattern in (f".*.{token}.tmp", f"*/.*.{token}.tmp"):
            for hidden in root.glob(pattern):
                folder, name = hidden.parent, hidden.name.split(".")[1]
                if folder == root or is_folder(folder):
                    finish(folder / f"{name}.json")
    (root / NOTE).unlink(missing_ok=True)


# The hidden folder that a writer works in, and what a killed one left behind.
#
# Before a writer replaces a value, it puts empty files there that have the names of the old and of
# the new tensors. Whichever of them the JSON does not name in the end is removed.


@contextmanager
def hidden_folder(
    folder: Path, name: str, kind: FileKind | None = None, token: str | None = None
) -> Iterator[Path]:
    """Yield a folder in ``folder`` to write to, for one writer of ``name`` at a time.

    What killed writers left behind is removed before. ``token``: of the batch.
    """
    with locked(folder / f".{name}.lock") as alone:
        if kind is not None:
            finish(folder / kind.index)
        if alone:
            for left in left_behind(folder, name):
                _clean(folder, left, kind)
        hidden = folder / f".{name}.{token or secrets.token_hex(8)}.tmp"
        hidden.mkdir()
        try:
            yield hidden
        finally:
            _clean(folder, hidden, kind)


def left_behind(folder: Path, name: str) -> list[Path]:
    """Return hidden folders of writers of ``name``, alive or killed, and links called like one."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def _clean(folder: Path, hidden: Path, kind: FileKind | None) -> None:
    """Remove a hidden folder, and before it the tensors that it names and the JSON does not.

    Of a file or a link in its place, only that one is removed.
    """
    with suppress(OSError):  # a reader has a file open (Windows): the next writer tries again
        if not is_folder(hidden):
            return hidden.unlink(missing_ok=True)
        inside = list(hidden.iterdir())
        if kind is not None:
            finish(folder / kind.index)  # a committed batch stays so, whatever failed since
            current_name = tensors_of(folder, kind)
            for path in inside:
                if kind.owns(path.name) and path.name != current_name:
                    (folder / path.name).unlink(missing_ok=True)
        for path in inside:
            path.unlink(missing_ok=True)
        hidden.rmdir()


def tensors_of(folder: Path, kind: FileKind) -> str | None:
    """Return the file name of the tensors of a folder, if its JSON can be read and names one."""
    try:
        name = json.loads(_bytes(folder / kind.index, JSON_BYTES)).get("tensors")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return name if isinstance(name, str) and kind.owns(name) else None


def tidy(folder: Path, kind: FileKind) -> None:
    """Remove what killed writers left in ``folder``; its value stays.

    Raises
    ------
    WriteError
        If the folder cannot be written to.
    """
    if (folder / f".{kind.name}.lock").exists() or left_behind(folder, kind.name):
        with named_errors(folder), hidden_folder(folder, kind.name, kind):
            pass


# Write a value: its tensors under a name that holds their hash, then the JSON that names them.


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old value is kept.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with together() as batch, named_errors(folder, also=SafetensorError):
        if batch.root not in (None, folder):
            refuse_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        hidden = batch.stack.enter_context(hidden_folder(folder, kind.name, kind, batch.token))
        path = hidden / "tensors"
        with readable(path):
            save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)
        sync_file(path)
        sha256 = sha256_of(path)
        name = f"{kind.name}-{sha256[:16]}.safetensors"
        header = {"format": kind.format, "version": kind.version}
        header |= {"tensors": name, "sha256": sha256, "heads": {name: head_of(path)}}
        write_synced(hidden / kind.index, json.dumps(sealed({**header, **content}), indent=2))
        batch.ready.append((folder, kind, hidden, name))


@dataclass
class Batch:
    """Values that become current at the end of a ``together``, and its hidden folders."""

    stack: ExitStack
    root: Path | None
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    ready: list[tuple[Path, FileKind, Path, str]] = field(default_factory=list)
    """Folder, kind, hidden folder and name of the tensors of each."""

    def commit(self) -> None:
        """Make the values current, with a root in one step."""
        for folder, kind, hidden, name in self.ready:
            for noted_name in (name, tensors_of(folder, kind)):
                if noted_name is not None:
                    (hidden / noted_name).touch()
            replace_file(hidden / "tensors", folder / name)
        if self.root is not None:
            _note(self.root, self.token)
        for folder, kind, hidden, _ in self.ready:
            replace_file(hidden / kind.index, folder / kind.index)
        for folder, *_ in self.ready:
            sync_folder(folder)
        if self.root is not None:
            (self.root / NOTE).unlink()


def _note(root: Path, token: str) -> None:
    try:
        write_synced(root / NOTE, token)
    except OSError:
        (root / NOTE).unlink(missing_ok=True)
        raise


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextmanager
def together(root: Path | None = None) -> Iterator[Batch]:
    """Commit what is written within at the end: all of it, or nothing after an error.

    With ``root``, a folder that holds all of it, itself or right below, this is so even if the
    process is killed.

    Raises
    ------
    WriteError
        If something cannot be written; the old values are kept.
    """
    if (outer := _BATCH.get()) is not None:
        yield outer
        return
    with ExitStack() as stack:
        if root is not None:
            with named_errors(root):
                root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(root / f"{NOTE}.lock"))
                finish_all(root)
        batch = Batch(stack, root)
        token = _BATCH.set(batch)
        try:
            yield batch
        finally:
            _BATCH.reset(token)
        with named_errors(*(folder for folder, *_ in batch.ready)):
            batch.commit()


# Read a value: its JSON, then the tensors that it names, checked against their hash.


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
READS = 1000
"""Tries to read next to a writer that never rests."""


def settled(paths: Sequence[Path], load: Callable[[], Loaded]) -> Loaded:
    """Call ``load`` for the values of these JSON until none of them was replaced meanwhile.

    One value that could be loaded is whole, whatever has replaced it since.

    Raises
    ------
    FileFormatError
        As ``load`` raises it, if no JSON was replaced meanwhile.
    OSError
        The same.
    """
    for _ in range(READS):
        before = [_stamp(path) for path in paths]
        try:
            value = load()
        except (FileFormatError, OSError):
            if before == [_stamp(path) for path in paths]:
                raise
        else:
            if len(paths) == 1 or before == [_stamp(path) for path in paths]:
                return value
    return load()


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what tells the JSON that counts for ``path`` from any that replaces it."""
    for place in (current(path), path):  # it may have moved in between
        with suppress(OSError):
            status = place.stat()
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None


def read(
    folder: Path, kind: FileKind = POSTERIOR, *, mapped: bool = False, verify: bool | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON content and the tensors of what ``write`` wrote.

    ``mapped`` leaves the tensors on disk until they are used; without ``verify``, only their header
    is hashed then. While a writer replaces it, this is the old value or the new one.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    whole = not mapped if verify is None else verify
    return settled([folder / kind.index], lambda: _read(folder, kind, mapped, whole))


def _read(
    folder: Path, kind: FileKind, mapped: bool, whole: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    content = read_index(folder, kind)
    name = content.get("tensors")
    if not isinstance(name, str) or not kind.owns(name):
        raise FileFormatError(
            f"{folder / kind.index} is damaged: tensors={name!r:.60} is not a file name of ours."
        )
    path = folder / name
    try:
        damaged = content.get("heads") != {name: head_of(path)}
        damaged = damaged or (whole and sha256_of(path) != content.get("sha256"))
        if damaged:
            raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
        with utf8_path(path) as opened:
            tensors = load_file(opened)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def read_index(folder: Path, kind: FileKind) -> dict[str, Any]:
    """Return the JSON of what ``write`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    path = folder / kind.index
    try:
        try:
            text = _bytes(current(path), JSON_BYTES)
        except FileNotFoundError:  # it may have moved in between
            text = _bytes(path, JSON_BYTES)
        content = json.loads(text)
        intact = isinstance(content, dict) and sealed(content)[SEAL] == content.get(SEAL)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileFormatError(
            f"{folder} holds no {kind.index}, so it is not {kind.title}."
        ) from error
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    if content.get("version") != kind.version:
        raise FileFormatError(
            f"{path} has version {content.get('version')!r:.60}, this package reads "
            f"{kind.version}: upgrade laplace-metric, or fit again."
        )
    if not intact:
        raise FileFormatError(
            f"{path} is damaged: its content does not have the sha256 that it names."
        )
    return content


def difference(saved: Any, current: Any) -> str | None:
    """Name the first difference of two JSON values, in words; None where they are the same.

    Examples
    --------
    >>> difference({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    'a.b is 1 there and 3 here'
    """
    return _difference(saved, json.loads(json.dumps(current)), "")


def _difference(saved: Any, current: Any, name: str) -> str | None:
    if not isinstance(saved, dict) or not isinstance(current, dict):
        return None if saved == current else f"{name} is {saved!r} there and {current!r} here"
    inner = {key: f"{name}.{key}" if name else key for key in {**current, **saved}}
    found = (_difference(saved.get(key), current.get(key), n) for key, n in inner.items())
    return next((words for words in found if words is not None), None)


# One file that is whole or not there.


LONGEST_NAME = 255 - len("..0123456789abcdef.tmp")
"""Bytes of a file name: the hidden folder that the file is written in has a longer one."""


@contextmanager
def writing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a file to write to, which becomes ``path`` at the end, unless there was an error.

    ``mode``: its permissions, less what the umask takes.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path), hidden_folder(path.parent, path.name) as hidden:
        temporary = hidden / "content"
        with readable(temporary, mode):
            yield temporary
        sync_file(temporary)
        replace_file(temporary, path)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` in one step; see ``writing``. A text is written by ``names.utf8``."""
    with writing(path, mode) as temporary:
        temporary.write_bytes(utf8(content) if isinstance(content, str) else content)


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")
    if (length := len(os.fsencode(path.name))) > LONGEST_NAME:
        raise InputError(
            f"{path.name:.40}... has a name of {length} bytes: give one of at most {LONGEST_NAME}."
        )


def json_text(content: Any, *, ascii_only: bool = False) -> str:
    """Return indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=ascii_only) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
