"""Indices on disk as the commands wrote them, and applications of them."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._reporter import Reporter
from tests.cli.workshop import trusting, write_images, write_model
from tests.serve.server import require_extra

LETTERS = """
import os
import time

import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(26, 8)

    def forward(self, texts):
        time.sleep(float(os.environ.get("LETTERS_SECONDS", "0")))
        rows = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
        return self.head(torch.tensor(rows, dtype=torch.float32))


def embedder():
    torch.manual_seed(0)
    return Letters()
"""
WORDS = {
    "sea": ("ship", "wave", "harbour", "anchor", "salt", "gull", "mast", "tide", "net", "buoy"),
    "sky": ("cloud", "thunder", "wing", "star", "rain", "blue", "kite", "moon", "hail", "jet"),
}


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def index_folder(folder: Path, data: str, *fit: str, calibrated: bool = True) -> None:
    """Write ``folder/index`` of a file or a folder in it, as the commands do."""
    with inside(folder):
        assert trusting(["fit", data, *fit, "--output", "posterior", "--quiet"]) == 0
        how = [] if calibrated else ["--cross-fit", "0"]
        built = ["index", data, "--posterior", "posterior", *how, "--quiet"]
        assert trusting(built) == 0


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Path:
    """``index`` of images of digits, ``queries`` that it has not seen, the file of the model."""
    digits = load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
    folder = tmp_path_factory.mktemp("shop")
    write_images(folder / "photos", images[:700], labels[:700])
    write_images(folder / "queries", images[700:764], labels[700:764])
    write_model(folder, images[800:], labels[800:], "served_model")
    how = ("--model", "served_model:embedder", "--size", "8", "--holdout", "0.6")
    index_folder(folder, "photos", *how)
    return folder


@pytest.fixture(scope="session")
def vectors(tmp_path_factory) -> Path:
    """``index`` of embeddings that is not calibrated, and ``queries.npy``."""
    digits = load_digits()
    x = digits.data.astype(np.float32) / 16
    folder = tmp_path_factory.mktemp("vectors")
    np.savez(folder / "items.npz", embeddings=x[:300], labels=digits.target[:300])
    np.save(folder / "queries.npy", x[300:340])
    index_folder(folder, "items.npz", calibrated=False)
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """``index`` of texts."""
    folder, draw = tmp_path_factory.mktemp("library"), np.random.default_rng(0)
    kinds = draw.choice(list(WORDS), 240).tolist()
    rows = [(" ".join(draw.choice(WORDS[kind], 9)), kind) for kind in kinds]
    with (folder / "items.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "letters.py").write_text(LETTERS)
    index_folder(folder, "items.csv", "--model", "letters:embedder", "--holdout", "0.5")
    return folder


def gallery_of(folder: Path, *words: str) -> LoadedIndex:
    """What Python has of ``folder/index``."""
    options = parser_of("serve").parse([str(folder / "index"), "--trust-recipe", "--quiet", *words])
    with inside(folder):
        return load_gallery(options.index, options, Reporter(quiet=True))


Start = Callable[..., Any]


@pytest.fixture
def start(monkeypatch) -> Start:
    """Clients of the application that the words of the command make of ``folder/index``."""
    require_extra()
    from starlette.testclient import TestClient

    from laplace_metric.serve import create_app

    def started(folder: Path, *words: str, **how: Any) -> TestClient:
        named = " ".join(["index", "--trust-recipe", "--quiet", *words])
        monkeypatch.setenv("LAPLACE_METRIC_SERVE", named)
        with inside(folder):
            return TestClient(create_app(), **how)

    return started


@pytest.fixture(scope="session")
def query_files(shop) -> list[Path]:
    return sorted((shop / "queries").glob("*/*.png"))


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path), dtype=np.float32)[None, None] / 255
