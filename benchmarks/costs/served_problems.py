"""What the load test of the server serves: indices made by the commands, and queries for them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.costs import networks_to_serve
from benchmarks.datasets import load
from benchmarks.encoders.texts import CLASSES, load_texts
from laplace_metric.cli import main
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError

N_QUERIES = 64


@dataclass(frozen=True)
class ServedProblem:
    """Images or texts, the model, and how many requests are measured.

    Parameters
    ----------
    dataset, model : str
        Names of a data set ("texts": summaries of SciPy's functions), and of a function of
        ``networks_to_serve`` ("MiniLM": ``minilm``).
    items, size : int
        Items of fit, index and calibration; side of images in pixels, 0 for texts.
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
    ending: str = ""

    @property
    def fitted_to(self) -> list[str]:
        """Options of ``fit``."""
        if not self.size:
            return [
                "--model",
                f"{networks_to_serve.__name__}:minilm",
                "--head",
                "append",
                "--holdout",
                "0.5",
            ]
        model = f"{networks_to_serve.__name__}:{self.model}"
        how = ["--head", "append", "--size", str(self.size), "--holdout", "0.5"]
        return ["--model", model, *how]


PROBLEMS = {
    "FashionMNIST, small network": ServedProblem(
        "fashion-mnist", "small_network", 2_000, 28, 480, ".png"
    ),
    "birds, EfficientNet-Lite0": ServedProblem("cub", "efficientnet", 300, 224, 64, ".jpg"),
    "CIFAR-10, EfficientNet-Lite0": ServedProblem("cifar10", "efficientnet", 300, 32, 64, ".jpg"),
    "texts, MiniLM": ServedProblem("texts", "MiniLM", 1_000, 0, 480),
}


@dataclass(frozen=True)
class ServedQueries:
    """What clients send, and what the model makes of it.

    Parameters
    ----------
    contents : sequence of bytes
    kind : str
        The Content-Type.
    inputs : sequence
        Files, or texts.
    pixels : Pixels or None
        How files become tensors.
    """

    contents: Sequence[bytes]
    kind: str
    inputs: Sequence[Any]
    pixels: Pixels | None = None

    def batch(self, rows: Sequence[int]) -> Any:
        """Inputs of the model, read as the commands read them."""
        chosen = [self.inputs[row] for row in rows]
        return chosen if self.pixels is None else self.pixels.batch(chosen)


def make_index(problem: ServedProblem, data: Path, place: Path) -> ServedQueries:
    """``index`` in the folder ``place``, and queries that it has not seen.

    Raises
    ------
    InputError
        If a command fails; it has said why.
    """
    items, queries = (_images if problem.size else _texts)(problem, data, place)
    posterior, index = (str(place / name) for name in ("posterior", "index"))
    fit = ["fit", str(items), *problem.fitted_to, "--output", posterior]
    build = ["index", str(items), "--posterior", posterior, "--output", index, "--trust-recipe"]
    for command in (fit, build):
        if main([*command, "--quiet"]):
            raise InputError(f"{command[0]} failed.")
    return queries


def _images(problem: ServedProblem, data: Path, place: Path) -> tuple[Path, ServedQueries]:
    images = load(problem.dataset, "train", data, limit=problem.items + N_QUERIES)
    order = np.random.default_rng(0).permutation(len(images.labels))
    for rank, row in enumerate(order.tolist()):
        kind = "photos" if rank >= N_QUERIES else "queries"
        folder = place / kind / f"{int(images.labels[row])}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (images.pixels(slice(row, row + 1))[0] * 255).round().byte()
        array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
        Image.fromarray(array).save(folder / f"{row:05d}{problem.ending}", quality=95)
    files = sorted((place / "queries").glob("*/*"))
    reader = Pixels(place / "queries", problem.size, 1 if problem.ending == ".png" else 3)
    names = [file.relative_to(place / "queries").as_posix() for file in files]
    contents = [file.read_bytes() for file in files]
    return place / "photos", ServedQueries(contents, "image/*", names, reader)


def _texts(problem: ServedProblem, data: Path, place: Path) -> tuple[Path, ServedQueries]:
    found = load_texts()
    order = np.random.default_rng(0).permutation(len(found))
    asked = [found.texts[row] for row in order[:N_QUERIES]]
    with (place / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        rows = order[N_QUERIES : N_QUERIES + problem.items].tolist()
        lines = [(found.texts[row], CLASSES[int(found.labels[row])]) for row in rows]
        csv.writer(file).writerows([("text", "label"), *lines])
    contents = [json.dumps({"texts": [text]}).encode() for text in asked]
    return place / "texts.csv", ServedQueries(contents, "application/json", asked)
