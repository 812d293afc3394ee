"""A load test of ``laplace-metric serve``: ``python -m benchmarks serve`` (extra ``serve``).

Two problems, made by the commands of the package: FashionMNIST with a small network, of which HTTP
and the search are most of the work, and photographs of birds with EfficientNet-Lite0 at 224 pixels,
of which the network is. The server is a process of its own with one thread for torch; clients are
threads of this one, each on a connection that stays open, without a pause. Every answer is compared
with what ``Index.search`` says of that query alone. Beside it the same calls without a server, one,
4 and 16 queries a call, also on one thread.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.costs import networks_to_serve
from benchmarks.records import markdown, read_record, write_shown
from laplace_metric.cli import main
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._options import parser
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.serve._command import require_packages
from laplace_metric.cli.sources import Pixels
from laplace_metric.datasets import load
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.search import SearchResult

K, TOGETHER = 5, (1, 4, 16)
LOADS = ((1, 1), (1, 32), (16, 1), (16, 32))
"""--batch of the server, and clients."""
QUERIES = 64


@dataclass(frozen=True)
class ServedProblem:
    """Images, the model, and how many requests are measured.

    Parameters
    ----------
    dataset, model : str
        Names of a data set, and of a function of ``networks_to_serve``.
    items, size : int
        Images of fit, index and calibration; side in pixels.
    requests : int
        Of each load.
    ending : str
        Of the image files.
    """

    dataset: str
    model: str
    items: int
    size: int
    requests: int
    ending: str


PROBLEMS = {
    "FashionMNIST, small network": ServedProblem(
        "fashion-mnist", "small_network", 2_000, 28, 480, ".png"
    ),
    "birds, EfficientNet-Lite0": ServedProblem("cub", "efficientnet", 300, 224, 64, ".jpg"),
}


def run(options: Namespace) -> None:
    """Measure both and write ``serve.json``.

    Raises
    ------
    InputError
        Without a data folder.
    """
    require_packages()
    torch.set_num_threads(1)
    data = options.data or os.environ.get("LAPLACE_METRIC_DATA")
    if data is None:
        raise InputError("--data is not given: name the folder of the image sets.")
    rows = []
    for name, problem in PROBLEMS.items():
        with tempfile.TemporaryDirectory() as folder:
            make_index(problem, Path(data), Path(folder))
            rows += [{"problem": name, **row} for row in measured(problem, Path(folder))]
    write_shown("serve", {"rows": rows}, options)


def make_index(problem: ServedProblem, data: Path, place: Path) -> None:
    """``index`` and ``queries`` in the folder ``place``.

    Raises
    ------
    InputError
        If a command fails; it has said why.
    """
    images = load(problem.dataset, "train", data, limit=problem.items + QUERIES)
    order = np.random.default_rng(0).permutation(len(images.labels))
    for rank, row in enumerate(order.tolist()):
        folder = place / ("photos" if rank >= QUERIES else "queries") / f"{int(images.labels[row])}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (images.pixels(slice(row, row + 1))[0] * 255).round().byte()
        array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
        Image.fromarray(array).save(folder / f"{row:05d}{problem.ending}", quality=95)
    model = f"{networks_to_serve.__name__}:{problem.model}"
    photos, posterior, index = (str(place / name) for name in ("photos", "posterior", "index"))
    how = ["--model", model, "--head", "append", "--size", str(problem.size), "--holdout", "0.5"]
    fit = ["fit", photos, *how, "--output", posterior]
    build = ["index", photos, "--posterior", posterior, "--output", index, "--trust-recipe"]
    for command in (fit, build):
        if main([*command, "--quiet"]):
            raise InputError(f"{command[0]} failed.")


def measured(problem: ServedProblem, place: Path) -> Iterator[dict[str, Any]]:
    """Rows of the calls without a server, and of each load."""
    index = place / "index"
    options = parser().parse_args(["serve", str(index), "--trust-recipe", "--quiet"])
    gallery = load_gallery(index, options, Reporter(quiet=True))
    files = sorted((place / "queries").glob("*/*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        yield from direct(gallery, problem, files)
        alone = [gallery.index.search(inputs_of(problem, [file]), K) for file in files]
    contents = [file.read_bytes() for file in files]
    for batch, clients in LOADS:
        with server(index, "--batch", str(batch)) as port:
            asked(port, contents, clients, clients)  # what is loaded at the first request
            answers, seconds = asked(port, contents, clients, problem.requests)
        found = compared(answers, alone)
        row = {"how": "served", "batch": batch, "clients": clients, "requests": problem.requests}
        rate = problem.requests / seconds
        yield {**row, "per_second": rate, **latencies([a[2] for a in answers]), **found}


def inputs_of(problem: ServedProblem, files: Sequence[Path]) -> torch.Tensor:
    """[B, C, H, W], read as the commands read them."""
    channels = 1 if problem.ending == ".png" else 3
    folder = files[0].parents[1]
    pixels = Pixels(folder, problem.size, channels)
    return pixels.batch([file.relative_to(folder).as_posix() for file in files])


def direct(
    gallery: LoadedIndex, problem: ServedProblem, files: Sequence[Path]
) -> Iterator[dict[str, Any]]:
    """``Index.search`` with the reading of the images, one query and several a call."""
    for size in TOGETHER:
        taken, begin = [], time.perf_counter()
        calls = problem.requests // size
        for call in range(calls):
            chosen = [files[(call * size + i) % len(files)] for i in range(size)]
            start = time.perf_counter()
            gallery.index.search(inputs_of(problem, chosen), K)
            taken.append(time.perf_counter() - start)
        rate = calls * size / (time.perf_counter() - begin)
        row = {"how": "Python", "batch": size, "clients": 1, "requests": calls * size}
        yield {**row, "per_second": rate, **latencies(taken)}


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99 % quantile."""
    return {"p50": float(np.quantile(seconds, 0.5)), "p99": float(np.quantile(seconds, 0.99))}


