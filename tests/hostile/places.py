"""What the calls work on: good data, fitted methods and saved folders, made once a process."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from laplace_metric import Index, LaplaceEmbedder, Monitor, OnlineLaplace, scale
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.models import Precomputed
from tests.hostile.arrays import Variant
from tests.hostile.networks import CLASSES, D, N, batches, network
from tests.saved_files import header_of, put_content


@cache
def root() -> Path:
    """A temporary folder, removed at the end of the process."""
    folder = tempfile.TemporaryDirectory(prefix="hostile-")
    _open_folders.append(folder)
    return Path(folder.name)


_open_folders: list[tempfile.TemporaryDirectory[str]] = []
_counter = iter(range(10**9))


def scratch() -> Path:
    """A path that does not exist yet."""
    return root() / f"scratch-{next(_counter)}"


@cache
def points() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(N) % CLASSES
    return 2 * torch.randn(CLASSES, D, generator=g)[y] + torch.randn(N, D, generator=g), y


def x() -> Tensor:
    return points()[0].clone()


def y() -> Tensor:
    return points()[1].clone()


def loader() -> list[tuple[Tensor, Tensor]]:
    return batches(x(), y())


def queries() -> Tensor:
    """More points of the same classes, enough to calibrate with."""
    g = torch.Generator().manual_seed(2)
    return x().repeat(4, 1) + 1.5 * torch.randn(4 * N, D, generator=g)


def query_labels() -> Tensor:
    return y().repeat(4)


def query_matches() -> list[list[int]]:
    """Of each query the ids of the items of its class."""
    return [[100 + i for i in range(N) if i % CLASSES == label] for label in query_labels()]


def texts() -> Tensor:
    """One a class."""
    return torch.eye(CLASSES, 5)


def text_matches() -> list[list[int]]:
    """Of each query the text of its class."""
    return [[int(label)] for label in query_labels()]


@cache
def image_text() -> ImageTextEmbedder:
    pairs = ImageTextPairs(x(), texts(), torch.stack([torch.arange(N), y()], 1))
    embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4)
    return embedder.fit(pairs, epochs=2, seed=0, progress=False)


def text_index() -> Index:
    return image_text().index_texts(texts(), progress=False)


def ids() -> Tensor:
    return torch.arange(N) + 100


@cache
def embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder.from_embeddings(x(), y())


def fresh_embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder.from_embeddings(x(), y())


@cache
def model_embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder(network()).fit(loader(), progress=False)


def index() -> Index:
    return embedder().index(x(), y(), ids(), progress=False)


def calibrated() -> Index:
    return copy.deepcopy(_calibrated_once())


@cache
def _calibrated_once() -> Index:
    made = index()
    made.calibrate(queries(), query_labels(), k=3, depth=5)
    return made


def fixed(*shape: int) -> Tensor:
    """Numbers in [0.1, 1.1), the same in every call."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(4)) + 0.1


def monitor() -> Monitor:
    g = torch.Generator().manual_seed(0)
    return Monitor({"uncertainty": torch.rand(60, generator=g)}, window=30)


def statistics() -> list[Any]:
    plan = scale.Plan(LaplaceEmbedder(network()), x())
    return [scale.collect(plan.task, plan.features(x()), y())]


def scores() -> Tensor:
    return torch.rand(N, generator=torch.Generator().manual_seed(1))


def correct() -> Tensor:
    return torch.arange(N) % 3 > 0


def directions() -> Tensor:
    return torch.nn.functional.normalize(x()[:5], dim=-1)


def concentrations() -> Tensor:
    return torch.linspace(1.0, 20.0, 5)


@cache
def saved() -> dict[str, Path]:
    """A file of each kind that is written."""
    folders = {name: root() / name for name in ("posterior", "model posterior", "index", "monitor")}
    embedder().save(folders["posterior"])
    model_embedder().save(folders["model posterior"])
    calibrated().save(folders["index"])
    made = monitor()
    made.update({"uncertainty": torch.rand(40)})
    made.save(folders["monitor"])
    return folders


@cache
def workplace() -> Path:
    """Files that the command line reads, and what its commands wrote."""
    from laplace_metric.cli import main

    folder = root() / "workplace"
    folder.mkdir()
    rows, labels_of_rows = queries().repeat(3, 1), query_labels().repeat(3)
    rows += torch.randn(rows.shape, generator=torch.Generator().manual_seed(3))
    np.save(folder / "x.npy", rows.numpy())
    np.save(folder / "y.npy", labels_of_rows.numpy())
    np.savez(folder / "both.npz", embeddings=rows.numpy(), labels=labels_of_rows.numpy())
    save_file({"embeddings": rows, "labels": labels_of_rows}, str(folder / "both.safetensors"))
    (folder / "texts.csv").write_text("id,text,label\n1,a,x\n2,b,y\n3,c,x\n")
    (folder / "empty.csv").write_text("")
    (folder / "damaged.npz").write_bytes(b"PK\x03\x04 no archive")
    (folder / "pickle.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '|O'}")
    (folder / "text.npy").write_text("no array")
    np.save(folder / "nan.npy", np.full((N, D), np.nan))
    np.save(folder / "flat.npy", np.zeros(N))
    np.save(folder / "words.npy", np.array(["a"] * N))
    np.save(folder / "objects.npy", np.array([{}] * N, dtype=object))
    np.save(folder / "none.npy", np.zeros((0, D)))
    (folder / "lines.txt").write_text("\n".join(str(i % 4) for i in range(N)))
    (folder / "folder").mkdir()
    (folder / "images" / "a").mkdir(parents=True)
    (folder / "images" / "a" / "broken.png").write_bytes(b"\x89PNG broken")
    data, labels = str(folder / "x.npy"), str(folder / "y.npy")
    common = ["--labels", labels, "--quiet"]
    posterior, gallery = str(folder / "posterior"), str(folder / "index")
    assert main(["fit", data, "--output", posterior, "--holdout", "0.4", *common]) == 0
    command = ["index", data, "--posterior", posterior, "--output", gallery]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*command, *common]) == 0
    return folder


def online(**settings: Any) -> OnlineLaplace:
    return OnlineLaplace(network(), **settings)


def copy_of(path: Path) -> Path:
    target = scratch()
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy(path, target)
    return target


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def _junk(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(200))


FIELD_VALUES: list[Any] = [
    *(None, -1, 0, 10**30, 1e999, "x", "a\0b", "../x", [], {}, True, [1], "\ud800")
]


def _field(path: Path, rng: random.Random) -> None:
    """One value of the content, at any depth, becomes another or goes; the hashes match."""
    content = header_of(path)["content"]
    holders = [content]
    for holder in holders:
        parts = holder.values() if isinstance(holder, dict) else holder
        holders += [part for part in parts if isinstance(part, (dict, list)) and part]
    holder = rng.choice(holders)
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = rng.choice(FIELD_VALUES)
    put_content(path, json.dumps(content))


def _deep(path: Path, rng: random.Random) -> None:
    put_content(path, "[" * 100_000)


def _damaged(damage: Any) -> Variant:
    def make(folder: Path, rng: random.Random) -> Path:
        copied = copy_of(Path(folder))
        damage(copied, rng)
        return copied

    return Variant(f"damage{damage.__name__}", make)


DAMAGES = [_damaged(damage) for damage in (_flip, _cut, _remove, _junk, _field, _field, _deep)]
