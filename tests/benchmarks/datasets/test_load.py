from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import NAMES, captions, load
from benchmarks.datasets.remotes import BY_HAND, Request
from laplace_metric.errors import InputError, UnknownNameError

SPLITS = {"hierarcaps": ("test",)}
FROM_FILES = [name for name in NAMES if name not in ("digits", "photographs")]


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(UnknownNameError, match=r"name='cifar100'.*'digits'.*'omniglot'"):
        load("cifar100")
    with pytest.raises(UnknownNameError, match=r"split='valid'.*'train', 'test'"):
        load("digits", "valid")


@pytest.mark.parametrize("name", FROM_FILES)
def test_no_folder_given(name: str) -> None:
    with pytest.raises(InputError, match=r"pass data=FOLDER .* or set .* LAPLACE_METRIC_DATA"):
        load(name, "test")


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


@pytest.mark.parametrize("name", BY_HAND)
def test_download_of_what_is_unpacked_by_hand(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not downloaded; put the originals there by hand"):
        load(name, "test", data=tmp_path, download=True)


@pytest.mark.parametrize("name", BY_HAND)
def test_bad_colour(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="colour=True applies to 'photographs' only"):
        load(name, data=tmp_path, colour=True)


def test_argument_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPLACE_METRIC_DATA", str(tmp_path))
    with pytest.raises(InputError, match="data='nowhere' is not a folder"):
        load("mnist", data="nowhere")


@pytest.mark.parametrize("data", [3, b"folder", 1.5])
def test_data_that_is_no_path(data: Any) -> None:
    for read in (load, captions):
        with pytest.raises(InputError, match=r"data=.* pass a path, as a string or pathlib\.Path"):
            read("emoji", data=data)


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
