"""A guard over engines that run: ``python -m benchmarks engines --pieces guard elsewhere``.

Items and queries of ``engine_items`` (grey), as mean embeddings. 1,000 held-out queries calibrate,
which the network was not trained on, as it was on a part of the items.

guard      FAISS indexes, exact and as an HNSW graph, through ``Guard.wrap``
lengths    vectors by direction and with their lengths: scikit-learn's tables, pixels, features of
           EfficientNet-Lite0; what is answered of new queries, and of uniform noise in the range
           of each column, at a guaranteed precision of 0.8
copies     near-copies that a guard tells, of the same vectors and others; and its answers where
           a part of the items has copies, pixels of FashionMNIST at half their size
partial    FAISS indexes that find a part of the nearest: 2,000 items and 6,000 queries of KMNIST's
           test images, 64 principal components, calibrated by the items; 95 % guaranteed, by split
elsewhere  every engine of ``engine_kinds``, which knows the items by ids of their own, through
           ``Guard(..., search=function)``; answers are compared with those of exact search

Wall time of a query alone and of 100 together, of the engine and of ``Guard.ask``, on one core; and
what the guard answers of the queries that are asked, at a guaranteed precision of 0.9.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import faiss
import numpy as np
import sklearn.datasets
import torch
from sklearn.decomposition import PCA

from benchmarks.costs import engine_kinds
from benchmarks.costs.engine_items import EngineProblem, engine_problems
from benchmarks.costs.engines import TOGETHER, WARM, K, N, one_core, single, versions
from benchmarks.datasets import load
from benchmarks.encoders.features import encoded_images, encoded_texts
from benchmarks.examples.engines import StoredItems
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import Guard
from laplace_metric.errors import LaplaceMetricWarning, MissingPackageError
from laplace_metric.search._near_copies import near_copies

Pair = tuple[Any, Any]
"""Vectors [n, D] and labels [n], NumPy."""
PRECISION = 0.9
COPIES, DRAWS = (0.0, 0.1, 0.25, 0.5), 10
"""Shares of the items that are there once more, with noise, and draws of each."""
ITEMS, POOL, SEEDS = 600, 2_500, (0, 1)
"""Items at most, vectors that these and the queries are drawn from, and the draws."""
LINKS, BUILT_WITH, SEARCHED_WITH = 16, 64, 128


def run(options: Namespace) -> None:
    """Measure FAISS indexes as they are and write ``guard.json``."""
    torch.set_num_threads(1)
    options.problems = ["grey"]
    with one_core():
        (problem,) = engine_problems(options)
        rows = []
        for n in options.n or N:
            gallery, asked, held_out = arrays(problem, n)
            for name, index in engines(gallery[0].shape[1]).items():
                index.add(gallery[0])
                begin = time.process_time()
                guard = Guard.wrap(index, gallery[1], precision=PRECISION, held_out=held_out)
                facts = {"engine": name, "n": n, "width": index.d}
                facts["guard_cpu_seconds"] = time.process_time() - begin
                rows.append({**facts, **measured(guard, index.search, asked)})
                print(rows[-1], flush=True)
    write_record("guard", {"rows": rows}, folder_of(options))


def elsewhere(options: Namespace) -> None:
    """Measure engines that return ids and write ``guard-elsewhere.json``."""
    torch.set_num_threads(1)
    options.problems = ["grey"]
    with one_core():
        (problem,) = engine_problems(options)
        n = min(options.n or N)
        (items, labels), asked, held_out = arrays(problem, n)
        ids, rows = np.random.default_rng(0).permutation(10 * n)[:n], []
        settings: dict[str, Any] = {"precision": PRECISION, "held_out": held_out}
        wanted = Guard(items, labels, **settings).ask(asked[0])
        for name, make in engine_kinds.engines().items():
            if name.startswith("our index"):
                continue
            try:
                with ExitStack() as stack:
                    engine, graph = make(stack)
                    engine.store(StoredItems(ids, items, labels, np.zeros(n), np.zeros(n)))
                    if graph is not None:
                        graph()

                    def search(queries: Any, k: int, engine: Any = engine) -> Any:
                        return engine.search(queries, k).ids

                    guard = Guard(items, labels, ids=ids, search=search, **settings)
                    found = guard.ask(asked[0])
                    row = {"engine": name, "recall": guard.recall}
                    row["same"] = float((found.label == wanted.label).mean())
                    gap = np.abs(found.probability - wanted.probability)
                    row["largest_difference"] = float(gap.max())
                    rows.append({**row, **measured(guard, search, asked)})
                    print(rows[-1], flush=True)
                    engine.close()
            except MissingPackageError as error:
                print(f"{name} is left out: {error}")
    content = {"n": n, "versions": versions(), "rows": rows}
    write_record("guard-elsewhere", content, folder_of(options))


def lengths(options: Namespace) -> None:
    """Compare vectors by direction and with their lengths, and write ``guard-lengths.json``."""
    torch.set_num_threads(1)
    rows = []
    for name, (vectors, labels) in _vectors(options):
        for distance in ("arccos", "euclidean"):
            shares = np.array([_shares(vectors, labels, distance, seed) for seed in SEEDS])
            mean = dict(zip(("answered", "right", "noise"), shares.mean(0).tolist(), strict=True))
            rows.append({"vectors": name, "distance": distance, **mean, "splits": len(SEEDS)})
            print(rows[-1], flush=True)
        write_record("guard-lengths", {"rows": rows}, folder_of(options))


def _vectors(options: Namespace) -> Iterator[tuple[str, Pair]]:
    for name in ("wine", "breast_cancer", "iris", "digits"):
        x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        table = x if name == "digits" else (x - x.mean(0)) / x.std(0)
        yield name.replace("_", " "), (table, y)
    for name in ("fashion-mnist", "mnist", "kmnist"):
        images = load(name, "test", options.data)
        yield f"{name}, pixels", (images.pixels(slice(0, POOL)).flatten(1), images.labels[:POOL])
    for name, split, limit in (("cifar10", "train", 10_000), ("fashion-mnist", "test", 2_500)):
        folder = options.cache / "encoded"
        found = encoded_images(folder, options.data, name, split, limit, progress=False, side=64)
        step = len(found[1]) // POOL  # the first ones are of few classes
        yield f"{name}, features", (found[0][::step], found[1][::step])


def copies(options: Namespace) -> None:
    """Count near-copies, and measure what they break; write ``guard-copies.json``."""
    torch.set_num_threads(1)
    told = []
    for name, (vectors, labels) in [*_vectors(options), *_more_features(options)]:
        x = torch.as_tensor(np.asarray(vectors, np.float32))
        codes = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])
        row: dict[str, Any] = {"vectors": name}
        for share in (0.0, 0.05, 0.25):
            n = int(share * len(x))
            more = torch.cat([x, _noisy(x[:n], x)])
            row[f"{share:g}"] = near_copies(more, torch.cat([codes, codes[:n]])).share
        told.append(row)
        print(row, flush=True)
    images = load("fashion-mnist", "test", options.data)
    pixels = torch.nn.functional.avg_pool2d(images.pixels(slice(0, 6_000)), 2).flatten(1)
    broken = [_with_copies(pixels, images.labels[:6_000], share) for share in COPIES]
    write_record("guard-copies", {"told": told, "broken": broken}, folder_of(options))


def partial(options: Namespace) -> None:
    """Guard indexes that miss some of the nearest; write ``guard-partial.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    images = load("kmnist", "test", options.data)
    pixels, y = images.pixels(slice(None)).flatten(1).numpy(), images.labels.numpy()
    x = PCA(64, random_state=0).fit_transform(pixels).astype(np.float32)
    rows = []
    for kind in ("Flat", "HNSW32", "IVF64,Flat", "IVF32,PQ8"):
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(x))
            items, asked = order[:2_000], order[2_000:8_000]
            index = faiss.index_factory(64, kind)
            index.train(x[items])
            index.add(x[items])
            guard = Guard(x[items], y[items], precision=0.95, search=index)
            assert guard.rule is not None
            answers = guard.ask(x[asked])
            answered = answers.answered
            right = answers.label[answered] == y[asked][answered]
            told = {"told": guard.rule.coverage, "found": guard.recall}
            shares = {"answered": float(answered.mean()), "right": float(right.mean())}
            rows.append({"index": kind, "seed": seed, **told, **shares})
            print(rows[-1], flush=True)
    write_record("guard-partial", {"versions": versions(), "rows": rows}, folder_of(options))


