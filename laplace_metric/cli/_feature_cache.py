"""A folder of what entered heads, a file for each batch, under a name that says what it is of.

``<folder>/<2 digits>/<62 digits>.safetensors``: the name is a sha256 of the network and of the
content of the batch, so a file is right or not found, never out of date. Each is written beside its
place and moved there, so any number of processes may read and write at once; a file that one of
them removes is not found by the others, that is all.

A sha256 does not show who wrote a file. So the folder and its files are for their owner only, and a
folder that another user owns or may write to, or a link, is not used.

Features that a command computed, for the commands that follow: the network runs once an item.

A batch is known again by all that decides what it gives at the head, to the last bit:

    key = sha256(network, its answer to fixed inputs, content of the items in their order)

The content of an item is the sha256 of its file and how images are read, where we or a published
library read them; else of the tensor or the text that enters the network. What enters a network
with an item decides its last digits too (kernels, padding), so a batch counts as a whole: another
order, another ``--batch-size`` or another item in it, and it is computed again.
"""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import PIL
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.archives import DAMAGE
from laplace_metric._utils.names import utf8_path
from laplace_metric.cli._models import network_answer, network_identity
from laplace_metric.cli._sources import Source
from laplace_metric.errors import FileFormatError, WriteError
from laplace_metric.heads._locate import HeadActivations, LocatedHead, SeenInputs, capture
from laplace_metric.io import digest, refuse_link, write_atomically
from laplace_metric.models._calling import Inputs, device_of, to_device

CACHE = ".laplace-metric-cache"
"""Name of the folder, beside those of the posterior and of the index."""
BYTES = 2 * 2**30
"""Of all files together; those that were not used for longest make room."""
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# https://bford.info/cachedir/\n"
"""What tells backup programs that a folder is a cache."""
NAMES = ("features", "raw", "output")


class FeatureFiles:
    """Activations at a head, by the sha256 of what they are of.

    Parameters
    ----------
    folder : Path
        Made when there is something to keep.
    tell : callable
        Gets a line for what is damaged or cannot be written.
    most : int
        Bytes of all files.

    Examples
    --------
    >>> import tempfile, torch
    >>> h, z = torch.randn(4, 3), torch.randn(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = FeatureFiles(Path(folder), print)
    ...     files.put("ab" * 32, HeadActivations(h, z, z))
    ...     found = files.get("ab" * 32)
    ...     files.get("cd" * 32) is None, torch.equal(found.features, h)
    (True, True)
    """

    def __init__(self, folder: Path, tell: Callable[[str], None], most: int = BYTES) -> None:
        self.folder, self.tell, self.most = folder, tell, most
        self._writes = True
        self._distrusted: bool | None = None  # None: not known, there may be no folder yet
        self._others: deque[tuple[float, int, Path]] | None = None  # None: not listed yet
        self._size = 0  # bytes in the folder
        self._mine = set[Path]()  # what this command has read or written

    def get(self, key: str) -> HeadActivations | None:
        """Return the entry of a key; None if there is none, or a damaged one (reported)."""
        path = self._path(key)
        if self._is_foreign() or not _is_entry(path):
            return None
        try:
            found = _read(path, key)
        except FileNotFoundError:  # another process made room
            return None
        except (*DAMAGE, SafetensorError) as error:
            self.tell(f"{path} is damaged ({error}): its items are computed again")
            return None
        self._mine.add(path)
        with suppress(OSError):  # of a folder that may only be read
            path.touch()
        return found

    def put(self, key: str, seen: HeadActivations) -> None:
        """Keep them, if there is room; a folder that cannot be written to is told, once."""
        if not self._writes or self._is_foreign():
            return
        tensors = _different(seen)
        content = save(tensors, {"sha256": digest(key, tensors.values())})
        path = self._path(key)
        try:
            if not self.folder.exists():
                self.folder.mkdir(0o700, parents=True, exist_ok=True)
                (self.folder / "CACHEDIR.TAG").write_text(SIGNATURE)
                (self.folder / ".gitignore").write_text("*\n")
            refuse_link(path.parent).mkdir(0o700, exist_ok=True)
            if self._room(len(content)):
                self._mine.add(path)
                write_atomically(path, content, 0o600)
        except (OSError, FileFormatError, WriteError) as error:
            self._writes = False
            self.tell(f"features are not kept in {self.folder}: {error}")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.safetensors"

    def _is_foreign(self) -> bool:
        """Return whether anybody but this user may write to the folder; report it once."""
        if self._distrusted is None and os.path.lexists(self.folder):
            why = _distrust(self.folder)
            self._distrusted = why is not None
            if why is not None:
                self.tell(
                    f"features are not kept in {self.folder}, nor read from it: {why}. Name a "
                    "folder of your own with --cache"
                )
        return self._distrusted is True

    def _room(self, size: int) -> bool:
        """Make room for so many bytes; False if this command fills the folder by itself."""
        if self._others is None:
            self._others = self._entries()
            self._size = sum(n_bytes for _, n_bytes, _ in self._others)
        while self._size + size > self.most and self._others:
            _, n_bytes, path = self._others.popleft()
            if path not in self._mine:
                path.unlink(missing_ok=True)
                self._size -= n_bytes
        self._size += size
        if self._size > self.most:
            self._writes = False
            self.tell(
                f"{self.folder} is full ({self.most / 2**30:.3g} GiB): what is beyond is computed "
                "again each time"
            )
        return self._writes

    def _entries(self) -> deque[tuple[float, int, Path]]:
        """Times, bytes and paths of the files; the one that was not used for longest is first."""
        found = list[tuple[float, int, Path]]()
        for path in self.folder.glob("??/*.safetensors"):
            with suppress(FileNotFoundError):  # another process removed it
                if _is_entry(path):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
        return deque(sorted(found))