@contextmanager
def server(index: Path, *words: str) -> Iterator[int]:
    """The port of ``laplace-metric serve`` with this index."""
    root = Path(networks_to_serve.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "laplace_metric", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--quiet", "--trust-recipe", *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


Answered = tuple[int, int, float, Any]
"""Query, status, seconds, content."""


def asked(
    port: int, contents: Sequence[bytes], clients: int, requests: int
) -> tuple[list[Answered], float]:
    """Every answer, and the seconds from the first request to the last answer."""
    begin = threading.Barrier(clients + 1)

    def asks(client: int) -> list[Answered]:
        connection, answers = http.client.HTTPConnection("127.0.0.1", port, timeout=600), []
        connection.connect()
        begin.wait()
        for number in range(client, requests, clients):
            row, start = number % len(contents), time.perf_counter()
            connection.request("POST", f"/search?k={K}", contents[row])
            response = connection.getresponse()
            content = json.loads(response.read())
            answers.append((row, response.status, time.perf_counter() - start, content))
        connection.close()
        return answers

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(asks, client) for client in range(clients)]
        begin.wait()
        start = time.perf_counter()
        answers = [answer for one in running for answer in one.result()]
        return answers, time.perf_counter() - start


def compared(answers: Sequence[Answered], alone: Sequence[SearchResult]) -> dict[str, float]:
    """Lost requests, answers with other neighbours, largest gap of a probability or distance."""
    lost, others, gap = 0, 0, 0.0
    for row, status, _, content in answers:
        if status != 200:
            lost += 1
            continue
        result, near = alone[row], content["neighbours"]
        others += [n["id"] for n in near] != result.ids[0].tolist()
        for name in ("match_probability", "distance"):
            told = np.array([n[name] for n in near])
            gap = max(gap, float(np.abs(told - getattr(result, name)[0].numpy()).max()))
    return {"lost": lost, "other_neighbours": others, "largest_gap": gap}


def table() -> str:
    """Requests a second, latency and differences."""
    header = ["problem", "how", "clients", "a second", "p50", "p99", "lost", "largest difference"]
    lines = []
    for row in read_record("serve")["rows"]:
        how = f"{row['how']}, {'up to ' * (row['how'] == 'served')}{row['batch']} a call"
        times = [f"{1000 * row[name]:,.0f} ms" for name in ("p50", "p99")]
        served = [f"{row['lost']}", f"{row['largest_gap']:.0e}"] if "lost" in row else ["", ""]
        lines.append(
            [row["problem"], how, f"{row['clients']}", f"{row['per_second']:,.0f}", *times, *served]
        )
    return markdown(header, lines)


TABLES = {"serve": table}
