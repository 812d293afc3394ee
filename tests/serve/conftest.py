"""Indices on disk as the commands wrote them, and services of them."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from benchmarks.datasets import load
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.serve._guard import Limits
from laplace_metric.cli.serve._service import SearchService, ServedIndex
from tests.cli.workshop import trusting, write_images, write_model


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def real_images() -> tuple[np.ndarray, np.ndarray]:
    """FashionMNIST [N, 28, 28] where there is a data folder, else digits [N, 8, 8]."""
    folder = os.environ.get("LAPLACE_METRIC_DATA")
    if folder:
        found = load("fashion-mnist", "train", Path(folder), limit=2000)
        return found.images[:, 0].numpy(), found.labels.numpy()
    digits = load_digits()
    return (digits.images * 15.9).astype(np.uint8), digits.target


def index_folder(folder: Path, data: str, *fit: str) -> None:
    """Write ``folder/index`` of a file or a folder in it, as the commands do."""
    with inside(folder):
        assert trusting(["fit", data, *fit, "--output", "posterior", "--quiet"]) == 0
        built = ["index", data, "--posterior", "posterior", "--cross-fit", "0", "--quiet"]
        assert trusting(built) == 0


def index_vectors(folder: Path) -> None:
    """Write ``index`` of embeddings, not calibrated; ``queries.npy``."""
    digits = load_digits()
    x = digits.data.astype(np.float32) / 16
    np.savez(folder / "items.npz", embeddings=x[:300], labels=digits.target[:300])
    np.save(folder / "queries.npy", x[300:340])
    index_folder(folder, "items.npz")


def index_digits(folder: Path) -> None:
    """Write ``index`` of images of 8 x 8 that are scaled."""
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    write_images(folder / "photos", images[:300], digits.target[:300])
    write_model(folder, images[300:], digits.target[300:], "attacked_model")
    index_folder(folder, "photos", "--model", "attacked_model:embedder", "--size", "8")


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Path:
    """``index`` of images, ``queries`` that it has not seen, and the file of the model."""
    images, labels = real_images()
    folder = tmp_path_factory.mktemp("shop")
    write_images(folder / "photos", images[:700], labels[:700])
    write_images(folder / "queries", images[700:764], labels[700:764])
    write_model(folder, images[800:], labels[800:], "served_model")
    how = ("--model", "served_model:embedder", "--size", str(images.shape[-1]), "--holdout", "0.6")
    index_folder(folder, "photos", *how)
    return folder


@pytest.fixture(scope="session")
def vectors(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    index_vectors(folder)
    return folder


def options_of(folder: Path, *more: str) -> Namespace:
    return parser_of("serve").parse([str(folder / "index"), "--trust-recipe", "--quiet", *more])


Start = Callable[..., SearchService]


@pytest.fixture
def start() -> Iterator[Start]:
    """Services that are closed at the end."""
    services = []

    def started(folder: Path, *more: str, limits: Limits | None = None, **how) -> SearchService:
        limits = Limits() if limits is None else limits
        options = options_of(folder, *more)

        def loading():
            with inside(folder):
                return ServedIndex(options, limits, Reporter(quiet=True))

        services.append(SearchService(loading, limits, **how))
        return services[-1]

    yield started
    for service in services:
        service.close()


@pytest.fixture(scope="session")
def query_files(shop) -> list[Path]:
    return sorted((shop / "queries").glob("*/*.png"))


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path), dtype=np.float32)[None, None] / 255