def table_partial() -> str:
    """What is found and answered, and the smallest and largest share right of the splits."""
    header = ["FAISS index", "10 nearest found", "told", "answered", "right, of 95%"]
    lines, rows = [], read_record("guard-partial")["rows"]
    for kind in dict.fromkeys(row["index"] for row in rows):
        own = [row for row in rows if row["index"] == kind]
        means = (np.mean([row[name] for row in own]) for name in ("found", "told", "answered"))
        right = [row["right"] for row in own]
        ends = f"{min(right):.1%} to {max(right):.1%}"
        lines.append([kind, *(f"{mean:.0%}" for mean in means), ends])
    return markdown(header, lines)


def _more_features(options: Namespace) -> Iterator[tuple[str, Pair]]:
    folder = options.cache / "encoded"
    for name, split in (("emoji", "train"), ("cub", "test")):
        found = encoded_images(folder, options.data, name, split, None, 96, progress=False)
        yield f"{name}, features", found
    yield "SciPy summaries, features", encoded_texts(folder, "train", progress=False)


def _noisy(rows: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """With noise of 5 % of the standard deviation of each column."""
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    return rows + 0.05 * of.std(0) * noise


def _with_copies(x: torch.Tensor, y: torch.Tensor, share: float) -> dict[str, Any]:
    """Of ten draws of 500 items: what is right of 1,000 new queries, at 85 % guaranteed."""
    kept: list[tuple[float, float, bool]] = []
    for seed in range(DRAWS):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        rows, new = order[:500], order[500:1_500]
        again = rows[: int(share * len(rows))]
        items = torch.cat([x[rows], _noisy(x[again], x[rows])])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            guard = Guard(items, torch.cat([y[rows], y[again]]), precision=0.85)
        if guard.rule is None:
            continue
        answers = guard.ask(x[new])
        answered = answers.answered
        right = (answers.label[answered] == y[new].numpy()[answered]).mean()
        told = any("near-copies" in str(each.message) for each in seen)
        kept.append((float(answered.mean()), float(right), told))
    names = ("answered", "right", "told")
    row = dict(zip(names, np.mean(kept, axis=0).tolist(), strict=True))
    kept_share = float(np.mean([right >= 0.85 for _, right, _ in kept]))
    row |= {"copies": share, "given": len(kept), "kept": kept_share}
    print(row, flush=True)
    return row


def _shares(vectors: Any, labels: Any, distance: str, seed: int) -> tuple[float, float, float]:
    """Share of new queries that are answered, of answers that are right, of noise answered."""
    x, y = np.asarray(vectors, np.float32), np.asarray(labels)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(x))
    n = min(ITEMS, len(x) * 3 // 5)
    items, new = order[:n], order[n : n + 1_000]
    guard = Guard(x[items], y[items], distance=distance, precision=0.8)
    if guard.rule is None:
        largest = guard.calibration.largest_guarantee(of="label").target
        guard = guard.at(largest or 0.0)
    answers = guard.ask(x[new])
    answered = answers.answered
    noise = generator.uniform(x[items].min(0), x[items].max(0), (400, x.shape[1]))
    of_noise = guard.ask(noise.astype(np.float32)).answered.mean()
    right = (answers.label[answered] == y[new][answered]).mean()
    return float(answered.mean()), float(right), float(of_noise)


def arrays(problem: EngineProblem, n: int) -> tuple[Pair, Pair, Pair]:
    """Return n items, the queries that ask and those that calibrate."""
    x, y = problem.some(n)
    with torch.no_grad():
        items = torch.cat([problem.embedder(part).mean for part in x.split(1024)]).numpy()
        asked, held_out = (
            (problem.embedder(x).mean.numpy(), y.numpy())
            for x, y in (problem.asked, problem.held_out)
        )
    return (items, y.numpy()), asked, held_out


def engines(width: int) -> dict[str, Any]:
    """Return empty indexes by name."""
    graph = faiss.IndexHNSWFlat(width, LINKS)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILT_WITH, SEARCHED_WITH
    return {"FAISS, flat": faiss.IndexFlatL2(width), "FAISS, HNSW": graph}


def measured(guard: Guard, bare: Callable[..., Any], asked: Pair) -> dict[str, Any]:
    """Ask the guard and the bare search that it uses."""
    row: dict[str, Any] = {}
    queries, truth = asked
    for who, search in (("bare", bare), ("guarded", lambda rows, k: guard.ask(rows))):
        alone = single(queries, search)
        row[f"{who}_p50"], row[f"{who}_p95"] = np.quantile(alone, [0.5, 0.95]).tolist()
        together = []
        for start in range(0, len(queries), TOGETHER):
            begin = time.perf_counter()
            search(queries[start : start + TOGETHER], K)
            together.append((time.perf_counter() - begin) / TOGETHER)
        row[f"{who}_together"] = float(np.median(together[min(WARM, len(together) - 1) :]))
    answers = guard.ask(queries)
    answered = answers.answered
    right = answers.label[answered] == truth[answered]
    return {**row, "answered": float(answered.mean()), "right": float(right.mean())}


TIMES = ["bare: p50, p95", "guarded: p50, p95", "of 100 together: bare", "guarded"]


def table() -> str:
    """Latency beside the bare engine, and whether the precision was kept."""
    lines = [[f"{row['n']:,}", row["engine"], *_cells(row)] for row in read_record("guard")["rows"]]
    return markdown(["items", "engine", *TIMES, "answered", "right"], lines)


def table_elsewhere() -> str:
    """The same of other engines, and how their answers differ from those of exact search."""
    header = ["engine", "10 nearest", "same answer", "probability", *TIMES, "answered", "right"]
    lines = [
        [row["engine"], f"{row['recall']:.2%}", f"{row['same']:.1%}",
         f"{row['largest_difference']:.0e}", *_cells(row)]
        for row in read_record("guard-elsewhere")["rows"]
    ]  # fmt: skip
    return markdown(header, lines)


def table_lengths() -> str:
    """Answers by direction and with lengths."""
    header = ["vectors", "answered", "with lengths", "right", "with lengths", "noise answered",
              "with lengths"]  # fmt: skip
    rows = read_record("guard-lengths")["rows"]
    lines = [
        [one["vectors"], *(f"{row[name]:.0%}" for name in ("answered", "right", "noise")
                           for row in (one, two))]
        for one, two in zip(rows[::2], rows[1::2], strict=True)
    ]  # fmt: skip
    return markdown(header, lines)


def table_copies() -> str:
    """What is kept of a guarantee where items have copies."""
    header = ["items with a copy", "told", "given", "answered", "right, of 85%", "kept"]
    lines = [
        [f"{row['copies']:.0%}", f"{row['told']:.0%}", f"{row['given']} of {DRAWS}",
         f"{row['answered']:.1%}", f"{row['right']:.1%}", f"{row['kept']:.0%}"]
        for row in read_record("guard-copies")["broken"]
    ]  # fmt: skip
    return markdown(header, lines)


def _cells(row: dict[str, Any]) -> list[str]:
    alone = [
        ", ".join(f"{1e3 * row[f'{who}_{at}']:.2g} ms" for at in ("p50", "p95"))
        for who in ("bare", "guarded")
    ]
    together = [f"{1e3 * row[f'{who}_together']:.2g} ms" for who in ("bare", "guarded")]
    return [*alone, *together, f"{row['answered']:.1%}", f"{row['right']:.1%}"]


TABLES = {
    "guard": table,
    "guard-elsewhere": table_elsewhere,
    "guard-lengths": table_lengths,
    "guard-copies": table_copies,
    "guard-partial": table_partial,
}
