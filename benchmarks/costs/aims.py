"""What a user waits for: ``python -m benchmarks costs --pieces aims``.

CPU seconds of one thread, work and what it is compared with in turn, medians; class-structured
random vectors, each row in a process of its own; written to ``aims.json``.

- fit: ``LaplaceEmbedder.fit`` beside its limit (``limits.py``).
- guard: ``Guard`` of N vectors, calibrated by themselves, beside a fit to them.
- query: one ``Guard.ask`` among 10,000 x 384 vectors, and on a FAISS graph of 50,000, beside the
  search alone.
- wide: a fit whose head takes 2,049 and 4,096 numbers, with ``epistemic``.
- memory: what ``Guard`` of 50,000 x 384 vectors, and ``Guard.wrap`` of a FAISS index that holds
  them, add at their peak to what the process held, in sizes of the vectors; where glibc gives
  freed blocks back, and the largest of three processes where it keeps them for later.
- cold: a process that imports, loads a guard and asks once, beside one that only imports torch.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import torch
from torch import Tensor

from benchmarks.costs.cpu import cpu_seconds, in_turn
from benchmarks.costs.freed_blocks import given_back
from benchmarks.costs.limits import head_of, points
from benchmarks.records import folder_of, write_record
from benchmarks.timing import in_own_process, own_memory
from laplace_metric import Guard, LaplaceEmbedder

FITS = (
    (60_000, 512, 128, 10),
    (20_000, 1_280, 64, 100),
    (10_000, 512, 64, 10),
    (6_000, 512, 32, 10),
)
GUARDS = ((2_000, 64), (10_000, 384), (300, 1_536))
WIDE = (2_049, 4_096)
REPEATS, ASKED, N_CLASSES = 3, 200, 10
LINKS = 32
COLD = """
import numpy as np
from laplace_metric import Guard
Guard.load({path!r}).ask(np.full((1, 384), 0.1, np.float32))
"""


def vectors(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Gaussians around a mean for each of ten classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % N_CLASSES
    means = torch.randn(N_CLASSES, d, generator=generator)
    return 0.6 * means[labels] + torch.randn(n, d, generator=generator), labels


def fit_cost(n: int, d: int, z: int, n_classes: int) -> dict[str, Any]:
    """One whole Kronecker fit, beside its limit."""
    (h, labels), head = points(n, d, n_classes, "cpu"), head_of(d, z, "cpu")
    batches = list(zip(h.split(4_096), labels.split(4_096), strict=True))

    def limit() -> None:
        raw = h @ head.weight.T
        raw.T @ h
        for gram in (h.T @ h, raw.T @ raw):
            torch.linalg.eigh(gram.double())

    def whole() -> None:
        LaplaceEmbedder(head, structure="kron").fit(batches, progress=False)

    times = in_turn({"limit": limit, "whole": whole}, REPEATS)
    return {"n": n, "d": d, "z": z, **times, "ratio": times["whole"] / times["limit"]}


def guard_cost(n: int, d: int) -> dict[str, Any]:
    """A guard of vectors that calibrate themselves, beside one fit to them."""
    x, y = vectors(n, d)
    calls = {
        "fit": lambda: LaplaceEmbedder.from_embeddings(x, y),
        "guard": lambda: Guard(x, y.numpy()),
    }
    times = in_turn(calls, 1)
    return {"n": n, "d": d, **times, "ratio": times["guard"] / times["fit"]}


def query_cost(n: int, graph: bool) -> dict[str, Any]:
    """One query of a guard, beside the search alone."""
    d = 384
    x, y = vectors(n + ASKED, d)
    gallery, asked = x[:n].numpy(), x[n:].numpy()
    index = faiss.IndexHNSWFlat(d, LINKS) if graph else faiss.IndexFlatL2(d)
    faiss.omp_set_num_threads(1)
    index.add(gallery)
    made: list[Guard] = []
    build = cpu_seconds(lambda: made.append(Guard.wrap(index, y[:n].numpy())))
    (guard,), bare, whole = made, [], []
    for row in range(ASKED):
        query = asked[row : row + 1]
        bare.append(cpu_seconds(lambda query=query: index.search(query, 10)))  # type: ignore[misc]
        whole.append(cpu_seconds(lambda query=query: guard.ask(query)))  # type: ignore[misc]
    times = {"search": statistics.median(bare), "ask": statistics.median(whole)}
    return {"engine": "HNSW" if graph else "flat", "n": n, "d": d, "build": build, **times}


def wide_cost(d: int) -> dict[str, Any]:
    """A fit of many head inputs; the largest of ``epistemic`` shows that it is there."""
    x, y = vectors(1_000, d)
    made: list[LaplaceEmbedder] = []
    fit = lambda: made.append(LaplaceEmbedder(head_of(d, 64, "cpu")).fit([(x, y)]))  # noqa: E731
    taken = cpu_seconds(fit)
    return {"d": d, "n": len(x), "fit": taken, "epistemic": float(made[0](x[:9]).epistemic.max())}


def memory_cost(way: str, n: int, d: int) -> dict[str, Any]:
    """Memory that "Guard", or "Guard.wrap" of a FAISS index, adds, in sizes of its vectors.

    ``sizes`` is what it asks for; ``kept``, the largest of some processes, what it occupies.
    """
    with given_back():
        added = in_own_process(added_bytes, way, n, d)
    size = n * d * torch.float32.itemsize
    kept = max(in_own_process(added_bytes, way, n, d) for _ in range(REPEATS))
    return {"way": way, "n": n, "d": d, "sizes": added / size, "kept": kept / size}


def added_bytes(way: str, n: int, d: int) -> int:
    """Peak of one build less what was held before it."""
    x, y = vectors(n, d)
    few, labels = vectors(600, d)
    cpu_seconds(lambda: Guard(few, labels.numpy()))  # libraries load their workspaces
    build = lambda: Guard(x, y.numpy())  # noqa: E731
    if way == "Guard.wrap":
        index = faiss.IndexFlatL2(d)
        index.add(x.numpy())
        x = x[:0]  # the index has them
        build = lambda: Guard.wrap(index, y.numpy())  # noqa: E731
    with own_memory(0.005) as peak:
        held = peak[0]
        cpu_seconds(build)
    return peak[0] - held


def cold_cost() -> dict[str, Any]:
    """CPU seconds of a process from its start to the first answer."""
    x, y = vectors(2_000, 384)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "guard.safetensors")
        cpu_seconds(lambda: Guard(x, y.numpy()).save(path))
        codes = {"torch": "import torch", "first_answer": COLD.format(path=path)}
        rounds = [{name: _process(code) for name, code in codes.items()} for _ in range(5)]
    return {name: statistics.median(row[name] for row in rounds) for name in codes}


def _process(code: str) -> float:
    measured = f"{code}\nimport time\nprint(time.process_time())"
    words = [sys.executable, "-W", "ignore", "-c", measured]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def run(options: Namespace) -> None:
    """Measure every row in a process of its own, and write the record after each table."""
    tables: dict[str, list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]]] = {
        "fit": [(fit_cost, shape) for shape in FITS],
        "query": [(query_cost, (10_000, False)), (query_cost, (50_000, True))],
        "guard": [(guard_cost, shape) for shape in GUARDS],
        "wide": [(wide_cost, (d,)) for d in WIDE],
        "memory": [(memory_cost, (way, 50_000, 384)) for way in ("Guard", "Guard.wrap")],
        "cold": [(cold_cost, ())],
    }
    content: dict[str, Any] = {}
    for name, rows in tables.items():
        content[name] = []
        for function, arguments in rows:
            content[name].append(in_own_process(function, *arguments))
            print(name, content[name][-1], flush=True)
        write_record("aims", content, folder_of(options))
