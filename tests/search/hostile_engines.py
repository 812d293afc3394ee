"""Saved approximate indexes with hostile numbers, whose hashes match: refused, or searched safely.

Each file is loaded, searched, changed, copied and saved again. Native code may end the process, so
the tests run this as a process of its own:

    python -m tests.search.hostile_engines --files 2000 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, NonFiniteError
from laplace_metric.search import HNSW, IVF, Index
from laplace_metric.search._storage import INDEX
from tests.saved_files import parts_of, with_hash

N = 120
SAVED = [
    (IVF(lists=6, probes=6), "mean"),
    (IVF(lists=6, probes=2), "expected"),
    (HNSW(links=3, ef=200), "mean"),
    (HNSW(links=3, ef=9), "expected"),
]
NUMBERS = (-(2**63), -(2**31), -(10**6), -2, -1, 0, 1, N - 1, N, 2**31 - 1, 2**62, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), -3e38, 0.0)
SETTINGS = (-1, 0, 1, 2, 2**30 + 2, 2**31 - 1, 2**31, 2**62, 10**30, 1.5, "3", None, True)

Saved = tuple[dict[str, Any], dict[str, Tensor]]


def points() -> Tensor:
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(0))


def number(tensor: Tensor, r: random.Random) -> float:
    if tensor.dtype.is_floating_point:
        return r.choice(FLOATS)
    bounds = torch.iinfo(tensor.dtype)
    return min(max(r.choice(NUMBERS), bounds.min), bounds.max)


def some_numbers(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    flat = tensors[name].flatten()
    for _ in range(r.choice((1, 1, 3, 40))):
        flat[r.randrange(len(flat))] = number(flat, r)


def all_numbers(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    tensors[name].fill_(number(tensors[name], r))


def small_numbers(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    """All in range by themselves: only together are they wrong."""
    tensors[name].copy_(torch.randint(0, r.choice((2, 7, N)), tensors[name].shape))


def another_order(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    tensors[name] = tensors[name][torch.randperm(len(tensors[name]))]


def another_length(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    value = tensors[name]
    tensors[name] = r.choice((value[:-1], value[:0], torch.cat([value, value]), value.new_ones(())))


def another_width(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    value = tensors[name].reshape(len(tensors[name]), -1)
    tensors[name] = r.choice((value[:, :-1], value.flatten(), torch.cat([value, value], 1)))


def another_type(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    types = (torch.float16, torch.float64, torch.int8, torch.int32, torch.int64, torch.bool)
    tensors[name] = tensors[name].to(r.choice(types))


def missing(tensors: dict[str, Tensor], name: str, r: random.Random) -> None:
    del tensors[name]


WAYS = [
    some_numbers,
    all_numbers,
    small_numbers,
    another_order,
    another_length,
    another_width,
    another_type,
    missing,
]


def hostile(saved: Saved, r: random.Random) -> tuple[str, Saved]:
    """A name, and what is saved with one or two wrong arrays, or with a wrong setting."""
    content, tensors = copy.deepcopy(saved)
    if r.random() < 0.15:
        setting = r.choice([name for name in content["engine"] if name != "name"])
        content["engine"][setting] = r.choice(SETTINGS)
        return f"engine {setting}", (content, tensors)
    names = [name for name in tensors if name.startswith("engine.")] + ["mean"]
    done = []
    for name in r.sample(names, r.choice((1, 1, 2))):
        way = r.choice(WAYS)
        way(tensors, name, r)
        done.append(f"{way.__name__} of {name}")
    return ", ".join(done), (content, tensors)


def damage_bytes(path: Path, r: random.Random) -> str:
    """Change header or length of the file, with the hash of the header made to match."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    how = r.choice(("length", "flip", "digits", "truncated"))
    if how == "length":
        data[:8] = r.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1)).to_bytes(
            8, "little"
        )
    elif how == "flip":
        data[8 + r.randrange(length)] ^= 1 << r.randrange(8)
    elif how == "digits":
        digits = [8 + i for i, byte in enumerate(data[8 : 8 + length]) if chr(byte).isdigit()]
        for place in r.sample(digits, 3):
            data[place] = ord(r.choice("0123456789"))
    else:
        del data[r.randrange(len(data)) :]
    header = bytes(data[8:][: min(int.from_bytes(data[:8], "little"), len(data))])
    data[8 : 8 + len(header)] = with_hash(header)[: len(header)]
    path.write_bytes(data)
    return f"bytes: {how}"


def use(path: Path, embedder: LaplaceEmbedder, *, mmap: bool) -> str:
    """What becomes of one file: "refused", "answered", or the name of an error that is none."""
    x = points()
    try:
        index = Index.load(path, embedder, mmap=mmap)
    except FileFormatError as error:
        named = str(path) in str(error) and len(str(error)) < 500
        return "refused" if named else f"no file named: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        found = index.search(x[:9] + 0.01, k=5)
        if not (found.distance.isfinite() | (found.positions < 0)).all():
            return "not finite"
        if mmap:
            copy.deepcopy(index).search(x[:2], k=3)
            index.save(path.with_name("again"))
        else:
            index.add(x[:2] + 1, ids=[10**6, 10**6 + 1])
            index.remove(index.ids[:3])
            index.search(x[:9], k=N - 5)
    except (FileFormatError, NonFiniteError):  # embeddings of 3e38 are not finite any more
        return "refused later"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def saved_indexes(embedder: LaplaceEmbedder, folder: Path) -> Iterator[Saved]:
    x = points()
    for number, (kind, rank_by) in enumerate(SAVED):
        path = folder / str(number)
        embedder.index(x, engine=kind, rank_by=rank_by, progress=False).save(path)
        part = parts_of(path)["index"]
        yield part.content, part.arrays


def run(n_files: int, seed: int, told: Callable[[str], None]) -> Counter[str]:
    """Outcomes of ``n_files``, each read into memory and mapped; ``told`` hears of it before."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    x = points()
    embedder = LaplaceEmbedder.from_embeddings(x, torch.arange(N) % 4)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        saved = list(saved_indexes(embedder, Path(temporary)))
        for number in range(n_files):
            path = Path(temporary) / "hostile"
            if r.random() < 0.15:
                files.write(path, files.Part(INDEX, *copy.deepcopy(r.choice(saved))))
                name = damage_bytes(path, r)
            else:
                name, (content, tensors) = hostile(r.choice(saved), r)
                plain = {key: value.clone() for key, value in tensors.items()}
                files.write(path, files.Part(INDEX, content, plain))
            for mmap in (False, True):
                told(f"{number} {name} mmap={mmap}")
                outcome = use(path, embedder, mmap=mmap)
                if outcome not in ("refused", "refused later", "answered"):
                    print(f"{number} {name} mmap={mmap}: {outcome}")
                    outcome = "unnamed"
                outcomes[outcome] += 1
            path.unlink()
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--last", type=Path, help="holds the name of the file that is being read")
    arguments = parser.parse_args()
    last = arguments.last
    outcomes = run(arguments.files, arguments.seed, last.write_text if last else lambda name: None)
    print(json.dumps(outcomes))
    return int(bool(outcomes["unnamed"]))


if __name__ == "__main__":
    sys.exit(main())
