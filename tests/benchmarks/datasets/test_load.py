"""``load``: where data are looked for, what is fetched, and options that are refused."""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.datasets import NAMES, load
from benchmarks.datasets.remotes import BY_HAND, REMOTES, Remote, Request
from laplace_metric.errors import FileFormatError, InputError, LaplaceMetricError, UnknownNameError

SPLITS = {"hierarcaps": ("test",)}


FROM_FILES = [name for name in NAMES if name not in ("digits", "photographs")]


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(UnknownNameError, match=r"name='cifar100'.*'digits'.*'omniglot'"):
        load("cifar100")
    with pytest.raises(UnknownNameError, match=r"split='valid'.*'train', 'test'"):
        load("digits", "valid")


@pytest.mark.parametrize(
    ("name", "split"),
    [(name, split) for name in FROM_FILES for split in SPLITS.get(name, ("train", "test"))],
)
def test_empty_folder_from_argument_or_variable(
    name: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = "put the originals there by hand" if name in BY_HAND else "download=True"
    message = rf"{name}/{split} needs the file {re.escape(str(tmp_path))}.*{how}.*http"
    with pytest.raises(InputError, match=message):
        load(name, split, tmp_path)
    monkeypatch.setenv("LAPLACE_METRIC_DATA", str(tmp_path))
    with pytest.raises(InputError, match=message):
        load(name, split)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0"),
        ({"limit": -3}, "limit=-3"),
        (
            {"size": 8},
            "size=8 applies to photographs, omniglot, .*cub200, cars196, lfw only, not to 'digits'",
        ),
        ({"colour": True}, "colour=True applies to 'photographs' only"),
    ],
)
def test_bad_options(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("digits", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "limit", "rows"),
    [
        (5, None, [0, 1, 2, 3, 4]),
        (5, 9, [0, 1, 2, 3, 4]),
        (6, 3, [0, 2, 4]),
        (5, 2, [0, 2]),
        (5, 1, [0]),
        (0, 4, []),
    ],
)
def test_rows_are_evenly_spaced(n: int, limit: int | None, rows: list[int]) -> None:
    assert Request("mnist", "test", limit=limit).rows(n).tolist() == rows


def test_limit_of_a_large_set_does_not_overflow() -> None:
    rows = Request("mnist", "test", limit=60_000).rows(10**9)
    assert int(rows[-1]) == (60_000 - 1) * 10**9 // 60_000


KEY = ("kmnist", "test")


IMAGES = gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7, 9]))


LABELS = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 4, 5]))


PATHS = ("KMNIST/raw/t10k-images-idx3-ubyte.gz", "KMNIST/raw/t10k-labels-idx1-ubyte.gz")


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def asked() -> list[str]:
    """Addresses that the server was asked for."""
    return []


@pytest.fixture
def site(tmp_path: Path, asked: list[str]) -> Iterator[str]:
    """A small site on this machine that publishes the two files."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "images.gz").write_bytes(IMAGES)
    (folder / "labels.gz").write_bytes(LABELS)
    handler = type("Handler", (Quiet,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def registry(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of published files, pointing to the small site."""
    pytest.importorskip("pooch", reason="needs the extra laplace-metric[data]")
    hashes = (
        f"sha256:{hashlib.sha256(IMAGES).hexdigest()}",
        f"md5:{hashlib.md5(LABELS).hexdigest()}",
    )
    urls = (f"{site}/images.gz", f"{site}/labels.gz")
    publish(monkeypatch, urls, hashes)


def publish(
    monkeypatch: pytest.MonkeyPatch, urls: tuple[str, ...], hashes: tuple[str, ...]
) -> None:
    files = zip(PATHS, urls, hashes, strict=True)
    monkeypatch.setitem(REMOTES, KEY, tuple(Remote(*file) for file in files))


@pytest.mark.usefixtures("registry")
def test_fetches_into_a_new_folder_and_only_once(tmp_path: Path, asked: list[str]) -> None:
    data = tmp_path / "new" / "data"
    for _ in range(2):
        found = load(*KEY, data, download=True)
        assert found.images.flatten().tolist() == [7, 9]
        assert found.labels.tolist() == [4, 5]
    assert sorted(asked) == ["/images.gz", "/labels.gz"]
    assert sorted(p.name for p in (data / "KMNIST/raw").iterdir()) == [Path(p).name for p in PATHS]


@pytest.mark.usefixtures("registry")
def test_files_placed_by_hand_are_left_alone(tmp_path: Path, asked: list[str]) -> None:
    by_hand = tmp_path / PATHS[0].removesuffix(".gz")
    by_hand.parent.mkdir(parents=True)
    by_hand.write_bytes(gzip.decompress(IMAGES).replace(bytes([7, 9]), bytes([1, 2])))
    assert load(*KEY, tmp_path, download=True).images.flatten().tolist() == [1, 2]
    assert asked == ["/labels.gz"]


@pytest.mark.usefixtures("registry")
def test_wrong_hash_keeps_nothing(
    tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = (f"{site}/images.gz", f"{site}/labels.gz")
    publish(monkeypatch, urls, ("sha256:" + "0" * 64, "md5:" + "0" * 32))
    with pytest.raises(FileFormatError, match=r"images\.gz no longer.*file"):
        load(*KEY, tmp_path / "data", download=True)
    assert [p for p in (tmp_path / "data").rglob("*") if p.is_file()] == []


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(LaplaceMetricError, match=r"pip install 'laplace-metric\[data\]'"):
        load(*KEY, tmp_path, download=True)
    assert len(load("digits", download=True)) == 1297  # nothing to fetch, so nothing is needed


def test_table_of_published_files() -> None:
    for (name, split), remotes in REMOTES.items():
        for remote in remotes:
            algorithm, value = remote.hash.split(":")
            assert len(value) == {"md5": 32, "sha256": 64}[algorithm]
            assert re.fullmatch("[0-9a-f]+", value)
            assert remote.url.endswith(Path(remote.path).name), (name, split)
    assert len(REMOTES) == 12