def _is_entry(path: Path) -> bool:
    """Return whether a file of the cache is there, and no link leads to it."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def _distrust(folder: Path) -> str | None:
    """Why a folder is not one that this user alone writes to; None if it is."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is a link or a file, not a folder"
    if os.name == "posix" and status.st_uid != os.getuid():
        return "it belongs to another user"
    if os.name == "posix" and status.st_mode & 0o022:
        return "other users may write to it (chmod go-w)"
    return None


def _different(seen: HeadActivations) -> dict[str, Tensor]:
    """Without what says the same again: an appended head gives what enters it."""
    kept = {"features": seen.features, "raw": seen.raw, "output": seen.output}
    hashes = {name: digest("", [tensor]) for name, tensor in kept.items()}  # 0 and -0 differ
    for name, before in (("output", "raw"), ("raw", "features")):
        if hashes[name] == hashes[before]:
            del kept[name]
    return {name: tensor.detach().cpu().contiguous() for name, tensor in kept.items()}


def _read(path: Path, key: str) -> HeadActivations:
    """Read the file of ``put``; ``ValueError`` if a bit of it has changed."""
    with utf8_path(path) as opened, safe_open(opened, framework="pt") as file:
        kept = {name: file.get_tensor(name).clone() for name in NAMES if name in file.keys()}  # noqa: SIM118
        expected = (file.metadata() or {}).get("sha256")
    if "features" not in kept or digest(key, kept.values()) != expected:
        raise ValueError("its sha256 is not the one that it names")
    raw = kept.get("raw", kept["features"])
    return HeadActivations(kept["features"], raw, kept.get("output", raw))


@dataclass
class KeptFeatures:
    """Activations of a network at its head for the items of sources, read from files where known.

    Parameters
    ----------
    model : nn.Module
    head : LocatedHead
    files : FeatureFiles or None
        None: everything is computed, and nothing is kept.
    reads : str or None
        What a model's own transform does to images, "" without one; None: not known.
    """

    model: nn.Module
    head: LocatedHead
    files: FeatureFiles | None
    reads: str | None
    found: int = 0
    """Items that came from files."""
    computed: int = 0
    _network: str | None = None
    _answers: dict[str, str | None] = field(default_factory=dict)

    def of(self, source: Source) -> Source:
        """The same items, whose batches are asked for here."""
        return replace(source, encode=partial(self._seen, self._named(source)))

    def summary(self) -> str | None:
        """Summarise where the features came from; None if there is nothing to say."""
        total = self.found + self.computed
        if self.files is None or not total:
            return None
        rest = f", {self.computed:,} were computed" if self.computed else ""
        return f"features of {self.found:,} of {total:,} items came from {self.files.folder}{rest}"

    def _seen(self, network: str | None, source: Source, rows: Sequence[int]) -> SeenInputs:
        """Files are read, or the network runs, when these inputs are asked what they give."""
        return SeenInputs(self.head, len(rows), partial(self._look, network, source, rows))

    def _look(self, network: str | None, source: Source, rows: Sequence[int]) -> HeadActivations:
        if self.files is None or network is None:
            return self._run(source.read(rows))
        inputs = source.read(rows) if source.hashes is None or self.reads is None else None
        key = self._key(network, source, rows, inputs)
        seen = self.files.get(key)
        if seen is not None:
            self.found += len(rows)
            return seen
        seen = self._run(source.read(rows) if inputs is None else inputs)
        if key == self._key(network, source, rows, inputs):  # else a file has changed meanwhile
            self.files.put(key, seen)
        return seen

    def _run(self, inputs: Inputs) -> HeadActivations:
        seen = capture(self.model, self.head, to_device(inputs, device_of(self.model)))
        self.computed += len(seen.features)
        return seen.contiguous()

    def _named(self, source: Source) -> str | None:
        """The network, with its answer to inputs like those of the source; None: it has none."""
        if self.files is None:
            return None
        if self._network is None:
            self._network = network_identity(self.model, self.head)
        like = source.read([0])
        kind = f"{like.dtype} {like.shape}" if isinstance(like, Tensor) else type(like).__name__
        if kind not in self._answers:
            self._answers[kind] = network_answer(self.model, self.head, like)
        answer = self._answers[kind]
        return None if answer is None else digest(f"{self._network} {answer}")

    def _key(self, network: str, source: Source, rows: Sequence[int], inputs: Inputs | None) -> str:
        """sha256 of the network and of a batch: of its files, or of what enters the network."""
        if isinstance(inputs, Tensor):
            return digest(network, [inputs])
        if inputs is not None:
            return digest(json.dumps([network, list(inputs)]))
        assert source.hashes is not None
        how = [self.reads, source.options.get("size"), source.options.get("channels")]
        how += [PIL.__version__, __version__]
        return digest(json.dumps([network, how, source.hashes([source.ids[row] for row in rows])]))
